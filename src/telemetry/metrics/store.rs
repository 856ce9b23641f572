//! What is counted of the store of shared limits: on its own thread, beside all requests.

use std::time::Duration;

use metrics::{Counter, Gauge};

use super::families::{self, Family};

/// How a call of the store ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOutcome {
    /// It responded.
    Ok,
    /// It did not respond in time.
    Late,
    /// There is no connection.
    Unreachable,
    /// It rejected the call: it is a replica, is loading its data, is out of memory, or does not permit it.
    Rejected,
    /// Anything else.
    Failed,
}

impl StoreOutcome {
    const LABELS: [&'static str; 5] = ["ok", "timed_out", "unreachable", "rejected", "failed"];
}

/// The numbers of the store.
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
    /// The metrics, as `gauge` and `counter` register them.
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

    /// The store responds, or does not.
    pub fn up(&self, is_up: bool) {
        self.up.set(f64::from(u8::from(is_up)));
    }

    /// So many instances share limits, and so many counters have claims here.
    pub fn size(&self, instances: u32, counters: usize) {
        self.instances.set(f64::from(instances));
        self.counters.set(counters as f64);
    }

    /// A call ended after so long.
    pub fn called(&self, outcome: StoreOutcome, took: Duration) {
        self.calls[outcome as usize].increment(1);
        if outcome == StoreOutcome::Ok {
            self.seconds.set(took.as_secs_f64());
        }
    }

    /// A counter was asked about: so many units were granted, and so many given back.
    pub fn asked(&self, granted: u32, returned: u32) {
        self.questions.increment(1);
        self.granted.increment(granted.into());
        self.returned.increment(returned.into());
    }
}
