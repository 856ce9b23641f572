//! How long files that change are waited for.
//!
//! A change is taken once nothing has happened for a while. Files that are written over and over never rest, so the wait
//! ends [`Pace::longest`] after the first event, as soon as no file is open for writing. What is read then has to be
//! read again a moment later before it counts: see [`Pace::confirm`].

use std::time::Duration;

use crate::clock::Stopwatch;

/// A file that is still open for writing must rest this many times longer: a download may stall in the middle.
const OPEN_QUIET: u32 = 5;

/// The times by which files are waited for.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Writers are done when nothing has happened for this long.
    pub quiet: Duration,
    /// A change is waited for no longer than this, unless a file is open for writing.
    pub longest: Duration,
    /// Between the two readings that have to agree where files never rest. Longer than the tick of a file
    /// system's clock, so that a write in between shows.
    pub confirm: Duration,
    /// A file that is open for writing is waited for no longer than this.
    pub open: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            quiet: Duration::from_millis(100),
            longest: Duration::from_secs(1),
            confirm: Duration::from_millis(15),
            open: Duration::from_secs(10),
        }
    }
}

/// The wait for one change, from its first event on.
#[derive(Clone, Copy, Debug)]
pub struct Settling {
    pace: Pace,
    since: Stopwatch,
}

impl Settling {
    /// The first event has just happened.
    pub fn begin(pace: Pace) -> Self {
        Self { pace, since: Stopwatch::start() }
    }

    /// Whether the files have had all the time that they get.
    pub fn is_over(&self) -> bool {
        self.since.elapsed() >= self.pace.longest
    }

    /// Whether a file that is open for writing is still waited for.
    fn awaits_writers(&self) -> bool {
        self.since.elapsed() < self.pace.open
    }

    /// How long to wait for the next event, after a wait that began `began` ago and was quiet for `quiet`.
    pub(super) fn left(&self, began: Duration, quiet: Duration, is_open: bool) -> Duration {
        let (needed, most) = if is_open && self.awaits_writers() {
            (self.pace.quiet.saturating_mul(OPEN_QUIET), self.pace.open)
        } else {
            (self.pace.quiet, self.pace.longest)
        };
        let in_time = most.saturating_sub(self.since.elapsed()).max(self.pace.confirm.saturating_sub(began));
        needed.saturating_sub(quiet).min(in_time)
    }
}
