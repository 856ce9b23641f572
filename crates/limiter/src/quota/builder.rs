//! Constructors of quotas that read as the limit is stated: `Quota::per_second(100).burst(20)`.

use std::num::NonZeroU32;
use std::time::Duration;

use super::{Limit, Period, Quota, QuotaError, TimeUnit};
use crate::algorithm::Algorithm;

/// A quota in the making; [`Self::build`] checks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "`build` returns the quota"]
pub struct QuotaBuilder {
    count: u32,
    period: Result<Period, InvalidQuota>,
    burst: Option<u32>,
    algorithm: Algorithm,
    precision: Option<u8>,
}

/// Why [`QuotaBuilder::build`] returns no quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidQuota {
    /// A limit of zero units, which would reject everything.
    #[error("the count is 0")]
    ZeroCount,
    /// A burst of zero units, which would reject everything.
    #[error("the burst is 0")]
    ZeroBurst,
    /// A period that is not a [`Period`].
    #[error("the period is neither whole seconds nor whole milliseconds, from 1 to 4294967295, got {0:?}")]
    InvalidPeriod(Duration),
    /// A number of sub-windows outside [`super::PRECISIONS`], or for another algorithm than the sliding window.
    #[error("the precision is not one of a sliding window, 2 to 60, got {0}")]
    InvalidPrecision(u8),
    /// An algorithm that counts no rate. [`Quota::in_flight`] and [`Quota::ban`] create its quotas.
    #[error("the algorithm counts no rate, got {0}")]
    NotARate(Algorithm),
    /// Numbers that do not fit together.
    #[error(transparent)]
    Quota(#[from] QuotaError),
}

/// Constructors of rates.
///
/// ```
/// use std::time::Duration;
/// use weir_limiter::algorithm::Algorithm;
/// use weir_limiter::quota::{InvalidQuota, Quota};
///
/// // At most 20 at once, and 100 a second on average.
/// let quota = Quota::per_second(100).burst(20).build()?;
/// assert_eq!((quota.limit().count.get(), quota.burst().get()), (100, 20));
///
/// // At most 10 in any 30 seconds.
/// let quota = Quota::per(10, Duration::from_secs(30)).algorithm(Algorithm::SlidingLog).build()?;
/// assert_eq!(quota.limit().to_string(), "10/30s");
///
/// assert_eq!(Quota::per_hour(0).build(), Err(InvalidQuota::ZeroCount));
/// # Ok::<(), InvalidQuota>(())
/// ```
impl Quota {
    /// Begins a quota of `count` units a second.
    pub const fn per_second(count: u32) -> QuotaBuilder {
        QuotaBuilder::new(count, Ok(Period::one(TimeUnit::Second)))
    }

    /// Begins a quota of `count` units a minute.
    pub const fn per_minute(count: u32) -> QuotaBuilder {
        QuotaBuilder::new(count, Ok(Period::one(TimeUnit::Minute)))
    }

    /// Begins a quota of `count` units an hour.
    pub const fn per_hour(count: u32) -> QuotaBuilder {
        QuotaBuilder::new(count, Ok(Period::one(TimeUnit::Hour)))
    }

    /// Begins a quota of `count` units a day: 24 hours, or a calendar day for [`Algorithm::FixedWindow`].
    pub const fn per_day(count: u32) -> QuotaBuilder {
        QuotaBuilder::new(count, Ok(Period::one(TimeUnit::Day)))
    }

    /// Begins a quota of `count` units a month: 30 days, or a calendar month for [`Algorithm::FixedWindow`].
    pub const fn per_month(count: u32) -> QuotaBuilder {
        QuotaBuilder::new(count, Ok(Period::one(TimeUnit::Month)))
    }

    /// Begins a quota of `count` units in each `period`, which is whole seconds or whole milliseconds.
    pub fn per(count: u32, period: Duration) -> QuotaBuilder {
        QuotaBuilder::new(count, period_of(period).ok_or(InvalidQuota::InvalidPeriod(period)))
    }
}

impl QuotaBuilder {
    const fn new(count: u32, period: Result<Period, InvalidQuota>) -> Self {
        Self { count, period, burst: None, algorithm: Algorithm::Gcra, precision: None }
    }

    /// Sets how many units are admitted at once; by default the count. Windows and logs have no burst.
    pub const fn burst(self, units: u32) -> Self {
        Self { burst: Some(units), ..self }
    }

