//! Spreads what many processes do at intervals.

use std::time::Duration;

/// A tenth more or less, so that many processes do not ask at once.
pub(super) fn jittered(time: Duration) -> Duration {
    time.mul_f64(0.9 + 0.2 * fastrand::f64())
}
