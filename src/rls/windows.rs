//! Limit handles of the rate limit service: two for each unit of time.
//!
//! As in the reference, a counter belongs to a domain and the entries of a descriptor, not to a rule. So a changed
//! limit keeps its counts, and a limit in a request uses the same counter as a rule. Hence the limit handles only
//! determine the length of windows. There are 14 of them, regardless of the number of rules, and a reload of rules does
//! not change the limiter.

use std::num::NonZeroU32;

use super::settings::Smoothing;
use super::unit::Unit;
use crate::limiter::algorithm::Algorithm;
use crate::limiter::algorithm::conversion::OnChange;
use crate::limiter::leases::LeasePolicy;
use crate::limiter::quota::{Limit, Quota};
use crate::limiter::timestamp::Timestamp;
use crate::limiter::{LimitHandle, LimitIdentity, LimitSpec, Limiter};

/// Rule name under which the counters are stored and saved. No rule can have it, because names contain no spaces.
const RULE: &str = "envoy rate limit service";
/// Rule name of shared counters.
const SHARED_RULE: &str = "envoy rate limit service, shared";
/// Limit of the specs, which is required but unused: the maximum per second.
const NO_LIMIT: NonZeroU32 = NonZeroU32::new(1_000_000_000).expect("not zero");

const UNITS: usize = Unit::ALL.len();

/// Two limit handles for each unit: one with fixed windows, and one with GCRA.
#[derive(Clone, Copy, Debug)]
pub struct Windows([LimitHandle; 2 * UNITS]);

impl Windows {
    /// Returns the specs to install with the limits of a generation.
    pub fn specs() -> Vec<LimitSpec> {
        Self::specs_of(RULE, None)
    }

    /// Returns the specs of shared counters.
    pub fn shared_specs(sharing: LeasePolicy) -> Vec<LimitSpec> {
        Self::specs_of(SHARED_RULE, Some(sharing))
    }

    fn specs_of(rule: &str, sharing: Option<LeasePolicy>) -> Vec<LimitSpec> {
        let spec = |(unit, algorithm, kind): (Unit, Algorithm, &str)| {
            let quota = Quota::new(algorithm, Limit::new(NO_LIMIT, unit.period()), None).ok()?;
            let quota = if sharing.is_some() { quota.leased()? } else { quota };
            let lineage = LimitIdentity { rule: rule.into(), key: format!("{}{kind}", unit.as_str()).into() };
            Some(LimitSpec { identity: lineage, quota, on_change: OnChange::Keep, lease_policy: sharing })
        };
        let windows = Unit::ALL.map(|unit| (unit, Algorithm::FixedWindow, ""));
        let smooth = Unit::ALL.map(|unit| (unit, Algorithm::Gcra, " spread"));
        windows.into_iter().chain(smooth).filter_map(spec).collect()
    }

    /// Takes the limit handles that installing [`Self::specs`] returned; `None` if there are too few.
    pub fn of(meters: &[LimitHandle]) -> Option<Self> {
        meters.get(..2 * UNITS)?.try_into().ok().map(Self)
    }

    /// Takes the shared limit handles that installing [`Self::specs`] and [`Self::shared_specs`] returned.
    pub fn shared_of(meters: &[LimitHandle]) -> Option<Self> {
        let meters: [LimitHandle; 2 * UNITS] = meters.get(2 * UNITS..)?.try_into().ok()?;
        // Salts are those of the fleet as it was known at the start.
        Some(Self(meters.map(LimitHandle::unsalted)))
    }

    /// Installs the limits in a separate limiter, or in one that keeps them with [`Limiter::retire_others`].
    pub fn install(limiter: &Limiter, now: Timestamp) -> Option<Self> {
        Self::of(&limiter.install(&Self::specs(), now))
    }

    /// Returns all limit handles, so that they can be kept.
    pub const fn meters(&self) -> &[LimitHandle] {
        &self.0
    }

    pub(super) const fn of_unit(&self, unit: Unit, smoothing: Smoothing) -> LimitHandle {
        match smoothing {
            Smoothing::Windows => self.0[unit as usize - 1],
            Smoothing::Gcra => self.0[UNITS + unit as usize - 1],
        }
    }
}
