//! Units of time of the reference. All have a fixed length, and windows are aligned to the epoch.

use std::num::NonZeroU32;
use std::time::Duration;

use weir_limiter::quota::{self, Period};
use weir_limiter::timestamp::Timestamp;

/// `RateLimitResponse.RateLimit.Unit` without `UNKNOWN`, with its numbers. `RateLimitUnit`, the type in requests, has
/// the same numbers and no week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RlsUnit {
    /// 1 s.
    Second = 1,
    /// 60 s.
    Minute,
    /// 3600 s.
    Hour,
    /// 24 h.
    Day,
    /// 30 days.
    Month,
    /// 365 days.
    Year,
    /// 7 days, aligned to the epoch, a Thursday.
    Week,
}

impl RlsUnit {
    /// All units, by number.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Month, Self::Year, Self::Week];

    /// Returns the name in the protocol and in dumps.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Second => "SECOND",
            Self::Minute => "MINUTE",
            Self::Hour => "HOUR",
            Self::Day => "DAY",
            Self::Week => "WEEK",
            Self::Month => "MONTH",
            Self::Year => "YEAR",
        }
    }

    /// Returns the unit of this name, in any letter case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.as_str().eq_ignore_ascii_case(name))
    }

    pub fn from_request_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| *unit as u64 == number && *unit != Self::Week)
    }

    /// Returns the unit of the same length as `period`, if there is one.
    pub fn from_period(period: Period) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| Duration::from_secs(unit.seconds()) == period.duration())
    }

    /// Returns the length in seconds.
    pub const fn seconds(self) -> u64 {
        self.period().duration().as_secs()
    }

    /// Returns the time until the window that contains `now` ends, rounded up to whole seconds; never zero.
    pub const fn time_until_reset(self, now: Timestamp) -> Duration {
        Duration::from_secs(self.seconds() - now.as_secs() % self.seconds())
    }

    /// Returns the unit as a period of the limiter. Weeks, months and years are given in days: periods of days are
    /// aligned to the epoch, while a week would start on Monday.
    pub(super) const fn period(self) -> Period {
        match self {
            Self::Second => Period::one(quota::TimeUnit::Second),
            Self::Minute => Period::one(quota::TimeUnit::Minute),
            Self::Hour => Period::one(quota::TimeUnit::Hour),
            Self::Day => Period::one(quota::TimeUnit::Day),
            Self::Week => days(7),
            Self::Month => days(30),
            Self::Year => days(365),
        }
    }
}

const fn days(count: u32) -> Period {
    match NonZeroU32::new(count) {
        Some(count) => Period::new(count, quota::TimeUnit::Day),
        None => Period::one(quota::TimeUnit::Day),
    }
}
