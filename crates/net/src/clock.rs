//! The process's clocks, and the only code that reads the system's.
//!
//! Limits use the wall-clock time at the start plus the time elapsed on the monotonic clock. Windows so begin where
//! people and other instances expect them, and setting the wall clock (by NTP or by hand) cannot make this time go
//! backwards. The monotonic clock stops while the machine is suspended; [`Clock::compare_with_wall_clock`]
//! corrects for that.
//!
//! Civil time is used where other systems have to agree, such as for the expiry of tokens, for schedules and for dates
//! of responses. [`Clock::civil_time_at`] follows the wall clock in both directions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use weir_limiter::timestamp::Timestamp;

/// Maximum difference at which two clocks count as equal.
const TOLERANCE: Duration = Duration::from_secs(1);

/// Maximum lead over the wall clock that is corrected, so that windows begin at the expected time again.
const MAX_CORRECTED_LEAD: Duration = Duration::from_secs(3600);

/// Correction of the lead per comparison. With one comparison per second, time runs 6 % slower meanwhile.
const CORRECTION_STEP: Duration = Duration::from_millis(60);

/// Time for which the clock stands still during a correction; longer than two atomic stores take.
const CORRECTION_PAUSE: Duration = Duration::from_millis(10);

/// The process's clock.
#[derive(Debug)]
pub struct Clock {
    started: Instant,
    /// Wall-clock time that corresponds to `started`, with corrections, in nanoseconds since the epoch.
    anchor: AtomicU64,
    /// Lower bound of the time, in nanoseconds since the epoch; it holds while `anchor` changes.
    floor: AtomicU64,
    /// Lead of the clock over the wall clock, in nanoseconds; 0 if at most [`TOLERANCE`].
    lead: AtomicU64,
}

/// Outcome of a comparison with the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockComparison {
    /// The clocks agree, or the difference is unchanged.
    Same,
    /// The clock was advanced by this much.
    CaughtUp(Duration),
    /// The wall clock was set back and is behind by this much.
    Ahead(Duration),
}

impl Clock {
    /// Starts a clock at the present wall-clock time.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn start() -> Self {
        Self {
            started: Instant::now(),
            anchor: AtomicU64::new(wall_clock().as_nanos()),
            floor: AtomicU64::new(0),
            lead: AtomicU64::new(0),
        }
    }

    /// Returns the time that limits use. It never decreases.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn now(&self) -> Timestamp {
        let elapsed = Instant::now().saturating_duration_since(self.started);
        let now = Timestamp::from_nanos(self.anchor.load(Ordering::Acquire)).saturating_add(elapsed);
        now.max(Timestamp::from_nanos(self.floor.load(Ordering::Relaxed)))
    }

    /// Returns the wall-clock time at `now`, accurate to about a second. It decreases if the wall clock is set back.
    pub fn civil_time_at(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_nanos(now.as_nanos().saturating_sub(self.lead.load(Ordering::Relaxed)))
    }

    /// Returns the wall-clock time, accurate to about a second.
    pub fn civil_now(&self) -> Timestamp {
        self.civil_time_at(self.now())
    }

    /// Compares with the wall clock. Advances this clock if it is more than a second behind, and notes the lead if it
    /// is ahead. Must be called once a second.
    pub fn compare_with_wall_clock(&self) -> ClockComparison {
        self.compare_with_time(wall_clock())
    }

    fn compare_with_time(&self, wall: Timestamp) -> ClockComparison {
        let now = self.now();
        let (behind, ahead) = (wall.since(now), now.since(wall));
        if behind > TOLERANCE {
            self.lead.store(0, Ordering::Relaxed);
            self.anchor.fetch_add(saturating_nanos(behind), Ordering::Relaxed);
            return ClockComparison::CaughtUp(behind);
        }
        if ahead <= TOLERANCE {
            self.lead.store(0, Ordering::Relaxed);
            return ClockComparison::Same;
        }
        let before = Duration::from_nanos(self.lead.swap(saturating_nanos(ahead), Ordering::Relaxed));
        if ahead <= MAX_CORRECTED_LEAD {
            self.slow_down(now);
        }
        if ahead > before.saturating_add(TOLERANCE) {
            ClockComparison::Ahead(ahead)
        } else {
            ClockComparison::Same
        }
    }

    /// Sets the time back by [`CORRECTION_STEP`]. Callers see the time stand still for a moment and never go
    /// backwards.
    fn slow_down(&self, now: Timestamp) {
        self.floor.store(now.saturating_add(CORRECTION_PAUSE).as_nanos(), Ordering::Relaxed);
        // Release order: a thread that saw the new anchor without the floor would compute an earlier time.
        self.anchor.fetch_sub(saturating_nanos(CORRECTION_STEP), Ordering::Release);
    }
}

fn saturating_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Measures a duration on the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts the measurement.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Returns the time since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
fn wall_clock() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::EPOCH.saturating_add(since_epoch)
}

#[cfg(test)]
mod tests;
