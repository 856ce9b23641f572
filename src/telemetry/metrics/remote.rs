//! What is asked of other rate limit services: by all workers together, for a question costs far more than a count.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::super::count::Count;
use super::super::histogram::Histogram;
use super::exporter::{Registry, histograms};
use super::families;

/// How a question ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteOutcome {
    /// The request may pass.
    Ok,
    /// The request may not.
    OverLimit,
    /// No answer in time.
    Late,
    /// No answer, or one that means nothing.
    Failed,
    /// It was not asked: the service does not answer, or too many questions wait.
    Skipped,
    /// The client has left before the answer came.
    Abandoned,
}

impl RemoteOutcome {
    /// The label values, in the order of their declaration.
    const LABELS: [&'static str; 6] = ["ok", "over_limit", "timed_out", "failed", "skipped", "abandoned"];
}

/// The numbers of one service.
#[derive(Debug, Default)]
pub struct RemoteMetrics {
    ended: [Count; RemoteOutcome::LABELS.len()],
    duration: Histogram,
}

impl RemoteMetrics {
    /// A question ended, after so long if it was asked to the end.
    pub fn asked(&self, outcome: RemoteOutcome, took: Option<Duration>) {
        self.ended[outcome as usize].increment();
        if let Some(took) = took {
            self.duration.record(took);
        }
    }
}

/// The services that were ever asked, by where they are.
pub(super) type Remotes = BTreeMap<Box<str>, Arc<RemoteMetrics>>;

/// Registers the questions to all services, by outcome.
pub(super) fn requests(remotes: &Remotes, registry: &Registry) {
    for (service, metrics) in remotes {
        let (service, labels) = (("service", &**service), RemoteOutcome::LABELS);
        registry.labelled(&families::REMOTE_REQUESTS, service, "outcome", labels, &metrics.ended);
    }
}

/// The histogram of all services; nothing if there are none.
pub(super) fn durations(remotes: &Remotes) -> String {
    if remotes.is_empty() {
        return String::new();
    }
    let each = remotes.iter().map(|(service, metrics)| (&**service, &metrics.duration));
    histograms(&families::REMOTE_DURATION, "service", each)
}
