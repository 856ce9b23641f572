//! Helpers for the instances of all simulations: one shared limit, and decisions of requests under it.

use weir_limiter::algorithm::conversion::OnChange;
use weir_limiter::decision::Enforcement;
use weir_limiter::leases::{LeaseOutcome, LeasePolicy};
use weir_limiter::quota::Quota;
use weir_limiter::reservation::ChargeTiming;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{Check, LimitIdentity, LimitSpec, Limiter};
use weir_store::scheduler::LeaseScheduler;

/// Maximum number of times that a request takes units from the reserve.
const MAX_ATTEMPTS: usize = 3;

/// Returns the specification of the shared limit.
pub(crate) fn spec((quota, sharing): (Quota, LeasePolicy)) -> LimitSpec {
    LimitSpec {
        identity: LimitIdentity { rule: "rule".into(), key: "key".into() },
        quota: quota.leased().unwrap(),
        on_change: OnChange::Keep,
        lease_policy: Some(sharing),
    }
}

/// Installs the limit, and returns the check of its requests.
pub(crate) fn check(limiter: &Limiter, limit: (Quota, LeasePolicy), charging: ChargeTiming) -> Check {
    Check {
        handle: limiter.install(&[spec(limit)], Timestamp::EPOCH)[0],
        key: limiter.hasher().hash(b""),
        cost: 1,
        enforcement: Enforcement::Enforced,
        charge_timing: charging,
        options: None,
    }
}

/// Decides a request. Returns `None` if it has to wait for the store.
pub(crate) fn decide(
    limiter: &Limiter,
    scheduler: &mut LeaseScheduler,
    check: &Check,
    now: Timestamp,
) -> Option<bool> {
    for _ in 0..MAX_ATTEMPTS {
        let verdict = limiter.check(&[*check], now).verdicts()[0];
        if !verdict.exceeds() {
            return Some(true);
        }
        if !verdict.awaits_lease() {
            return Some(false);
        }
        let claimed = limiter.acquire_units(check, now);
        if let LeaseOutcome::Ready(true) | LeaseOutcome::Requested(true) = claimed {
            scheduler.enqueue(limiter.shared_counter(check));
        }
        match claimed {
            LeaseOutcome::Ready(_) => {}
            LeaseOutcome::Requested(_) => return None,
            LeaseOutcome::Rejected(_) | LeaseOutcome::Unavailable => return Some(false),
        }
    }
    Some(false)
}