    /// Sets the algorithm, one of [`Algorithm::RATES`]; by default [`Algorithm::Gcra`].
    pub const fn algorithm(self, algorithm: Algorithm) -> Self {
        Self { algorithm, ..self }
    }

    /// Sets the number of sub-windows of a sliding window, 2 to 60.
    pub const fn precision(self, windows: u8) -> Self {
        Self { precision: Some(windows), ..self }
    }

    /// Returns the quota.
    ///
    /// # Errors
    /// [`InvalidQuota`].
    pub fn build(self) -> Result<Quota, InvalidQuota> {
        let count = NonZeroU32::new(self.count).ok_or(InvalidQuota::ZeroCount)?;
        let burst = match self.burst {
            Some(units) => Some(NonZeroU32::new(units).ok_or(InvalidQuota::ZeroBurst)?),
            None => None,
        };
        if !Algorithm::RATES.contains(&self.algorithm) {
            return Err(InvalidQuota::NotARate(self.algorithm));
        }
        let quota = Quota::new(self.algorithm, Limit::new(count, self.period?), burst)?;
        match self.precision {
            Some(windows) => quota.with_precision(windows).ok_or(InvalidQuota::InvalidPrecision(windows)),
            None => Ok(quota),
        }
    }
}

/// Returns `duration` as a number of seconds or, failing that, of milliseconds.
fn period_of(duration: Duration) -> Option<Period> {
    let whole = |unit: TimeUnit| {
        let (nanos, unit_nanos) = (duration.as_nanos(), u128::from(unit.nanos()));
        let count = NonZeroU32::new(u32::try_from(nanos / unit_nanos).ok()?)?;
        (nanos % unit_nanos == 0).then_some(Period::new(count, unit))
    };
    whole(TimeUnit::Second).or_else(|| whole(TimeUnit::Millisecond))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builder_creates_what_the_constructor_creates() {
        let limit =
            |count, periods, unit| Limit::new(count, Period::new(NonZeroU32::new(periods).unwrap(), unit));
        let count = NonZeroU32::new(12).unwrap();
        let plain = |periods, unit| Quota::new(Algorithm::Gcra, limit(count, periods, unit), None).unwrap();
        let built = [
            (Quota::per_second(12), plain(1, TimeUnit::Second)),
            (Quota::per_minute(12), plain(1, TimeUnit::Minute)),
            (Quota::per_hour(12), plain(1, TimeUnit::Hour)),
            (Quota::per_day(12), plain(1, TimeUnit::Day)),
            (Quota::per_month(12), plain(1, TimeUnit::Month)),
            (Quota::per(12, Duration::from_secs(90)), plain(90, TimeUnit::Second)),
            (Quota::per(12, Duration::from_millis(1500)), plain(1500, TimeUnit::Millisecond)),
        ];
        for (builder, quota) in built {
            assert_eq!(builder.build(), Ok(quota));
        }
        let precise = Quota::per_hour(12).algorithm(Algorithm::SlidingWindow).precision(6).build().unwrap();
        assert_eq!((precise.algorithm(), precise.precision()), (Algorithm::SlidingWindow, 6));
    }

    #[test]
    fn invalid_numbers_are_errors_of_the_builder() {
        let error = |builder: QuotaBuilder| builder.build().unwrap_err();
        assert_eq!(error(Quota::per_second(0)), InvalidQuota::ZeroCount);
        assert_eq!(error(Quota::per_second(1).burst(0)), InvalidQuota::ZeroBurst);
        for period in [Duration::ZERO, Duration::from_nanos(1_500_000), Duration::MAX] {
            assert_eq!(error(Quota::per(1, period)), InvalidQuota::InvalidPeriod(period));
        }
        assert_eq!(error(Quota::per_second(1).precision(6)), InvalidQuota::InvalidPrecision(6));
        let window = Quota::per_second(1).algorithm(Algorithm::SlidingWindow);
        assert_eq!(error(window.precision(61)), InvalidQuota::InvalidPrecision(61));
        let no_burst = InvalidQuota::Quota(QuotaError::NoBurst(Algorithm::SlidingWindow));
        assert_eq!(error(window.burst(1)), no_burst);
        let ban = Quota::per_second(1).algorithm(Algorithm::Ban);
        assert_eq!(error(ban), InvalidQuota::NotARate(Algorithm::Ban));
    }
}
