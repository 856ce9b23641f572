//! Metrics of fetching the configuration over HTTP, counted on the fetching thread.

use metrics::{Counter, Gauge};

use super::families::{self, Family};
use weir_limiter::timestamp::Timestamp;

/// Result of a request for the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchOutcome {
    /// A different document was received. Its validity is counted as a reload.
    Changed,
    /// The known document was confirmed.
    Unchanged,
    /// The connection failed or broke.
    Unreachable,
    /// The complete response did not arrive in time.
    TimedOut,
    /// The status code was neither 200 nor 304.
    BadStatus,
    /// The response is not a valid document: too large, truncated, or not text.
    InvalidDocument,
}

impl FetchOutcome {
    const LABELS: [&'static str; 6] =
        ["changed", "unchanged", "unreachable", "timed_out", "status", "unusable"];
}

/// Metrics of fetching the configuration.
#[derive(Clone, Debug)]
pub struct FetchMetrics {
    fetches: [Counter; FetchOutcome::LABELS.len()],
    success_time: Gauge,
    from_cache: Gauge,
    cache_failures: Counter,
}

impl FetchMetrics {
    /// Creates the metrics; `gauge` and `counter` register them.
    pub(super) fn new(
        gauge: impl Fn(&Family) -> Gauge,
        counter: impl Fn(&Family, &[(&'static str, &str)]) -> Counter,
    ) -> Self {
        Self {
            fetches: FetchOutcome::LABELS
                .map(|outcome| counter(&families::CONFIG_FETCHES, &[("outcome", outcome)])),
            success_time: gauge(&families::CONFIG_FETCH_SUCCESS_TIME),
            from_cache: gauge(&families::CONFIG_FROM_CACHE),
            cache_failures: counter(&families::CONFIG_CACHE_FAILURES, &[]),
        }
    }

    /// Records the result of a request.
    pub fn record_fetch(&self, outcome: FetchOutcome, now: Timestamp) {
        self.fetches[outcome as usize].increment(1);
        match outcome {
            FetchOutcome::Changed | FetchOutcome::Unchanged => self.success_time.set(now.as_secs_f64()),
            FetchOutcome::Unreachable
            | FetchOutcome::TimedOut
            | FetchOutcome::BadStatus
            | FetchOutcome::InvalidDocument => {}
        }
    }

    /// Sets whether the running configuration comes from the cache and is unconfirmed by the server.
    pub fn set_from_cache(&self, is_from_cache: bool) {
        self.from_cache.set(f64::from(u8::from(is_from_cache)));
    }

    /// Records that the cache could not be written.
    pub fn record_cache_failure(&self) {
        self.cache_failures.increment(1);
    }
}
