//! The limiter's decision on one request: a verdict per check, in the order of the checks.

use std::num::NonZeroU32;
use std::time::Duration;

use smallvec::SmallVec;

use super::Check;
use super::algorithm::{self, CounterKind, CounterState, CounterUsage, Outcome, lease};
use super::quota::Quota;
use super::timestamp::{Timestamp, saturating_nanos};

/// What happens to a request that exceeds a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Enforcement {
    /// It is rejected.
    #[default]
    Enforced,
    /// It is counted and reported, but never rejected, and does not affect other limits (shadow mode).
    Shadow,
    /// It passes with a mark, and its excess is not charged.
    Marking,
    /// It passes and is to be sent elsewhere; no check of the group is charged. Only of verdicts.
    Diverting,
    /// It is decided by another group of the set; no check of this group is charged. Only of verdicts.
    PassedOver,
}

/// What an operator has set, or a provider has signalled, for the key of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Override {
    /// Nothing.
    #[default]
    None,
    /// A raised quota.
    Boosted,
    /// A ban.
    Banned,
    /// A pause, which a provider has signalled.
    Paused,
}

/// The result of one check.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    /// Whether the request is within the limit.
    pub outcome: Outcome,
    /// Whether exceeding the limit rejects, marks or only reports.
    pub enforcement: Enforcement,
    /// What an operator has set, or a provider has signalled, for the key.
    pub overridden: Override,
    /// Details that the counter's state does not contain. For a counter with a history: seconds until more units are
    /// left, rounded up. For a shared limit: units left for all instances, in addition to those in the lease.
    pub(super) auxiliary: u32,
    /// Nanoseconds.
    pub(super) delay: u64,
    pub(super) counter: Option<(Quota, Option<CounterState>)>,
}

impl Verdict {
    /// Returns the verdict of `check` on a key without overrides, whose counter has no further details.
    #[inline]
    pub(super) const fn plain(
        check: &Check,
        outcome: Outcome,
        counter: Option<(Quota, Option<CounterState>)>,
    ) -> Self {
        let (enforcement, overridden) = (check.enforcement, Override::None);
        Self { outcome, enforcement, overridden, auxiliary: 0, delay: 0, counter }
    }

    /// Returns the quota that decided; `None` for a limit that was removed meanwhile, which limits nothing.
    pub fn quota(&self) -> Option<&Quota> {
        self.counter.as_ref().map(|(quota, _)| quota)
    }

    /// Returns the counter after this decision: charged if the request passed, otherwise unchanged.
    #[inline]
    pub fn usage(&self, now: Timestamp) -> Option<CounterUsage> {
        self.counter.as_ref().map(|(quota, state)| match quota.is_leased() {
            true => lease::fleet_usage(*state, quota, self.auxiliary, now),
            false => algorithm::usage(*state, quota, now),
        })
    }

    /// Time until more requests are left than now, at `price` units each, if nothing else is charged. `None` if nothing
    /// is used, and for concurrency limits, whose permits return at no predictable time.
    pub fn time_until_more(&self, price: NonZeroU32, now: Timestamp) -> Option<Duration> {
        let (quota, state) = self.counter.as_ref()?;
        let usage = self.usage(now)?;
        if usage.used == 0 || quota.algorithm().counter_kind() != CounterKind::Rate {
            return None;
        }
        let wanted = (usage.remaining / price).saturating_add(1).saturating_mul(price.get());
        if quota.is_leased() {
            return lease::time_until_more(*state, quota, usage.used, wanted - usage.remaining, now);
        }
        if self.auxiliary > 0 {
            return Some(Duration::from_secs(self.auxiliary.into()));
        }
        match algorithm::evaluate(*state, quota, wanted, now).1 {
            Outcome::Exceed { retry_after } => retry_after,
            Outcome::Conform => None,
        }
    }

    /// Whether the limit is exceeded, enforced or not.
    pub fn exceeds(&self) -> bool {
        matches!(self.outcome, Outcome::Exceed { .. })
    }

    /// Whether an enforced limit is exceeded.
    pub fn rejects(&self) -> bool {
        self.exceeds() && self.enforcement == Enforcement::Enforced
    }

    /// Whether a limit that marks requests is exceeded.
    pub fn marks(&self) -> bool {
        self.exceeds() && self.enforcement == Enforcement::Marking
    }

    /// Whether a limit is exceeded that diverts requests.
    pub fn diverts(&self) -> bool {
        self.exceeds() && self.enforcement == Enforcement::Diverting
    }

    /// Whether another group of the set decides.
    pub fn is_passed_over(&self) -> bool {
        self.enforcement == Enforcement::PassedOver
    }

    /// Whether the counter is charged if the request passes.
    pub fn is_charged(&self) -> bool {
        !self.exceeds() && !matches!(self.enforcement, Enforcement::Diverting | Enforcement::PassedOver)
    }

    /// Whether an operator has banned the key.
    pub fn is_banned(&self) -> bool {
        self.overridden == Override::Banned
    }

