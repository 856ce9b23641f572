//! The units of time in which the reference counts: all of fixed length, from mark to mark since the epoch.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::limiter::quota::{self, Period};
use crate::limiter::timestamp::Timestamp;

/// `RateLimitResponse.RateLimit.Unit` without `UNKNOWN`, by its numbers. Those of `RateLimitUnit`, which requests have, are the
/// same, without the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unit {
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
    /// 7 days; the marks are those of the epoch, a Thursday.
    Week,
}

impl Unit {
    /// Every unit, by number.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Month, Self::Year, Self::Week];

    /// The name in the protocol and in dumps.
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

    /// The unit of this name, in any case.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.as_str().eq_ignore_ascii_case(name))
    }

    /// The unit that a request has by this number.
    pub fn of_request(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| *unit as u64 == number && *unit != Self::Week)
    }

    /// The unit that is as long as `period`, if there is one.
    pub fn as_long_as(period: Period) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| Duration::from_secs(unit.seconds()) == period.duration())
    }

    /// Its length in seconds.
    pub const fn seconds(self) -> u64 {
        self.period().duration().as_secs()
    }

    /// Time until the window that `now` is in ends, in whole seconds, rounded up: never zero.
    pub const fn until_reset(self, now: Timestamp) -> Duration {
        Duration::from_secs(self.seconds() - now.as_secs() % self.seconds())
    }

    /// The same as the limiter's windows have it. In days where the calendar would have a say: 7 days
    /// are counted from the epoch, a week from Monday.
    pub(super) const fn period(self) -> Period {
        match self {
            Self::Second => Period::one(quota::Unit::Second),
            Self::Minute => Period::one(quota::Unit::Minute),
            Self::Hour => Period::one(quota::Unit::Hour),
            Self::Day => Period::one(quota::Unit::Day),
            Self::Week => days(7),
            Self::Month => days(30),
            Self::Year => days(365),
        }
    }
}

const fn days(count: u32) -> Period {
    match NonZeroU32::new(count) {
        Some(count) => Period::new(count, quota::Unit::Day),
        None => Period::one(quota::Unit::Day),
    }
}
