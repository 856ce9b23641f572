//! A worker's view of one configuration generation: the data for decisions and headers, in addition to the rules.

use std::rc::Rc;
use std::sync::Arc;

use super::header_tables::HeaderTables;
use crate::clock::Clock;
use crate::engine::Policy;
use crate::identify::Attributes;
use crate::limiter::Limiter;
use crate::limiter::key::KeyHash;
use crate::limiter::timestamp::Timestamp;
use crate::observe::key_writer::{KeyWriter, LogKeys, key_of};
use crate::observe::top_keys::{TopKeys, WorkerId, WorkerSketch};
use crate::remote::service::{self, RemoteService};
use crate::response::Visibility;
use crate::response::rate_limit_headers::Notation;
use crate::response::rejection::{PreparedHeaders, RejectionResponse};
use crate::rules::RuleIndex;
use crate::rules::key::incomplete_key;
use crate::rules::outcome::DecisionOutcome;
use crate::rules::remote_limit::RemoteLimit;
use crate::rules::rule::{Action, LimitSource, Rule};
use crate::store::handle::StoreHandle;
use crate::telemetry::metrics::{Metrics, RuleMetrics, WaitMetrics};

/// The limits of one configuration generation, as a worker uses them.
#[derive(Debug)]
pub struct LimitsView {
    pub(super) policy: Arc<Policy>,
    pub(super) limiter: Arc<Limiter>,
    pub(super) clock: Arc<Clock>,
    /// The store of shared limits, if configured.
    pub(super) store: Option<StoreHandle>,
    metrics: Box<[RuleMetrics]>,
    /// Metrics of the queues of each rule that has some; empty if no rule has.
    pub(super) waits: Box<[Option<Arc<WaitMetrics>>]>,
    /// Heaviest keys of each rule with a key, on this worker.
    sketches: Box<[Option<Arc<WorkerSketch>>]>,
    /// Writes keys for operators.
    pub(super) key_writer: KeyWriter,
    /// Names and notations of the limits in headers.
    pub(super) header_tables: HeaderTables,
    /// Precomputed headers of each rule's rejections, if possible.
    prepared: Box<[Option<PreparedHeaders>]>,
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
    /// How operators see keys; `None` for the default.
    pub log_keys: Option<LogKeys>,
}

impl LimitsView {
    /// Creates a view of `policy`, whose rules refer to `services`. Connections of `before` to unchanged services are
    /// kept.
    pub fn new(
        policy: &Arc<Policy>,
        services: &[service::RemoteServiceSettings],
        before: Option<&Self>,
        resources: LimitResources<'_>,
    ) -> Self {
        let LimitResources { limiter, clock, metrics, store, .. } = resources;
        let rules = policy.rules.rules();
        let header_tables = HeaderTables::new(policy, limiter.hasher());
        let visible = policy.response.ratelimit_headers != Visibility::Off && !policy.response.ietf_headers;
        let prepare =
            |((rule, rejection), notations): ((&Rule, &RejectionResponse), &[Notation])| match notations {
                [only] if visible && !rule.is_elastic() => PreparedHeaders::new(&rejection.headers, only),
                _ => None,
            };
        let prepared = rules
            .iter()
            .zip(&policy.rejections)
            .zip(header_tables.notations.iter().map(|of| &**of))
            .map(prepare);
        let service = |settings| {
            let mut known = before.into_iter().flat_map(|before| &before.services);
            let connect = || connect(settings, clock, metrics);
            known.find(|kept| kept.settings() == settings).map_or_else(connect, Rc::clone)
        };
        Self {
            prepared: prepared.collect(),
            metrics: rules.iter().map(|rule| metrics.rule(&rule.name)).collect(),
            waits: wait_metrics(rules, metrics),
            sketches: sketches(rules, resources),
            key_writer: KeyWriter {
                visibility: resources.log_keys,
                ipv6_prefix: policy.identify.ipv6_prefix,
                hasher: limiter.hasher(),
            },
            header_tables,
            services: services.iter().map(service).collect(),
            default_rejection: RejectionResponse::default(),
            policy: Arc::clone(policy),
            limiter: Arc::clone(limiter),
            clock: Arc::clone(clock),
            store: store.cloned(),
        }
    }

    /// Records the decision of a rule.
    pub fn record(&self, rule: RuleIndex, outcome: DecisionOutcome) {
        if let Some(metrics) = self.metrics.get(rule.0) {
            metrics.record(outcome);
        }
    }

    /// Returns the metrics of a rule's queues, if it has some.
    pub(super) fn wait_metrics(&self, rule: RuleIndex) -> Option<&Arc<WaitMetrics>> {
        self.waits.get(rule.0)?.as_ref()
    }

    /// Counts the decision among those of its key. `text` is called only if the key becomes one of the heaviest.
    pub(super) fn record_key(
        &self,
        rule: RuleIndex,
        outcome: DecisionOutcome,
        key: KeyHash,
        now: Timestamp,
        text: impl FnOnce() -> Arc<str>,
    ) {
        if let Some(Some(sketch)) = self.sketches.get(rule.0) {
            sketch.record(key, outcome, now, text);
        }
    }

    /// Counts a decision on a request without a complete key, for a rule that has a key.
    pub(super) fn record_incomplete_key(&self, rule: RuleIndex, outcome: DecisionOutcome, now: Timestamp) {
        if let Some(Some(sketch)) = self.sketches.get(rule.0) {
            let text = || self.key_writer.incomplete_key().into();
            sketch.record(incomplete_key(self.limiter.hasher()), outcome, now, text);
        }
    }

    /// Whether operators see keys at all.
    pub fn shows_keys(&self) -> bool {
        self.key_writer.is_visible()
    }

    /// Returns the key of a request under a rule as operators may see it; `None` if the rule has no key.
    pub fn key_text(&self, rule: RuleIndex, request: &Attributes<'_>) -> Option<String> {
        self.key_writer.request_key(&self.policy.rules, rule, request)
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
        self.prepared.get(rule.0)?.as_ref()
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

/// Returns the metrics of the queues of each rule; nothing if no rule has queues.
fn wait_metrics(rules: &[Rule], metrics: &Metrics) -> Box<[Option<Arc<WaitMetrics>>]> {
    let of_rule = |rule: &Rule| rule.wait().map(|_| metrics.wait(&rule.name));
    match rules.iter().any(|rule| rule.wait().is_some()) {
        true => rules.iter().map(of_rule).collect(),
        false => Box::default(),
    }
}

/// Returns the sketch of each rule with a key. Sketches whose keys are written differently start anew.
fn sketches(rules: &[Rule], resources: LimitResources<'_>) -> Box<[Option<Arc<WorkerSketch>>]> {
    let sketch = |rule: &Rule| {
        let meaning = format!("{} {:?}", key_of(rule)?, resources.log_keys);
        Some(resources.top_keys.sketch(resources.worker, &rule.name, &meaning))
    };
    rules.iter().map(sketch).collect()
}
