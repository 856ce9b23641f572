//! Shared limits: handling of requests whose counters are out of units.
//!
//! Nearly all requests use units of a lease that this instance holds, and do not reach this module. If the lease is
//! used up, the request takes units of the reserve. Otherwise it waits for the store for as long as its rule permits,
//! or is rejected. While the store is unreachable, and if the wait ends without a response, the rule's setting for that
//! case applies.

use std::time::Duration;

use smallvec::SmallVec;

use super::progress::{Wait, Woken};
use super::{AppliedLimits, LimitsView};
use weir_limiter::decision::Verdict;
use weir_limiter::leases::acquisition::{self, LeaseDecision, LeasedRequest, MIN_RETRY_AFTER};
use weir_limiter::timestamp::Timestamp;
use weir_policy::rules::rule::Rule;
use weir_policy::rules::selection::CheckRole;
use weir_store::lease_wait::WaitGroup;

/// The checks of a request that may reject it.
struct EnforcedChecks<'a> {
    view: &'a LimitsView,
    limits: &'a mut AppliedLimits,
}

/// A check that is not enforced. It is decided alone, because the other checks of an admitted request have been charged.
struct UnenforcedCheck<'a> {
    view: &'a LimitsView,
    limits: &'a mut AppliedLimits,
    position: usize,
}

impl AppliedLimits {
    /// Decides a request that has waited for the store. Returns what it waits for if it is still undecided.
    pub(super) fn decide_leased(&mut self, view: &LimitsView, woken: Option<Woken>) -> Option<Wait> {
        if let Some(Woken { at, .. }) = woken {
            self.check_again(view, at);
            acquire_leases(view, self);
        }
        // Units that the store has granted may go to another request, or arrive too late. Then the request waits again.
        self.lease_waits.is_pending().then_some(Wait::Lease)
    }

    pub(super) fn check_again(&mut self, view: &LimitsView, now: Timestamp) {
        self.decision = super::check(&view.limiter, &self.selected, now);
        self.decided_at = now;
    }

    /// If another limit rejects the request, leaves the checks undecided for which the store was not queried, or has not
    /// responded. They neither reject the request nor have nothing left.
    pub(super) fn leave_leases_undecided(&mut self) {
        if self.is_held() || !acquisition::is_rejected_otherwise(self.decision.verdicts()) {
            return;
        }
        for position in 0..self.selected.len() {
            if self.decision.verdicts().get(position).is_some_and(Verdict::needs_lease) {
                self.decision.leave_undecided(position);
            }
        }
    }

    /// Rejects the checks in `rejected`, for which the store has no units, with their retry-after. If a ban applies,
    /// the limits are checked again, because their counters are now updated and the ban begins.
    fn reject(&mut self, view: &LimitsView, rejected: &[(usize, Duration)]) {
        let has_ban = self.selected.iter().any(|selected| selected.role == CheckRole::Ban);
        if !rejected.is_empty() && has_ban {
            self.check_again(view, self.decided_at);
        }
        for (position, wait) in rejected {
            if self.decision.verdicts().get(*position).is_some_and(Verdict::awaits_lease) {
                self.decision.reject(*position, *wait);
            }
        }
    }

    /// Replaces the check at `position` by the limit for an unreachable store, or rejects it if there is none.
    fn use_store_loss_fallback(&mut self, view: &LimitsView, position: usize) {
        if !view.policy.rules.use_store_loss_fallback(&mut self.selected[position].check) {
            self.decision.reject(position, MIN_RETRY_AFTER);
        }
    }
}

/// Provides units for the checks that are out of them, without waiting. Checks that must wait for the store
/// are added to `limits.lease_waits`. Checks that are not enforced follow once all others pass.
// Out of line, because nearly no request calls this.
#[inline(never)]
pub(super) fn acquire_leases(view: &LimitsView, limits: &mut AppliedLimits) {
    let must_wait =
        limits.decision.is_rejected() && acquisition::acquire_units(&mut EnforcedChecks { view, limits });
    if !must_wait {
        limits.lease_waits.stop();
    }
    if !limits.decision.is_rejected() {
        (0..limits.selected.len()).for_each(|position| acquire_unenforced_lease(view, limits, position));
    }
}

