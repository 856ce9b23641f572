//! Limits that follow a provider: the share of a limit that is in force, for each key that the provider has rejected.
//!
//! The configured limit is the upper bound. A limit that follows counts in fine units, and a request costs more of them
//! the smaller the share is. So counters and algorithms are unchanged, and the configured limit is never exceeded.
//!
//! [`controller`] defines how the share changes, as a function of events and their times. [`states`] holds the shares,
//! for all threads, and [`sharing`] what instances tell each other, and
//! [`learned`] what a process tells the one that replaces it. A pause is an override of the counter, so that a paused
//! limit decides with the right time to wait.

pub mod controller;
pub mod learned;
pub mod sharing;
pub mod states;

use std::fmt;
use std::num::{NonZeroU16, NonZeroU32};

use super::percent::Percent;
use super::scale::LimitScale;

/// Millionths in a whole.
const WHOLE: u32 = 1_000_000;
/// Units per request, if the limit's numbers leave room for them. A request then costs whole units at steps of a share
/// of half a per cent.
const MAX_UNITS_PER_REQUEST: u16 = 240;

/// Share of the configured limit that is in force: above none, at most the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LimitShare(u32);

impl LimitShare {
    /// The configured limit.
    pub const FULL: Self = Self(WHOLE);
    /// The smallest share: 1%.
    pub const MIN: Self = Self(WHOLE / 100);

    /// Converts millionths, clamped to the valid range.
    pub const fn from_millionths(millionths: u32) -> Self {
        if millionths < Self::MIN.0 {
            Self::MIN
        } else if millionths > WHOLE {
            Self::FULL
        } else {
            Self(millionths)
        }
    }

    /// Converts a percentage, clamped to the valid range.
    pub fn from_percent(percent: Percent) -> Self {
        Self::from_millionths(millionths(percent))
    }

    /// Returns the share in millionths of the limit, from 10 000 to 1 000 000.
    pub const fn millionths(self) -> u32 {
        self.0
    }

    /// Returns the share as a fraction, at most 1.
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / f64::from(WHOLE)
    }

    /// Whether the whole limit is in force.
    pub const fn is_full(self) -> bool {
        self.0 == WHOLE
    }

    /// Returns the cost of one request, in units of a quota with `units` per request: rounded up, so that the share is
    /// never exceeded.
    pub fn cost(self, units: NonZeroU16) -> NonZeroU32 {
        if self.is_full() {
            return units.into();
        }
        LimitScale { numerator: self.0.into(), denominator: WHOLE.into() }.cost(units)
    }

    /// Whether the shares differ by a tenth of `other` at most.
    const fn is_near(self, other: Self) -> bool {
        self.0.abs_diff(other.0) <= other.0 / 10
    }

    /// Returns this share plus `millionths`.
    const fn raised(self, millionths: u32) -> Self {
        Self::from_millionths(self.0.saturating_add(millionths))
    }

    /// Returns this share reduced by `by` of itself.
    fn lowered(self, by: u32) -> Self {
        let kept = u64::from(self.0) * u64::from(WHOLE.saturating_sub(by)) / u64::from(WHOLE);
        Self::from_millionths(u32::try_from(kept).unwrap_or(WHOLE))
    }
}

impl fmt::Display for LimitShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Percent::from_hundredths(self.0 / 100).fmt(f)
    }
}

/// Returns the number of units per request for a limit that leaves room for `max_units`; `None` if that is too few to
/// follow a share in useful steps.
pub(super) fn units_per_request(max_units: u64) -> Option<NonZeroU16> {
    /// Steps of a share are at most this fraction near the whole limit.
    const MIN_UNITS_PER_REQUEST: u16 = 4;
    let units = u16::try_from(max_units).unwrap_or(u16::MAX).min(MAX_UNITS_PER_REQUEST);
    NonZeroU16::new(units).filter(|units| units.get() >= MIN_UNITS_PER_REQUEST)
}

fn millionths(percent: Percent) -> u32 {
    percent.hundredths().saturating_mul(100)
}

#[cfg(test)]
mod tests;
