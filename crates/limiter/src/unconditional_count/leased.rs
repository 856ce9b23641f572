//! Unconditional counts on shared limits: a request counts units that this instance has leased.
//!
//! A request over the limit counts nothing, because units are granted to requests that pass. Units that are given back
//! can be spent again here.

use super::{CountOperation, CountResult};
use crate::Limiter;
use crate::algorithm::lease::{self, LeaseState};
use crate::algorithm::{Algorithm, CounterState, Outcome};
use crate::key::Fingerprint;
use crate::leases::{self, LeaseOutcome, SharedCounter, UnitSource};
use crate::quota::Quota;
use crate::table::Shard;
use crate::timestamp::Timestamp;

impl Limiter {
    /// Returns the counter of a count operation.
    pub fn shared_counter_to_count(&self, operation: &CountOperation) -> SharedCounter {
        SharedCounter { limit: operation.handle.id, key: operation.key.salted(operation.handle.salt) }
    }

    /// Provides units for a count that is out of them, as [`Limiter::acquire_units_from`] does for a check.
    pub fn acquire_units_to_count(
        &self,
        source: UnitSource,
        operation: &CountOperation,
        now: Timestamp,
    ) -> LeaseOutcome {
        let counter = self.shared_counter_to_count(operation);
        self.acquire_counter_units(source, counter, operation.cost(), Some(operation.limit), now)
    }
}

/// Returns the next state of a counter and what it reads, given the units left `outside_slot`, in addition to its lease.
pub(super) fn evaluate(
    state: Option<CounterState>,
    quota: &Quota,
    outside_slot: Option<u32>,
    operation: &CountOperation,
    now: Timestamp,
) -> (CounterState, CountResult) {
    let held = LeaseState::from_counter(state).units(now);
    // Before the first response of the store, nothing is known to be used.
    let left = outside_slot
        .map_or(operation.limit, |outside_slot| outside_slot.saturating_add(held))
        .min(operation.limit);
    let (limit, before) = (u64::from(operation.limit), u64::from(operation.limit - left));
    let (next, outcome) = after_spending(state, operation, now);
    let fits = outcome == Outcome::Conform && (operation.limit > 0 || operation.amount <= 0);
    let counted = before.saturating_add_signed(operation.amount);
    let usage = lease::fleet_usage(Some(next), quota, left.saturating_sub(held), now);
    let reset = match outcome {
        Outcome::Exceed { retry_after: Some(wait) } if !wait.is_zero() => wait,
        Outcome::Exceed { .. } | Outcome::Conform => usage.reset,
    };
    let result = CountResult {
        before,
        after: if fits { counted.min(limit) } else { counted.max(limit.saturating_add(1)) },
        is_over: !fits,
        reset: (quota.store_quota().algorithm() == Algorithm::Gcra).then_some(reset),
        needs_lease: !fits && lease::needs_lease(outcome) && operation.limit >= operation.cost(),
    };
    (next, result)
}

/// Counts units if they fit; otherwise records them as demand.
pub(crate) fn count(shard: &mut Shard, key: Fingerprint, operation: &CountOperation, now: Timestamp) {
    let state = shard.state(shard.find(key), operation.handle.id, now);
    let (next, outcome) = after_spending(state, operation, now);
    if outcome != Outcome::Conform || operation.limit > 0 || operation.amount < 0 {
        leases::write_lease(shard, key, operation.handle.id, LeaseState::from_counter(Some(next)), now);
    }
}

fn after_spending(
    state: Option<CounterState>,
    operation: &CountOperation,
    now: Timestamp,
) -> (CounterState, Outcome) {
    match (LeaseState::from_counter(state), operation.amount < 0) {
        // Bounded by the whole limit.
        (LeaseState::Units(units, until), true) if now < until => {
            let back = u32::try_from(operation.amount.unsigned_abs()).unwrap_or(u32::MAX);
            let most = operation.limit.max(units);
            (LeaseState::Units(units.saturating_add(back).min(most), until).into(), Outcome::Conform)
        }
        (held, true) => (held.into(), Outcome::Conform),
        (held, false) => lease::evaluate(Some(held.into()), operation.cost(), now),
    }
}
