//! What one worker notes of the upstream's answers.
//!
//! Count and sum share a word, so that no reader sees one without the other: a logarithm is some twenty thousand,
//! and a mean with one too many would look like an overload. Words wrap round and their differences come out right,
//! as long as readers come more often than every sixteen million answers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;

use super::orca;
use crate::headers::Headers;
use crate::limiter::elastic::latency::{Samples, logarithm};

/// Bits of a sum; what is above counts.
const SUM_BITS: u32 = 40;
/// Utilization is noted in steps of so many to the whole.
const STEPS: f64 = 1000.0;
/// And to so many times the whole.
const MOST: f64 = 100.0;

/// One worker's notes, away from the cache lines of others.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(in crate::proxy) struct Load {
    logarithms: AtomicU64,
    squares: AtomicU64,
    reports: AtomicU64,
}

impl Load {
    /// An answer's head has come after `took`.
    pub(in crate::proxy) fn answered(&self, took: Duration, status: StatusCode, headers: &Headers) {
        // Errors are answered faster than the work they were asked for.
        if !(status.is_client_error() || status.is_server_error()) {
            let logarithm = logarithm(took);
            self.logarithms.fetch_add(1 << SUM_BITS | logarithm, Ordering::Relaxed);
            // A reader in between misses a square, and for a tick times seem to vary a little less.
            self.squares.fetch_add(logarithm * logarithm, Ordering::Relaxed);
        }
        if let Some(utilization) = orca::utilization(headers) {
            let steps = (utilization.min(MOST) * STEPS) as u64;
            self.reports.fetch_add(1 << SUM_BITS | steps, Ordering::Relaxed);
        }
    }

    pub(super) fn noted(&self) -> Noted {
        Noted {
            logarithms: self.logarithms.load(Ordering::Relaxed),
            squares: self.squares.load(Ordering::Relaxed),
            reports: self.reports.load(Ordering::Relaxed),
        }
    }
}

/// What was noted until some moment, by one worker or all.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Noted {
    logarithms: u64,
    squares: u64,
    reports: u64,
}

impl Noted {
    /// Both together.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            logarithms: self.logarithms.wrapping_add(other.logarithms),
            squares: self.squares.wrapping_add(other.squares),
            reports: self.reports.wrapping_add(other.reports),
        }
    }

    /// Answers noted after `earlier`.
    pub(super) fn answers_since(self, earlier: Self) -> Samples {
        let (count, logarithms) = split(self.logarithms.wrapping_sub(earlier.logarithms));
        Samples { count, logarithms, squares: self.squares.wrapping_sub(earlier.squares) }
    }

    /// The mean of what was reported after `earlier`, if anything was.
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

    fn reporting(text: &'static str) -> Headers {
        let mut headers = Headers::default();
        headers.set(&orca::TEXT_OR_JSON, &HeaderValue::from_static(text));
        headers
    }

    #[test]
    fn differences_are_right_however_often_words_wrapped_round() {
        let load = Load::default();
        load.logarithms.store(u64::MAX - 5, Ordering::Relaxed);
        load.squares.store(u64::MAX - 5, Ordering::Relaxed);
        load.reports.store(u64::MAX - 5, Ordering::Relaxed);
        let before = load.noted();
        let report = reporting("TEXT cpu_utilization=0.5");
        let mut expected = Samples::default();
        for millis in [1, 20, 300] {
            load.answered(Duration::from_millis(millis), StatusCode::OK, &report);
            expected.add(Duration::from_millis(millis));
        }
        assert_eq!(load.noted().answers_since(before), expected);
        assert_eq!(load.noted().utilization_since(before), Some(0.5));
    }

    #[test]
    fn errors_are_no_measure_of_time_but_report_all_the_same() {
        let load = Load::default();
        let before = load.noted();
        for status in [StatusCode::NOT_FOUND, StatusCode::SERVICE_UNAVAILABLE] {
            load.answered(Duration::from_micros(50), status, &reporting("TEXT cpu_utilization=7e9"));
        }
        assert_eq!(load.noted().answers_since(before), Samples::default());
        assert_eq!(load.noted().utilization_since(before), Some(MOST));
        assert_eq!(load.noted().utilization_since(load.noted()), None);
    }

    #[test]
    fn workers_add_up() {
        let (one, other) = (Load::default(), Load::default());
        let before = one.noted().and(other.noted());
        one.answered(Duration::from_millis(3), StatusCode::OK, &reporting("TEXT cpu_utilization=0.2"));
        other.answered(Duration::from_millis(9), StatusCode::OK, &reporting("TEXT cpu_utilization=0.4"));
        let all = one.noted().and(other.noted());
        assert_eq!(all.answers_since(before).count, 2);
        assert!(all.utilization_since(before).is_some_and(|mean| (mean - 0.3).abs() < 1e-9));
    }
}
