//! Handler of all transports: decides requests, and connects the network with the rules.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::call_log;
use super::decider::{DecisionAttempt, DocumentCounter, DocumentPreview, RlsDecider, UnknownLimit};
use super::key_sketches::KeySketches;
use super::request::RlsRequest;
use super::response::{RlsError, RlsResponse};
use super::rules::{DescriptorRules, DocumentLimit};
use super::settings::RlsSettings;
use super::shared_limits::{LeaseNeed, SharedDocumentLimits};
use super::stats::RuleDecision;
use weir_limiter::key::KeyHash;
use weir_limiter::leases::acquisition::LeaseDecision;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{Fleet, Limiter};
use weir_net::clock::Clock;
use weir_net::drain::{DrainManager, Readiness};
use weir_policy::engine::Policy;
use weir_store::handle::StoreHandle;
use weir_store::lease_wait::{LeaseWaits, WaitGroup};
use weir_telemetry::metrics::{DescriptorHits, Metrics, NameOrigin, RlsStats, RuleMetrics, UnservedReason};
use weir_telemetry::observe::key_writer::{KeyWriter, LogKeys};
use weir_telemetry::observe::top_keys::{TopKeys, WorkerId};

/// Decides requests; shared by all listeners.
#[derive(Debug)]
pub struct RlsHandler {
    state: ArcSwap<HandlerState>,
    /// Held while the state is replaced, because rules and settings change independently.
    update_lock: Mutex<()>,
    /// Whether there are the rules that the settings require of a healthy service.
    has_required_rules: watch::Sender<bool>,
    limiter: Arc<Limiter>,
    clock: Arc<Clock>,
    drain: Arc<DrainManager>,
    stats: Arc<RlsStats>,
    /// The store of shared limits, if configured.
    store: Option<StoreHandle>,
    /// Heaviest keys of each limit.
    top_keys: Arc<TopKeys>,
}

/// The decider, and the metrics of native rules, in their order.
#[derive(Clone, Debug)]
struct HandlerState {
    decider: RlsDecider,
    native_metrics: Arc<[RuleMetrics]>,
    /// How operators see keys; `None` for the default.
    log_keys: Option<LogKeys>,
    sketches: KeySketches,
}

impl RlsHandler {
    /// Creates a handler that decides by `decider` with the counters of `limiter`.
    pub fn new(
        decider: RlsDecider,
        limiter: Arc<Limiter>,
        clock: Arc<Clock>,
        drain: Arc<DrainManager>,
        stats: Arc<RlsStats>,
        store: Option<StoreHandle>,
        top_keys: Arc<TopKeys>,
    ) -> Self {
        let sketches = KeySketches::new(&decider, &top_keys, key_writer(&decider, None, &limiter), None);
        let has_required_rules = watch::Sender::new(has_required_rules(&decider));
        let state = HandlerState { decider, native_metrics: Arc::default(), log_keys: None, sketches };
        Self {
            state: ArcSwap::from_pointee(state),
            update_lock: Mutex::default(),
            has_required_rules,
            limiter,
            clock,
            drain,
            stats,
            store,
            top_keys,
        }
    }

    /// Returns a further worker, beside those of the proxy.
    pub fn add_worker(&self) -> WorkerId {
        let worker = self.top_keys.add_worker();
        self.update_workers();
        worker
    }

    /// Starts to count keys of the workers that have been added.
    pub fn update_workers(&self) {
        self.update_state(|_| {});
    }

    /// Decides a request and records it in the statistics. If this instance has no units of a shared limit, the request
    /// waits for the store, for at most as long as the limit permits.
    ///
    /// # Errors
    /// [`RlsError`] if there is no response.
    pub async fn decide(&self, request: &RlsRequest, worker: WorkerId) -> Result<RlsResponse, RlsError> {
        let started = self.clock.now();
        let mut lease_waits = LeaseWaits::default();
        let mut result = self.try_decide(request, worker, true, &mut lease_waits);
        while let Ok(None) = result {
            // If the store had none, a counter that is out of units is over its limit. If it has not responded in time, the
            // fallback for an unreachable store decides.
            lease_waits.wait().await;
            result = self.try_decide(request, worker, false, &mut lease_waits);
        }
        let result = result.map(Option::unwrap_or_default);
        if tracing::enabled!(tracing::Level::DEBUG) {
            call_log::log_call(request, &result);
        }
        self.stats.record_call(self.clock.now().since(started), result.is_err());
        result
    }

