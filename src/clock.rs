//! The only place that reads a clock.
//!
//! Time is the wall clock's at the start, moved on by the monotonic clock: windows fall where people and other
//! instances expect them, and nothing an administrator or NTP does to the wall clock can make time run
//! backwards. A suspended machine's monotonic clock stands still; [`Clock::reanchor`] makes up for that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::limiter::timestamp::Timestamp;

/// A wall clock that is further ahead than this has been moved or has slept through a suspend.
const TOLERATED_LEAD: Duration = Duration::from_secs(1);

/// Time as the process sees it.
#[derive(Debug)]
pub struct Clock {
    started: Instant,
    /// Wall time at `started`, in nanoseconds since the epoch; only ever moved forward.
    anchor: AtomicU64,
}

impl Clock {
    /// A clock anchored now.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn start() -> Self {
        Self { started: Instant::now(), anchor: AtomicU64::new(wall().as_nanos()) }
    }

    /// The time; never earlier than any answer before.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn now(&self) -> Timestamp {
        let elapsed = Instant::now().saturating_duration_since(self.started);
        Timestamp::from_nanos(self.anchor.load(Ordering::Relaxed)).saturating_add(elapsed)
    }

    /// Catches up with a wall clock that is more than a second ahead; to be called every now and then.
    /// Answers how far time was moved.
    pub fn reanchor(&self) -> Option<Duration> {
        let lead = wall().since(self.now());
        if lead <= TOLERATED_LEAD {
            return None;
        }
        let lead_nanos = u64::try_from(lead.as_nanos()).unwrap_or(0);
        self.anchor.fetch_add(lead_nanos, Ordering::Relaxed);
        Some(lead)
    }
}

/// Measures how long something takes, by the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The time since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
fn wall() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::EPOCH.saturating_add(since_epoch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_behind_catches_up_and_never_goes_back() {
        let clock = Clock::start();
        let before = clock.now();
        assert_eq!(clock.reanchor(), None);
        clock.anchor.fetch_sub(3_600_000_000_000, Ordering::Relaxed);
        let lead = clock.reanchor().expect("an hour behind");
        assert!(lead > Duration::from_secs(3_590), "{lead:?}");
        assert!(clock.now() >= before);
    }

    #[test]
    fn a_clock_that_is_ahead_stays_ahead() {
        let clock = Clock::start();
        clock.anchor.fetch_add(3_600_000_000_000, Ordering::Relaxed);
        let before = clock.now();
        assert_eq!(clock.reanchor(), None);
        assert!(clock.now() >= before);
    }
}
