//! Queues of rules whose requests wait for room, by rule name, across reloads and workers.

use std::sync::Arc;
use std::time::Duration;

use super::by_rule::ByRule;
use super::exporter::{MetricRegistry, render_histograms};
use super::families;
use crate::atomic_counter::AtomicCounter;
use crate::histogram::Histogram;

/// Maximum number of rules that are counted separately. Further rules are counted together.
const MAX_RULES: usize = 1000;

/// Why a request was rejected that would have had to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitRejection {
    QueueFull,
    /// A request that comes first has taken its place in a full queue.
    Evicted,
    /// It could not be admitted in time, by the number of requests before it and the refill of the limit.
    NoTime,
    /// It has waited for as long as it may.
    Expired,
    /// The requests that wait in all queues take as much memory as they may.
    NoMemory,
}

impl WaitRejection {
    /// All reasons, in order of declaration.
    pub const ALL: [Self; 5] = [Self::QueueFull, Self::Evicted, Self::NoTime, Self::Expired, Self::NoMemory];

    /// Returns the label value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Evicted => "evicted",
            Self::NoTime => "no_time",
            Self::Expired => "expired",
            Self::NoMemory => "no_memory",
        }
    }
}

/// Metrics of the queues of one rule, which all workers share. Only requests that wait write them.
#[derive(Debug, Default)]
pub struct WaitMetrics {
    joined: AtomicCounter,
    left: AtomicCounter,
    waits: Histogram,
    rejections: [AtomicCounter; WaitRejection::ALL.len()],
}

/// Guard that counts a request as waiting until it is dropped.
#[derive(Debug)]
pub struct WaitingGuard(Arc<WaitMetrics>);

impl WaitMetrics {
    /// Counts a request as waiting, until the guard is dropped.
    pub fn start_wait(self: &Arc<Self>) -> WaitingGuard {
        self.joined.increment();
        WaitingGuard(Arc::clone(self))
    }

    /// Records the time that an admitted request has waited.
    pub fn record_wait(&self, waited: Duration) {
        self.waits.record(waited);
    }

    pub fn record_rejection(&self, reason: WaitRejection) {
        self.rejections[reason as usize].increment();
    }

    /// Returns the number of requests that wait now.
    pub fn waiting(&self) -> u64 {
        // Read first, so that requests which join and leave meanwhile do not make the difference negative.
        let left = self.left.get();
        self.joined.get().saturating_sub(left)
    }
}

impl Drop for WaitingGuard {
    fn drop(&mut self) {
        self.0.left.increment();
    }
}

/// Metrics of every rule with a queue since the start, by name.
pub(super) type WaitRegistry = ByRule<Arc<WaitMetrics>, MAX_RULES>;

impl WaitRegistry {
    /// Sets the gauges and counters of all rules.
    pub(super) fn fill(&self, sums: &MetricRegistry) {
        for (name, rule) in self.iter() {
            sums.set_gauge(&families::WAITING, &[("rule", name)], rule.waiting() as f64);
            sums.set_labelled_counters(
                &families::WAIT_REJECTIONS,
                ("rule", name),
                "reason",
                WaitRejection::ALL.map(WaitRejection::as_str),
                &rule.rejections,
            );
        }
    }

    /// Renders the histograms of all rules; empty without rules.
    pub(super) fn render_waits(&self) -> String {
        if self.is_empty() {
            return String::new();
        }
        let waits = self.iter().map(|(name, rule)| (name, &rule.waits));
        render_histograms(&families::WAIT_TIME, "rule", waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_requests_are_counted_until_their_guard_is_dropped() {
        let mut rules = WaitRegistry::default();
        let guards = [rules.get_or_insert("q").start_wait(), rules.get_or_insert("q").start_wait()];
        assert_eq!(rules.get_or_insert("q").waiting(), 2);
        drop(guards);
        assert_eq!(rules.get_or_insert("q").waiting(), 0);
    }

    #[test]
    fn wait_rejections_are_indexed_in_order() {
        for (index, reason) in WaitRejection::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
        }
    }
}