    /// Decides and records a request. Returns `None` if the store must be queried first; `lease_waits` then waits for it.
    fn try_decide(
        &self,
        request: &RlsRequest,
        worker: WorkerId,
        is_first: bool,
        lease_waits: &mut LeaseWaits,
    ) -> Result<Option<RlsResponse>, RlsError> {
        let (now, state) = (self.clock.now(), self.state.load());
        let attempt = DecisionAttempt { now, civil: self.clock.civil_time_at(now), is_first };
        let request_units = |need: LeaseNeed<'_>| self.request_units(need, now, lease_waits);
        let result = state.decider.decide_with_leases(request, &self.limiter, attempt, request_units);
        if let Ok(Some(response)) = &result {
            self.record_stats(request, response);
            self.stats.record_outcome(response.outcome());
            state.sketches.record(worker, &state.decider, request, &response.stats, now);
            for RuleDecision { rule, outcome, .. } in &response.stats.rule_decisions {
                state.native_metrics.get(rule.0).into_iter().for_each(|rule| rule.record(*outcome));
            }
        }
        result
    }

    fn request_units(
        &self,
        need: LeaseNeed<'_>,
        now: Timestamp,
        lease_waits: &mut LeaseWaits,
    ) -> LeaseDecision {
        let Some(store) = &self.store else {
            return LeaseDecision::Unavailable;
        };
        let limiter = &self.limiter;
        let (group, counter, wait) = match need {
            LeaseNeed::Count(tally, wait) => {
                (WaitGroup::Documents, limiter.shared_counter_to_count(tally), wait)
            }
            LeaseNeed::Check(check, rule, wait) => {
                (WaitGroup::Rule(rule), limiter.shared_counter(check), wait)
            }
        };
        let max_wait = wait.unwrap_or_else(|| store.default_wait());
        let left = max_wait.saturating_sub(lease_waits.waited(group));
        let acquire = |source| match need {
            LeaseNeed::Count(tally, _) => limiter.acquire_units_to_count(source, tally, now),
            LeaseNeed::Check(check, ..) => limiter.acquire_units_from(source, check, now),
        };
        let left = Some(left).filter(|_| !max_wait.is_zero());
        store.decide_lease(group, counter, left, now, lease_waits, acquire)
    }

    fn record_stats(&self, request: &RlsRequest, response: &RlsResponse) {
        for descriptor in &response.stats.descriptors {
            let hits = DescriptorHits {
                total: descriptor.total_hits,
                over_limit: descriptor.over_limit,
                near_limit: descriptor.near_limit,
                within_limit: descriptor.within_limit,
                shadow_mode: descriptor.shadow_mode,
            };
            let origin = if descriptor.has_values { NameOrigin::Requests } else { NameOrigin::Rules };
            self.stats.record_hits(&request.domain, &descriptor.key, origin, hits);
        }
        if response.stats.without_limit > 0 {
            self.stats.record_without_limit(&request.domain, response.stats.without_limit);
        }
        if response.stats.domain_not_found > 0 {
            self.stats.record_unknown_domain(&request.domain, response.stats.domain_not_found);
        }
        if response.stats.global_shadow_mode {
            self.stats.record_shadowed();
        }
    }

    /// Counts calls of `client` that were not served, and logs them, at intervals, with what is wrong.
    pub(super) fn record_unserved(
        &self,
        reason: UnservedReason,
        calls: u64,
        client: Option<SocketAddr>,
        detail: &dyn Display,
    ) {
        self.stats.record_unserved(reason, calls, client, self.clock.now(), detail);
    }

    /// Returns the rules in force (empty if there are none yet) and the time.
    pub(super) fn rules_and_time(&self) -> (Arc<DescriptorRules>, Timestamp) {
        (self.state.load().decider.rules.clone().unwrap_or_default(), self.clock.now())
    }

    /// Replaces the rules.
    pub fn set_rules(&self, rules: Arc<DescriptorRules>) {
        self.update_state(|state| state.decider.rules = Some(rules));
    }

    /// Replaces the settings.
    pub fn set_settings(&self, settings: Arc<RlsSettings>) {
        self.update_state(|state| state.decider.settings = settings);
    }

    /// Replaces the native rules, which apply in their domains, by the `current` ones. `metrics` records their decisions.
    /// Operators see keys as the second part of `current` says.
    pub fn set_native_rules(
        &self,
        metrics: &Metrics,
        current: impl FnOnce() -> (Arc<Policy>, Option<LogKeys>),
    ) {
        self.update_state(|state| {
            // Under the lock, so that of two concurrent calls the last one does not bring older rules back.
            let (policy, log_keys) = current();
            let rules = policy.rules.rules();
            state.native_metrics = rules.iter().map(|rule| metrics.rule(&rule.name)).collect();
            state.decider.native_policy = Some(policy);
            state.log_keys = log_keys;
        });
    }

