//! Limit handles of the rate limit service: two for each unit of time.
//!
//! As in the reference, a counter belongs to a domain and the entries of a descriptor, not to a rule. So a changed
//! limit keeps its counts, and a limit in a request uses the same counter as a rule. Hence the limit handles only
//! determine the length of windows. There are 14 of them, regardless of the number of rules, and a reload of rules does
//! not change the limiter.

use std::num::NonZeroU32;

use super::settings::Smoothing;
use super::unit::RlsUnit;
use weir_limiter::algorithm::Algorithm;
use weir_limiter::algorithm::conversion::OnChange;
use weir_limiter::leases::LeasePolicy;
use weir_limiter::quota::{Limit, Quota};
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{LimitHandle, LimitIdentity, LimitSpec, Limiter};

/// Rule name under which the counters are stored and saved. No rule can have it, because names contain no spaces.
const LOCAL_RULE: &str = "envoy rate limit service";
/// Rule name of shared counters.
const SHARED_RULE: &str = "envoy rate limit service, shared";
/// Limit of the specs, which is required but unused: the maximum per second.
const UNUSED_LIMIT: NonZeroU32 = NonZeroU32::new(1_000_000_000).expect("not zero");

const UNITS: usize = RlsUnit::ALL.len();

/// Two limit handles for each unit: one with fixed windows, and one with GCRA.
#[derive(Clone, Copy, Debug)]
pub struct UnitLimits([LimitHandle; 2 * UNITS]);

impl UnitLimits {
    /// Returns the specs to install with the limits of a generation.
    pub fn specs() -> Vec<LimitSpec> {
        Self::build_specs(LOCAL_RULE, None)
    }

    /// Returns the specs of shared counters.
    pub fn shared_specs(lease_policy: LeasePolicy) -> Vec<LimitSpec> {
        Self::build_specs(SHARED_RULE, Some(lease_policy))
    }

    fn build_specs(rule: &str, lease_policy: Option<LeasePolicy>) -> Vec<LimitSpec> {
        let spec = |(unit, algorithm, kind): (RlsUnit, Algorithm, &str)| {
            let quota = Quota::new(algorithm, Limit::new(UNUSED_LIMIT, unit.period()), None).ok()?;
            let quota = if lease_policy.is_some() { quota.leased()? } else { quota };
            let identity =
                LimitIdentity { rule: rule.into(), key: format!("{}{kind}", unit.as_str()).into() };
            Some(LimitSpec { identity, quota, on_change: OnChange::Keep, lease_policy })
        };
        let fixed_windows = RlsUnit::ALL.map(|unit| (unit, Algorithm::FixedWindow, ""));
        let gcra = RlsUnit::ALL.map(|unit| (unit, Algorithm::Gcra, " spread"));
        fixed_windows.into_iter().chain(gcra).filter_map(spec).collect()
    }

    /// Takes the limit handles that installing [`Self::specs`] returned; `None` if there are too few.
    pub fn from_handles(handles: &[LimitHandle]) -> Option<Self> {
        handles.get(..2 * UNITS)?.try_into().ok().map(Self)
    }

    /// Takes the shared limit handles that installing [`Self::specs`] and [`Self::shared_specs`] returned.
    pub fn shared_from_handles(handles: &[LimitHandle]) -> Option<Self> {
        let handles: [LimitHandle; 2 * UNITS] = handles.get(2 * UNITS..)?.try_into().ok()?;
        // Salts are those of the fleet as it was known at the start.
        Some(Self(handles.map(LimitHandle::unsalted)))
    }

    /// Installs the limits in a separate limiter, or in one that keeps them with [`Limiter::retire_others`].
    pub fn install(limiter: &Limiter, now: Timestamp) -> Option<Self> {
        Self::from_handles(&limiter.install(&Self::specs(), now))
    }

    /// Returns all limit handles, so that they can be kept.
    pub const fn handles(&self) -> &[LimitHandle] {
        &self.0
    }

    pub(super) const fn handle_for(&self, unit: RlsUnit, smoothing: Smoothing) -> LimitHandle {
        match smoothing {
            Smoothing::FixedWindow => self.0[unit as usize - 1],
            Smoothing::Gcra => self.0[UNITS + unit as usize - 1],
        }
    }
}
