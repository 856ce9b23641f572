//! Failures of a service in a row, so that the log has one line at the start of an outage and one at its end.

use std::sync::atomic::{AtomicU32, Ordering};

/// Number of failures since the last success. Those after the first are not logged; metrics count them.
#[derive(Debug, Default)]
pub struct Outage(AtomicU32);

impl Outage {
    /// Counts a failure. Returns the number of failures in a row: 1 at the start of an outage.
    #[inline]
    pub fn record_failure(&self) -> u32 {
        let add = |failures: u32| Some(failures.saturating_add(1));
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        before.unwrap_or_else(|failures| failures).saturating_add(1)
    }

    /// Returns the number of failures that this success ends: 0 if there is no outage.
    #[inline]
    pub fn record_success(&self) -> u32 {
        // Read first, so that successes cause no writes to shared memory.
        if self.is_over() { 0 } else { self.0.swap(0, Ordering::Relaxed) }
    }

    /// Returns the number of failures in a row.
    pub fn failures(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether the last attempt has succeeded, or there was none.
    pub fn is_over(&self) -> bool {
        self.failures() == 0
    }
}

impl Clone for Outage {
    fn clone(&self) -> Self {
        Self(AtomicU32::new(self.failures()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outage_starts_with_the_first_failure_and_ends_with_a_success() {
        let outage = Outage::default();
        assert_eq!((outage.record_success(), outage.is_over()), (0, true));
        assert_eq!([outage.record_failure(), outage.record_failure()], [1, 2]);
        assert_eq!((outage.failures(), outage.is_over()), (2, false));
        assert_eq!([outage.record_success(), outage.record_success()], [2, 0]);
        assert_eq!(outage.record_failure(), 1);
    }

    #[test]
    fn number_of_failures_saturates() {
        let outage = Outage(AtomicU32::new(u32::MAX - 1));
        assert_eq!([outage.record_failure(), outage.record_failure()], [u32::MAX; 2]);
        assert_eq!(outage.record_success(), u32::MAX);
    }
}
