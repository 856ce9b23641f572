//! The pause before the next request.

use std::time::Duration;

use weir_net::jitter::{backoff, full_jitter, jittered};

/// Maximum pause after the first of several failures in a row; doubles with each further one.
const BASE_PAUSE: Duration = Duration::from_millis(500);

/// Maximum pause after any failure, unless the polling interval is longer.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Minimum pause: bounds the rate of requests to a server that changes its document all the time, or fails.
const MIN_PAUSE: Duration = Duration::from_millis(100);

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PollOutcome {
    /// Another document.
    Changed,
    /// The same document, after this time.
    Unchanged(Duration),
    /// No document; the number of failures in a row.
    Failed(u32),
}

/// Returns the pause before the next request. `long_poll` is the long-poll time of the last request, if it
/// had one.
pub(super) fn pause(outcome: PollOutcome, long_poll: Option<Duration>, interval: Duration) -> Duration {
    match outcome {
        // The next request returns what has changed meanwhile, or waits for the next change.
        PollOutcome::Changed => MIN_PAUSE,
        PollOutcome::Unchanged(took) if long_poll.is_some_and(|wait| took >= wait.min(interval) / 2) => {
            MIN_PAUSE
        }
        PollOutcome::Unchanged(_) => jittered(interval).max(MIN_PAUSE),
        PollOutcome::Failed(times) => full_jitter(max_pause(times, interval)).max(MIN_PAUSE),
    }
}

/// Returns the maximum pause after `times` failures in a row.
fn max_pause(times: u32, interval: Duration) -> Duration {
    backoff(BASE_PAUSE, MAX_PAUSE.max(interval), times)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Option<Duration> = Some(Duration::from_secs(60));
    const INTERVAL: Duration = Duration::from_secs(10);

    fn unchanged_after(millis: u64) -> PollOutcome {
        PollOutcome::Unchanged(Duration::from_millis(millis))
    }

    #[test]
    fn long_polled_server_is_requested_again_at_once() {
        assert_eq!(pause(PollOutcome::Changed, None, INTERVAL), MIN_PAUSE);
        assert_eq!(pause(unchanged_after(60_000), WAIT, INTERVAL), MIN_PAUSE);
        assert_eq!(pause(unchanged_after(5_000), WAIT, INTERVAL), MIN_PAUSE);
        assert_eq!(pause(unchanged_after(1_000), Some(Duration::from_secs(2)), INTERVAL), MIN_PAUSE);
    }

    #[test]
    fn server_without_long_polling_is_polled_at_the_interval() {
        let polled = Duration::from_secs(9)..=Duration::from_secs(11);
        assert!(polled.contains(&pause(unchanged_after(4_999), WAIT, INTERVAL)));
        assert!(polled.contains(&pause(unchanged_after(60_000), None, INTERVAL)), "slow, but without `wait`");
    }

    #[test]
    fn failed_fetches_are_retried_with_exponential_backoff_and_full_jitter() {
        let max_pause = |times| max_pause(times, INTERVAL).as_millis();
        assert_eq!(
            [1, 2, 3, 6, 7, 8, 1000, u32::MAX].map(max_pause),
            [500, 1000, 2000, 16_000, 30_000, 30_000, 30_000, 30_000]
        );
        assert_eq!(super::max_pause(u32::MAX, Duration::from_secs(300)), Duration::from_secs(300));
        let drawn: Vec<_> = (0..200).map(|_| pause(PollOutcome::Failed(20), None, INTERVAL)).collect();
        assert!(drawn.iter().all(|pause| (MIN_PAUSE..=MAX_PAUSE).contains(pause)));
        assert!(
            drawn.iter().any(|pause| *pause < MAX_PAUSE / 4)
                && drawn.iter().any(|pause| *pause > MAX_PAUSE / 2)
        );
    }
}
