//! What a limit allows: so many per period, so many at once, counted by one algorithm.
//!
//! A [`Quota`] that exists is valid: its numbers are non-zero, its rate is one the clock can resolve,
//! and its burst refills within a lifetime. The exact spacing of requests is worked out once, here,
//! as a whole number of nanoseconds and a remainder, so that no algorithm rounds on the request path.
//!
//! Algorithms count in units. A unit is a request (or what a request is said to cost), except in an elastic
//! quota, which counts in shares of one. What people wrote is always in requests.

mod parts;
mod period;

use std::num::{NonZeroU16, NonZeroU32};
use std::ops::RangeInclusive;
use std::time::Duration;

use self::period::DAY;
pub use self::period::{Limit, Period, Unit};
use super::algorithm::{self, Algorithm};
use super::elastic::{Prices, Stretch};
use super::percent::Percent;
use super::timestamp::saturating_nanos;
use super::zone::Zone;

/// A quota whose burst needs longer than this to refill is refused: it is surely a slip of the pen, and
/// the bound keeps every sum of a timestamp and a tolerance far from the end of time.
const LONGEST_REFILL: u64 = 100 * 365 * DAY;

/// The most units that a log takes: it remembers when each of them was charged.
pub const MOST_LOGGED: u32 = 10_000;

/// How many sub-windows a sliding window may have.
pub const PRECISIONS: RangeInclusive<u8> = 2..=60;

/// An exact span: `whole` nanoseconds and `part / limit.count` of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Span {
    pub(super) whole: u64,
    pub(super) part: u32,
}

/// A valid limit with its burst and its algorithm.
///
/// Laid out flat, in forty bytes: every verdict carries one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    interval: u64,
    tolerance: u64,
    /// Windows need no exact spacing, and keep their [`Params`] here.
    interval_part: u32,
    tolerance_part: u32,
    count: NonZeroU32,
    periods: NonZeroU32,
    burst: NonZeroU32,
    /// Units in a request of the written limit.
    shares: NonZeroU16,
    unit: Unit,
    algorithm: Algorithm,
}

/// What an algorithm goes by beside a limit and a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Params {
    /// Nothing.
    None,
    /// The calendar of this time zone.
    Calendar(Zone),
    /// So many sub-windows of its window: 1 unless it is precise.
    SubWindows(u8),
}

/// How long a key that was refused is refused everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ban {
    /// The first time.
    pub first: Duration,
    /// The longest time, and how long after its end a ban is remembered: the next one is twice as long.
    pub most: Duration,
}

/// Why a quota cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    /// More than one a nanosecond.
    #[error("more than 1000000000 a second, got {0}")]
    TooFast(Limit),
    /// A window longer than a century, or a burst that takes longer than that to refill.
    #[error("takes longer than 100 years to refill")]
    TooSlow,
    /// A burst for an algorithm that has none.
    #[error("`burst` has no meaning for {0}")]
    NoBurst(Algorithm),
    /// A bucket into which a refill does not fit.
    #[error("more than `burst`, which is all that a bucket holds, got {0}")]
    Overflowing(NonZeroU32),
    /// More than a log remembers of each key.
    #[error("more than {MOST_LOGGED} requests to remember of each key, got {0}")]
    TooMany(Limit),
    /// Too large or too fast a limit to be counted in shares of a request.
    #[error("too large for an elastic limit of {0}")]
    NoShares(Stretch),
}

impl Quota {
    /// A quota of `limit`, admitting `burst` at once (default: the limit's count), counted by `algorithm`.
    ///
    /// # Errors
    /// [`QuotaError`] where the rate is above 10⁹ a second, where the window or the refill of the burst is
    /// longer than a hundred years, or where the algorithm knows no burst.
    pub fn new(algorithm: Algorithm, limit: Limit, burst: Option<NonZeroU32>) -> Result<Self, QuotaError> {
        if burst.is_some() && !algorithm.has_burst() {
            return Err(QuotaError::NoBurst(algorithm));
        }
        let (count, period) = (u64::from(limit.count.get()), limit.period.nanos());
        if count > period {
            return Err(QuotaError::TooFast(limit));
        }
        if algorithm == Algorithm::SlidingLog && limit.count.get() > MOST_LOGGED {
            return Err(QuotaError::TooMany(limit));
        }
        let burst = burst.unwrap_or(limit.count);
        if algorithm == Algorithm::RefillBucket && burst < limit.count {
            return Err(QuotaError::Overflowing(limit.count));
        }
        Self::of_units(algorithm, limit.period, (limit.count, burst), NonZeroU16::MIN)
            .ok_or(QuotaError::TooSlow)
    }

