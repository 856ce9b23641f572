//! The place where requests are decided, for all transports; it connects the network with the rules.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::answer::{Answer, Undecided};
use super::request::Request;
use super::rules::Rules;
use super::service::{Attempt, Service};
use super::settings::Settings;
use super::sharing::{Sharing, Short, Supply};
use crate::clock::Clock;
use crate::drain::{DrainManager, Readiness};
use crate::engine::Policy;
use crate::limiter::timestamp::Timestamp;
use crate::limiter::{Fleet, Limiter};
use crate::store::handle::Handle;
use crate::store::supply::{self, Waiting};
use crate::telemetry::metrics::{Hits, Metrics, Origin, RateLimits, RuleMetrics};

/// Decides requests; shared by all listeners.
#[derive(Debug)]
pub struct Desk {
    deciding: ArcSwap<Deciding>,
    /// Held while the service is replaced, because rules and settings change independently.
    replacing: Mutex<()>,
    /// Whether rules have been loaded.
    has_rules: watch::Sender<bool>,
    limiter: Arc<Limiter>,
    clock: Arc<Clock>,
    drain: Arc<DrainManager>,
    stats: Arc<RateLimits>,
    /// The store of shared limits, if configured.
    store: Option<Handle>,
}

/// The service, and the metrics of native rules, in their order.
#[derive(Clone, Debug)]
struct Deciding {
    service: Service,
    native: Arc<[RuleMetrics]>,
}

impl Desk {
    /// Creates a desk that decides by `service` with the counters of `limiter`.
    pub fn new(
        service: Service,
        limiter: Arc<Limiter>,
        clock: Arc<Clock>,
        drain: Arc<DrainManager>,
        (stats, store): (Arc<RateLimits>, Option<Handle>),
    ) -> Self {
        Self {
            has_rules: watch::Sender::new(service.rules.is_some()),
            deciding: ArcSwap::from_pointee(Deciding { service, native: Arc::default() }),
            replacing: Mutex::default(),
            limiter,
            clock,
            drain,
            stats,
            store,
        }
    }

    /// Decides a request and records it in the statistics. If this instance has no units of a shared limit, the request
    /// waits for the store, for at most as long as the limit permits.
    ///
    /// # Errors
    /// [`Undecided`] if there is no response.
    pub async fn decide(&self, request: &Request) -> Result<Answer, Undecided> {
        let began = self.clock.now();
        let mut waiting = Waiting::default();
        let mut decided = self.attempt(request, Some(&mut waiting));
        while let Ok(None) = decided {
            // At most one wait: in the second attempt, a counter that is out of units is over its limit.
            std::mem::take(&mut waiting).done().await;
            decided = self.attempt(request, None);
        }
        let decided = decided.map(Option::unwrap_or_default);
        self.stats.call(self.clock.now().since(began), decided.is_err());
        decided
    }

    /// Decides and records a request. Returns `None` if the store must be queried first; `waiting` then waits for it.
    fn attempt(
        &self,
        request: &Request,
        mut waiting: Option<&mut Waiting>,
    ) -> Result<Option<Answer>, Undecided> {
        let (now, deciding) = (self.clock.now(), self.deciding.load());
        let attempt = Attempt { now, civil: self.clock.civil(now), is_first: waiting.is_some() };
        let supply = |short: Short<'_>| self.supply(short, now, waiting.as_deref_mut());
        let decided = deciding.service.decide_supplied(request, &self.limiter, attempt, supply);
        if let Ok(Some(answer)) = &decided {
            self.count(request, answer);
            for (rule, outcome) in &answer.stats.rules {
                deciding.native.get(rule.0).into_iter().for_each(|rule| rule.record(*outcome));
            }
        }
        decided
    }

    fn supply(&self, short: Short<'_>, now: Timestamp, waiting: Option<&mut Waiting>) -> Supply {
        let Some(store) = self.store.as_ref().filter(|store| !store.is_away()) else { return Supply::Away };
        let limiter = &self.limiter;
        let (counter, claimed, wait) = match short {
            Short::Tally(tally, wait) => {
                (limiter.shared_counter_to_count(tally), limiter.acquire_units_to_count(tally, now), wait)
            }
            Short::Check(check, wait) => {
                (limiter.shared_counter(check), limiter.acquire_units(check, now), wait)
            }
        };
        let wait = if waiting.is_some() { wait } else { Duration::ZERO };
        match (store.supply(counter, claimed, wait), waiting) {
            (supply::Supply::There, _) => Supply::There,
            (supply::Supply::Asked(lacking), Some(waiting)) => {
                waiting.add(lacking);
                Supply::Asked
            }
            (supply::Supply::Asked(_) | supply::Supply::Rejected(_), _) => Supply::Rejected,
            (supply::Supply::Away, _) => Supply::Away,
        }
    }

