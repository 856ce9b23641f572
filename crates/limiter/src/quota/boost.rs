//! Raised quotas: the limit that an operator grants to one key for a while.

use std::fmt;
use std::num::NonZeroU32;

use super::{Limit, MAX_LOGGED_UNITS, Quota};
use crate::algorithm::{Algorithm, Refill};

/// Hundredths in a factor of 1.
const HUNDREDTHS_IN_ONE: u32 = 100;

/// Factor by which a limit is raised, in hundredths. Above 1 and at most [`BoostFactor::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoostFactor {
    hundredths: u32,
}

impl BoostFactor {
    /// The greatest factor.
    pub const MAX: u32 = 1000;

    /// Converts hundredths, so 150 is a factor of 1.5; `None` unless above 1 and at most [`Self::MAX`].
    pub fn from_hundredths(hundredths: u32) -> Option<Self> {
        let range = HUNDREDTHS_IN_ONE + 1..=Self::MAX * HUNDREDTHS_IN_ONE;
        range.contains(&hundredths).then_some(Self { hundredths })
    }

    /// Returns the factor in hundredths.
    pub const fn hundredths(self) -> u32 {
        self.hundredths
    }

    /// Returns `count` multiplied by the factor, rounded up; `None` if the result does not fit 32 bits.
    fn raise(self, count: NonZeroU32) -> Option<NonZeroU32> {
        let raised = (u64::from(count.get()) * u64::from(self.hundredths)).div_ceil(HUNDREDTHS_IN_ONE.into());
        u32::try_from(raised).ok().and_then(NonZeroU32::new)
    }
}

impl fmt::Display for BoostFactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.hundredths) / f64::from(HUNDREDTHS_IN_ONE))
    }
}

/// How the quota of one key is raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaChange {
    /// Limit and burst are multiplied.
    Factor(BoostFactor),
    /// The limit is replaced, unless it is higher already. The burst is the new count, unless it was higher.
    Limit(Limit),
}

impl QuotaChange {
    /// Returns the raised quota, which this process counts even if the store counts `quota`; `None` if it is not valid.
    pub fn apply(self, quota: &Quota) -> Option<Quota> {
        let base = quota.store_quota();
        let raised = match self {
            Self::Factor(factor) => {
                let (count, burst) = (factor.raise(base.limit().count)?, factor.raise(base.burst())?);
                (Limit::new(count, base.window()), burst)
            }
            // A reload has raised the limit since.
            Self::Limit(limit) if limit.is_slower_than(base.limit()) => (base.limit(), base.burst()),
            Self::Limit(limit) if base.algorithm.has_burst() => (limit, limit.count.max(base.burst())),
            Self::Limit(limit) => (limit, limit.count),
        };
        base.with_requests(raised.0, raised.1)
    }
}

impl fmt::Display for QuotaChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Factor(factor) => write!(f, "factor {factor}"),
            Self::Limit(limit) => write!(f, "limit {limit}"),
        }
    }
}

impl Quota {
    /// Returns this quota with another limit and burst, in requests; `None` if the result is not a valid quota.
    pub(crate) fn with_requests(&self, limit: Limit, burst: NonZeroU32) -> Option<Self> {
        let shares = NonZeroU32::from(self.units_per_request);
        let (count, burst) = (limit.count.checked_mul(shares)?, burst.checked_mul(shares)?);
        if self.algorithm == Algorithm::InFlight {
            return Some(Self { count: burst, burst, ..*self });
        }
        let is_invalid = self.algorithm.refill() == Refill::None
            || (self.algorithm == Algorithm::SlidingLog && count.get() > MAX_LOGGED_UNITS)
            || (self.algorithm == Algorithm::RefillBucket && burst < count)
            || u64::from(count.get()) > limit.period.nanos();
        if is_invalid {
            return None;
        }
        let raised = Self::from_units(self.algorithm, limit.period, count, burst, self.units_per_request)?;
        Some(raised.with_params(self.params()))
    }

    /// Returns the quota of a counter whose limit of `units` is that of the request. Windows and their counts are those
    /// of this quota, but gcra spreads the limit over the period, with a burst of the whole limit, and leases are those of
    /// the limit.
    pub(crate) fn with_units(&self, units: u32) -> Self {
        let counted = self.store_quota();
        if !self.is_leased() && self.algorithm != Algorithm::Gcra {
            return *self;
        }
        let period = counted.window();
        let count = units.min(u32::try_from(period.nanos()).unwrap_or(u32::MAX));
        let count = NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN);
        let limited = Self::new(counted.algorithm, Limit::new(count, period), None).ok();
        let limited = if self.is_leased() { limited.and_then(Self::leased) } else { limited };
        limited.unwrap_or(*self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::{Period, TimeUnit};

    fn limit(count: u32) -> Limit {
        Limit::new(NonZeroU32::new(count).unwrap(), Period::one(TimeUnit::Second))
    }

    fn factor(hundredths: u32) -> QuotaChange {
        QuotaChange::Factor(BoostFactor::from_hundredths(hundredths).unwrap())
    }

    #[test]
    fn boost_raises_limit_and_burst_of_every_algorithm() {
        for algorithm in Algorithm::RATES {
            let burst = algorithm.has_burst().then(|| NonZeroU32::new(20).unwrap());
            let quota = Quota::new(algorithm, limit(10), burst).unwrap();
            let raised = factor(250).apply(&quota).unwrap();
            assert_eq!(raised.limit(), limit(25), "{algorithm}");
            assert_eq!(raised.burst().get(), if algorithm.has_burst() { 50 } else { 25 }, "{algorithm}");
            assert_eq!(raised.algorithm(), algorithm);
        }
        let permits = factor(300).apply(&Quota::in_flight(NonZeroU32::new(4).unwrap())).unwrap();
        assert_eq!((permits.burst().get(), permits.algorithm()), (12, Algorithm::InFlight));
    }

    #[test]
    fn boost_to_a_limit_keeps_a_higher_burst() {
        let quota = Quota::new(Algorithm::Gcra, limit(10), NonZeroU32::new(200)).unwrap();
        let burst = |count| QuotaChange::Limit(limit(count)).apply(&quota).map(|raised| raised.burst().get());
        assert_eq!((burst(100), burst(500)), (Some(200), Some(500)));
    }

    #[test]
    fn boost_never_lowers_a_limit() {
        let quota = Quota::new(Algorithm::Gcra, limit(10), NonZeroU32::new(200)).unwrap();
        let per_hour = |count| Limit::new(NonZeroU32::new(count).unwrap(), Period::one(TimeUnit::Hour));
        assert!(per_hour(35_999).is_slower_than(limit(10)) && !per_hour(36_000).is_slower_than(limit(10)));
        assert_eq!(QuotaChange::Limit(per_hour(35_999)).apply(&quota), Some(quota));
        assert_eq!(QuotaChange::Limit(per_hour(36_001)).apply(&quota).unwrap().limit(), per_hour(36_001));
    }

    #[test]
    fn boosted_quotas_that_are_not_valid_are_rejected() {
        let quota = Quota::new(Algorithm::SlidingLog, limit(MAX_LOGGED_UNITS), None).unwrap();
        assert_eq!(factor(101).apply(&quota), None);
        let quota = Quota::new(Algorithm::Gcra, limit(900_000_000), None).unwrap();
        assert_eq!(factor(200).apply(&quota), None);
        assert_eq!(BoostFactor::from_hundredths(100), None);
        assert_eq!(BoostFactor::from_hundredths(100_001), None);
        assert_eq!(factor(150).to_string(), "factor 1.5");
    }
}
