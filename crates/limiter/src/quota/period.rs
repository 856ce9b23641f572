//! Rates as configured: a count per period.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;
pub(super) const DAY: u64 = 86_400 * SECOND;

/// The units of time of limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TimeUnit {
    /// 10⁻³ s.
    Millisecond,
    /// 1 s.
    Second,
    /// 60 s.
    Minute,
    /// 3600 s.
    Hour,
    /// 24 h; a calendar day for fixed windows.
    Day,
    /// 7 days; a week from Monday for fixed windows.
    Week,
    /// 30 days; a calendar month for fixed windows.
    Month,
    /// 365 days; a calendar year for fixed windows.
    Year,
}

impl TimeUnit {
    /// Every unit, shortest first.
    pub const ALL: [Self; 8] = [
        Self::Millisecond,
        Self::Second,
        Self::Minute,
        Self::Hour,
        Self::Day,
        Self::Week,
        Self::Month,
        Self::Year,
    ];

    /// Returns the unit's nominal length in nanoseconds.
    pub const fn nanos(self) -> u64 {
        match self {
            Self::Millisecond => SECOND / 1000,
            Self::Second => SECOND,
            Self::Minute => 60 * SECOND,
            Self::Hour => 3600 * SECOND,
            Self::Day => DAY,
            Self::Week => 7 * DAY,
            Self::Month => 30 * DAY,
            Self::Year => 365 * DAY,
        }
    }

    /// Returns the name in configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Millisecond => "ms",
            Self::Second => "s",
            Self::Minute => "min",
            Self::Hour => "h",
            Self::Day => "d",
            Self::Week => "w",
            Self::Month => "month",
            Self::Year => "year",
        }
    }
}

/// A whole number of time units, for example 30 seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Period {
    count: NonZeroU32,
    unit: TimeUnit,
}

impl Period {
    /// Returns a period of `count` times `unit`.
    pub const fn new(count: NonZeroU32, unit: TimeUnit) -> Self {
        Self { count, unit }
    }

    /// Returns a period of one `unit`.
    pub const fn one(unit: TimeUnit) -> Self {
        Self { count: NonZeroU32::MIN, unit }
    }

    /// Returns the number of units.
    pub const fn count(self) -> NonZeroU32 {
        self.count
    }

    /// Returns the unit, of which the period has [`Self::count`].
    pub const fn unit(self) -> TimeUnit {
        self.unit
    }

    /// Nominal length in nanoseconds (a month has 30 days, a year 365), saturating.
    pub const fn nanos(self) -> u64 {
        self.unit.nanos().saturating_mul(self.count.get() as u64)
    }

    /// Nominal length.
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(self.nanos())
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.count.get() > 1 {
            write!(f, "{}", self.count)?;
        }
        f.write_str(self.unit.as_str())
    }
}

/// A count per period, such as `100/s` or `10/30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    /// Requests per period.
    pub count: NonZeroU32,
    /// Time in which the count is admitted.
    pub period: Period,
}

impl Limit {
    /// Returns a limit of `count` per `period`.
    pub const fn new(count: NonZeroU32, period: Period) -> Self {
        Self { count, period }
    }

    /// Whether this limit permits fewer requests per time than `other`.
    pub fn is_slower_than(self, other: Self) -> bool {
        let scaled = |count: NonZeroU32, period: Period| u128::from(count.get()) * u128::from(period.nanos());
        scaled(self.count, other.period) < scaled(other.count, self.period)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.count, self.period)
    }
}
