//! Validated limits: a rate or a concurrency, a burst, and the algorithm that counts them.
//!
//! A [`Quota`] is always valid: its numbers are non-zero, the clock can resolve its rate, and its burst refills within
//! 100 years. The exact spacing of requests is computed once, here, as whole nanoseconds and a remainder, so that no
//! algorithm rounds on the request path.
//!
//! Algorithms count in units. A unit is a request, or a part of what a request costs. An elastic quota counts in
//! shares, which are equal fractions of a request. Limits in configuration are always in requests.

mod boost;
mod builder;
mod envelope;
mod period;
mod serialization;

use std::num::{NonZeroU16, NonZeroU32};
use std::ops::RangeInclusive;
use std::time::Duration;

pub use self::boost::{BoostFactor, QuotaChange};
pub use self::builder::{InvalidQuota, QuotaBuilder};
use self::period::DAY;
pub use self::period::{Limit, Period, TimeUnit};
use super::algorithm::{self, Algorithm, Refill};
use super::elastic::{ElasticCosts, ElasticRange};
use super::feedback;
use super::percent::Percent;
use super::timestamp::saturating_nanos;
use super::zone::Zone;

/// Maximum refill time, in nanoseconds: 100 years. A longer one is assumed to be a mistake. The bound also keeps the
/// sum of a timestamp and a tolerance from overflowing.
const MAX_REFILL: u64 = 100 * 365 * DAY;

/// Maximum number of units of a sliding log, which stores the time of each of them.
pub const MAX_LOGGED_UNITS: u32 = 10_000;

/// Range of the number of sub-windows of a sliding window.
pub const PRECISIONS: RangeInclusive<u8> = 2..=60;

/// An exact span: `whole` nanoseconds and `part / limit.count` of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ExactSpan {
    pub(super) nanos: u64,
    pub(super) remainder: u32,
}

/// A valid limit with its burst and its algorithm.
///
/// Forty bytes without pointers, because every verdict contains one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    interval: u64,
    tolerance: u64,
    /// Remainder of the spacing. Windows have no spacing and store their [`Params`] here.
    interval_remainder: u32,
    tolerance_remainder: u32,
    count: NonZeroU32,
    periods: NonZeroU32,
    burst: NonZeroU32,
    /// Units per request of the configured limit.
    units_per_request: NonZeroU16,
    unit: TimeUnit,
    algorithm: Algorithm,
}

/// Parameters of an algorithm other than the limit and the burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Params {
    /// None.
    None,
    /// Time zone of the calendar.
    Calendar(Zone),
    /// Number of sub-windows of a sliding window; 1 unless `precision` is set.
    SubWindows(u8),
}

/// Duration of a ban.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ban {
    /// Duration of the first ban.
    pub initial_duration: Duration,
    /// Maximum duration. Also how long a ban is remembered after its end, so that the next one is twice as long.
    pub max_duration: Duration,
}

/// Why a quota is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    /// More than one unit per nanosecond.
    #[error("more than 1000000000 a second, got {0}")]
    TooFast(Limit),
    /// A window longer than 100 years, or a burst that takes longer than that to refill.
    #[error("takes longer than 100 years to refill")]
    TooSlow,
    /// A burst for an algorithm that has none.
    #[error("`burst` has no meaning for {0}")]
    NoBurst(Algorithm),
    /// A refill larger than the bucket.
    #[error("larger than `burst`, the size of the bucket, got {0}")]
    RefillAboveBurst(NonZeroU32),
    /// A log with more units than it may store for each key.
    #[error("more than {MAX_LOGGED_UNITS} requests to store for each key, got {0}")]
    TooManyToLog(Limit),
    /// A limit too large or too fast to be counted in shares of a request.
    #[error("too large for an elastic limit of {0}")]
    TooLargeForElastic(ElasticRange),
}

