//! Response times and load reports of the upstream, as one worker records them.
//!
//! Count and sum share one atomic word, so that a reader never sees one without the other. A logarithm is about 20,000,
//! and a mean with one too many would look like an overload. Words wrap around, and their differences stay correct if
//! they are read at least every 16 million responses.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;

use super::orca;
use weir_http::headers::Headers;
use weir_limiter::control::samples::{Samples, logarithm};

/// Bits of the sum; the bits above hold the count.
const SUM_BITS: u32 = 40;
/// Resolution of utilization: steps per whole.
const STEPS: f64 = 1000.0;
/// Maximum recorded utilization, as a multiple of the whole.
const MAX_UTILIZATION: f64 = 100.0;

/// Record of one worker, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(in crate::proxy) struct WorkerLoad {
    logarithms: AtomicU64,
    squares: AtomicU64,
    reports: AtomicU64,
}

impl WorkerLoad {
    /// Records the head of a response that took `took`.
    pub(in crate::proxy) fn record_response(&self, took: Duration, status: StatusCode, headers: &Headers) {
        // Errors are left out: they are usually faster than the work that was requested.
        if !(status.is_client_error() || status.is_server_error()) {
            let logarithm = logarithm(took);
            self.logarithms.fetch_add(1 << SUM_BITS | logarithm, Ordering::Relaxed);
            // A reader between the two additions misses one square, and underestimates the variance a little for one
            // tick.
            self.squares.fetch_add(logarithm * logarithm, Ordering::Relaxed);
        }
        if let Some(utilization) = orca::utilization(headers) {
            let steps = (utilization.min(MAX_UTILIZATION) * STEPS) as u64;
            self.reports.fetch_add(1 << SUM_BITS | steps, Ordering::Relaxed);
        }
    }

    pub(super) fn totals(&self) -> LoadTotals {
        LoadTotals {
            logarithms: self.logarithms.load(Ordering::Relaxed),
            squares: self.squares.load(Ordering::Relaxed),
            reports: self.reports.load(Ordering::Relaxed),
        }
    }
}

/// Sums recorded up to some moment, of one worker or of all.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LoadTotals {
    logarithms: u64,
    squares: u64,
    reports: u64,
}

impl LoadTotals {
    /// Returns the sums of both.
    pub(super) fn combined_with(self, other: Self) -> Self {
        Self {
            logarithms: self.logarithms.wrapping_add(other.logarithms),
            squares: self.squares.wrapping_add(other.squares),
            reports: self.reports.wrapping_add(other.reports),
        }
    }

    /// Returns the response times recorded since `earlier`.
    pub(super) fn responses_since(self, earlier: Self) -> Samples {
        let (count, logarithms) = split(self.logarithms.wrapping_sub(earlier.logarithms));
        Samples { count, logarithms, squares: self.squares.wrapping_sub(earlier.squares) }
    }

    /// Returns the mean utilization reported since `earlier`, if any was.
    pub(super) fn utilization_since(self, earlier: Self) -> Option<f64> {
        let (count, steps) = split(self.reports.wrapping_sub(earlier.reports));
        (count > 0).then(|| steps as f64 / count as f64 / STEPS)
    }
}

const fn split(word: u64) -> (u64, u64) {
    (word >> SUM_BITS, word & ((1 << SUM_BITS) - 1))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers_with_report(text: &'static str) -> Headers {
        let mut headers = Headers::default();
        headers.set(&orca::TEXT_OR_JSON, &HeaderValue::from_static(text));
        headers
    }

    #[test]
    fn load_differences_survive_counter_wraparound() {
        let load = WorkerLoad::default();
        load.logarithms.store(u64::MAX - 5, Ordering::Relaxed);
        load.squares.store(u64::MAX - 5, Ordering::Relaxed);
        load.reports.store(u64::MAX - 5, Ordering::Relaxed);
        let before = load.totals();
        let report = headers_with_report("TEXT cpu_utilization=0.5");
        let mut expected = Samples::default();
        for millis in [1, 20, 300] {
            load.record_response(Duration::from_millis(millis), StatusCode::OK, &report);
            expected.add(Duration::from_millis(millis));
        }
        assert_eq!(load.totals().responses_since(before), expected);
        assert_eq!(load.totals().utilization_since(before), Some(0.5));
    }

    #[test]
    fn error_responses_count_for_utilization_but_not_for_response_time() {
        let load = WorkerLoad::default();
        let before = load.totals();
        for status in [StatusCode::NOT_FOUND, StatusCode::SERVICE_UNAVAILABLE] {
            load.record_response(
                Duration::from_micros(50),
                status,
                &headers_with_report("TEXT cpu_utilization=7e9"),
            );
        }
        assert_eq!(load.totals().responses_since(before), Samples::default());
        assert_eq!(load.totals().utilization_since(before), Some(MAX_UTILIZATION));
        assert_eq!(load.totals().utilization_since(load.totals()), None);
    }

    #[test]
    fn loads_of_workers_are_summed() {
        let (one, other) = (WorkerLoad::default(), WorkerLoad::default());
        let before = one.totals().combined_with(other.totals());
        one.record_response(
            Duration::from_millis(3),
            StatusCode::OK,
            &headers_with_report("TEXT cpu_utilization=0.2"),
        );
        other.record_response(
            Duration::from_millis(9),
            StatusCode::OK,
            &headers_with_report("TEXT cpu_utilization=0.4"),
        );
        let all = one.totals().combined_with(other.totals());
        assert_eq!(all.responses_since(before).count, 2);
        assert!(all.utilization_since(before).is_some_and(|mean| (mean - 0.3).abs() < 1e-9));
    }
}
