//! The pause before the next request.

use std::time::Duration;

use crate::jitter::{backoff, full_jitter, jittered};

/// Maximum pause after the first of several failures in a row; doubles with each further one.
const FIRST: Duration = Duration::from_millis(500);

/// Maximum pause after any failure, unless the polling interval is longer.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Minimum pause: bounds the rate of requests to a server that changes its document all the time, or fails.
const MIN_PAUSE: Duration = Duration::from_millis(100);

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// Another document.
    Changed,
    /// The same document, after this time.
    Unchanged(Duration),
    /// No document; the number of failures in a row.
    Failed(u32),
}

/// Returns the pause before the next request. `held` is the long-poll time of the last request, if it had
/// one.
pub(super) fn pause(ended: Ended, held: Option<Duration>, interval: Duration) -> Duration {
    match ended {
        // The next request returns what has changed meanwhile, or waits for the next change.
        Ended::Changed => MIN_PAUSE,
        Ended::Unchanged(took) if held.is_some_and(|wait| took >= wait.min(interval) / 2) => MIN_PAUSE,
        Ended::Unchanged(_) => jittered(interval).max(MIN_PAUSE),
        Ended::Failed(times) => full_jitter(longest(times, interval)).max(MIN_PAUSE),
    }
}

/// Returns the maximum pause after `times` failures in a row.
fn longest(times: u32, interval: Duration) -> Duration {
    backoff(FIRST, MAX_PAUSE.max(interval), times)
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
        assert_eq!(pause(Ended::Changed, None, INTERVAL), MIN_PAUSE);
        assert_eq!(pause(after(60_000), WAIT, INTERVAL), MIN_PAUSE);
        assert_eq!(pause(after(5_000), WAIT, INTERVAL), MIN_PAUSE);
        assert_eq!(pause(after(1_000), Some(Duration::from_secs(2)), INTERVAL), MIN_PAUSE);
    }

    #[test]
    fn a_server_that_does_not_is_polled() {
        let polled = Duration::from_secs(9)..=Duration::from_secs(11);
        assert!(polled.contains(&pause(after(4_999), WAIT, INTERVAL)));
        assert!(polled.contains(&pause(after(60_000), None, INTERVAL)), "slow, but without `wait`");
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
        assert!(drawn.iter().all(|pause| (MIN_PAUSE..=MAX_PAUSE).contains(pause)));
        assert!(
            drawn.iter().any(|pause| *pause < MAX_PAUSE / 4)
                && drawn.iter().any(|pause| *pause > MAX_PAUSE / 2)
        );
    }
}
