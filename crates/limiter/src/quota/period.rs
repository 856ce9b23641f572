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

    /// Returns the name as a word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Millisecond => "millisecond",
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// Returns the unit with this name: that in configuration, a word, its plural, or `m` for minutes.
    pub fn from_name(name: &str) -> Option<Self> {
        let is_named = |unit: &Self| {
            let is_minute = *unit == Self::Minute && name == "m";
            is_minute || name == unit.as_str() || name.strip_suffix('s').unwrap_or(name) == unit.word()
        };
        Self::ALL.into_iter().find(is_named)
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

fn split_rate(text: &str) -> Option<(&str, &str)> {
    if let Some(parts) = text.split_once('/') {
        return Some(parts);
    }
    let (count, rest) = text.trim_start().split_once(char::is_whitespace)?;
    let period = rest.trim_start().strip_prefix("per")?;
    period.starts_with(char::is_whitespace).then_some((count, period))
}

fn positive(digits: &str) -> Option<NonZeroU32> {
    digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok())?
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

    /// Reads a rate in the notation of configuration, such as `100/s`, `10/30s` or `10 per minute`.
    pub fn from_text(text: &str) -> Option<Self> {
        let (count, period) = split_rate(text)?;
        let period = period.trim();
        let digits = period.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(period.len());
        let (periods, name) = period.split_at(digits);
        let periods = if periods.is_empty() { NonZeroU32::MIN } else { positive(periods)? };
        Some(Self::new(
            positive(count.trim())?,
            Period::new(periods, TimeUnit::from_name(name.trim_start())?),
        ))
    }

    /// Reads a whole number of units in `period`. A greater one than a count can be is the greatest.
    pub fn from_count(text: &str, period: Period) -> Option<Self> {
        let digits = text.trim();
        let is_number = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
        let is_zero = digits.bytes().all(|digit| digit == b'0');
        let count = digits.trim_start_matches('0').parse().unwrap_or(NonZeroU32::MAX);
        (is_number && !is_zero).then(|| Self::new(count, period))
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
