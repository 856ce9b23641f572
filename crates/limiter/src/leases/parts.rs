//! Parts of shared limits: what an instance may spend while it does not reach the store.
//!
//! The store holds the part of an absent instance back, so that all instances together admit no more than the limit. A part
//! begins as an empty bucket, because the units of before count for the others. docs/design/053-partitions.md has the protocol
//! and its proof.

use std::time::Duration;

use super::account::LeaseAccount;
use super::lease_request::StoreCounterKind;
use super::{LeaseOutcome, SharedCounter, lease_of, write_lease};
use crate::Limiter;
use crate::algorithm::lease::LeaseState;
use crate::timestamp::Timestamp;

/// Time for which units of a part may be spent once they are taken: a request takes them when it is decided again.
const PART_VALID: Duration = Duration::from_millis(20);

/// An instance's part of all shared limits of a group of counters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StorePart {
    /// Fraction of each limit, from 0 to 1.
    pub fraction: f64,
    /// Time from which it may be spent.
    pub from: Timestamp,
    /// Time until which it may be spent.
    pub until: Timestamp,
    /// Time for which the store holds a part back after its last renewal. Limits that take longer to be whole again have no
    /// parts.
    pub max_settle_time: Duration,
}

/// What an instance has spent of its part of one limit: a bucket that drains continuously.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PartBucket {
    /// Time from which the part may be spent, which differs from part to part.
    from: Timestamp,
    /// Time in which a unit of it drains.
    interval: Duration,
    /// Time at which the bucket is empty.
    empty_at: Timestamp,
}

/// A bucket with which no window of the limit is exceeded, whatever its algorithm.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PartLimit {
    /// Time in which a unit drains.
    interval: Duration,
    /// Units.
    burst: u32,
    /// Time from which they may be spent.
    start: Timestamp,
}

/// An instance's parts by the groups of counters; empty if it has none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartsByGroup(pub Vec<Option<StorePart>>);

impl PartsByGroup {
    /// Returns the index of the group of `counter` among this number of `groups`.
    pub fn group_of(counter: SharedCounter, groups: usize) -> usize {
        (counter.name() % groups.max(1) as u128) as usize
    }

    /// Returns the part of the limit of `counter`.
    pub fn part_of(&self, counter: SharedCounter) -> Option<StorePart> {
        *self.0.get(Self::group_of(counter, self.0.len()))?
    }
}

impl Limiter {
    /// Whether any limit has parts that the store holds back.
    pub fn has_parts(&self) -> bool {
        self.table.lock(0).quotas().lease_policies().any(|policy| policy.has_parts)
    }
}

impl StorePart {
    /// Returns this part of a limit; `None` if the limit has no parts, or if it is less than a unit.
    fn of(&self, kind: &StoreCounterKind) -> Option<PartLimit> {
        let part = |units: u32| (f64::from(units) * self.fraction) as u32;
        let (micros, burst) = match *kind {
            StoreCounterKind::Bucket { interval, burst } => (interval / self.fraction, part(burst)),
            StoreCounterKind::Window { count, quota } => {
                half_as_fast(quota.window().duration(), part(count), part(count))
            }
            StoreCounterKind::Sliding { count, length, .. } => half_as_fast(length, part(count), part(count)),
            StoreCounterKind::Refill { count, every, burst } => half_as_fast(every, part(count), part(burst)),
            StoreCounterKind::Permits { .. } => return None,
        };
        let settle_time = kind.settle_time()?;
        let is_whole_in_time = settle_time <= self.max_settle_time;
        let interval = Duration::try_from_secs_f64(micros / 1e6).ok()?;
        // Units of a bucket drain, so that a part of it begins empty. What the others have spent of a window counts until it
        // has ended.
        let start = match kind {
            StoreCounterKind::Bucket { .. } => self.from,
            _ => self.from.saturating_add(settle_time),
        };
        (is_whole_in_time && burst > 0).then_some(PartLimit { interval, burst, start })
    }
}

/// Returns the interval in microseconds and the burst of a bucket that admits at most `burst` units in a span of less than
/// `length`, and `count` more for each `length`: its rate is half of the limit's, and its burst is smaller by the other half.
fn half_as_fast(length: Duration, count: u32, burst: u32) -> (f64, u32) {
    (2e6 * length.as_secs_f64() / f64::from(count), burst.saturating_sub(count.div_ceil(2)))
}