    fn count(&self, request: &Request, answer: &Answer) {
        for descriptor in &answer.stats.descriptors {
            let hits = Hits {
                total: descriptor.total_hits,
                over_limit: descriptor.over_limit,
                near_limit: descriptor.near_limit,
                within_limit: descriptor.within_limit,
                shadow_mode: descriptor.shadow_mode,
            };
            let origin = if descriptor.has_values { Origin::Requests } else { Origin::Rules };
            self.stats.count((&request.domain, &descriptor.key, origin), hits);
        }
        if answer.stats.domain_not_found > 0 {
            self.stats.domain_not_found(&request.domain, answer.stats.domain_not_found);
        }
        if answer.stats.global_shadow_mode {
            self.stats.shadowed();
        }
    }

    /// Returns the rules in force (empty if there are none yet) and the time.
    pub(super) fn rules_now(&self) -> (Arc<Rules>, Timestamp) {
        (self.deciding.load().service.rules.clone().unwrap_or_default(), self.clock.now())
    }

    /// Replaces the rules.
    pub fn set_rules(&self, rules: Arc<Rules>) {
        self.replace(|deciding| deciding.service.rules = Some(rules));
        self.has_rules.send_replace(true);
    }

    /// Replaces the settings.
    pub fn set_settings(&self, settings: Arc<Settings>) {
        self.replace(|deciding| deciding.service.settings = settings);
    }

    /// Replaces the native rules, which apply in their domains. `metrics` records their decisions.
    pub fn set_native(&self, policy: Arc<Policy>, metrics: &Metrics) {
        let native = policy.rules.rules().iter().map(|rule| metrics.rule(&rule.name)).collect();
        self.replace(|deciding| {
            deciding.service.native = Some(policy);
            deciding.native = native;
        });
    }

    /// Replaces the fleet with which the documents' limits are shared.
    pub fn set_fleet(&self, fleet: Fleet) {
        self.replace(|deciding| {
            if let Some(sharing) = &mut deciding.service.sharing {
                *sharing = Arc::new(Sharing { fleet, ..Sharing::clone(sharing) });
            }
        });
    }

    fn replace(&self, change: impl FnOnce(&mut Deciding)) {
        let _replacing = self.replacing.lock();
        let mut deciding = Deciding::clone(&self.deciding.load());
        change(&mut deciding);
        self.deciding.store(Arc::new(deciding));
    }

    /// Returns the rules in force, one per line.
    pub fn dump(&self) -> String {
        self.deciding.load().service.rules.as_deref().map(Rules::dump).unwrap_or_default()
    }

    /// Returns the statistics.
    pub fn stats(&self) -> &RateLimits {
        &self.stats
    }

    /// Returns the graceful-shutdown state.
    pub fn drain(&self) -> &Arc<DrainManager> {
        &self.drain
    }

    /// Returns whether clients should use this instance.
    pub fn is_healthy(&self) -> bool {
        let has_rules = *self.has_rules.borrow() || !self.deciding.load().service.settings.needs_rules;
        has_rules && self.drain.is_ready()
    }

    /// Returns a watch on changes of the health, from now on.
    pub(super) fn watch_health(&self) -> HealthWatch {
        HealthWatch { rules: self.has_rules.subscribe(), readiness: self.drain.readiness() }
    }
}

/// Detects when [`Desk::is_healthy`] may have changed.
#[derive(Debug)]
pub(super) struct HealthWatch {
    rules: watch::Receiver<bool>,
    readiness: Readiness,
}

impl HealthWatch {
    /// Completes when the health may have changed.
    pub(super) async fn changed(&mut self) {
        tokio::select! {
            // The sender exists as long as the desk.
            _ = self.rules.changed() => {}
            () = self.readiness.changed() => {}
        }
    }
}
