//! Unconditional counts on shared limits: a request counts units that this instance has leased.
//!
//! A request over the limit counts nothing, because units are granted to requests that pass. Units that are given back
//! can be spent again here.

use std::num::NonZeroU32;

use super::{CountOperation, CountResult};
use crate::Limiter;
use crate::algorithm::lease::{self, LeaseState};
use crate::algorithm::{Algorithm, CounterState, Outcome};
use crate::key::Fingerprint;
use crate::leases::{self, LeaseOutcome, SharedCounter, UnitSource};
use crate::quota::{Limit, Quota};
use crate::table::Shard;
use crate::timestamp::Timestamp;

impl Limiter {
    /// Returns the counter of a count operation.
    pub fn shared_counter_to_count(&self, tally: &CountOperation) -> SharedCounter {
        SharedCounter { limit: tally.handle.id, key: tally.key.salted(tally.handle.salt) }
    }

    /// Provides units for a count that is out of them, as [`Limiter::acquire_units_from`] does for a check.
    pub fn acquire_units_to_count(
        &self,
        source: UnitSource,
        tally: &CountOperation,
        now: Timestamp,
    ) -> LeaseOutcome {
        let counter = self.shared_counter_to_count(tally);
        self.acquire_counter_units(source, counter, cost(tally), Some(tally.limit), now)
    }
}

/// Returns the quota of a counter with a limit of `limit` units; without one, that of its handle.
pub(crate) fn quota_with_limit(quota: Quota, limit: Option<u32>) -> Quota {
    let (Some(limit), counted) = (limit, quota.store_quota()) else { return quota };
    let period = counted.window();
    let most = u32::try_from(period.nanos()).unwrap_or(u32::MAX);
    let count = NonZeroU32::new(limit.min(most)).unwrap_or(NonZeroU32::MIN);
    let limited = Quota::new(counted.algorithm(), Limit::new(count, period), None).ok();
    limited.and_then(Quota::leased).unwrap_or(quota)
}

/// Returns the next state of a counter and what it reads, given the units left `beside` its lease.
pub(super) fn reading(
    state: Option<CounterState>,
    quota: &Quota,
    beside: Option<u32>,
    tally: &CountOperation,
    now: Timestamp,
) -> (CounterState, CountResult) {
    let held = LeaseState::from_counter(state).units(now);
    // Before the first response of the store, nothing is known to be used.
    let left = beside.map_or(tally.limit, |beside| beside.saturating_add(held)).min(tally.limit);
    let (limit, before) = (u64::from(tally.limit), u64::from(tally.limit - left));
    let (next, outcome) = spent(state, tally, now);
    let fits = outcome == Outcome::Conform && (tally.limit > 0 || tally.amount <= 0);
    let counted = before.saturating_add_signed(tally.amount);
    let usage = lease::fleet_usage(
        Some(next),
        &quota_with_limit(*quota, Some(tally.limit)),
        left.saturating_sub(held),
        now,
    );
    let reset = match outcome {
        Outcome::Exceed { retry_after: Some(wait) } if !wait.is_zero() => wait,
        Outcome::Exceed { .. } | Outcome::Conform => usage.reset,
    };
    let tallied = CountResult {
        before,
        after: if fits { counted.min(limit) } else { counted.max(limit.saturating_add(1)) },
        is_over: !fits,
        reset: (quota.store_quota().algorithm() == Algorithm::Gcra).then_some(reset),
        needs_lease: !fits && lease::needs_lease(outcome) && tally.limit >= cost(tally),
    };
    (next, tallied)
}

/// Counts units if they fit; otherwise records them as demand.
pub(super) fn count(shard: &mut Shard, key: Fingerprint, tally: CountOperation, now: Timestamp) {
    let state = shard.state(shard.find(key), tally.handle.id, now);
    let (next, outcome) = spent(state, &tally, now);
    if outcome != Outcome::Conform || tally.limit > 0 || tally.amount < 0 {
        leases::write_lease(shard, key, tally.handle.id, LeaseState::from_counter(Some(next)), now);
    }
}

fn spent(state: Option<CounterState>, tally: &CountOperation, now: Timestamp) -> (CounterState, Outcome) {
    match (LeaseState::from_counter(state), tally.amount < 0) {
        // Bounded by the whole limit.
        (LeaseState::Units(units, until), true) if now < until => {
            let back = u32::try_from(tally.amount.unsigned_abs()).unwrap_or(u32::MAX);
            let most = tally.limit.max(units);
            (LeaseState::Units(units.saturating_add(back).min(most), until).into(), Outcome::Conform)
        }
        (held, true) => (held.into(), Outcome::Conform),
        (held, false) => lease::evaluate(Some(held.into()), cost(tally), now),
    }
}

fn cost(tally: &CountOperation) -> u32 {
    u32::try_from(tally.amount.max(0)).unwrap_or(u32::MAX)
}