    /// Replaces the fleet with which the documents' limits are shared.
    pub fn set_fleet(&self, fleet: Fleet) {
        self.update_state(|state| {
            if let Some(shared_limits) = &mut state.decider.shared_limits {
                *shared_limits =
                    Arc::new(SharedDocumentLimits { fleet, ..SharedDocumentLimits::clone(shared_limits) });
            }
        });
    }

    fn update_state(&self, change: impl FnOnce(&mut HandlerState)) {
        let _guard = self.update_lock.lock();
        let before = self.state.load();
        let mut state = HandlerState::clone(&before);
        change(&mut state);
        let writer = key_writer(&state.decider, state.log_keys, &self.limiter);
        let kept = (&before.decider, &before.sketches);
        state.sketches = KeySketches::new(&state.decider, &self.top_keys, writer, Some(kept));
        let has_required_rules = has_required_rules(&state.decider);
        self.state.store(Arc::new(state));
        self.has_required_rules.send_replace(has_required_rules);
    }

    /// Returns what the documents' limits would do to a descriptor; nothing is counted.
    pub fn preview(&self, domain: &str, entries: &[(String, String)]) -> DocumentPreview {
        self.state.load().decider.preview(domain, entries, &self.limiter, self.clock.now())
    }

    pub fn document_limits(&self) -> Vec<DocumentLimit> {
        self.state.load().decider.rules.as_deref().map(DescriptorRules::limits).unwrap_or_default()
    }

    /// Returns the counter of a descriptor.
    ///
    /// # Errors
    /// [`UnknownLimit`] if no limit of the documents counts such descriptors.
    pub fn document_counter(
        &self,
        domain: &str,
        entries: &[(String, String)],
    ) -> Result<DocumentCounter, UnknownLimit> {
        let state = self.state.load();
        state.decider.counter(domain, entries, &self.limiter, state.sketches.writer())
    }

    /// Returns the counter with this key under a limit of the documents; `None` if that is unlimited.
    pub fn counter_with_key(&self, limit: &DocumentLimit, key: KeyHash) -> Option<DocumentCounter> {
        self.state.load().decider.counter_with_key(limit, key)
    }

    /// Returns the rules in force, one per line.
    pub fn dump_rules(&self) -> String {
        self.state.load().decider.rules.as_deref().map(DescriptorRules::dump).unwrap_or_default()
    }

    /// Returns the statistics.
    pub fn stats(&self) -> &RlsStats {
        &self.stats
    }

    /// Returns the graceful-shutdown state.
    pub fn drain(&self) -> &Arc<DrainManager> {
        &self.drain
    }

    /// Returns whether clients should use this instance.
    pub fn is_healthy(&self) -> bool {
        *self.has_required_rules.borrow() && self.drain.is_ready()
    }

    /// Returns a watch on changes of the health, from now on.
    pub(super) fn watch_health(&self) -> HealthWatch {
        HealthWatch { rules: self.has_required_rules.subscribe(), readiness: self.drain.readiness() }
    }
}

fn key_writer(decider: &RlsDecider, log_keys: Option<LogKeys>, limiter: &Limiter) -> KeyWriter {
    let policy = decider.native_policy.as_deref();
    let ipv6_prefix = policy.map_or(0, |policy| policy.identify.ipv6_prefix);
    KeyWriter { visibility: log_keys, ipv6_prefix, hasher: limiter.hasher() }
}

fn has_required_rules(decider: &RlsDecider) -> bool {
    let (rules, settings) = (decider.rules.as_ref(), &decider.settings);
    let has_domains = rules.is_some_and(|rules| !rules.is_empty());
    (rules.is_some() || !settings.needs_rules) && (has_domains || !settings.needs_domains)
}

/// Detects when [`RlsHandler::is_healthy`] may have changed.
#[derive(Debug)]
pub(super) struct HealthWatch {
    rules: watch::Receiver<bool>,
    readiness: Readiness,
}

impl HealthWatch {
    /// Completes when the health may have changed.
    pub(super) async fn changed(&mut self) {
        tokio::select! {
            // The sender exists as long as the handler.
            _ = self.rules.changed() => {}
            () = self.readiness.changed() => {}
        }
    }
}
