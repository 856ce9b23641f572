//! Data for decisions and headers that all workers share in one configuration generation.
//!
//! The thread that reloads computes them before the generation is in force. With thousands of rules that takes
//! milliseconds, which no request should wait for.

use std::sync::Arc;

use super::header_tables::HeaderTables;
use super::rule_recorder::{RuleRecorder, RuleRecorders};
use weir_limiter::key::KeyHasher;
use weir_policy::engine::Policy;
use weir_telemetry::metrics::Metrics;
use weir_telemetry::observe::key_writer::{KeyWriter, LogKeys};
use weir_telemetry::observe::top_keys::{TopKeys, WorkerId};

/// What is recorded of each rule, and what headers say about it.
#[derive(Debug)]
pub struct LimitTables {
    /// Recorders that belong to no worker, in file order.
    recorders: Box<[RuleRecorder]>,
    /// By worker; empty before workers have started.
    of_workers: Box<[RuleRecorders]>,
    /// Whether requests of any rule wait in a queue.
    pub(super) has_queues: bool,
    log_keys: Option<LogKeys>,
    /// Writes keys for operators.
    pub(super) key_writer: KeyWriter,
    /// Names and notations of the limits in headers.
    pub(super) header_tables: HeaderTables,
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
        let recorders: Box<[_]> = rules.iter().map(|rule| RuleRecorder::new(rule, metrics)).collect();
        let on_worker = |worker| RuleRecorder::on_worker(&recorders, rules, top_keys, worker, log_keys);
        Self {
            of_workers: top_keys.workers().map(on_worker).collect(),
            recorders,
            has_queues: rules.iter().any(|rule| rule.wait().is_some()),
            log_keys,
            key_writer: KeyWriter { visibility: log_keys, ipv6_prefix: policy.identify.ipv6_prefix, hasher },
            header_tables: HeaderTables::new(policy, hasher),
        }
    }

    /// Returns how operators see keys; `None` for the default.
    pub const fn log_keys(&self) -> Option<LogKeys> {
        self.log_keys
    }

    /// Returns the recorders of a worker, which creates them itself if it has started after the tables were computed.
    pub(super) fn recorders(&self, policy: &Policy, top_keys: &TopKeys, worker: WorkerId) -> RuleRecorders {
        let created = self.of_workers.get(worker.index()).map(Arc::clone);
        let rules = policy.rules.rules();
        let create = || RuleRecorder::on_worker(&self.recorders, rules, top_keys, worker, self.log_keys);
        created.unwrap_or_else(create)
    }
}