impl Quota {
    /// Creates a quota of `limit`, admitting `burst` at once (default: the limit's count), counted by `algorithm`.
    ///
    /// # Errors
    /// [`QuotaError`] if the rate is above 10⁹ per second, or if the window or the refill of the burst is longer than
    /// 100 years. Also if the algorithm has no burst, a refill is larger than the burst, or a log has more than
    /// [`MAX_LOGGED_UNITS`] units.
    pub fn new(algorithm: Algorithm, limit: Limit, burst: Option<NonZeroU32>) -> Result<Self, QuotaError> {
        if burst.is_some() && !algorithm.has_burst() {
            return Err(QuotaError::NoBurst(algorithm));
        }
        let (count, period) = (u64::from(limit.count.get()), limit.period.nanos());
        if count > period {
            return Err(QuotaError::TooFast(limit));
        }
        if algorithm == Algorithm::SlidingLog && limit.count.get() > MAX_LOGGED_UNITS {
            return Err(QuotaError::TooManyToLog(limit));
        }
        let burst = burst.unwrap_or(limit.count);
        if algorithm == Algorithm::RefillBucket && burst < limit.count {
            return Err(QuotaError::RefillAboveBurst(limit.count));
        }
        Self::from_units(algorithm, limit.period, limit.count, burst, NonZeroU16::MIN)
            .ok_or(QuotaError::TooSlow)
    }

    /// Creates a quota of `count` units per `period` and a burst of `burst` units, with `shares` units per request;
    /// `None` if a refill takes too long.
    fn from_units(
        algorithm: Algorithm,
        period: Period,
        count: NonZeroU32,
        burst: NonZeroU32,
        shares: NonZeroU16,
    ) -> Option<Self> {
        let spans = spans(algorithm, period.nanos(), count.get().into(), burst.get().into());
        let (interval, tolerance) = spans.filter(|(_, tolerance)| tolerance.nanos <= MAX_REFILL)?;
        let quota = Self {
            interval: interval.nanos,
            tolerance: tolerance.nanos,
            interval_remainder: interval.remainder,
            tolerance_remainder: tolerance.remainder,
            count,
            periods: period.count(),
            burst,
            units_per_request: shares,
            unit: period.unit(),
            algorithm,
        };
        (period.nanos() <= MAX_REFILL).then(|| quota.with_params(Params::None))
    }

    /// Creates a concurrency limit of `max_in_flight` requests.
    pub const fn in_flight(max_in_flight: NonZeroU32) -> Self {
        Self {
            interval: 0,
            tolerance: 0,
            interval_remainder: 0,
            tolerance_remainder: 0,
            count: max_in_flight,
            periods: NonZeroU32::MIN,
            burst: max_in_flight,
            units_per_request: NonZeroU16::MIN,
            unit: TimeUnit::Second,
            algorithm: Algorithm::InFlight,
        }
    }

    /// Creates the quota of a ban. It rejects nothing until a ban begins.
    pub fn ban(ban: Ban) -> Self {
        Self {
            interval: saturating_nanos(ban.initial_duration),
            tolerance: saturating_nanos(ban.max_duration),
            algorithm: Algorithm::Ban,
            ..Self::in_flight(NonZeroU32::MIN)
        }
    }

    /// Returns the durations, if this is a ban.
    pub fn as_ban(&self) -> Option<Ban> {
        let lasts = |span: ExactSpan| Duration::from_nanos(span.nanos);
        (self.algorithm == Algorithm::Ban)
            .then(|| Ban { initial_duration: lasts(self.interval()), max_duration: lasts(self.tolerance()) })
    }

    /// Returns this quota with limit and burst raised by `margin`, rounded up; `None` if the result is not a valid
    /// quota.
    pub fn with_margin(&self, margin: Percent) -> Option<Self> {
        let Limit { count, period } = self.limit();
        let burst = match self.algorithm.has_burst() {
            true => Some(margin.raise(self.burst)?),
            false => None,
        };
        let raised = Self::new(self.algorithm, Limit::new(margin.raise(count)?, period), burst).ok()?;
        Some(raised.with_params(self.params()))
    }

