//! Limits that several instances of the service count together.
//!
//! The limits of documents are shared all in one way; native rules say it one by one. A request counts units that this
//! instance has been granted. Where those do not suffice, it takes a [`Supply`] to go on: that is the shell's.

use std::num::NonZeroU32;
use std::time::Duration;

use smallvec::SmallVec;

use super::settings::Smoothing;
use super::unit::Unit;
use super::windows::Windows;
use crate::engine::Policy;
use crate::limiter::decision::Verdict;
use crate::limiter::key::KeyHasher;
use crate::limiter::tally::{Tallied, Tally};
use crate::limiter::{Check, Fleet};
use crate::rules::rule::{Action, LimitSource};
use crate::rules::selection::Selected;
use crate::rules::shared_limit::{OnStoreLoss, SharedLimit};

/// How the limits of documents are shared.
#[derive(Clone, Debug)]
pub struct Sharing {
    /// How units reach an instance, and what counts without the store.
    pub limit: SharedLimit,
    /// Which meters of the limiter hold what has been granted.
    pub windows: Windows,
    /// What instances have in common.
    pub fleet: Fleet,
}

/// A counter that is short of units.
#[derive(Clone, Copy, Debug)]
pub enum Short<'a> {
    /// That of a document's limit; the request may wait so long.
    Tally(&'a Tally, Duration),
    /// That of a native rule.
    Check(&'a Check, Duration),
}

/// What becomes of a counter that is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Supply {
    /// There are units by now.
    There,
    /// The store has been asked; the request is to be decided again when it has responded.
    Asked,
    /// There are none.
    Rejected,
    /// The store is away.
    Away,
}

/// The counters of one request that are short and may yet get units.
#[derive(Debug, Default)]
pub(super) struct Shortage {
    pub(super) tallies: SmallVec<[usize; 2]>,
    pub(super) checks: SmallVec<[usize; 2]>,
}

/// Counters that get no units, by their position.
#[derive(Debug, Default)]
pub(super) struct Rejected {
    pub(super) tallies: SmallVec<[usize; 2]>,
    pub(super) checks: SmallVec<[usize; 2]>,
}

impl Sharing {
    /// Under which keys have the same name on all instances.
    pub(super) const fn hasher(&self) -> KeyHasher {
        self.fleet.hasher
    }

    /// What counts in place of `tally` while the store is away; `None` where nothing passes.
    pub(super) fn away(
        &self,
        tally: &Tally,
        local: Windows,
        unit: Unit,
        smoothing: Smoothing,
    ) -> Option<Tally> {
        let limit = match self.limit.on_store_loss {
            OnStoreLoss::Deny => return None,
            OnStoreLoss::Local => tally.limit,
            OnStoreLoss::Split => part(tally.limit, self.fleet.instances),
            OnStoreLoss::Allow => u32::MAX,
        };
        Some(Tally { meter: local.of_unit(unit, smoothing), limit, ..*tally })
    }
}

/// The part of one of so many instances: at least 1 of a limit that allows anything.
fn part(limit: u32, instances: NonZeroU32) -> u32 {
    if limit == 0 { 0 } else { (limit / instances).max(1) }
}

impl Shortage {
    /// The counters that are short after a decision, but for those that get nothing.
    pub(super) fn of(verdicts: &[Verdict], read: &[Tallied], rejected: &Rejected) -> Self {
        // What one limit rejects no other has to have units for.
        if verdicts.iter().any(|verdict| verdict.refuses() && !verdict.is_short()) {
            return Self::default();
        }
        let positions = |count: usize, is_short: &dyn Fn(usize) -> bool, gone: &[usize]| {
            (0..count).filter(|position| is_short(*position) && !gone.contains(position)).collect()
        };
        Self {
            tallies: positions(read.len(), &|position| read[position].is_short, &rejected.tallies),
            checks: positions(verdicts.len(), &|position| verdicts[position].is_short(), &rejected.checks),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tallies.is_empty() && self.checks.is_empty()
    }
}

/// How long a request may wait for units of the check `selected`.
pub(super) fn wait_of(policy: &Policy, selected: &Selected) -> Duration {
    match policy.rules.get(selected.rule).map(|rule| &rule.action) {
        Some(Action::Limit(limiting)) => match &limiting.source {
            LimitSource::Shared(shared) => shared.wait,
            LimitSource::Local | LimitSource::Remote(_) => Duration::ZERO,
        },
        Some(Action::Allow | Action::Deny) | None => Duration::ZERO,
    }
}