impl PartLimit {
    fn full(&self) -> Duration {
        // Units may be spent this much later than they are taken.
        self.interval.saturating_mul(self.burst).saturating_sub(PART_VALID)
    }
}

impl PartBucket {
    pub(super) fn is_empty(&self, now: Timestamp) -> bool {
        now >= self.empty_at
    }

    /// Takes `units` of the part that begins at `from`. Returns the time until there are as many if there are too few; `None`
    /// if there never are.
    fn take(
        &mut self,
        units: u32,
        limit: PartLimit,
        from: Timestamp,
        now: Timestamp,
    ) -> Result<(), Option<Duration>> {
        if now < limit.start {
            return Err(Some(limit.start.since(now)));
        }
        let interval = limit.interval;
        if self.from != from {
            *self = Self { from, interval, empty_at: limit.start.saturating_add(limit.full()) };
        } else if self.interval != interval {
            // The limit has changed.
            (self.interval, self.empty_at) = (interval, now.saturating_add(limit.full()));
        }
        let taken = interval.saturating_mul(units);
        if taken > limit.full() {
            return Err(None);
        }
        let (after, full_at) =
            (self.empty_at.max(now).saturating_add(taken), now.saturating_add(limit.full()));
        if after > full_at {
            return Err(Some(after.since(full_at)));
        }
        self.empty_at = after;
        Ok(())
    }
}

impl Limiter {
    /// Provides units of this instance's part to a request whose counter is out of units. The caller has to review the counter
    /// later if [`LeaseOutcome::Ready`] says so.
    pub(super) fn acquire_part_units(
        &self,
        part: &StorePart,
        SharedCounter { limit, key }: SharedCounter,
        cost: u32,
        limit_units: Option<u32>,
        now: Timestamp,
    ) -> LeaseOutcome {
        let mut shard = self.table.lock(self.table.shard_of(key));
        let quota = shard.quota(limit).filter(|quota| quota.is_leased()).copied();
        let has_parts = shard.quotas().lease_policy(limit).is_some_and(|policy| policy.has_parts);
        let Some(quota) = quota.filter(|_| has_parts) else { return LeaseOutcome::Unavailable };
        let kind =
            StoreCounterKind::from_quota(&limit_units.map_or(quota, |units| quota.with_units(units)), 0);
        let (reserved, held) = (shard.reserved_of(key, limit), lease_of(&shard, key, limit, now));
        let is_new = !shard.lease_accounts().contains_key(&key);
        let of_limit = part.of(&kind).filter(|_| now < part.until);
        // An account for each key that is rejected would fill the table.
        match of_limit {
            None if is_new => return LeaseOutcome::Unavailable,
            Some(limit) if is_new && now < limit.start => {
                return LeaseOutcome::Rejected(limit.start.since(now));
            }
            _ => {}
        }
        let Some(account) = shard.lease_account(key, limit, now) else { return LeaseOutcome::Unavailable };
        let left = account.expire(held, reserved, now);
        let needed = u64::from(account.uncovered(reserved)).saturating_add(cost.into());
        let held = account.replenish(left, needed, now);
        let missing = needed.saturating_sub(held.units(now).into());
        let missing = u32::try_from(missing).unwrap_or(u32::MAX);
        let (outcome, held) = match (missing, of_limit) {
            (0, _) => (LeaseOutcome::Ready(is_new), held),
            (_, None) => (LeaseOutcome::Unavailable, held),
            (_, Some(limit)) => match account.part.take(missing, limit, part.from, now) {
                Ok(()) => (LeaseOutcome::Ready(is_new), account.add_part(held, missing, now)),
                Err(Some(wait)) => (LeaseOutcome::Rejected(wait), held),
                Err(None) => (LeaseOutcome::Unavailable, held),
            },
        };
        write_lease(&mut shard, key, limit, held, now);
        outcome
    }
}

impl LeaseAccount {
    /// Adds units to the slot that the store has not granted. It must not get them back.
    fn add_part(&mut self, held: LeaseState, units: u32, now: Timestamp) -> LeaseState {
        let left = held.units(now);
        self.current.granted_at = 0;
        if left == 0 {
            self.current.until = now.saturating_add(PART_VALID);
        }
        LeaseState::Units(left.saturating_add(units), self.current.until)
    }
}

#[cfg(test)]
mod tests;