    /// Returns the quota that admits one unit in the same period; `None` for a bucket that is refilled in batches, which has
    /// no period.
    pub fn for_one_unit(&self) -> Option<Self> {
        let period = self.limit().period;
        let one = Self::new(self.algorithm, Limit::new(NonZeroU32::MIN, period), None).ok();
        let is_periodic = self.algorithm != Algorithm::RefillBucket;
        one.filter(|_| is_periodic).map(|one| one.with_params(self.params()))
    }

    /// Returns this quota with windows that follow the calendar of `zone`; `None` unless it is a fixed window.
    pub fn in_zone(self, zone: Zone) -> Option<Self> {
        matches!(self.params(), Params::Calendar(_)).then(|| self.with_params(Params::Calendar(zone)))
    }

    /// Returns this quota with `windows` sub-windows; `None` unless it is a sliding window and the number is in
    /// [`PRECISIONS`].
    pub fn with_precision(self, windows: u8) -> Option<Self> {
        let can = matches!(self.params(), Params::SubWindows(_)) && PRECISIONS.contains(&windows);
        can.then(|| self.with_params(Params::SubWindows(windows)))
    }

    /// Returns this quota with `params`, which must be of its algorithm's kind.
    fn with_params(self, params: Params) -> Self {
        let packed = match params {
            Params::None => 0,
            Params::Calendar(zone) => zone.number().into(),
            Params::SubWindows(windows) => u32::from(windows).saturating_sub(1),
        };
        if self.algorithm.has_burst() {
            self
        } else {
            Self { interval_remainder: packed, tolerance_remainder: 0, ..self }
        }
    }

    /// Returns the parameters other than limit and burst.
    pub fn params(&self) -> Params {
        match self.algorithm {
            Algorithm::FixedWindow => {
                Params::Calendar(Zone::from_number(u16::try_from(self.interval_remainder).unwrap_or(0)))
            }
            Algorithm::SlidingWindow => {
                Params::SubWindows(u8::try_from(self.interval_remainder).unwrap_or(0).saturating_add(1))
            }
            Algorithm::Gcra
            | Algorithm::TokenBucket
            | Algorithm::RefillBucket
            | Algorithm::LeakyBucket
            | Algorithm::SlidingLog
            | Algorithm::InFlight
            | Algorithm::Ban => Params::None,
            Algorithm::Lease(origin) => Self { algorithm: origin.algorithm(), ..*self }.params(),
        }
    }

    /// Returns this quota counted in shares of a request, so that it can be elastic, and the costs of a request.
    ///
    /// At full cost it admits exactly what this quota admits.
    ///
    /// # Errors
    /// [`QuotaError::TooLargeForElastic`] if count, burst or rate leave no room for shares.
    pub fn to_elastic(self, stretch: ElasticRange) -> Result<(Self, ElasticCosts), QuotaError> {
        let (count, burst) = (u64::from(self.count.get()), u64::from(self.burst.get()));
        let max_units = (self.period_nanos() / count).min(u64::from(u32::MAX) / count.max(burst));
        let no_shares = QuotaError::TooLargeForElastic(stretch);
        let prices = ElasticCosts::new(stretch, max_units).ok_or(no_shares)?;
        let shares = u64::from(prices.full().get());
        let finer = |number: u64| u32::try_from(number * shares).ok().and_then(NonZeroU32::new);
        let (count, burst) = finer(count).zip(finer(burst)).ok_or(no_shares)?;
        let stretched = Self::from_units(self.algorithm, self.window(), count, burst, prices.full());
        Ok((stretched.ok_or(no_shares)?.with_params(self.params()), prices))
    }

