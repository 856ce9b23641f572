//! What is counted of a configuration that is fetched over HTTP: on its own thread, beside all requests.

use metrics::{Counter, Gauge};

use super::families::{self, Family};
use crate::limiter::timestamp::Timestamp;

/// How a request for the configuration ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchOutcome {
    /// With another document; whether it is valid, reloads say.
    Changed,
    /// With the document that is known.
    Unchanged,
    /// Without a connection, or it broke.
    Unreachable,
    /// Without a whole response in time.
    TimedOut,
    /// With another status than 200 and 304.
    Status,
    /// With a response that is no document: too large, cut off, or not text.
    Unusable,
}

impl FetchOutcome {
    const LABELS: [&'static str; 6] =
        ["changed", "unchanged", "unreachable", "timed_out", "status", "unusable"];
}

/// The numbers of a configuration over HTTP.
#[derive(Clone, Debug)]
pub struct FetchMetrics {
    fetches: [Counter; FetchOutcome::LABELS.len()],
    success_time: Gauge,
    from_cache: Gauge,
    cache_failures: Counter,
}

impl FetchMetrics {
    /// The metrics, as `gauge` and `counter` register them.
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

    /// A request ended like this.
    pub fn fetched(&self, outcome: FetchOutcome, now: Timestamp) {
        self.fetches[outcome as usize].increment(1);
        match outcome {
            FetchOutcome::Changed | FetchOutcome::Unchanged => self.success_time.set(now.as_secs_f64()),
            FetchOutcome::Unreachable
            | FetchOutcome::TimedOut
            | FetchOutcome::Status
            | FetchOutcome::Unusable => {}
        }
    }

    /// What runs came from the cache and is not confirmed by the server, or it is.
    pub fn from_cache(&self, is_from_cache: bool) {
        self.from_cache.set(f64::from(u8::from(is_from_cache)));
    }

    /// The cache could not be written.
    pub fn cache_failed(&self) {
        self.cache_failures.increment(1);
    }
}
