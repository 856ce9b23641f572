//! Tallies of limits that instances share: a request counts units that this instance has been granted.
//!
//! What is over counts nothing: units are granted to requests that pass. What is given back may be spent again here.

use std::num::NonZeroU32;

use super::{Tallied, Tally};
use crate::limiter::Limiter;
use crate::limiter::algorithm::claim::{self, Held};
use crate::limiter::algorithm::{Algorithm, Outcome, State};
use crate::limiter::claims::{self, Claimed, SharedCounter};
use crate::limiter::key::Fingerprint;
use crate::limiter::quota::{Limit, Quota};
use crate::limiter::store::Shard;
use crate::limiter::timestamp::Timestamp;

impl Limiter {
    /// The counter of `tally`.
    pub fn tally_counter(&self, tally: &Tally) -> SharedCounter {
        SharedCounter { meter: tally.meter.id, key: tally.key.salted(tally.meter.salt) }
    }

    /// Brings units for a tally that is short, as [`Limiter::claim`] does for a check.
    pub fn claim_for(&self, tally: &Tally, now: Timestamp) -> Claimed {
        self.claim_units(self.tally_counter(tally), (cost(tally), Some(tally.limit)), now)
    }
}

/// The quota of a counter that is held against `limit` units; without one, what its meter says.
pub(in crate::limiter) fn limited(quota: Quota, limit: Option<u32>) -> Quota {
    let (Some(limit), counted) = (limit, quota.counted()) else { return quota };
    let period = counted.window();
    let most = u32::try_from(period.nanos()).unwrap_or(u32::MAX);
    let count = NonZeroU32::new(limit.min(most)).unwrap_or(NonZeroU32::MIN);
    let limited = Quota::new(counted.algorithm(), Limit::new(count, period), None).ok();
    limited.and_then(Quota::claimed).unwrap_or(quota)
}

/// What a counter that says `state` reads, of whose limit so many units are left `beside` it, and what it says next.
pub(super) fn reading(
    state: Option<State>,
    quota: &Quota,
    beside: Option<u32>,
    tally: &Tally,
    now: Timestamp,
) -> (State, Tallied) {
    let held = Held::of(state).units(now);
    // Before the store has responded nothing is known to be used.
    let left = beside.map_or(tally.limit, |beside| beside.saturating_add(held)).min(tally.limit);
    let (limit, before) = (u64::from(tally.limit), u64::from(tally.limit - left));
    let (next, outcome) = spent(state, tally, now);
    let fits = outcome == Outcome::Conform && (tally.limit > 0 || tally.amount <= 0);
    let counted = before.saturating_add_signed(tally.amount);
    let usage =
        claim::usage_of_all(Some(next), &limited(*quota, Some(tally.limit)), left.saturating_sub(held), now);
    let reset = match outcome {
        Outcome::Exceed { retry_after: Some(wait) } if !wait.is_zero() => wait,
        Outcome::Exceed { .. } | Outcome::Conform => usage.reset,
    };
    let tallied = Tallied {
        before,
        after: if fits { counted.min(limit) } else { counted.max(limit.saturating_add(1)) },
        is_over: !fits,
        reset: (quota.counted().algorithm() == Algorithm::Gcra).then_some(reset),
        is_short: !fits && claim::is_short(outcome) && tally.limit >= cost(tally),
    };
    (next, tallied)
}

/// Counts what fits; of what does not, notes that it was demanded.
pub(super) fn count(shard: &mut Shard, key: Fingerprint, tally: Tally, now: Timestamp) {
    let state = shard.state(shard.find(key), tally.meter.id, now);
    let (next, outcome) = spent(state, &tally, now);
    if outcome != Outcome::Conform || tally.limit > 0 || tally.amount < 0 {
        claims::write(shard, (key, tally.meter.id), Held::of(Some(next)), now);
    }
}

fn spent(state: Option<State>, tally: &Tally, now: Timestamp) -> (State, Outcome) {
    match (Held::of(state), tally.amount < 0) {
        // Nobody gives back more than the whole limit.
        (Held::Units(units, until), true) if now < until => {
            let back = u32::try_from(tally.amount.unsigned_abs()).unwrap_or(u32::MAX);
            let most = tally.limit.max(units);
            (Held::Units(units.saturating_add(back).min(most), until).into(), Outcome::Conform)
        }
        (held, true) => (held.into(), Outcome::Conform),
        (held, false) => claim::evaluate(Some(held.into()), cost(tally), now),
    }
}

fn cost(tally: &Tally) -> u32 {
    u32::try_from(tally.amount.max(0)).unwrap_or(u32::MAX)
}
