//! Limits that grow while there is room: the arithmetic of prices.
//!
//! An elastic limit counts in shares of a request. Its quota is so many times finer than what was written,
//! and what a request costs falls as headroom grows: without any, a request costs exactly one request of the
//! written limit; with all of it, as much less as the limit may stretch. Counters, algorithms and their
//! exactness stay as they are. A price only ever falls from the full one, so whoever stays within the written
//! limit passes, whatever the headroom does, and a limit that shrinks is felt first by those who used most.
//!
//! How much headroom there is says [`controller`].

pub mod controller;
pub mod latency;
pub mod signal;

mod concurrency;

use std::fmt;
use std::num::{NonZeroU16, NonZeroU32};

/// Shares that the cheapest request is at least cut into, where the limit's numbers leave room for it: the
/// factor then moves in steps of a few per cent at its top and finer below.
const SHARES: u32 = 64;

/// How much more an upstream could take: from none to all that limits may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Headroom(u16);

impl Headroom {
    /// Elastic limits are as written.
    pub const NONE: Self = Self(0);
    /// Elastic limits are at their most.
    pub const FULL: Self = Self(u16::MAX);

    /// From a fraction between 0 and 1; what lies outside counts as the nearest of them, no number as 0.
    pub fn from_fraction(fraction: f64) -> Self {
        // The conversion saturates, and a number that is none becomes 0.
        Self((fraction * f64::from(u16::MAX)) as u16)
    }

    /// As a fraction between 0 and 1.
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / f64::from(u16::MAX)
    }

    /// As a word that can be shared between threads.
    pub const fn to_bits(self) -> u16 {
        self.0
    }

    /// From such a word.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }
}

/// How many times the written limit may be reached: `3x`, `1.5x`. Above 1 and at most 100, in hundredths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    hundredths: NonZeroU16,
}

impl Stretch {
    /// From hundredths, so 300 is `3x`; nothing unless above 100 and at most 10 000.
    pub fn from_hundredths(hundredths: u32) -> Option<Self> {
        let hundredths =
            u16::try_from(hundredths).ok().filter(|hundredths| (101..=10_000).contains(hundredths));
        Some(Self { hundredths: NonZeroU16::new(hundredths?)? })
    }

    /// The factor at its most.
    pub fn factor(self) -> f64 {
        f64::from(self.hundredths.get()) / 100.0
    }

    /// The factor with this much headroom.
    pub fn factor_at(self, headroom: Headroom) -> f64 {
        1.0 + (self.factor() - 1.0) * headroom.fraction()
    }

    /// As a reduced fraction.
    fn ratio(self) -> (u32, u32) {
        let (mut a, mut b) = (u32::from(self.hundredths.get()), 100);
        let (numerator, denominator) = (a, b);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        (numerator / a, denominator / a)
    }
}

impl fmt::Display for Stretch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x", self.factor())
    }
}

/// What a request costs of an elastic limit, in shares, with and without headroom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prices {
    full: NonZeroU16,
    least: NonZeroU16,
    stretch: Stretch,
}

impl Prices {
    /// Prices for a limit that may grow by `stretch`, with at most `most` shares to a request; nothing where
    /// that is too few to tell the least price from the full one exactly.
    pub(super) fn new(stretch: Stretch, most: u64) -> Option<Self> {
        let (numerator, denominator) = stretch.ratio();
        let most = u32::try_from(most).unwrap_or(u32::MAX).min(u16::MAX.into());
        let times = SHARES.div_ceil(denominator).min(most / numerator);
        let price = |shares: u32| u16::try_from(shares.checked_mul(times)?).ok().and_then(NonZeroU16::new);
        Some(Self { full: price(numerator)?, least: price(denominator)?, stretch })
    }

    /// Shares in a request of the written limit: what one costs without headroom.
    pub const fn full(self) -> NonZeroU16 {
        self.full
    }

    /// How far the limit may grow.
    pub const fn stretch(self) -> Stretch {
        self.stretch
    }

    /// What a request costs with this much headroom: full price over factor, rounded up, so that the factor
    /// is never above what the headroom allows.
    pub fn at(self, headroom: Headroom) -> NonZeroU32 {
        if headroom == Headroom::NONE {
            return self.full.into();
        }
        let (full, least) = (u64::from(self.full.get()), u64::from(self.least.get()));
        let (room, all) = (u64::from(headroom.0), u64::from(u16::MAX));
        // full / (1 + (full/least - 1) * room/all), multiplied out.
        let price = (full * least * all).div_ceil(least * all + (full - least) * room);
        u32::try_from(price).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(hundredths: u32) -> Stretch {
        Stretch::from_hundredths(hundredths).unwrap()
    }

    #[test]
    fn prices_are_exact_at_both_ends_and_fall_between_them() {
        for hundredths in 101..=10_000 {
            let prices = Prices::new(stretch(hundredths), u64::MAX).unwrap();
            assert_eq!(prices.at(Headroom::NONE), prices.full().into());
            let (full, least) = (u32::from(prices.full().get()), prices.at(Headroom::FULL).get());
            assert_eq!(full * 100, least * hundredths, "{hundredths}");
            let mut last = full;
            for room in (0..=u16::MAX).step_by(4369) {
                let headroom = Headroom(room);
                let price = prices.at(headroom).get();
                assert!(price <= last);
                let factor = f64::from(full) / f64::from(price);
                assert!(factor <= prices.stretch().factor_at(headroom) + 1e-9, "{factor} at {room}");
                last = price;
            }
        }
    }

    #[test]
    fn shares_are_as_fine_as_there_is_room_for() {
        let full = |most| Prices::new(stretch(300), most).map(|prices| prices.full().get());
        assert_eq!(full(u64::MAX), Some(192));
        assert_eq!(full(100), Some(99));
        assert_eq!(full(3), Some(3));
        assert_eq!(full(2), None);
        assert_eq!(Prices::new(stretch(150), u64::MAX).map(|prices| prices.full().get()), Some(96));
    }

    #[test]
    fn stretch_has_its_bounds_and_reads_as_written() {
        assert_eq!((Stretch::from_hundredths(100), Stretch::from_hundredths(10_001)), (None, None));
        assert_eq!(
            (stretch(300).to_string(), stretch(150).to_string()),
            ("3x".to_owned(), "1.5x".to_owned())
        );
    }

    #[test]
    fn headroom_keeps_within_its_bounds() {
        let fractions =
            [-1.0, 0.0, 1.0, 7.0, f64::NAN].map(|fraction| Headroom::from_fraction(fraction).to_bits());
        assert_eq!(fractions, [0, 0, u16::MAX, u16::MAX, 0]);
        assert!((Headroom::from_fraction(0.25).fraction() - 0.25).abs() < 1e-4);
    }
}
