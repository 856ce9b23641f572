//! A worker's view of one configuration generation: the data for decisions and headers, in addition to the rules.

use std::rc::Rc;
use std::sync::Arc;

use super::rule_recorder::{RuleRecorder, RuleRecorders};
use super::tables::LimitTables;
use weir_limiter::Limiter;
use weir_limiter::key::KeyHash;
use weir_limiter::timestamp::Timestamp;
use weir_net::clock::Clock;
use weir_policy::engine::Policy;
use weir_policy::identify::Attributes;
use weir_policy::response::rejection::{PreparedHeaders, RejectionResponse};
use weir_policy::rules::RuleIndex;
use weir_policy::rules::key::incomplete_key;
use weir_policy::rules::outcome::DecisionOutcome;
use weir_policy::rules::remote_limit::RemoteLimit;
use weir_policy::rules::rule::{Action, LimitSource};
use weir_store::handle::StoreHandle;
use weir_store::remote::service::{self, RemoteService};
use weir_telemetry::metrics::{Metrics, WaitMetrics};
use weir_telemetry::observe::top_keys::{LockedSketches, TopKeys, WorkerId, WorkerSketch};

/// The limits of one configuration generation, as a worker uses them.
#[derive(Debug)]
pub struct LimitsView {
    pub(super) policy: Arc<Policy>,
    pub(super) limiter: Arc<Limiter>,
    pub(super) clock: Arc<Clock>,
    /// The store of shared limits, if configured.
    pub(super) store: Option<StoreHandle>,
    /// What all workers share.
    pub(super) tables: Arc<LimitTables>,
    /// Where this worker records the decisions of each rule.
    recorders: RuleRecorders,
    services: Box<[Rc<RemoteService>]>,
    default_rejection: RejectionResponse,
}

/// Resources that all generations share.
#[derive(Clone, Copy, Debug)]
pub struct LimitResources<'a> {
    /// The counters of this process.
    pub limiter: &'a Arc<Limiter>,
    /// The process's clock.
    pub clock: &'a Arc<Clock>,
    /// Metrics in which decisions are recorded.
    pub metrics: &'a Metrics,
    /// The store of shared limits, if configured.
    pub store: Option<&'a StoreHandle>,
    /// Heaviest keys of each rule.
    pub top_keys: &'a TopKeys,
    /// The worker that counts keys there.
    pub worker: WorkerId,
}

impl LimitsView {
    /// Creates a view of `policy`, whose rules refer to `services`. Connections of `before` to unchanged services are
    /// kept. A worker does this between requests, so it does nothing for each rule, except at the start.
    pub fn new(
        policy: &Arc<Policy>,
        tables: &Arc<LimitTables>,
        services: &[service::RemoteServiceSettings],
        before: Option<&Self>,
        resources: LimitResources<'_>,
    ) -> Self {
        let LimitResources { limiter, clock, metrics, store, top_keys, worker } = resources;
        let service = |settings| {
            let mut known = before.into_iter().flat_map(|before| &before.services);
            let connect = || connect(settings, clock, metrics);
            known.find(|kept| kept.settings() == settings).map_or_else(connect, Rc::clone)
        };
        Self {
            recorders: tables.recorders(policy, top_keys, worker),
            tables: Arc::clone(tables),
            services: services.iter().map(service).collect(),
            default_rejection: RejectionResponse::default(),
            policy: Arc::clone(policy),
            limiter: Arc::clone(limiter),
            clock: Arc::clone(clock),
            store: store.cloned(),
        }
    }

    /// Returns where the decisions of a rule are recorded.
    pub(super) fn recorder(&self, rule: RuleIndex) -> Option<&RuleRecorder> {
        self.recorders.get(rule.0)
    }

    pub fn record(&self, rule: RuleIndex, outcome: DecisionOutcome) {
        if let Some(recorder) = self.recorder(rule) {
            recorder.metrics.record(outcome);
        }
    }

    /// Counts a request that states a limit for a rule which cannot be read.
    #[cold]
    pub(super) fn record_unreadable_limit(&self, rule: RuleIndex) {
        if let Some(recorder) = self.recorder(rule) {
            recorder.metrics.record_unreadable_limit();
        }
    }

    /// Returns the metrics of a rule's queues, if it has some.
    pub(super) fn wait_metrics(&self, rule: RuleIndex) -> Option<&Arc<WaitMetrics>> {
        self.recorder(rule)?.waits.as_ref()
    }

    /// Counts the decision among those of its key. `text` is called only if the key becomes one of the heaviest. `locked`
    /// becomes the lock of the sketches, for the decisions of further rules.
    #[inline]
    pub(super) fn record_key<'a>(
        &'a self,
        locked: &mut Option<LockedSketches<'a>>,
        rule: RuleIndex,
        outcome: DecisionOutcome,
        key: KeyHash,
        now: Timestamp,
        text: impl FnOnce() -> Arc<str>,
    ) {
        if let Some(sketch) = self.sketch(rule) {
            locked.get_or_insert_with(|| sketch.lock_worker(now)).record(sketch, key, outcome, text);
        }
    }

    /// Counts a decision on a request without a complete key, for a rule that has a key.
    pub(super) fn record_incomplete_key(&self, rule: RuleIndex, outcome: DecisionOutcome, now: Timestamp) {
        if let Some(sketch) = self.sketch(rule) {
            let text = || self.tables.key_writer.incomplete_key().into();
            let key = incomplete_key(self.limiter.hasher());
            sketch.lock_worker(now).record(sketch, key, outcome, text);
        }
    }

    fn sketch(&self, rule: RuleIndex) -> Option<&Arc<WorkerSketch>> {
        self.recorder(rule)?.sketch.as_ref()
    }

    /// Whether operators see keys at all.
    pub fn shows_keys(&self) -> bool {
        self.tables.key_writer.is_visible()
    }

    /// Returns the key of a request under a rule as operators may see it; `None` if the rule has no key.
    pub fn key_text(&self, rule: RuleIndex, request: &Attributes<'_>) -> Option<String> {
        self.tables.key_writer.request_key(&self.policy.rules, rule, request)
    }

    /// Returns the rule's name.
    pub fn rule_name(&self, rule: RuleIndex) -> &str {
        self.policy.rules.get(rule).map_or("", |rule| &rule.name)
    }

    /// Returns the rule's local reply for rejections.
    pub fn rejection(&self, rule: RuleIndex) -> &RejectionResponse {
        self.policy.rejection(rule).unwrap_or(&self.default_rejection)
    }

    pub(super) fn prepared(&self, rule: RuleIndex) -> Option<&PreparedHeaders> {
        self.tables.header_tables.prepared(&self.policy, rule)
    }

    /// Returns the rule's remote limit and its service, if it has one.
    pub(super) fn remote_limit(&self, rule: RuleIndex) -> Option<(&RemoteLimit, &Rc<RemoteService>)> {
        let Action::Limit(limiting) = &self.policy.rules.get(rule)?.action else { return None };
        match &limiting.source {
            LimitSource::Remote(remote) => Some((remote, self.services.get(remote.service)?)),
            LimitSource::Local | LimitSource::Shared(_) => None,
        }
    }
}

/// Creates a service and starts to connect to it.
fn connect(
    settings: &service::RemoteServiceSettings,
    clock: &Arc<Clock>,
    metrics: &Metrics,
) -> Rc<RemoteService> {
    let metrics = metrics.remote(&settings.address.to_string());
    let service = RemoteService::new(settings.clone(), Arc::clone(clock), metrics);
    tokio::task::spawn_local(service.connect());
    Rc::new(service)
}
