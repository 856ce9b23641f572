//! Limits that several instances of the service share.
//!
//! All documents' limits are shared in the same way; native rules have a setting each. A request uses units that this
//! instance has been granted. If they do not suffice, the caller provides a [`Supply`].

use std::num::NonZeroU32;
use std::time::Duration;

use smallvec::SmallVec;

use super::settings::Smoothing;
use super::unit::Unit;
use super::windows::Windows;
use crate::engine::Policy;
use crate::limiter::decision::Verdict;
use crate::limiter::key::KeyHasher;
use crate::limiter::unconditional_count::{CountOperation, CountResult};
use crate::limiter::{Check, Fleet};
use crate::rules::rule::Rule;
use crate::rules::selection::SelectedCheck;
use crate::rules::shared_limit::{OnStoreLoss, SharedLimit};

/// How the limits of documents are shared.
#[derive(Clone, Debug)]
pub struct Sharing {
    /// Mode of sharing, and the behaviour while the store is unreachable.
    pub limit: SharedLimit,
    /// Limit handles whose counters hold granted units.
    pub windows: Windows,
    /// The fleet.
    pub fleet: Fleet,
}

/// A counter that is out of units.
#[derive(Clone, Copy, Debug)]
pub enum Short<'a> {
    /// Counter of a document's limit, and the maximum wait of the request.
    Tally(&'a CountOperation, Duration),
    /// Counter of a native rule, and the maximum wait of the request.
    Check(&'a Check, Duration),
}

/// Result of getting units for a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Supply {
    /// Units are available.
    There,
    /// The store is being queried; decide again after its response.
    Asked,
    /// No units are available.
    Rejected,
    /// The store is unreachable.
    Away,
}

/// Indices of the counters of one request that are out of units and may get some.
#[derive(Debug, Default)]
pub(super) struct Shortage {
    pub(super) tallies: SmallVec<[usize; 2]>,
    pub(super) checks: SmallVec<[usize; 2]>,
}

/// Indices of the counters that get no units.
#[derive(Debug, Default)]
pub(super) struct Rejected {
    pub(super) tallies: SmallVec<[usize; 2]>,
    pub(super) checks: SmallVec<[usize; 2]>,
}

impl Sharing {
    /// Returns the hasher whose keys are the same on all instances.
    pub(super) const fn hasher(&self) -> KeyHasher {
        self.fleet.hasher
    }

    /// Returns the replacement of `tally` while the store is unreachable; `None` if everything is rejected.
    pub(super) fn away(
        &self,
        tally: &CountOperation,
        local: Windows,
        unit: Unit,
        smoothing: Smoothing,
    ) -> Option<CountOperation> {
        let limit = match self.limit.on_store_loss {
            OnStoreLoss::Deny => return None,
            OnStoreLoss::Local => tally.limit,
            OnStoreLoss::Split => part(tally.limit, self.fleet.instances),
            OnStoreLoss::Allow => u32::MAX,
        };
        Some(CountOperation { handle: local.of_unit(unit, smoothing), limit, ..*tally })
    }
}

/// Returns one instance's part of a limit; at least 1 unless the limit is 0.
fn part(limit: u32, instances: NonZeroU32) -> u32 {
    if limit == 0 { 0 } else { (limit / instances).max(1) }
}

impl Shortage {
    /// Returns the counters that are out of units after a decision, except those in `rejected`.
    pub(super) fn of(verdicts: &[Verdict], read: &[CountResult], rejected: &Rejected) -> Self {
        // A request that another limit rejects needs no units.
        if verdicts.iter().any(|verdict| verdict.rejects() && !verdict.awaits_lease()) {
            return Self::default();
        }
        let positions = |count: usize, is_short: &dyn Fn(usize) -> bool, gone: &[usize]| {
            (0..count).filter(|position| is_short(*position) && !gone.contains(position)).collect()
        };
        Self {
            tallies: positions(read.len(), &|position| read[position].needs_lease, &rejected.tallies),
            checks: positions(
                verdicts.len(),
                &|position| verdicts[position].awaits_lease(),
                &rejected.checks,
            ),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tallies.is_empty() && self.checks.is_empty()
    }
}

/// Returns the maximum time that a request may wait for units of the check `selected`.
pub(super) fn wait_of(policy: &Policy, selected: &SelectedCheck) -> Duration {
    let shared = policy.rules.get(selected.rule).and_then(Rule::shared);
    shared.map_or(Duration::ZERO, |shared| shared.wait)
}
