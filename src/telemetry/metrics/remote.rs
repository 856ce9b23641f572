//! Metrics of calls to other rate limit services. All workers share the counters: a call costs far more than counting.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::super::count::Count;
use super::super::histogram::Histogram;
use super::exporter::{Registry, histograms};
use super::families;

/// Result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteOutcome {
    /// The service admits the request.
    Ok,
    /// The service rejects the request.
    OverLimit,
    /// The service did not respond in time.
    Late,
    /// The call failed, or the response was invalid.
    Failed,
    /// No call was made, because the service does not respond or too many calls are queued.
    Skipped,
    /// The client left before the response arrived.
    Abandoned,
}

impl RemoteOutcome {
    /// Label values, in order of declaration.
    const LABELS: [&'static str; 6] = ["ok", "over_limit", "timed_out", "failed", "skipped", "abandoned"];
}

/// Metrics of one service.
#[derive(Debug, Default)]
pub struct RemoteMetrics {
    ended: [Count; RemoteOutcome::LABELS.len()],
    duration: Histogram,
}

impl RemoteMetrics {
    /// Records the result of a call, and its duration if it was completed.
    pub fn asked(&self, outcome: RemoteOutcome, took: Option<Duration>) {
        self.ended[outcome as usize].increment();
        if let Some(took) = took {
            self.duration.record(took);
        }
    }
}

/// Metrics of every service that was ever configured, by address.
pub(super) type Remotes = BTreeMap<Box<str>, Arc<RemoteMetrics>>;

/// Registers the calls to all services, by outcome.
pub(super) fn requests(remotes: &Remotes, registry: &Registry) {
    for (service, metrics) in remotes {
        let (service, labels) = (("service", &**service), RemoteOutcome::LABELS);
        registry.labelled(&families::REMOTE_REQUESTS, service, "outcome", labels, &metrics.ended);
    }
}

/// Renders the histograms of all services; empty if there are none.
pub(super) fn durations(remotes: &Remotes) -> String {
    if remotes.is_empty() {
        return String::new();
    }
    let each = remotes.iter().map(|(service, metrics)| (&**service, &metrics.duration));
    histograms(&families::REMOTE_DURATION, "service", each)
}
