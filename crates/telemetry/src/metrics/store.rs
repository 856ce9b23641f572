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
    TimedOut,
    /// There is no connection.
    Unreachable,
    /// The store rejected the call: it is a replica, is loading its data, is out of memory, or does not permit it.
    Rejected,
    /// Any other failure.
    Failed,
    /// The connection was closed because the store sent replies that were not requested.
    Unrequested,
}

impl StoreOutcome {
    const LABELS: [&'static str; 6] = ["ok", "timed_out", "unreachable", "rejected", "failed", "unrequested"];
}

/// Why a request that waited for the store has no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// The store did not respond before the wait had elapsed, or the units that it granted came too late.
    Late,
    /// The query was not sent: the response of an overloaded store would have come too late.
    NotSent,
    /// The queue of queries to the store was full.
    QueueFull,
}

impl Unanswered {
    /// All reasons.
    pub const ALL: [Self; 3] = [Self::Late, Self::NotSent, Self::QueueFull];

    /// Returns the value of the label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Late => "late",
            Self::NotSent => "not_sent",
            Self::QueueFull => "queue_full",
        }
    }
}

#[derive(Clone, Debug)]
pub struct StoreMetrics {
    up: Gauge,
    instances: Gauge,
    counters: Gauge,
    calls: [Counter; StoreOutcome::LABELS.len()],
    call_seconds: Gauge,
    unanswered: [Counter; Unanswered::ALL.len()],
    wait_seconds: Gauge,
    part: Gauge,
    global_up: Gauge,
    regions: Gauge,
    errands_made: Counter,
    errands_failed: Counter,
    lease_requests: Counter,
    granted_units: Counter,
    returned_units: Counter,
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
            call_seconds: gauge(&families::STORE_CALL_SECONDS),
            unanswered: Unanswered::ALL
                .map(|reason| counter(&families::STORE_UNANSWERED, &[("reason", reason.as_str())])),
            wait_seconds: gauge(&families::STORE_WAIT_SECONDS),
            part: gauge(&families::STORE_PART),
            global_up: gauge(&families::STORE_GLOBAL_UP),
            regions: gauge(&families::STORE_REGIONS),
            errands_made: counter(&families::STORE_ERRANDS, &[("outcome", "ok")]),
            errands_failed: counter(&families::STORE_ERRANDS, &[("outcome", "failed")]),
            lease_requests: counter(&families::STORE_LEASE_REQUESTS, &[]),
            granted_units: counter(&families::STORE_GRANTED, &[]),
            returned_units: counter(&families::STORE_RETURNED, &[]),
        };
        metrics.up.set(0.0);
        metrics.instances.set(1.0);
        metrics
    }

    /// Sets whether the store responds.
    pub fn set_up(&self, is_up: bool) {
        self.up.set(f64::from(u8::from(is_up)));
    }

    /// Sets the number of instances that share limits, and the number of counters with leases in this process.
    pub fn set_sizes(&self, instances: u32, counters: usize) {
        self.instances.set(f64::from(instances));
        self.counters.set(counters as f64);
    }

    /// Records the result and the duration of a call.
    pub fn record_call(&self, outcome: StoreOutcome, duration: Duration) {
        self.calls[outcome as usize].increment(1);
        if outcome == StoreOutcome::Ok {
            self.call_seconds.set(duration.as_secs_f64());
        }
    }

    /// Records requests whose wait ended without a response.
    pub fn record_unanswered(&self, reason: Unanswered, requests: u64) {
        self.unanswered[reason as usize].increment(requests);
    }

    /// Sets the time that requests wait by default.
    pub fn set_default_wait(&self, wait: Duration) {
        self.wait_seconds.set(wait.as_secs_f64());
    }

    /// Sets the fraction of the limits that this instance may spend without the store.
    pub fn set_part(&self, fraction: f64) {
        self.part.set(fraction);
    }

    /// Sets the number of regions that share limits, and whether the global store responds.
    pub fn set_regions(&self, regions: u32, is_up: bool) {
        self.regions.set(f64::from(regions));
        self.global_up.set(f64::from(u8::from(is_up)));
    }

    /// Records errands to the global store.
    pub fn record_errands(&self, made: u64, failed: u64) {
        self.errands_made.increment(made);
        self.errands_failed.increment(failed);
    }

    /// Records a request for a lease: the units granted and the units returned.
    pub fn record_lease_request(&self, granted: u32, returned: u32) {
        self.lease_requests.increment(1);
        self.granted_units.increment(granted.into());
        self.returned_units.increment(returned.into());
    }
}
