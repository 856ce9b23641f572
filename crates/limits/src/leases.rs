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
use weir_limiter::timestamp::Timestamp;
use weir_policy::rules::rule::Rule;
use weir_policy::rules::selection::CheckRole;
use weir_store::lease_wait::{LeaseDecision, WaitGroup};

/// Maximum attempts of a request to take units of a reserve before it is rejected; other requests may take them first.
const MAX_ATTEMPTS: usize = 4;
/// Minimum `retry-after` while the store is unreachable.
const MIN_RETRY_AFTER: Duration = Duration::from_secs(1);

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

    fn checks_awaiting_lease(&self) -> SmallVec<[usize; 2]> {
        let verdicts = self.decision.verdicts().iter().enumerate();
        verdicts.filter(|(_, verdict)| verdict.awaits_lease()).map(|(position, _)| position).collect()
    }

    fn is_rejected_otherwise(&self) -> bool {
        self.decision.verdicts().iter().any(|verdict| verdict.rejects() && !verdict.awaits_lease())
    }

    /// If another limit rejects the request, leaves the checks undecided for which the store was not queried, or has not
    /// responded. They neither reject the request nor have nothing left.
    pub(super) fn leave_leases_undecided(&mut self) {
        if self.is_held() || !self.is_rejected_otherwise() {
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
    fn reject(&mut self, view: &LimitsView, rejected: &[(usize, Duration)], now: Timestamp) {
        let has_ban = self.selected.iter().any(|selected| selected.role == CheckRole::Ban);
        if !rejected.is_empty() && has_ban {
            self.check_again(view, now);
        }
        for (position, wait) in rejected {
            if self.decision.verdicts().get(*position).is_some_and(Verdict::awaits_lease) {
                self.decision.reject(*position, *wait);
            }
        }
    }

    /// Replaces the check at `position` by the limit for an unreachable store; returns whether there is one.
    fn use_store_loss_fallback(&mut self, view: &LimitsView, position: usize) -> bool {
        let has_other = view.policy.rules.use_store_loss_fallback(&mut self.selected[position].check);
        if !has_other {
            self.decision.reject(position, MIN_RETRY_AFTER);
        }
        has_other
    }
}

/// Provides units for the checks that are out of them, without waiting. Checks that must wait for the store
/// are added to `limits.lease_waits`. Checks that are not enforced follow once all others pass.
// Out of line, because nearly no request calls this.
#[inline(never)]
pub(super) fn acquire_leases(view: &LimitsView, limits: &mut AppliedLimits) {
    let must_wait = limits.decision.is_rejected() && acquire_enforced_leases(view, limits);
    if !must_wait {
        limits.lease_waits.stop();
    }
    if !limits.decision.is_rejected() {
        acquire_unenforced_leases(view, limits);
    }
}

/// Returns whether the request must wait for the store.
fn acquire_enforced_leases(view: &LimitsView, limits: &mut AppliedLimits) -> bool {
    let now = limits.decided_at;
    for _ in 0..MAX_ATTEMPTS {
        let awaiting_lease = limits.checks_awaiting_lease();
        if awaiting_lease.is_empty() || limits.is_rejected_otherwise() {
            return false;
        }
        let mut must_wait = false;
        let mut rejected = SmallVec::<[(usize, Duration); 2]>::new();
        for position in awaiting_lease {
            match acquire_lease(view, limits, position) {
                LeaseDecision::Available => {}
                LeaseDecision::Pending => must_wait = true,
                LeaseDecision::Rejected(wait) => rejected.push((position, wait)),
                LeaseDecision::Unavailable => {
                    limits.use_store_loss_fallback(view, position);
                }
            }
        }
        limits.reject(view, &rejected, now);
        if limits.is_rejected_otherwise() {
            return false;
        }
        if must_wait {
            return true;
        }
        limits.check_again(view, now);
    }
    false
}

fn acquire_lease(view: &LimitsView, limits: &mut AppliedLimits, position: usize) -> LeaseDecision {
    let (selected, now) = (&limits.selected[position], limits.decided_at);
    let store = view.store.as_ref().filter(|store| !store.is_unreachable());
    let shared = view.policy.rules.get(selected.rule).and_then(Rule::shared);
    let (Some(store), Some(shared)) = (store, shared) else {
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
    store.decide_lease(group, counter, left, &mut limits.lease_waits, |source| {
        view.limiter.acquire_units_from(source, &selected.check, now)
    })
}

/// Decides checks that are not enforced, such as of a rule in shadow mode, and that are out of units. Each is
/// checked alone, because the other checks of an admitted request have been charged. No request waits for
/// them. If the store must be queried first, the request counts as conforming, because the store has not
/// reported otherwise.
fn acquire_unenforced_leases(view: &LimitsView, limits: &mut AppliedLimits) {
    let now = limits.decided_at;
    for position in 0..limits.selected.len() {
        for _ in 0..MAX_ATTEMPTS {
            if !limits.decision.verdicts()[position].needs_lease() {
                break;
            }
            match acquire_lease(view, limits, position) {
                LeaseDecision::Available => {}
                LeaseDecision::Rejected(wait) if !wait.is_zero() => {
                    limits.decision.reject(position, wait);
                    break;
                }
                LeaseDecision::Rejected(_) | LeaseDecision::Pending => {
                    limits.decision.allow(position);
                    break;
                }
                LeaseDecision::Unavailable if limits.use_store_loss_fallback(view, position) => {}
                LeaseDecision::Unavailable => break,
            }
            let decided = view.limiter.check(&[limits.selected[position].check], now);
            limits.decision.replace(position, decided.verdicts()[0]);
        }
    }
}