impl LeasedRequest for EnforcedChecks<'_> {
    type Counter = usize;

    fn counters_without_units(&mut self) -> SmallVec<[usize; 2]> {
        acquisition::checks_without_units(self.limits.decision.verdicts())
    }

    fn acquire(&mut self, position: usize) -> LeaseDecision {
        acquire_lease(self.view, self.limits, position)
    }

    fn use_store_loss_fallback(&mut self, position: usize) {
        self.limits.use_store_loss_fallback(self.view, position);
    }

    fn reject(&mut self, rejected: &[(usize, Duration)]) -> bool {
        self.limits.reject(self.view, rejected);
        acquisition::is_rejected_otherwise(self.limits.decision.verdicts())
    }

    fn decide_again(&mut self) {
        self.limits.check_again(self.view, self.limits.decided_at);
    }
}

impl LeasedRequest for UnenforcedCheck<'_> {
    type Counter = usize;

    fn counters_without_units(&mut self) -> SmallVec<[usize; 2]> {
        let needs_lease = self.limits.decision.verdicts()[self.position].needs_lease();
        needs_lease.then_some(self.position).into_iter().collect()
    }

    fn acquire(&mut self, position: usize) -> LeaseDecision {
        acquire_lease(self.view, self.limits, position)
    }

    fn use_store_loss_fallback(&mut self, position: usize) {
        self.limits.use_store_loss_fallback(self.view, position);
    }

    /// Without a time, the store has not reported that it has no units, and the check counts as conforming.
    fn reject(&mut self, rejected: &[(usize, Duration)]) -> bool {
        for &(position, wait) in rejected {
            match wait.is_zero() {
                true => self.limits.decision.allow(position),
                false => self.limits.decision.reject(position, wait),
            }
        }
        !self.limits.decision.verdicts()[self.position].needs_lease()
    }

    fn decide_again(&mut self) {
        let check = self.limits.selected[self.position].check;
        let decided = self.view.limiter.check(&[check], self.limits.decided_at);
        self.limits.decision.replace(self.position, decided.verdicts()[0]);
    }
}

fn acquire_lease(view: &LimitsView, limits: &mut AppliedLimits, position: usize) -> LeaseDecision {
    let (selected, now) = (&limits.selected[position], limits.decided_at);
    let shared = view.policy.rules.get(selected.rule).and_then(Rule::shared);
    let (Some(store), Some(shared)) = (view.store.as_ref(), shared) else {
        return LeaseDecision::Unavailable;
    };
    let max_wait = shared.max_wait(view.policy.rules.is_deferral(selected.rule));
    let max_wait = max_wait.unwrap_or_else(|| store.default_wait());
    let (group, counter) = (WaitGroup::Rule(selected.rule), view.limiter.shared_counter(&selected.check));
    let left = max_wait.saturating_sub(limits.lease_waits.waited(group));
    let in_queue = limits.wait.as_ref().map_or(Duration::ZERO, |line| line.time_left(selected.rule, now));
    // No request waits for a check that does not reject it, or for a rule without a wait. Its queue decides it again.
    let waits = limits.decision.verdicts()[position].rejects() && !max_wait.is_zero();
    let left = waits.then_some(left.max(in_queue));
    store.decide_lease(group, counter, left, now, &mut limits.lease_waits, |source| {
        view.limiter.acquire_units_from(source, &selected.check, now)
    })
}

/// Decides a check that is not enforced, such as of a rule in shadow mode, if it is out of units. No request waits for it:
/// if the store must be queried first, the request counts as conforming.
fn acquire_unenforced_lease(view: &LimitsView, limits: &mut AppliedLimits, position: usize) {
    if acquisition::acquire_units(&mut UnenforcedCheck { view, limits, position }) {
        limits.decision.allow(position);
    }
}
