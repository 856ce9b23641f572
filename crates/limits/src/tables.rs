//! Data for decisions and headers that all workers share in one configuration generation.
//!
//! The thread that reloads computes them before the generation is in force. With thousands of rules that takes
//! milliseconds, which no request should wait for.

use std::sync::Arc;

use super::header_tables::HeaderTables;
use weir_limiter::key::KeyHasher;
use weir_policy::engine::Policy;
use weir_policy::response::Visibility;
use weir_policy::response::rate_limit_headers::Notation;
use weir_policy::response::rejection::PreparedHeaders;
use weir_policy::rules::rule::Rule;
use weir_telemetry::metrics::{Metrics, RuleMetrics, WaitMetrics};
use weir_telemetry::observe::key_writer::{KeyWriter, LogKeys};
use weir_telemetry::observe::top_keys::{TopKeys, WorkerId, WorkerSketch};

/// Heaviest keys of each rule with a key, on one worker.
pub(super) type RuleSketchTable = Arc<[Option<Arc<WorkerSketch>>]>;

/// Tables by rule, in file order.
#[derive(Debug)]
pub struct LimitTables {
    pub(super) metrics: Box<[RuleMetrics]>,
    /// Metrics of the queues of each rule that has some; empty if no rule has.
    pub(super) waits: Box<[Option<Arc<WaitMetrics>>]>,
    /// By worker; empty before workers have started.
    sketches: Box<[RuleSketchTable]>,
    log_keys: Option<LogKeys>,
    /// Writes keys for operators.
    pub(super) key_writer: KeyWriter,
    /// Names and notations of the limits in headers.
    pub(super) header_tables: HeaderTables,
    /// Precomputed headers of each rule's rejections, if possible.
    pub(super) prepared: Box<[Option<PreparedHeaders>]>,
}

impl LimitTables {
    /// Computes the tables of `policy`, whose keys are hashed by `hasher`. Operators see keys as `log_keys` says.
    pub fn new(
        policy: &Policy,
        hasher: KeyHasher,
        metrics: &Metrics,
        top_keys: &TopKeys,
        log_keys: Option<LogKeys>,
    ) -> Self {
        let rules = policy.rules.rules();
        let header_tables = HeaderTables::new(policy, hasher);
        let visible = policy.response.ratelimit_headers != Visibility::Off && !policy.response.ietf_headers;
        let prepare = |(rule, notations): (&Rule, &[Notation])| match notations {
            [only] if visible && !rule.is_elastic() && rule.feedback().is_none() => {
                PreparedHeaders::new(&rule.rejection.headers, only, &policy.response.names)
            }
            _ => None,
        };
        let prepared = rules.iter().zip(header_tables.notations.iter().map(|of| &**of)).map(prepare);
        let of_worker = |worker| sketches(rules, top_keys, worker, log_keys);
        Self {
            prepared: prepared.collect(),
            metrics: rules.iter().map(|rule| metrics.rule(&rule.name)).collect(),
            waits: wait_metrics(rules, metrics),
            sketches: top_keys.workers().map(of_worker).collect(),
            log_keys,
            key_writer: KeyWriter { visibility: log_keys, ipv6_prefix: policy.identify.ipv6_prefix, hasher },
            header_tables,
        }
    }

    /// Returns how operators see keys; `None` for the default.
    pub const fn log_keys(&self) -> Option<LogKeys> {
        self.log_keys
    }

    /// Returns the heaviest keys on a worker, which computes them itself if it has started after the tables were.
    pub(super) fn sketches(&self, policy: &Policy, top_keys: &TopKeys, worker: WorkerId) -> RuleSketchTable {
        let computed = self.sketches.get(worker.index()).map(Arc::clone);
        computed.unwrap_or_else(|| sketches(policy.rules.rules(), top_keys, worker, self.log_keys))
    }
}

/// Returns the metrics of the queues of each rule; nothing if no rule has queues.
fn wait_metrics(rules: &[Rule], metrics: &Metrics) -> Box<[Option<Arc<WaitMetrics>>]> {
    let of_rule = |rule: &Rule| rule.wait().map(|_| metrics.wait(&rule.name));
    match rules.iter().any(|rule| rule.wait().is_some()) {
        true => rules.iter().map(of_rule).collect(),
        false => Box::default(),
    }
}

/// Returns the sketch of each rule with a key.
fn sketches(
    rules: &[Rule],
    top_keys: &TopKeys,
    worker: WorkerId,
    log_keys: Option<LogKeys>,
) -> RuleSketchTable {
    rules.iter().map(|rule| top_keys.rule_sketch(worker, rule, log_keys)).collect()
}