    /// Returns this quota in units of which a request costs several, so that it can follow a provider; `None` if count,
    /// burst or rate leave no room for them.
    ///
    /// At one request's units per request it admits exactly what this quota admits.
    pub fn to_following(self) -> Option<Self> {
        let (count, burst) = (u64::from(self.count.get()), u64::from(self.burst.get()));
        let max_units = (self.period_nanos() / count).min(u64::from(u32::MAX) / count.max(burst));
        self.in_finer_units(feedback::units_per_request(max_units)?)
    }

    /// Returns this quota, which counts in requests, with `units` per request.
    fn in_finer_units(self, units: NonZeroU16) -> Option<Self> {
        if units == self.units_per_request {
            return Some(self);
        }
        let (count, burst) = (self.count.checked_mul(units.into())?, self.burst.checked_mul(units.into())?);
        let finer = Self::from_units(self.algorithm, self.window(), count, burst, units)?;
        Some(finer.with_params(self.params()))
    }

    /// Returns this quota for leases: the store counts it, and this process spends the units that it is granted. `None`
    /// for a ban.
    pub fn leased(self) -> Option<Self> {
        Some(Self { algorithm: self.algorithm.leased()?, ..self })
    }

    /// Returns this quota with the algorithm by which the store counts it, if it is leased.
    pub const fn store_quota(self) -> Self {
        if let Algorithm::Lease(origin) = self.algorithm {
            Self { algorithm: origin.algorithm(), ..self }
        } else {
            self
        }
    }

    /// Returns the part of one of `instances`. Together they admit no more than this quota, unless there are more
    /// instances than units of the burst.
    pub fn split_among(self, instances: NonZeroU32) -> Self {
        let part = |units: NonZeroU32| NonZeroU32::new(units.get() / instances).unwrap_or(NonZeroU32::MIN);
        let Limit { count, period } = self.limit();
        let whole = |count, period, burst| Self::new(self.algorithm, Limit::new(count, period), burst).ok();
        if instances == NonZeroU32::MIN {
            return self;
        }
        if self.algorithm == Algorithm::InFlight {
            return Self::in_flight(part(self.burst()));
        }
        let divided = match self.algorithm.refill() {
            Refill::Continuous => {
                let longer = period.count().checked_mul(instances);
                longer.and_then(|longer| {
                    whole(count, Period::new(longer, period.unit()), Some(part(self.burst())))
                })
            }
            Refill::Batches => whole(part(count), period, Some(part(self.burst()))),
            Refill::Window | Refill::Sliding => {
                whole(part(count), period, None).map(|quota| quota.with_params(self.params()))
            }
            Refill::None => None,
        };
        divided.and_then(|quota| quota.in_finer_units(self.units_per_request)).unwrap_or(self)
    }

    /// Whether the store counts it.
    pub const fn is_leased(&self) -> bool {
        matches!(self.algorithm, Algorithm::Lease(_))
    }

    /// Returns the most units that a request of `requests` requests may cost so that it is admitted as soon as one
    /// `part` of the burst is free.
    pub fn max_cost(&self, requests: u32, part: u32) -> u32 {
        requests.saturating_mul(self.units_per_request.get().into()).max(self.burst.get() / part.max(1))
    }

    /// Returns the algorithm.
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the configured limit, in requests.
    pub fn limit(&self) -> Limit {
        Limit::new(self.in_requests(self.count), self.window())
    }

    /// Returns the maximum number of requests admitted at once.
    pub fn burst(&self) -> NonZeroU32 {
        self.in_requests(self.burst)
    }

    /// Returns the units per request of the configured limit: 1 unless elastic.
    pub const fn units_per_request(&self) -> NonZeroU16 {
        self.units_per_request
    }

    /// Time in which a used-up quota becomes whole again; the length of the window for window algorithms.
    pub const fn refill(&self) -> Duration {
        if self.algorithm.has_burst() {
            Duration::from_nanos(self.tolerance.saturating_add((self.tolerance_remainder > 0) as u64))
        } else {
            self.window().duration()
        }
    }

    /// Returns the period over which the limit counts.
    pub const fn window(&self) -> Period {
        Period::new(self.periods, self.unit)
    }

