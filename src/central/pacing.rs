//! When the next request is due.

use std::time::Duration;

use crate::jitter::jittered;

/// The longest pause after the first failure in a row; it doubles with each.
const FIRST: Duration = Duration::from_millis(500);

/// The longest pause after any failure, unless the server is polled less often anyway.
const LONGEST: Duration = Duration::from_secs(30);

/// No pause is shorter: neither a server that changes its document all the time nor one that fails is asked in a circle.
const SHORTEST: Duration = Duration::from_millis(100);

/// After so many failures in a row the longest pause no longer grows.
const MOST_DOUBLINGS: u32 = 16;

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// Another document.
    Changed,
    /// The same document, after so long.
    Unchanged(Duration),
    /// None; so many times in a row.
    Failed(u32),
}

/// The pause before the next request. `held` is for how long the server was asked to hold the last one, if it was.
pub(super) fn pause(ended: Ended, held: Option<Duration>, interval: Duration) -> Duration {
    match ended {
        // The next request finds out what has changed meanwhile, and waits for what will.
        Ended::Changed => SHORTEST,
        Ended::Unchanged(took) if held.is_some_and(|wait| took >= wait.min(interval) / 2) => SHORTEST,
        Ended::Unchanged(_) => jittered(interval).max(SHORTEST),
        // Full jitter: instances that have failed together come back one by one.
        Ended::Failed(times) => longest(times, interval).mul_f64(fastrand::f64()).max(SHORTEST),
    }
}

/// The longest pause after so many failures in a row.
fn longest(times: u32, interval: Duration) -> Duration {
    let doubled = 1 << times.saturating_sub(1).min(MOST_DOUBLINGS);
    FIRST.saturating_mul(doubled).min(LONGEST.max(interval))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Option<Duration> = Some(Duration::from_secs(60));
    const INTERVAL: Duration = Duration::from_secs(10);

    fn after(millis: u64) -> Ended {
        Ended::Unchanged(Duration::from_millis(millis))
    }

    #[test]
    fn a_server_that_holds_requests_is_asked_again_at_once() {
        assert_eq!(pause(Ended::Changed, None, INTERVAL), SHORTEST);
        assert_eq!(pause(after(60_000), WAIT, INTERVAL), SHORTEST);
        assert_eq!(pause(after(5_000), WAIT, INTERVAL), SHORTEST);
        assert_eq!(pause(after(1_000), Some(Duration::from_secs(2)), INTERVAL), SHORTEST);
    }

    #[test]
    fn a_server_that_does_not_is_polled() {
        let polled = Duration::from_secs(9)..=Duration::from_secs(11);
        assert!(polled.contains(&pause(after(4_999), WAIT, INTERVAL)));
        assert!(polled.contains(&pause(after(60_000), None, INTERVAL)), "slow, and not held");
    }

    #[test]
    fn pauses_after_failures_are_drawn_from_a_span_that_doubles_up_to_a_bound() {
        let longest = |times| longest(times, INTERVAL).as_millis();
        assert_eq!(
            [1, 2, 3, 6, 7, 8, 1000, u32::MAX].map(longest),
            [500, 1000, 2000, 16_000, 30_000, 30_000, 30_000, 30_000]
        );
        assert_eq!(super::longest(u32::MAX, Duration::from_secs(300)), Duration::from_secs(300));
        let drawn: Vec<_> = (0..200).map(|_| pause(Ended::Failed(20), None, INTERVAL)).collect();
        assert!(drawn.iter().all(|pause| (SHORTEST..=LONGEST).contains(pause)));
        assert!(
            drawn.iter().any(|pause| *pause < LONGEST / 4) && drawn.iter().any(|pause| *pause > LONGEST / 2)
        );
    }
}
