//! Where one worker records the decisions of each rule.
//!
//! The thread that reloads creates the recorders of all workers. What is counted for each rule has its place here.

use std::sync::Arc;

use weir_policy::rules::rule::Rule;
use weir_telemetry::metrics::{Metrics, RuleMetrics, WaitMetrics};
pub(super) use weir_telemetry::metrics::{
    StatedCostMetrics, StatedCostOutcome, StreamMetrics, StreamOutcome,
};
use weir_telemetry::observe::key_writer::LogKeys;
use weir_telemetry::observe::top_keys::{TopKeys, WorkerId, WorkerSketch};

/// Recorders of all rules on one worker, in file order.
pub(super) type RuleRecorders = Arc<[RuleRecorder]>;

/// Records the decisions of one rule on one worker.
#[derive(Clone, Debug)]
pub(super) struct RuleRecorder {
    /// Metrics, which all workers share.
    pub(super) metrics: RuleMetrics,
    /// Heaviest keys on this worker, if the rule has a key.
    pub(super) sketch: Option<Arc<WorkerSketch>>,
    /// Metrics of the rule's queues, if it has some.
    pub(super) waits: Option<Arc<WaitMetrics>>,
    /// Metrics of the costs that responses state, if they do.
    pub(super) stated_costs: Option<Arc<StatedCostMetrics>>,
    /// Metrics of the rule's limits inside streams, if it has some.
    pub(super) streams: Option<Arc<StreamMetrics>>,
}

impl RuleRecorder {
    /// Registers the metrics of a rule, and returns a recorder that belongs to no worker.
    pub(super) fn new(rule: &Rule, metrics: &Metrics) -> Self {
        let counters = metrics.rule(&rule.name);
        if rule.limits().iter().any(|limit| limit.stated.is_some()) {
            counters.show_unreadable_limits();
        }
        let limiting = rule.action.limiting();
        let stated_cost = limiting.and_then(|limiting| limiting.cost_model.response_fields());
        let streams = limiting.and_then(|limiting| limiting.streams.as_ref());
        Self {
            metrics: counters,
            sketch: None,
            waits: rule.wait().map(|_| metrics.wait(&rule.name)),
            stated_costs: stated_cost.map(|_| metrics.stated_cost(&rule.name)),
            streams: streams.map(|_| metrics.streams(&rule.name)),
        }
    }

    /// Returns these recorders of `rules` for a worker. Operators see keys as `log_keys` says.
    pub(super) fn on_worker(
        recorders: &[Self],
        rules: &[Rule],
        top_keys: &TopKeys,
        worker: WorkerId,
        log_keys: Option<LogKeys>,
    ) -> RuleRecorders {
        let recorder = |(recorder, rule): (&Self, &Rule)| Self {
            sketch: top_keys.rule_sketch(worker, rule, log_keys),
            ..recorder.clone()
        };
        recorders.iter().zip(rules).map(recorder).collect()
    }
}
