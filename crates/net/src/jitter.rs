//! Random pauses between attempts, so that many processes or connections do not act at the same time.
//!
//! Exponential backoff with "full" and "equal" jitter is as in
//! <https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/>.

use std::time::Duration;

/// Maximum number of doublings, after which a pause has reached any maximum in use.
const MAX_DOUBLINGS: u32 = 16;

/// Returns a time within 10 % of `time`, uniformly distributed.
pub fn jittered(time: Duration) -> Duration {
    time.mul_f64(fastrand::f64().mul_add(0.2, 0.9))
}

/// Returns the exponential backoff after `failures` failures in a row: `first` after one, doubled by each
/// further one up to `max`.
pub fn backoff(first: Duration, max: Duration, failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(MAX_DOUBLINGS);
    first.saturating_mul(1 << doublings).min(max)
}

/// Returns a time between zero and `time`, uniformly distributed.
pub fn full_jitter(time: Duration) -> Duration {
    time.mul_f64(fastrand::f64())
}

/// Returns a time between half of `time` and `time`, uniformly distributed.
pub fn equal_jitter(time: Duration) -> Duration {
    time.mul_f64(fastrand::f64().mul_add(0.5, 0.5))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const HUNDRED: Duration = Duration::from_secs(100);

    #[test]
    fn jitter_stays_within_its_range_and_varies() {
        let drawn = |draw: fn(Duration) -> Duration| (0..100).map(|_| draw(HUNDRED)).collect();
        let spans = [
            (drawn(jittered), 90.0, 110.0),
            (drawn(full_jitter), 0.0, 100.0),
            (drawn(equal_jitter), 50.0, 100.0),
        ];
        for (drawn, min, max) in spans {
            let drawn: HashSet<Duration> = drawn;
            assert!(drawn.iter().all(|time| (min..=max).contains(&time.as_secs_f64())), "{drawn:?}");
            assert!(drawn.len() > 90, "{drawn:?}");
            let middle = Duration::from_secs_f64(f64::midpoint(min, max));
            assert!(drawn.iter().any(|time| *time < middle) && drawn.iter().any(|time| *time > middle));
        }
    }

    #[test]
    fn backoff_doubles_up_to_its_maximum() {
        let (first, max) = (Duration::from_millis(25), Duration::from_millis(250));
        let pauses =
            [0, 1, 2, 3, 4, 5, 6, u32::MAX].map(|failures| backoff(first, max, failures).as_millis());
        assert_eq!(pauses, [25, 25, 50, 100, 200, 250, 250, 250]);
        assert_eq!(backoff(first, Duration::MAX, u32::MAX), first * 65_536);
        assert_eq!(backoff(Duration::MAX, Duration::MAX, 9), Duration::MAX);
    }
}
