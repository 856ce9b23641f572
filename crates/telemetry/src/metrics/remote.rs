//! Metrics of calls to other rate limit services. All workers share the counters: a call costs far more than counting.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::super::atomic_counter::AtomicCounter;
use super::super::histogram::Histogram;
use super::exporter::{MetricRegistry, render_histograms};
use super::families;

/// Result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteOutcome {
    /// The service admits the request.
    Ok,
    /// The service rejects the request.
    OverLimit,
    /// The service did not respond in time.
    TimedOut,
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
    outcomes: [AtomicCounter; RemoteOutcome::LABELS.len()],
    duration: Histogram,
}

impl RemoteMetrics {
    /// Records the result of a call, and its duration if it was completed.
    pub fn record_call(&self, outcome: RemoteOutcome, duration: Option<Duration>) {
        self.outcomes[outcome as usize].increment();
        if let Some(duration) = duration {
            self.duration.record(duration);
        }
    }
}

/// Metrics of every service that was ever configured, by address.
pub(super) type RemoteRegistry = BTreeMap<Box<str>, Arc<RemoteMetrics>>;

/// Registers the calls to all services, by outcome.
pub(super) fn register_requests(remotes: &RemoteRegistry, registry: &MetricRegistry) {
    for (service, metrics) in remotes {
        let (service, labels) = (("service", &**service), RemoteOutcome::LABELS);
        registry.set_labelled_counters(
            &families::REMOTE_REQUESTS,
            service,
            "outcome",
            labels,
            &metrics.outcomes,
        );
    }
}

/// Renders the histograms of all services; empty if there are none.
pub(super) fn render_durations(remotes: &RemoteRegistry) -> String {
    if remotes.is_empty() {
        return String::new();
    }
    let each = remotes.iter().map(|(service, metrics)| (&**service, &metrics.duration));
    render_histograms(&families::REMOTE_DURATION, "service", each)
}
