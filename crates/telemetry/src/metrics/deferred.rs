//! Metrics of deferred calls, counted on the thread that communicates with their store.

use std::time::Duration;

use metrics::{Counter, Gauge};

use super::families::{self, Family};

/// Why a call went to the dead-letter stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadReason {
    /// The maximum number of attempts has failed.
    Attempts,
    /// It was too old.
    MaxAge,
    /// The status code of the response is final.
    Status,
    /// It cannot be decoded.
    Invalid,
}

impl DeadReason {
    const ALL: [Self; 4] = [Self::Attempts, Self::MaxAge, Self::Status, Self::Invalid];

    /// Returns the label value, which is also the reason in the stream.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Attempts => "attempts",
            Self::MaxAge => "max_age",
            Self::Status => "status",
            Self::Invalid => "invalid",
        }
    }
}

/// Result of accepting a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptOutcome {
    Stored,
    /// The maximum number of calls is stored.
    Full,
    /// The store did not confirm it in time.
    Unavailable,
}

impl AcceptOutcome {
    const LABELS: [&'static str; 3] = ["stored", "full", "unavailable"];
}

/// Metrics of the deferred calls of one rule.
#[derive(Clone, Debug)]
pub struct DeferredMetrics {
    accepted: [Counter; AcceptOutcome::LABELS.len()],
    sent: Counter,
    retried: Counter,
    claimed: Counter,
    dead: [Counter; DeadReason::ALL.len()],
    stored: Gauge,
    oldest: Gauge,
    dead_letters: Gauge,
}

impl DeferredMetrics {
    /// Creates the metrics of `rule`; `gauge` and `counter` register them.
    pub(super) fn new(
        rule: &str,
        gauge: impl Fn(&Family, &[(&'static str, &str)]) -> Gauge,
        counter: impl Fn(&Family, &[(&'static str, &str)]) -> Counter,
    ) -> Self {
        let labels = [("rule", rule)];
        Self {
            accepted: AcceptOutcome::LABELS.map(|outcome| {
                counter(&families::DEFERRED_ACCEPTED, &[("rule", rule), ("outcome", outcome)])
            }),
            sent: counter(&families::DEFERRED_SENT, &labels),
            retried: counter(&families::DEFERRED_RETRIED, &labels),
            claimed: counter(&families::DEFERRED_CLAIMED, &labels),
            dead: DeadReason::ALL.map(|reason| {
                counter(&families::DEFERRED_DEAD, &[("rule", rule), ("reason", reason.as_str())])
            }),
            stored: gauge(&families::DEFERRED_STORED, &labels),
            oldest: gauge(&families::DEFERRED_OLDEST, &labels),
            dead_letters: gauge(&families::DEFERRED_DEAD_LETTERS, &labels),
        }
    }

    /// Records the result of accepting a call.
    pub fn record_accepted(&self, outcome: AcceptOutcome) {
        self.accepted[outcome as usize].increment(1);
    }

    /// Records that the upstream has a call.
    pub fn record_sent(&self) {
        self.sent.increment(1);
    }

    /// Records that an attempt failed and another one follows.
    pub fn record_retried(&self) {
        self.retried.increment(1);
    }

    /// Records calls taken over from other instances.
    pub fn record_claimed(&self, calls: u64) {
        self.claimed.increment(calls);
    }

    /// Records a call that went to the dead-letter stream.
    pub fn record_dead(&self, reason: DeadReason) {
        self.dead[reason as usize].increment(1);
    }

    /// Sets the number of stored calls, the age of the oldest, and the number of dead letters.
    pub fn set_sizes(&self, stored: u64, oldest: Duration, dead_letters: u64) {
        self.stored.set(stored as f64);
        self.oldest.set(oldest.as_secs_f64());
        self.dead_letters.set(dead_letters as f64);
    }
}
