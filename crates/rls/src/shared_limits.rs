//! Limits that several instances of the service share.
//!
//! All documents' limits are shared in the same way; native rules have a setting each. A request uses units that this
//! instance has been granted. If they do not suffice, the caller requests more.

use std::num::NonZeroU32;
use std::time::Duration;

use smallvec::SmallVec;

use super::settings::Smoothing;
use super::unit::RlsUnit;
use super::unit_limits::UnitLimits;
use weir_limiter::decision::Verdict;
use weir_limiter::key::KeyHasher;
use weir_limiter::leases::acquisition;
use weir_limiter::unconditional_count::{CountOperation, CountResult};
use weir_limiter::{Check, Fleet};
use weir_policy::engine::Policy;
use weir_policy::rules::RuleIndex;
use weir_policy::rules::rule::Rule;
use weir_policy::rules::selection::SelectedCheck;
use weir_policy::rules::shared_limit::{OnStoreLoss, SharedLimit};

#[derive(Clone, Debug)]
pub struct SharedDocumentLimits {
    /// Mode of sharing, and the behaviour while the store is unreachable.
    pub settings: SharedLimit,
    /// Limit handles whose counters hold granted units.
    pub unit_limits: UnitLimits,
    pub fleet: Fleet,
}

/// A counter that is out of units.
#[derive(Clone, Copy, Debug)]
pub enum LeaseNeed<'a> {
    /// Counter of a document's limit, and the maximum wait of the request; `None` for the default.
    Count(&'a CountOperation, Option<Duration>),
    /// Counter of a native rule, the rule, and the maximum wait of the request; `None` for the default.
    Check(&'a Check, RuleIndex, Option<Duration>),
}

/// Position of a counter of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CounterPosition {
    /// Among the limits of documents.
    Count(usize),
    /// Among the checks of native rules.
    Check(usize),
}

/// Some of the counters of one request.
pub(super) type CounterPositions = SmallVec<[CounterPosition; 2]>;

impl SharedDocumentLimits {
    /// Returns the hasher whose keys are the same on all instances.
    pub(super) const fn hasher(&self) -> KeyHasher {
        self.fleet.hasher
    }

    /// Returns the replacement of `operation` while the store is unreachable; `None` if everything is
    /// rejected.
    pub(super) fn store_loss_fallback(
        &self,
        operation: &CountOperation,
        local_limits: UnitLimits,
        unit: RlsUnit,
        smoothing: Smoothing,
    ) -> Option<CountOperation> {
        let limit = match self.settings.on_store_loss {
            OnStoreLoss::StrictSplit | OnStoreLoss::Deny => return None,
            OnStoreLoss::Local => operation.limit,
            OnStoreLoss::Split => instance_share(operation.limit, self.fleet.instances),
            OnStoreLoss::Allow => u32::MAX,
        };
        Some(CountOperation { handle: local_limits.handle_for(unit, smoothing), limit, ..*operation })
    }
}

/// Returns one instance's part of a limit; at least 1 unless the limit is 0.
fn instance_share(limit: u32, instances: NonZeroU32) -> u32 {
    if limit == 0 { 0 } else { (limit / instances).max(1) }
}

/// Returns the counters that are out of units after a decision, except those in `rejected`.
pub(super) fn counters_without_units(
    verdicts: &[Verdict],
    results: &[CountResult],
    rejected: &[CounterPosition],
) -> CounterPositions {
    // A request that another limit rejects needs no units.
    if acquisition::is_rejected_otherwise(verdicts) {
        return CounterPositions::new();
    }
    let counts = results.iter().map(|result| result.needs_lease).enumerate();
    let counts = counts.map(|(at, is_missing)| (CounterPosition::Count(at), is_missing));
    let checks = verdicts.iter().map(Verdict::awaits_lease).enumerate();
    let checks = checks.map(|(at, is_missing)| (CounterPosition::Check(at), is_missing));
    let missing =
        counts.chain(checks).filter(|(position, is_missing)| *is_missing && !rejected.contains(position));
    missing.map(|(position, _)| position).collect()
}

/// Returns the maximum time that a request may wait for units of the check `selected`; `None` for the default.
pub(super) fn max_lease_wait(policy: &Policy, selected: &SelectedCheck) -> Option<Duration> {
    let shared = policy.rules.get(selected.rule).and_then(Rule::shared);
    shared.map_or(Some(Duration::ZERO), |shared| shared.wait)
}
