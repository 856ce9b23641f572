//! The only place that reads a clock.
//!
//! Limits go by the wall clock's time at the start, moved on by the monotonic clock: windows fall where people and
//! other instances expect them, and nothing an administrator or NTP does to the wall clock can make time run
//! backwards. A suspended machine's monotonic clock stands still; [`Clock::compare`] makes up for that.
//!
//! What has to agree with the rest of the world, such as when a token expires, a schedule begins or a response was sent,
//! goes by the civil time instead: [`Clock::civil`] follows the wall clock both ways.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::limiter::timestamp::Timestamp;

/// Clocks that are closer than this are the same.
const TOLERATED: Duration = Duration::from_secs(1);

/// A lead over the wall clock of up to this much is worked off, so that windows begin where they should again.
const MAX_WORKED_OFF: Duration = Duration::from_secs(3600);

/// How much of the lead each comparison takes off: with one a second, limits run six per cent slower meanwhile.
const STEP: Duration = Duration::from_millis(60);

/// Time halts from so much later on while a step is taken: longer than it takes to store two words.
const MARGIN: Duration = Duration::from_millis(10);

/// Time as the process sees it.
#[derive(Debug)]
pub struct Clock {
    started: Instant,
    /// Wall time at `started`, in nanoseconds since the epoch, as far as limits go by it.
    anchor: AtomicU64,
    /// The time is never earlier than this, whatever happens to `anchor`.
    floor: AtomicU64,
    /// How far the time is ahead of the wall clock, in nanoseconds; 0 where that is next to nothing.
    lead: AtomicU64,
}

/// What a comparison with the wall clock has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// They agree, or nothing has changed.
    Same,
    /// Time was moved forward by this much.
    CaughtUp(Duration),
    /// The wall clock is behind by this much now: it has been set back.
    Ahead(Duration),
}

impl Clock {
    /// A clock anchored now.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn start() -> Self {
        Self {
            started: Instant::now(),
            anchor: AtomicU64::new(wall().as_nanos()),
            floor: AtomicU64::new(0),
            lead: AtomicU64::new(0),
        }
    }

    /// The time that limits go by; never earlier than any answer before.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn now(&self) -> Timestamp {
        let elapsed = Instant::now().saturating_duration_since(self.started);
        let now = Timestamp::from_nanos(self.anchor.load(Ordering::Acquire)).saturating_add(elapsed);
        now.max(Timestamp::from_nanos(self.floor.load(Ordering::Relaxed)))
    }

    /// What the wall clock says when limits go by `now`, to about a second. It follows when that is set, so it may go back.
    pub fn civil(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_nanos(now.as_nanos().saturating_sub(self.lead.load(Ordering::Relaxed)))
    }

    /// What the wall clock says now, to about a second.
    pub fn civil_now(&self) -> Timestamp {
        self.civil(self.now())
    }

    /// Catches up with a wall clock that is more than a second ahead, and takes note of one that is behind; to be called
    /// once a second.
    pub fn compare(&self) -> Comparison {
        self.compare_with(wall())
    }

    fn compare_with(&self, wall: Timestamp) -> Comparison {
        let now = self.now();
        let (behind, ahead) = (wall.since(now), now.since(wall));
        if behind > TOLERATED {
            self.lead.store(0, Ordering::Relaxed);
            self.anchor.fetch_add(nanos(behind), Ordering::Relaxed);
            return Comparison::CaughtUp(behind);
        }
        if ahead <= TOLERATED {
            self.lead.store(0, Ordering::Relaxed);
            return Comparison::Same;
        }
        let before = Duration::from_nanos(self.lead.swap(nanos(ahead), Ordering::Relaxed));
        if ahead <= MAX_WORKED_OFF {
            self.slow_down(now);
        }
        if ahead > before.saturating_add(TOLERATED) { Comparison::Ahead(ahead) } else { Comparison::Same }
    }

    /// Halts the time for a moment, so that it has fallen back by a step afterwards without ever running backwards.
    fn slow_down(&self, now: Timestamp) {
        self.floor.store(now.saturating_add(MARGIN).as_nanos(), Ordering::Relaxed);
        // In this order: who sees the new anchor without the floor would see an earlier time.
        self.anchor.fetch_sub(nanos(STEP), Ordering::Release);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
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
mod tests;
