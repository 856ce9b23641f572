//! The limiter's meters that the service counts on: one for each unit of time.
//!
//! As in the reference a counter belongs to a domain and the entries of a descriptor, not to a rule: a limit that
//! changes keeps what was counted, and a limit in a request counts where a rule's would. So the meters know how
//! long windows are and nothing else, there are seven however many rules there are, and a reload of rules does
//! not touch the limiter.

use std::num::NonZeroU32;

use super::unit::Unit;
use crate::limiter::algorithm::Algorithm;
use crate::limiter::algorithm::conversion::OnChange;
use crate::limiter::quota::{Limit, Quota};
use crate::limiter::timestamp::Timestamp;
use crate::limiter::{Limiter, Lineage, Meter, MeterSpec};

/// The name under which the counters are kept and saved; no rule can have it, since names have no spaces.
const RULE: &str = "envoy rate limit service";
/// What a meter must say, though nobody asks: the most that a second can have.
const NO_LIMIT: NonZeroU32 = NonZeroU32::new(1_000_000_000).expect("not zero");

/// A meter for each unit.
#[derive(Clone, Copy, Debug)]
pub struct Windows([Meter; Unit::ALL.len()]);

impl Windows {
    /// What to install among the limits of a generation, in the order of [`Unit::ALL`].
    pub fn specs() -> Vec<MeterSpec> {
        let spec = |unit: Unit| {
            let quota = Quota::new(Algorithm::FixedWindow, Limit::new(NO_LIMIT, unit.period()), None).ok()?;
            let lineage = Lineage { rule: RULE.into(), key: unit.as_str().into() };
            Some(MeterSpec { lineage, quota, on_change: OnChange::Keep })
        };
        Unit::ALL.into_iter().filter_map(spec).collect()
    }

    /// Of the meters that installing [`Self::specs`] answered; `None` if they are not as many.
    pub fn of(meters: &[Meter]) -> Option<Self> {
        meters.try_into().ok().map(Self)
    }

    /// Installs them in a limiter of their own, or in one that keeps them with [`Limiter::retire_others`].
    pub fn install(limiter: &Limiter, now: Timestamp) -> Option<Self> {
        Self::of(&limiter.install(&Self::specs(), now))
    }

    /// All of them, to be kept.
    pub const fn meters(&self) -> &[Meter] {
        &self.0
    }

    pub(super) const fn of_unit(&self, unit: Unit) -> Meter {
        self.0[unit as usize]
    }
}