    /// Whether the provider has paused the limit for the key.
    pub fn is_paused(&self) -> bool {
        self.overridden == Override::Paused
    }

    /// Whether an operator has raised the quota of the key.
    pub fn is_boosted(&self) -> bool {
        self.overridden == Override::Boosted
    }

    /// Time for which the request is delayed, if it passes. The request is already charged.
    pub const fn delay(&self) -> Duration {
        Duration::from_nanos(self.delay)
    }

    /// Whether the request is within the limit, and is not delayed.
    pub fn conforms_at_once(&self) -> bool {
        !self.exceeds() && self.delay == 0
    }

    /// Time until the same request would conform; zero if it does now. If the cost is more than the limit can ever
    /// admit, the time of a whole refill, because clients need a finite value.
    pub fn retry_after(&self) -> Duration {
        match self.outcome {
            Outcome::Conform => Duration::ZERO,
            Outcome::Exceed { retry_after: Some(wait) } => wait,
            Outcome::Exceed { retry_after: None } => self.quota().map_or(Duration::ZERO, Quota::refill),
        }
    }
}

/// All verdicts of one request.
#[derive(Debug, Default)]
pub struct Decision {
    pub(super) verdicts: Verdicts,
    pub(super) overflowed: bool,
}

/// The verdicts of a request. Most requests have one check: its verdict is written directly where the caller needs it,
/// because filling and moving a list costs as much as finding the counter.
#[derive(Debug)]
pub(super) enum Verdicts {
    One(Verdict),
    Several(SmallVec<[Verdict; 2]>),
}

impl Default for Verdicts {
    fn default() -> Self {
        Self::Several(SmallVec::new())
    }
}

impl Decision {
    /// Returns one verdict per check, in the order of the checks.
    pub fn verdicts(&self) -> &[Verdict] {
        match &self.verdicts {
            Verdicts::One(verdict) => std::slice::from_ref(verdict),
            Verdicts::Several(verdicts) => verdicts,
        }
    }

    pub(super) fn verdicts_mut(&mut self) -> &mut [Verdict] {
        match &mut self.verdicts {
            Verdicts::One(verdict) => std::slice::from_mut(verdict),
            Verdicts::Several(verdicts) => verdicts,
        }
    }

    /// Changes the check at `position` to a rejection with this wait. The charges of the other checks need no
    /// correction: the request was already rejected, so nothing was charged.
    pub fn reject(&mut self, position: usize, wait: Duration) {
        if let Some(verdict) = self.verdicts_mut().get_mut(position) {
            verdict.outcome = Outcome::Exceed { retry_after: Some(wait.max(Duration::from_nanos(1))) };
        }
    }

    /// Records that the request was delayed by `delay` for the check at `position`, which conforms.
    pub fn set_delay(&mut self, position: usize, delay: Duration) {
        if let Some(verdict) = self.verdicts_mut().get_mut(position) {
            verdict.delay = saturating_nanos(delay);
        }
    }

    /// Replaces the verdict of the check at `position`, which is not enforced and was decided again.
    pub fn replace(&mut self, position: usize, verdict: Verdict) {
        if let Some(before) = self.verdicts_mut().get_mut(position) {
            *before = verdict;
        }
    }

    /// Changes the check at `position`, which is not enforced, to within its limit.
    pub fn allow(&mut self, position: usize) {
        if let Some(verdict) = self.verdicts_mut().get_mut(position) {
            verdict.outcome = Outcome::Conform;
        }
    }

    /// Leaves the check at `position`, whose store was not queried, undecided: it counts as within its limit, and what is
    /// left is only known if the store has reported it before.
    pub fn leave_undecided(&mut self, position: usize) {
        if let Some(verdict) = self.verdicts_mut().get_mut(position) {
            verdict.outcome = Outcome::Conform;
            if verdict.auxiliary == 0 {
                verdict.counter = None;
            }
        }
    }

    /// Appends verdicts that were decided later for the same request.
    pub fn extend(&mut self, later: &Self) {
        let all = self.verdicts().iter().chain(later.verdicts()).copied().collect();
        self.verdicts = Verdicts::Several(all);
        self.overflowed |= later.overflowed;
    }

    /// Whether any enforced limit rejects; then no limit has been charged, except as
    /// [`super::check_options::CheckOptions`] require.
    pub fn is_rejected(&self) -> bool {
        match &self.verdicts {
            Verdicts::One(verdict) => verdict.rejects(),
            Verdicts::Several(verdicts) => verdicts.iter().any(Verdict::rejects),
        }
    }

    /// Time for which the request is delayed: the longest of its delays.
    pub fn delay(&self) -> Duration {
        Duration::from_nanos(self.verdicts().iter().map(|verdict| verdict.delay).max().unwrap_or_default())
    }

    /// Whether the request is within all its limits, and is not delayed.
    pub fn conforms_at_once(&self) -> bool {
        self.verdicts().iter().all(Verdict::conforms_at_once)
    }

    /// Whether a new key had to share an overflow counter because the table is full.
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }
}