    /// `count` units per `period` and `burst` of them at once, so many of which make a request; nothing where a refill takes
    /// too long.
    fn of_units(
        algorithm: Algorithm,
        period: Period,
        (count, burst): (NonZeroU32, NonZeroU32),
        shares: NonZeroU16,
    ) -> Option<Self> {
        let spans = spans(algorithm, period.nanos(), count.get().into(), burst.get().into());
        let (interval, tolerance) = spans.filter(|(_, tolerance)| tolerance.whole <= LONGEST_REFILL)?;
        let quota = Self {
            interval: interval.whole,
            tolerance: tolerance.whole,
            interval_part: interval.part,
            tolerance_part: tolerance.part,
            count,
            periods: period.count(),
            burst,
            shares,
            unit: period.unit(),
            algorithm,
        };
        (period.nanos() <= LONGEST_REFILL).then(|| quota.with(Params::None))
    }

    /// So many at once, however long they take.
    pub const fn in_flight(most: NonZeroU32) -> Self {
        Self {
            interval: 0,
            tolerance: 0,
            interval_part: 0,
            tolerance_part: 0,
            count: most,
            periods: NonZeroU32::MIN,
            burst: most,
            shares: NonZeroU16::MIN,
            unit: Unit::Second,
            algorithm: Algorithm::InFlight,
        }
    }

    /// Nothing for a while, once that has been decided.
    pub fn ban(ban: Ban) -> Self {
        Self {
            interval: saturating_nanos(ban.first),
            tolerance: saturating_nanos(ban.most),
            algorithm: Algorithm::Ban,
            ..Self::in_flight(NonZeroU32::MIN)
        }
    }

    /// How long it lasts, if it is a ban.
    pub fn as_ban(&self) -> Option<Ban> {
        let lasts = |span: Span| Duration::from_nanos(span.whole);
        (self.algorithm == Algorithm::Ban)
            .then(|| Ban { first: lasts(self.interval()), most: lasts(self.tolerance()) })
    }

    /// The same with limit and burst raised by `margin`, rounded up; nothing where that is no quota any more.
    pub fn raised(&self, margin: Percent) -> Option<Self> {
        let Limit { count, period } = self.limit();
        let burst = match self.algorithm.has_burst() {
            true => Some(margin.raise(self.burst)?),
            false => None,
        };
        let raised = Self::new(self.algorithm, Limit::new(margin.raise(count)?, period), burst).ok()?;
        Some(raised.with(self.params()))
    }

    /// The same with its windows at the marks of `zone`; nothing for what is no fixed window.
    pub fn in_zone(self, zone: Zone) -> Option<Self> {
        matches!(self.params(), Params::Calendar(_)).then(|| self.with(Params::Calendar(zone)))
    }

    /// The same looked at in so many sub-windows; nothing for what is no sliding window, or not among
    /// [`PRECISIONS`].
    pub fn with_precision(self, windows: u8) -> Option<Self> {
        let can = matches!(self.params(), Params::SubWindows(_)) && PRECISIONS.contains(&windows);
        can.then(|| self.with(Params::SubWindows(windows)))
    }

    /// The same with `params`, which are of its algorithm's kind.
    fn with(self, params: Params) -> Self {
        let packed = match params {
            Params::None => 0,
            Params::Calendar(zone) => zone.number().into(),
            Params::SubWindows(windows) => u32::from(windows).saturating_sub(1),
        };
        if self.algorithm.has_burst() {
            self
        } else {
            Self { interval_part: packed, tolerance_part: 0, ..self }
        }
    }

