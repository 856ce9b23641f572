//! Percentages as written in configuration, such as `10%` or `0.5%`, exact to a hundredth of a percent.

use std::fmt;
use std::num::NonZeroU32;

const HUNDREDTHS_IN_100_PERCENT: u32 = 100 * 100;

/// A percentage in hundredths of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Percent(u32);

impl Percent {
    /// 100%.
    pub const ONE_HUNDRED: Self = Self(HUNDREDTHS_IN_100_PERCENT);

    /// Returns a percentage of this many hundredths of a percent.
    pub const fn from_hundredths(hundredths: u32) -> Self {
        Self(hundredths)
    }

    /// Returns the percentage in hundredths of a percent.
    pub const fn hundredths(self) -> u32 {
        self.0
    }

    /// Returns the nearest fraction; 100% is 1.
    pub const fn as_fraction(self) -> f32 {
        self.0 as f32 / HUNDREDTHS_IN_100_PERCENT as f32
    }

    /// Returns `count` increased by this percentage, rounded up; `None` if the result does not fit 32 bits.
    pub fn raise(self, count: NonZeroU32) -> Option<NonZeroU32> {
        let raised = u64::from(count.get()) * (u64::from(HUNDREDTHS_IN_100_PERCENT) + u64::from(self.0));
        u32::try_from(raised.div_ceil(HUNDREDTHS_IN_100_PERCENT.into())).ok().and_then(NonZeroU32::new)
    }

    /// Whether `drawn`, a uniform random `u64`, falls into this share. A larger percentage includes every value that a
    /// smaller one includes.
    pub fn includes(self, drawn: u64) -> bool {
        (u128::from(drawn) * u128::from(HUNDREDTHS_IN_100_PERCENT)) >> 64 < u128::from(self.0)
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 100, self.0 % 100);
        match (rest, rest % 10) {
            (0, _) => write!(f, "{whole}%"),
            (_, 0) => write!(f, "{whole}.{}%", rest / 10),
            _ => write!(f, "{whole}.{rest:02}%"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percent(hundredths: u32) -> Percent {
        Percent::from_hundredths(hundredths)
    }

    #[test]
    fn percent_raise_rounds_up() {
        let raised = |count, hundredths| {
            percent(hundredths).raise(NonZeroU32::new(count).unwrap()).map(NonZeroU32::get)
        };
        assert_eq!(raised(100, 1000), Some(110));
        assert_eq!(raised(1, 1), Some(2));
        assert_eq!(raised(7, 5000), Some(11));
        assert_eq!(raised(7, 0), Some(7));
        assert_eq!(raised(u32::MAX, 1), None);
    }

    #[test]
    fn larger_percent_includes_every_draw_of_a_smaller_one() {
        let drawn: Vec<u64> = (0..10_000_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        for (small, large) in [(0, 1), (1000, 1001), (1000, 5000), (5000, 10_000)] {
            assert!(
                drawn.iter().all(|drawn| !percent(small).includes(*drawn) || percent(large).includes(*drawn))
            );
        }
        let tenth = drawn.iter().filter(|drawn| percent(1000).includes(**drawn)).count();
        assert!((990..=1010).contains(&tenth), "{tenth}");
        assert!(
            drawn.iter().all(|drawn| !percent(0).includes(*drawn) && Percent::ONE_HUNDRED.includes(*drawn))
        );
        assert!(Percent::ONE_HUNDRED.includes(u64::MAX));
    }

    #[test]
    fn percent_display_matches_configuration() {
        let shown = [1000, 50, 1, 1010].map(|hundredths| percent(hundredths).to_string());
        assert_eq!(shown, ["10%", "0.5%", "0.01%", "10.1%"]);
    }
}
