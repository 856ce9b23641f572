//! How long to wait between attempts.

use std::time::Duration;

/// The pause after the first failure, and the longest.
const PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Doubles with each failure in a row, and is between half of that and all of it: a fleet that has lost its store does not
/// come back at once.
pub(super) fn pause(failures: u32) -> Duration {
    let most = PAUSE.saturating_mul(1 << failures.min(16)).min(MAX_PAUSE);
    most.mul_f64(fastrand::f64().mul_add(0.5, 0.5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound() {
        for failures in 0..40 {
            let most = Duration::from_millis(50 << failures.min(10)).min(MAX_PAUSE);
            let pause = pause(failures);
            assert!(pause >= most / 2 && pause <= most, "{failures}: {pause:?}");
        }
    }

    #[test]
    fn no_two_instances_pause_alike() {
        let pauses: std::collections::HashSet<Duration> = (0..100).map(|_| pause(9)).collect();
        assert!(pauses.len() > 90);
    }
}