    /// Returns the time zone of a fixed window's calendar.
    pub fn zone(&self) -> Zone {
        match self.params() {
            Params::Calendar(zone) => zone,
            Params::None | Params::SubWindows(_) => Zone::UTC,
        }
    }

    /// Returns the number of sub-windows of a sliding window: 1 unless it is precise.
    pub fn precision(&self) -> u8 {
        match self.params() {
            Params::SubWindows(windows) => windows,
            Params::None | Params::Calendar(_) => 1,
        }
    }

    /// Whether its counters need a history of charges and their times.
    pub const fn needs_history(&self) -> bool {
        match self.algorithm {
            Algorithm::SlidingWindow => self.interval_remainder > 0,
            Algorithm::SlidingLog => true,
            Algorithm::Gcra
            | Algorithm::TokenBucket
            | Algorithm::RefillBucket
            | Algorithm::LeakyBucket
            | Algorithm::FixedWindow
            | Algorithm::InFlight
            | Algorithm::Ban
            | Algorithm::Lease(_) => false,
        }
    }

    /// Whether counters have the same meaning under `other`, which may differ in what it admits.
    pub(super) fn has_compatible_counters(&self, other: &Self) -> bool {
        let like = |quota: &Self| {
            (quota.algorithm, quota.window(), quota.units_per_request, quota.interval_remainder)
        };
        let by_marks = !self.algorithm.has_burst() || self.algorithm == Algorithm::RefillBucket;
        by_marks && like(self) == like(other) && algorithm::has_compatible_state(self, other)
    }

    /// Whether units return under `other` at the same times as under this quota.
    pub(super) fn has_compatible_refunds(&self, other: &Self) -> bool {
        let like = |quota: &Self| (quota.algorithm, quota.window(), quota.zone(), quota.precision());
        like(self) == like(other) && (!self.algorithm.has_burst() || self.limit() == other.limit())
    }

    /// Units per period.
    pub(super) const fn count(&self) -> u64 {
        self.count.get() as u64
    }

    /// Units that may be charged at once.
    pub const fn capacity(&self) -> u32 {
        self.burst.get()
    }

    pub(super) const fn period_nanos(&self) -> u64 {
        self.window().nanos()
    }

    /// Exact spacing of single units at the limit's rate.
    pub(super) const fn interval(&self) -> ExactSpan {
        ExactSpan { nanos: self.interval, remainder: self.interval_remainder }
    }

    /// Exact time in which a whole burst refills.
    pub(super) const fn tolerance(&self) -> ExactSpan {
        ExactSpan { nanos: self.tolerance, remainder: self.tolerance_remainder }
    }

    /// Converts units to requests. Counts and bursts are whole multiples of the shares.
    fn in_requests(&self, units: NonZeroU32) -> NonZeroU32 {
        NonZeroU32::new(units.get() / u32::from(self.units_per_request.get())).unwrap_or(NonZeroU32::MIN)
    }
}

/// Returns the spacing of single units and the refill time of a burst; `None` if they do not fit. For a bucket with
/// refills both are whole periods.
fn spans(algorithm: Algorithm, period: u64, count: u64, burst: u64) -> Option<(ExactSpan, ExactSpan)> {
    let period = u128::from(period);
    if algorithm == Algorithm::RefillBucket {
        return Some((span(period, 1)?, span(period * u128::from(burst.div_ceil(count)), 1)?));
    }
    Some((span(period, count)?, span(period * u128::from(burst), count)?))
}

/// Returns `numerator / count` nanoseconds exactly; `None` if it does not fit.
fn span(numerator: u128, count: u64) -> Option<ExactSpan> {
    let count = u128::from(count);
    Some(ExactSpan {
        nanos: u64::try_from(numerator / count).ok()?,
        remainder: u32::try_from(numerator % count).ok()?,
    })
}

#[cfg(test)]
mod tests;
