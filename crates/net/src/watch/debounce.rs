//! How long to wait for files to settle after a change.
//!
//! A change is processed once there have been no events for a while. If files are written continuously, the wait ends
//! [`DebounceTimes::max_wait`] after the first event, as soon as no file is open for writing. Content read in
//! that case must be read again a moment later before it counts: see [`DebounceTimes::confirm`].

use std::time::Duration;

use crate::clock::Stopwatch;

/// Multiplier of the quiet period for files that are open for writing, because a download may stall.
const OPEN_QUIET: u32 = 5;

/// Durations of the wait for files to settle.
#[derive(Clone, Copy, Debug)]
pub struct DebounceTimes {
    /// Quiet period after which writers count as finished.
    pub quiet: Duration,
    /// Maximum wait for a change, unless a file is open for writing.
    pub max_wait: Duration,
    /// Pause between two reads that must agree if the files did not settle. Longer than the resolution of file system
    /// timestamps, so that a write in between is visible.
    pub confirm: Duration,
    /// Maximum wait for a file that is open for writing.
    pub max_open_wait: Duration,
}

impl Default for DebounceTimes {
    fn default() -> Self {
        Self {
            quiet: Duration::from_millis(100),
            max_wait: Duration::from_secs(1),
            confirm: Duration::from_millis(15),
            max_open_wait: Duration::from_secs(10),
        }
    }
}

/// The wait for one change, starting at its first event.
#[derive(Clone, Copy, Debug)]
pub struct Debounce {
    times: DebounceTimes,
    since: Stopwatch,
}

impl Debounce {
    /// Starts at the first event.
    pub fn start(times: DebounceTimes) -> Self {
        Self { times, since: Stopwatch::start() }
    }

    /// Returns whether the maximum wait has elapsed.
    pub fn is_over(&self) -> bool {
        self.since.elapsed() >= self.times.max_wait
    }

    /// Returns whether to continue waiting for a file that is open for writing.
    fn awaits_writers(&self) -> bool {
        self.since.elapsed() < self.times.max_open_wait
    }

    /// Returns how long to wait for the next event. `began` is the time since this wait began, `quiet` the time since
    /// the last event.
    pub(super) fn left(&self, began: Duration, quiet: Duration, is_open: bool) -> Duration {
        let (needed, most) = if is_open && self.awaits_writers() {
            (self.times.quiet.saturating_mul(OPEN_QUIET), self.times.max_open_wait)
        } else {
            (self.times.quiet, self.times.max_wait)
        };
        let in_time = most.saturating_sub(self.since.elapsed()).max(self.times.confirm.saturating_sub(began));
        needed.saturating_sub(quiet).min(in_time)
    }
}
