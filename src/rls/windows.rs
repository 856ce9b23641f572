//! The limiter's meters that the service counts on: two for each unit of time.
//!
//! As in the reference a counter belongs to a domain and the entries of a descriptor, not to a rule: a limit that
//! changes keeps what was counted, and a limit in a request counts where a rule's would. So the meters know how
//! long windows are and nothing else, there are fourteen however many rules there are, and a reload of rules does
//! not touch the limiter.

use std::num::NonZeroU32;

use super::settings::Smoothing;
use super::unit::Unit;
use crate::limiter::algorithm::Algorithm;
use crate::limiter::algorithm::conversion::OnChange;
use crate::limiter::claims::Sharing;
use crate::limiter::quota::{Limit, Quota};
use crate::limiter::timestamp::Timestamp;
use crate::limiter::{Limiter, Lineage, Meter, MeterSpec};

/// The name under which the counters are kept and saved; no rule can have it, since names have no spaces.
const RULE: &str = "envoy rate limit service";
/// The same of what all instances count together.
const SHARED_RULE: &str = "envoy rate limit service, shared";
/// What a meter must say, though nobody asks: the most that a second can have.
const NO_LIMIT: NonZeroU32 = NonZeroU32::new(1_000_000_000).expect("not zero");

const UNITS: usize = Unit::ALL.len();

/// Two meters for each unit: one of windows, and one that spreads limits evenly.
#[derive(Clone, Copy, Debug)]
pub struct Windows([Meter; 2 * UNITS]);

impl Windows {
    /// What to install among the limits of a generation.
    pub fn specs() -> Vec<MeterSpec> {
        Self::specs_of(RULE, None)
    }

    /// The same for what all instances count together.
    pub fn shared_specs(sharing: Sharing) -> Vec<MeterSpec> {
        Self::specs_of(SHARED_RULE, Some(sharing))
    }

    fn specs_of(rule: &str, sharing: Option<Sharing>) -> Vec<MeterSpec> {
        let spec = |(unit, algorithm, kind): (Unit, Algorithm, &str)| {
            let quota = Quota::new(algorithm, Limit::new(NO_LIMIT, unit.period()), None).ok()?;
            let quota = if sharing.is_some() { quota.claimed()? } else { quota };
            let lineage = Lineage { rule: rule.into(), key: format!("{}{kind}", unit.as_str()).into() };
            Some(MeterSpec { lineage, quota, on_change: OnChange::Keep, sharing })
        };
        let windows = Unit::ALL.map(|unit| (unit, Algorithm::FixedWindow, ""));
        let smooth = Unit::ALL.map(|unit| (unit, Algorithm::Gcra, " spread"));
        windows.into_iter().chain(smooth).filter_map(spec).collect()
    }

    /// Of the meters that installing [`Self::specs`] answered; `None` if they are not as many.
    pub fn of(meters: &[Meter]) -> Option<Self> {
        meters.get(..2 * UNITS)?.try_into().ok().map(Self)
    }

    /// Of those that installing [`Self::specs`] and [`Self::shared_specs`] answered: what is shared.
    pub fn shared_of(meters: &[Meter]) -> Option<Self> {
        let meters: [Meter; 2 * UNITS] = meters.get(2 * UNITS..)?.try_into().ok()?;
        // The salts are those of the fleet as it was known at the start.
        Some(Self(meters.map(Meter::unsalted)))
    }

    /// Installs them in a limiter of their own, or in one that keeps them with [`Limiter::retire_others`].
    pub fn install(limiter: &Limiter, now: Timestamp) -> Option<Self> {
        Self::of(&limiter.install(&Self::specs(), now))
    }

    /// All of them, to be kept.
    pub const fn meters(&self) -> &[Meter] {
        &self.0
    }

    pub(super) const fn of_unit(&self, unit: Unit, smoothing: Smoothing) -> Meter {
        match smoothing {
            Smoothing::Windows => self.0[unit as usize - 1],
            Smoothing::Gcra => self.0[UNITS + unit as usize - 1],
        }
    }
}
