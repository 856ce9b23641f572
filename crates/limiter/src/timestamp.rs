//! Time in the core: nanoseconds since the Unix epoch.
//!
//! This module reads no clock. A timestamp covers the years 1970 to 2554. Its arithmetic saturates at both ends, so
//! that no quota, however large, can overflow and admit requests.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A moment, in nanoseconds since 1970-01-01T00:00:00Z.
///
/// Algorithms compare moments, so any origin is as good, except for fixed windows, which follow the calendar. A clock of
/// the system may step; one that does not is made of an `Instant`, with the time of the start as its origin:
///
/// ```
/// use std::time::{Duration, Instant, SystemTime};
/// use weir_limiter::Timestamp;
///
/// let stepping = Timestamp::from(SystemTime::now());
///
/// let (origin, start) = (Timestamp::from(SystemTime::now()), Instant::now());
/// let steady = || origin.saturating_add(start.elapsed());
/// assert!(steady() >= origin);
/// # let _ = stepping;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);

    /// The last representable moment, in the year 2554.
    pub const END: Self = Self(u64::MAX);

    /// Returns the moment `nanos` nanoseconds after the Unix epoch.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the moment `seconds` seconds after the Unix epoch, at most [`Self::END`].
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000_000_000))
    }

    /// Nanoseconds since the Unix epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole seconds since the Unix epoch.
    pub const fn as_secs(self) -> u64 {
        self.0 / 1_000_000_000
    }

    /// Seconds since the Unix epoch, rounded to the nearest `f64`.
    pub const fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Returns the moment `duration` later, at most [`Self::END`].
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(saturating_nanos(duration)))
    }

    /// Returns the moment `duration` earlier, not before the epoch.
    pub fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(saturating_nanos(duration)))
    }

    /// Time elapsed since `earlier`; zero if it lies in the future.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl From<SystemTime> for Timestamp {
    /// Converts the time of a system clock; at least [`Timestamp::EPOCH`], and at most [`Timestamp::END`].
    fn from(time: SystemTime) -> Self {
        time.duration_since(UNIX_EPOCH).map_or(Self::EPOCH, |since| Self::EPOCH.saturating_add(since))
    }
}

/// Converts a duration to nanoseconds, saturating after 584 years.
pub fn saturating_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Converts a duration to whole milliseconds, saturating after half a billion years.
pub fn saturating_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamp_arithmetic_saturates() {
        let end = Timestamp::END;
        assert_eq!(end.saturating_add(Duration::from_secs(1)), end);
        assert_eq!(Timestamp::from_secs(u64::MAX), end);
        assert_eq!(Timestamp::EPOCH.saturating_add(Duration::MAX), end);
        assert_eq!(Timestamp::from_secs(1).saturating_sub(Duration::from_secs(2)), Timestamp::EPOCH);
    }

    #[test]
    fn system_time_outside_the_range_is_its_first_or_last_moment() {
        let after = |seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap();
        assert_eq!(Timestamp::from(after(7)), Timestamp::from_secs(7));
        assert_eq!(Timestamp::from(UNIX_EPOCH - Duration::from_secs(7)), Timestamp::EPOCH);
        // The year 3000, and one nanosecond after the last moment.
        assert_eq!(Timestamp::from(after(32_503_680_000)), Timestamp::END);
        let last = UNIX_EPOCH + Duration::from_nanos(u64::MAX);
        assert_eq!(Timestamp::from(last + Duration::from_nanos(1)), Timestamp::END);
        assert_eq!(Timestamp::from(last - Duration::from_nanos(1)), Timestamp::from_nanos(u64::MAX - 1));
    }

    #[test]
    fn time_since_a_future_timestamp_is_zero() {
        assert_eq!(Timestamp::from_secs(1).since(Timestamp::from_secs(2)), Duration::ZERO);
        assert_eq!(Timestamp::from_secs(2).since(Timestamp::from_secs(1)), Duration::from_secs(1));
    }

    #[test]
    fn milliseconds_round_down_and_saturate() {
        assert_eq!(saturating_millis(Duration::from_micros(1999)), 1);
        assert_eq!(saturating_millis(Duration::MAX), u64::MAX);
    }
}