    /// What it goes by beside a limit and a burst.
    pub fn params(&self) -> Params {
        match self.algorithm {
            Algorithm::FixedWindow => {
                Params::Calendar(Zone::of_number(u16::try_from(self.interval_part).unwrap_or(0)))
            }
            Algorithm::SlidingWindow => {
                Params::SubWindows(u8::try_from(self.interval_part).unwrap_or(0).saturating_add(1))
            }
            Algorithm::Gcra
            | Algorithm::TokenBucket
            | Algorithm::RefillBucket
            | Algorithm::LeakyBucket
            | Algorithm::SlidingLog
            | Algorithm::InFlight
            | Algorithm::Ban => Params::None,
            Algorithm::Claim(origin) => Self { algorithm: origin.algorithm(), ..*self }.params(),
        }
    }

    /// The same quota counted in shares of a request, so that it can stretch; with what a request costs.
    ///
    /// At the full price it admits exactly what this quota admits.
    ///
    /// # Errors
    /// [`QuotaError::NoShares`] where count, burst or rate leave no room for shares.
    pub fn stretched(self, stretch: Stretch) -> Result<(Self, Prices), QuotaError> {
        let (count, burst) = (u64::from(self.count.get()), u64::from(self.burst.get()));
        let most = (self.period() / count).min(u64::from(u32::MAX) / count.max(burst));
        let no_shares = QuotaError::NoShares(stretch);
        let prices = Prices::new(stretch, most).ok_or(no_shares)?;
        let shares = u64::from(prices.full().get());
        let finer = |number: u64| u32::try_from(number * shares).ok().and_then(NonZeroU32::new);
        let units = finer(count).zip(finer(burst)).ok_or(no_shares)?;
        let stretched = Self::of_units(self.algorithm, self.window(), units, prices.full());
        Ok((stretched.ok_or(no_shares)?.with(self.params()), prices))
    }

    /// The same counted in the store, of which this process spends what it is granted; `None` for a ban.
    pub fn claimed(self) -> Option<Self> {
        Some(Self { algorithm: self.algorithm.claim()?, ..self })
    }

    /// The same as the store counts it.
    pub const fn counted(self) -> Self {
        if let Algorithm::Claim(origin) = self.algorithm {
            Self { algorithm: origin.algorithm(), ..self }
        } else {
            self
        }
    }

