//! Elastic limits: the cost of a request as a function of the upstream's headroom.
//!
//! An elastic limit counts in shares, which are fractions of a request, so its quota has a finer unit than the
//! configured limit. A request costs exactly one configured request without headroom, and less with more headroom, down
//! to the full cost divided by the maximum factor. Counters and algorithms are unchanged.
//!
//! The cost never exceeds the full one. So clients within the configured limit are always admitted, and a limit that
//! shrinks affects first those that used most.
//!
//! [`controller`] computes the headroom.

pub mod controller;
pub mod latency;
pub mod signal;

mod concurrency;

use std::fmt;
use std::num::{NonZeroU16, NonZeroU32};

use super::scale::LimitScale;

/// Minimum number of shares of the cheapest request, if the limit's numbers leave room for it. The factor then has
/// steps of a few per cent at its maximum, and finer ones below.
const MIN_UNITS_PER_REQUEST: u32 = 64;

/// Spare capacity of the upstream, from none to as much as limits may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Headroom(u16);

impl Headroom {
    /// No headroom: elastic limits are as configured.
    pub const NONE: Self = Self(0);
    /// Full headroom: elastic limits are at their maximum.
    pub const FULL: Self = Self(u16::MAX);

    /// Converts a fraction between 0 and 1; values outside are clamped, and NaN counts as 0.
    pub fn from_fraction(fraction: f64) -> Self {
        // The conversion saturates, and converts NaN to 0.
        Self((fraction * f64::from(u16::MAX)) as u16)
    }

    /// Returns the headroom as a fraction between 0 and 1.
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / f64::from(u16::MAX)
    }

    /// Returns the headroom as a word that threads can share atomically.
    pub const fn to_bits(self) -> u16 {
        self.0
    }

    /// Converts the result of [`Self::to_bits`] back.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }
}

/// Maximum factor of an elastic limit, such as `3x` or `1.5x`. Above 1 and at most 100, in hundredths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElasticRange {
    hundredths: NonZeroU16,
}

impl ElasticRange {
    /// Converts hundredths, so 300 is `3x`; `None` unless above 100 and at most 10 000.
    pub fn from_hundredths(hundredths: u32) -> Option<Self> {
        let hundredths =
            u16::try_from(hundredths).ok().filter(|hundredths| (101..=10_000).contains(hundredths));
        Some(Self { hundredths: NonZeroU16::new(hundredths?)? })
    }

    /// Returns the maximum factor.
    pub fn max_factor(self) -> f64 {
        f64::from(self.hundredths.get()) / 100.0
    }

    /// Returns the factor at this headroom: 1 without any, the maximum at full headroom, linear in between.
    pub fn factor_at(self, headroom: Headroom) -> f64 {
        1.0 + (self.max_factor() - 1.0) * headroom.fraction()
    }

    /// Returns the factor as a reduced fraction.
    fn ratio(self) -> (u32, u32) {
        let (mut a, mut b) = (u32::from(self.hundredths.get()), 100);
        let (numerator, denominator) = (a, b);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        (numerator / a, denominator / a)
    }
}

impl fmt::Display for ElasticRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x", self.max_factor())
    }
}

/// Costs of a request under an elastic limit, in shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElasticCosts {
    full: NonZeroU16,
    min: NonZeroU16,
    range: ElasticRange,
}

impl ElasticCosts {
    /// Computes the costs for a limit that may grow within `range`, with at most `max_units` shares per
    /// request; `None` if `max_units` is too small to express the factor exactly.
    pub(super) fn new(range: ElasticRange, max_units: u64) -> Option<Self> {
        let (numerator, denominator) = range.ratio();
        let most = u32::try_from(max_units).unwrap_or(u32::MAX).min(u16::MAX.into());
        let times = MIN_UNITS_PER_REQUEST.div_ceil(denominator).min(most / numerator);
        let price = |shares: u32| u16::try_from(shares.checked_mul(times)?).ok().and_then(NonZeroU16::new);
        Some(Self { full: price(numerator)?, min: price(denominator)?, range })
    }

    /// Cost of a request without headroom: the shares per configured request.
    pub const fn full(self) -> NonZeroU16 {
        self.full
    }

    /// Returns the maximum factor of the limit.
    pub const fn range(self) -> ElasticRange {
        self.range
    }

    /// Returns the cost of a request at this headroom: the full cost divided by the factor, rounded up so that the
    /// factor never exceeds what the headroom allows.
    pub fn at_headroom(self, headroom: Headroom) -> NonZeroU32 {
        if headroom == Headroom::NONE {
            return self.full.into();
        }
        let (full, min) = (u64::from(self.full.get()), u64::from(self.min.get()));
        let (room, all) = (u64::from(headroom.0), u64::from(u16::MAX));
        // 1 + (full/min - 1) * room/all, multiplied out.
        let scale = LimitScale { numerator: min * all + (full - min) * room, denominator: min * all };
        scale.cost(self.full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elastic_range(hundredths: u32) -> ElasticRange {
        ElasticRange::from_hundredths(hundredths).unwrap()
    }

    #[test]
    fn elastic_costs_are_exact_at_both_bounds_and_fall_between_them() {
        for hundredths in 101..=10_000 {
            let prices = ElasticCosts::new(elastic_range(hundredths), u64::MAX).unwrap();
            assert_eq!(prices.at_headroom(Headroom::NONE), prices.full().into());
            let (full, least) = (u32::from(prices.full().get()), prices.at_headroom(Headroom::FULL).get());
            assert_eq!(full * 100, least * hundredths, "{hundredths}");
            let mut last = full;
            for room in (0..=u16::MAX).step_by(4369) {
                let headroom = Headroom(room);
                let price = prices.at_headroom(headroom).get();
                assert!(price <= last);
                let factor = f64::from(full) / f64::from(price);
                assert!(factor <= prices.range().factor_at(headroom) + 1e-9, "{factor} at {room}");
                last = price;
            }
        }
    }

    #[test]
    fn elastic_units_per_request_are_as_fine_as_the_limit_allows() {
        let full = |most| ElasticCosts::new(elastic_range(300), most).map(|prices| prices.full().get());
        assert_eq!(full(u64::MAX), Some(192));
        assert_eq!(full(100), Some(99));
        assert_eq!(full(3), Some(3));
        assert_eq!(full(2), None);
        assert_eq!(
            ElasticCosts::new(elastic_range(150), u64::MAX).map(|prices| prices.full().get()),
            Some(96)
        );
    }

    #[test]
    fn elastic_range_is_bounded_and_displays_as_configured() {
        assert_eq!((ElasticRange::from_hundredths(100), ElasticRange::from_hundredths(10_001)), (None, None));
        assert_eq!(
            (elastic_range(300).to_string(), elastic_range(150).to_string()),
            ("3x".to_owned(), "1.5x".to_owned())
        );
    }

    #[test]
    fn headroom_is_clamped_to_zero_and_one() {
        let fractions =
            [-1.0, 0.0, 1.0, 7.0, f64::NAN].map(|fraction| Headroom::from_fraction(fraction).to_bits());
        assert_eq!(fractions, [0, 0, u16::MAX, u16::MAX, 0]);
        assert!((Headroom::from_fraction(0.25).fraction() - 0.25).abs() < 1e-4);
    }
}
