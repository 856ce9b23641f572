//! Metrics of the store of shared limits, counted on the store's thread.

use std::time::Duration;

use metrics::{Counter, Gauge};

use super::families::{self, Family};

/// Result of a call to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOutcome {
    /// The store responded.
    Ok,
    /// The store did not respond in time.
    Late,
    /// There is no connection.
    Unreachable,
    /// The store rejected the call: it is a replica, is loading its data, is out of memory, or does not permit it.
    Rejected,
    /// Any other failure.
    Failed,
}

impl StoreOutcome {
    const LABELS: [&'static str; 5] = ["ok", "timed_out", "unreachable", "rejected", "failed"];
}

/// Metrics of the store.
#[derive(Clone, Debug)]
pub struct StoreMetrics {
    up: Gauge,
    instances: Gauge,
    counters: Gauge,
    calls: [Counter; StoreOutcome::LABELS.len()],
    seconds: Gauge,
    questions: Counter,
    granted: Counter,
    returned: Counter,
}

impl StoreMetrics {
    /// Creates the metrics; `gauge` and `counter` register them.
    pub(super) fn new(
        gauge: impl Fn(&Family) -> Gauge,
        counter: impl Fn(&Family, &[(&'static str, &str)]) -> Counter,
    ) -> Self {
        let metrics = Self {
            up: gauge(&families::STORE_UP),
            instances: gauge(&families::STORE_INSTANCES),
            counters: gauge(&families::STORE_COUNTERS),
            calls: StoreOutcome::LABELS
                .map(|outcome| counter(&families::STORE_CALLS, &[("outcome", outcome)])),
            seconds: gauge(&families::STORE_CALL_SECONDS),
            questions: counter(&families::STORE_QUESTIONS, &[]),
            granted: counter(&families::STORE_GRANTED, &[]),
            returned: counter(&families::STORE_RETURNED, &[]),
        };
        metrics.up.set(0.0);
        metrics.instances.set(1.0);
        metrics
    }

    /// Sets whether the store responds.
    pub fn up(&self, is_up: bool) {
        self.up.set(f64::from(u8::from(is_up)));
    }

    /// Sets the number of instances that share limits, and the number of counters with leases in this process.
    pub fn size(&self, instances: u32, counters: usize) {
        self.instances.set(f64::from(instances));
        self.counters.set(counters as f64);
    }

    /// Records the result and the duration of a call.
    pub fn called(&self, outcome: StoreOutcome, took: Duration) {
        self.calls[outcome as usize].increment(1);
        if outcome == StoreOutcome::Ok {
            self.seconds.set(took.as_secs_f64());
        }
    }

    /// Records a request for a lease: the units granted and the units returned.
    pub fn asked(&self, granted: u32, returned: u32) {
        self.questions.increment(1);
        self.granted.increment(granted.into());
        self.returned.increment(returned.into());
    }
}