    /// The part of one of so many instances: together they allow no more than this, as long as there are not more of them
    /// than units at once.
    pub fn divided(self, instances: NonZeroU32) -> Self {
        let part = |units: NonZeroU32| NonZeroU32::new(units.get() / instances).unwrap_or(NonZeroU32::MIN);
        let Limit { count, period } = self.limit();
        let whole = |count, period, burst| Self::new(self.algorithm, Limit::new(count, period), burst).ok();
        if instances == NonZeroU32::MIN {
            return self;
        }
        let divided = match self.algorithm {
            Algorithm::InFlight => Some(Self::in_flight(part(self.burst()))),
            Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                let longer = period.count().checked_mul(instances);
                longer.and_then(|longer| {
                    whole(count, Period::new(longer, period.unit()), Some(part(self.burst())))
                })
            }
            Algorithm::RefillBucket => whole(part(count), period, Some(part(self.burst()))),
            Algorithm::FixedWindow | Algorithm::SlidingWindow | Algorithm::SlidingLog => {
                whole(part(count), period, None).map(|quota| quota.with(self.params()))
            }
            Algorithm::Ban | Algorithm::Claim(_) => None,
        };
        divided.unwrap_or(self)
    }

    /// Whether it is counted in the store.
    pub const fn is_claimed(&self) -> bool {
        matches!(self.algorithm, Algorithm::Claim(_))
    }

    /// How it is counted.
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// What the user wrote, in requests.
    pub fn limit(&self) -> Limit {
        Limit::new(self.in_requests(self.count), self.window())
    }

    /// The most that may pass at once, in requests.
    pub fn burst(&self) -> NonZeroU32 {
        self.in_requests(self.burst)
    }

    /// Units in a request of the written limit: 1 unless elastic.
    pub const fn shares(&self) -> NonZeroU16 {
        self.shares
    }

    /// How long an emptied quota needs to be whole again; the length of the window for window algorithms.
    pub const fn refill(&self) -> Duration {
        if self.algorithm.has_burst() {
            Duration::from_nanos(self.tolerance.saturating_add((self.tolerance_part > 0) as u64))
        } else {
            self.window().duration()
        }
    }

    /// Over which time the limit counts.
    pub const fn window(&self) -> Period {
        Period::new(self.periods, self.unit)
    }

    /// By whose calendar a fixed window goes.
    pub fn zone(&self) -> Zone {
        match self.params() {
            Params::Calendar(zone) => zone,
            Params::None | Params::SubWindows(_) => Zone::UTC,
        }
    }

    /// In how many sub-windows a sliding window looks: 1 unless it is precise.
    pub fn precision(&self) -> u8 {
        match self.params() {
            Params::SubWindows(windows) => windows,
            Params::None | Params::Calendar(_) => 1,
        }
    }

    /// Whether it counts by what happened when, and its counters want a history.
    pub const fn looks_back(&self) -> bool {
        match self.algorithm {
            Algorithm::SlidingWindow => self.interval_part > 0,
            Algorithm::SlidingLog => true,
            Algorithm::Gcra
            | Algorithm::TokenBucket
            | Algorithm::RefillBucket
            | Algorithm::LeakyBucket
            | Algorithm::FixedWindow
            | Algorithm::InFlight
            | Algorithm::Ban
            | Algorithm::Claim(_) => false,
        }
    }

    /// Whether its counters mean under `other` just what they mean under this, which may allow more or less.
    pub(super) fn counts_like(&self, other: &Self) -> bool {
        let like = |quota: &Self| (quota.algorithm, quota.window(), quota.shares, quota.interval_part);
        let by_marks = !self.algorithm.has_burst() || self.algorithm == Algorithm::RefillBucket;
        by_marks && like(self) == like(other) && algorithm::has_like_state(self, other)
    }

    /// Whether time gives back under `other` what it gives back under this, when it gives it back under this.
    pub(super) fn gives_back_like(&self, other: &Self) -> bool {
        let like = |quota: &Self| (quota.algorithm, quota.window(), quota.zone(), quota.precision());
        like(self) == like(other) && (!self.algorithm.has_burst() || self.limit() == other.limit())
    }

    /// Units per period.
    pub(super) const fn count(&self) -> u64 {
        self.count.get() as u64
    }

    /// Units that may pass at once.
    pub(super) const fn capacity(&self) -> u32 {
        self.burst.get()
    }

    pub(super) const fn period(&self) -> u64 {
        self.window().nanos()
    }

    /// The exact spacing of single units at the limit's rate.
    pub(super) const fn interval(&self) -> Span {
        Span { whole: self.interval, part: self.interval_part }
    }

    /// The exact time in which a whole burst refills.
    pub(super) const fn tolerance(&self) -> Span {
        Span { whole: self.tolerance, part: self.tolerance_part }
    }

    /// Counts and bursts are whole multiples of the shares.
    fn in_requests(&self, units: NonZeroU32) -> NonZeroU32 {
        NonZeroU32::new(units.get() / u32::from(self.shares.get())).unwrap_or(NonZeroU32::MIN)
    }
}

/// The spacing of single units and the time in which a burst refills; nothing where they do not fit. A bucket with refills
/// has whole periods.
fn spans(algorithm: Algorithm, period: u64, count: u64, burst: u64) -> Option<(Span, Span)> {
    let period = u128::from(period);
    if algorithm == Algorithm::RefillBucket {
        return Some((span(period, 1)?, span(period * u128::from(burst.div_ceil(count)), 1)?));
    }
    Some((span(period, count)?, span(period * u128::from(burst), count)?))
}

/// `numerator / count` nanoseconds, exactly; nothing where it does not fit.
fn span(numerator: u128, count: u64) -> Option<Span> {
    let count = u128::from(count);
    Some(Span { whole: u64::try_from(numerator / count).ok()?, part: u32::try_from(numerator % count).ok()? })
}

#[cfg(test)]
mod tests;
