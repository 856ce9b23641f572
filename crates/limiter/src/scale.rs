//! Scaled limits: a request costs more units the less of its limit is in force.
//!
//! A limit that is scaled counts in units of which a request costs several. Counters and algorithms are unchanged, and
//! the quota is too: it admits more requests if they cost less, and fewer if they cost more.

use std::num::{NonZeroU16, NonZeroU32};

/// A limit in force, as a fraction of the limit in requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitScale {
    pub(super) numerator: u64,
    pub(super) denominator: u64,
}

impl LimitScale {
    /// Returns the cost of a request that costs `units` at the limit in requests: rounded up, so that the limit in force
    /// is never exceeded. The product of units and denominator must fit into 64 bits.
    pub(super) fn cost(self, units: NonZeroU16) -> NonZeroU32 {
        let cost = (u64::from(units.get()) * self.denominator).div_ceil(self.numerator.max(1));
        u32::try_from(cost).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MAX)
    }
}
