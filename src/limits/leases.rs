//! Shared limits: handling of requests whose counters are out of units.
//!
//! Nearly all requests use units of a lease that this instance holds, and do not reach this module. If the lease is
//! used up, the request takes units of the reserve. Otherwise it waits for the store for as long as its rule permits,
//! or is rejected. While the store is unreachable, and if the wait ends without a response, the rule's setting for that
//! case applies.

use std::rc::Rc;
use std::time::Duration;

use smallvec::SmallVec;

use super::waiting::{Hold, HoldEnd};
use super::{AppliedLimits, LimitsView};
use crate::limiter::decision::Verdict;
use crate::limiter::timestamp::Timestamp;
use crate::rules::rule::Rule;
use crate::rules::selection::CheckRole;
use crate::store::lease_wait::{LeaseDecision, StoreResponse};

/// Maximum attempts of a request to take units of a reserve before it is rejected; other requests may take them first.
const MAX_ATTEMPTS: usize = 4;
/// Maximum time that a stored call waits for the store.
const MAX_STORED_WAIT: Duration = Duration::from_secs(1);
/// Minimum `retry-after` while the store is unreachable.
const MIN_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Holds a request until the store has responded about the units that its leases lack.
pub(super) async fn resolve(
    view: &Rc<LimitsView>,
    limits: &mut AppliedLimits,
    hold: &mut impl AsyncFnMut(Hold<'_>) -> (Timestamp, HoldEnd),
) {
    let started = limits.decided_at;
    // Units that the store has granted may go to another request, or arrive too late. Then the request waits again.
    while !limits.awaited_leases.is_empty() {
        let waits = std::mem::take(&mut limits.awaited_leases);
        let (now, end) = hold(Hold::Lease(waits)).await;
        limits.check_again(view, now);
        acquire_leases(view, limits, end.store_response(now.since(started)));
        limits.awaited_leases.clear_elapsed();
    }
}

impl AppliedLimits {
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
/// are added to `limits.awaited_leases`; `response` is what the store has said so far. Checks that are not enforced follow once all
/// others pass.
// Out of line, because nearly no request calls this.
#[inline(never)]
pub(super) fn acquire_leases(view: &LimitsView, limits: &mut AppliedLimits, response: StoreResponse) {
    if limits.decision.is_rejected() {
        acquire_enforced_leases(view, limits, response);
    }
    if !limits.decision.is_rejected() {
        acquire_unenforced_leases(view, limits);
    }
}

fn acquire_enforced_leases(view: &LimitsView, limits: &mut AppliedLimits, response: StoreResponse) {
    let now = limits.decided_at;
    for _ in 0..MAX_ATTEMPTS {
        let awaiting_lease = limits.checks_awaiting_lease();
        if awaiting_lease.is_empty() || limits.is_rejected_otherwise() {
            return;
        }
        let mut rejected = SmallVec::<[(usize, Duration); 2]>::new();
        for position in awaiting_lease {
            match acquire_lease(view, limits, position, response) {
                LeaseDecision::Available => {}
                LeaseDecision::Pending(wait) => limits.awaited_leases.add(wait),
                LeaseDecision::Rejected(wait) => rejected.push((position, wait)),
                LeaseDecision::Unavailable => {
                    limits.use_store_loss_fallback(view, position);
                }
            }
        }
        limits.reject(view, &rejected, now);
        if limits.is_rejected_otherwise() {
            limits.awaited_leases.clear();
            return;
        }
        if !limits.awaited_leases.is_empty() {
            return;
        }
        limits.check_again(view, now);
    }
}

fn acquire_lease(
    view: &LimitsView,
    limits: &AppliedLimits,
    position: usize,
    response: StoreResponse,
) -> LeaseDecision {
    let (selected, now) = (&limits.selected[position], limits.decided_at);
    let store = view.store.as_ref().filter(|store| !store.is_unreachable());
    let shared = view.policy.rules.get(selected.rule).and_then(Rule::shared);
    let (Some(store), Some(shared)) = (store, shared) else {
        return LeaseDecision::Unavailable;
    };
    let (counter, outcome) =
        (view.limiter.shared_counter(&selected.check), view.limiter.acquire_units(&selected.check, now));
    let max_wait = shared.wait.unwrap_or_else(|| store.default_wait());
    let wait = match &limits.wait {
        _ if !limits.decision.verdicts()[position].rejects() => Duration::ZERO,
        // No client waits for a stored call.
        _ if view.policy.rules.is_deferral(selected.rule) => MAX_STORED_WAIT,
        Some(line) => line.time_left(selected.rule, now).max(max_wait),
        None => max_wait,
    };
    store.decide_lease(counter, outcome, wait, response)
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
            match acquire_lease(view, limits, position, StoreResponse::NOT_AWAITED) {
                LeaseDecision::Available => {}
                LeaseDecision::Rejected(wait) if !wait.is_zero() => {
                    limits.decision.reject(position, wait);
                    break;
                }
                LeaseDecision::Rejected(_) | LeaseDecision::Pending(_) => {
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
