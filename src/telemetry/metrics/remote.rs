//! What is asked of other rate limit services: by all workers together, for a question costs far more than a count.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::super::histogram::{self, Histogram};
use super::exporter::{Registry, escaped, header, histogram_lines};
use super::families;
use super::worker::bump;

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
    ended: [AtomicU64; RemoteOutcome::LABELS.len()],
    duration: Histogram,
}

impl RemoteMetrics {
    /// A question ended, after so long if it was asked to the end.
    pub fn asked(&self, outcome: RemoteOutcome, took: Option<Duration>) {
        bump(&self.ended[outcome as usize]);
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
        for (outcome, count) in RemoteOutcome::LABELS.iter().zip(&metrics.ended) {
            let labels = [("service", &**service), ("outcome", *outcome)];
            registry.count(&families::REMOTE_REQUESTS, &labels, count.load(Ordering::Relaxed));
        }
    }
}

/// The histogram of all services; nothing if there are none.
pub(super) fn durations(remotes: &Remotes) -> String {
    if remotes.is_empty() {
        return String::new();
    }
    let mut text = header(&families::REMOTE_DURATION);
    for (service, metrics) in remotes {
        let service = format!("service=\"{}\"", escaped(service));
        let mut totals = histogram::Totals::default();
        totals.add(&metrics.duration);
        histogram_lines(&mut text, families::REMOTE_DURATION.name, &service, &totals);
    }
    text
}
