//! Unconditional counts: count units whether or not there is room, and return what each counter read.
//!
//! A check is charged only if the request passes. Services that count as Envoy's rate limit service does need the
//! opposite: requests over the limit count too, some counters of a request may count and others not, and the response
//! is made from the numbers. All counters of a request are read and written under the locks of all their shards, so the
//! numbers are of one moment and no count is lost. The caller supplies the limits; the limit handle determines only the
//! length of a window or, with `gcra`, the time over which a limit is spread.

mod leased;

use std::num::NonZeroU32;
use std::time::Duration;

use smallvec::SmallVec;

pub(super) use self::leased::quota_with_limit;
use super::algorithm::{self, Algorithm, CounterState, Outcome};
use super::duplicate_counters::DuplicateCounters;
use super::key::{Fingerprint, KeyHash};
use super::quota::{Limit, Quota};
use super::table::LockedShards;
use super::timestamp::Timestamp;
use super::{LimitHandle, Limiter};

/// One counter that one request counts on.
#[derive(Clone, Copy, Debug)]
pub struct CountOperation {
    /// Handle that determines the windows.
    pub handle: LimitHandle,
    /// Key of the counter.
    pub key: KeyHash,
    /// Units to count; negative ones are given back, at most down to an unused counter.
    pub amount: i64,
    /// Number of units above which the counter is over its limit.
    pub limit: u32,
}

/// Which counters of a request count, once all are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CountSelection {
    /// All.
    #[default]
    All,
    /// Only those that are over their limit with this request.
    Over,
    /// Only those that are not.
    Within,
    /// None.
    Nothing,
}

/// Result of one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountResult {
    /// Units before the request.
    pub before: u64,
    /// Units with the request. A counter within its limit that does not count reads as before; one that is over reads
    /// as if it had counted.
    pub after: u64,
    /// Whether `after` is more than the limit.
    pub is_over: bool,
    /// For a spread limit: time until there is room for a request that is over, otherwise until all of it is available
    /// again. `None` for windows, whose end is the same for all keys.
    pub reset: Option<Duration>,
    /// Whether it is over only because this instance is out of leased units; the store may have more.
    pub needs_lease: bool,
}

impl CountSelection {
    const fn covers(self, is_over: bool) -> bool {
        match self {
            Self::All => true,
            Self::Over => is_over,
            Self::Within => !is_over,
            Self::Nothing => false,
        }
    }
}

/// The counters of one request.
pub(super) struct RequestCounters<'a> {
    limiter: &'a Limiter,
    operations: &'a [CountOperation],
    keys: SmallVec<[Fingerprint; 4]>,
    repeats: DuplicateCounters,
}

impl Limiter {
    /// Counts on several counters at one moment, over their limits or not; returns what each read, in the order of
    /// the operations.
    ///
    /// `selection` is called with what all of them would read and returns which counts are written. It runs under the
    /// locks and must not call the limiter.
    pub fn count_unconditionally(
        &self,
        operations: &[CountOperation],
        selection: impl FnOnce(&[CountResult]) -> CountSelection,
        now: Timestamp,
    ) -> SmallVec<[CountResult; 4]> {
        let counters = RequestCounters::new(self, operations);
        let mut locked = self.table.lock_all(counters.keys.iter().copied());
        let read = counters.read(&locked, now);
        let selection = selection(&read);
        counters.count_all(read, selection, &mut locked, now)
    }
}

impl<'a> RequestCounters<'a> {
    pub(super) fn new(limiter: &'a Limiter, operations: &'a [CountOperation]) -> Self {
        let keys: SmallVec<[Fingerprint; 4]> =
            operations.iter().map(|operation| operation.key.salted(operation.handle.salt)).collect();
        let repeats = DuplicateCounters::new(&keys);
        Self { limiter, operations, keys, repeats }
    }

    /// The keys to lock.
    pub(super) fn keys(&self) -> &[Fingerprint] {
        &self.keys
    }

    /// Writes the counts that `selection` covers; returns the results.
    pub(super) fn count_all(
        &self,
        mut read: SmallVec<[CountResult; 4]>,
        selection: CountSelection,
        locked: &mut LockedShards<'_>,
        now: Timestamp,
    ) -> SmallVec<[CountResult; 4]> {
        for (position, read) in read.iter_mut().enumerate() {
            if selection.covers(read.is_over) {
                self.count(position, locked, now);
            } else if read.is_over {
                self.record_rejected(position, locked, now);
            } else {
                read.after = read.before;
                // Units to be given back were not.
                read.is_over = read.after > u64::from(self.operations[position].limit);
                read.reset = read.reset.and_then(|_| self.reset(position, locked, now));
            }
        }
        read
    }

    /// Returns what every counter would read if all counted. The second count on the same counter reads what the first
    /// one leaves.
    pub(super) fn read(&self, locked: &LockedShards<'_>, now: Timestamp) -> SmallVec<[CountResult; 4]> {
        let mut states: SmallVec<[Option<CounterState>; 4]> = SmallVec::new();
        let mut read = SmallVec::new();
        for (position, operation) in self.operations.iter().enumerate() {
            let (key, shard) = (self.keys[position], locked.shard(self.keys[position]));
            let Some(quota) =
                shard.quota(operation.handle.id).map(|quota| effective_quota(quota, operation.limit))
            else {
                states.push(None);
                read.push(CountResult {
                    before: 0,
                    after: 0,
                    is_over: false,
                    reset: None,
                    needs_lease: false,
                });
                continue;
            };
            if quota.is_leased() {
                let state = match self.repeats.earlier(position) {
                    Some(earlier) => states[earlier],
                    None => shard.state(shard.find(key), operation.handle.id, now),
                };
                let (next, result) = leased::reading(
                    state,
                    &quota,
                    shard.known_remaining_outside_slot(key, now),
                    operation,
                    now,
                );
                read.push(result);
                states.push(Some(next));
                continue;
            }
            let state = match self.repeats.earlier(position) {
                Some(earlier) => states[earlier],
                None => normalised_state(shard.state(shard.find(key), operation.handle.id, now), &quota),
            };
            read.push(reading(state, &quota, operation, now));
            states.push(Some(algorithm::charge(state, &quota, operation.amount, now)));
        }
        read
    }

    /// Time until all of the limit is available again.
    fn reset(&self, position: usize, locked: &LockedShards<'_>, now: Timestamp) -> Option<Duration> {
        let (key, operation) = (self.keys[position], self.operations[position]);
        let shard = locked.shard(key);
        let quota = effective_quota(shard.quota(operation.handle.id)?, operation.limit);
        let state = normalised_state(shard.state(shard.find(key), operation.handle.id, now), &quota);
        Some(algorithm::usage(state, &quota, now).reset)
    }

    /// Counts a rejection as demand for a shared limit.
    fn record_rejected(&self, position: usize, locked: &mut LockedShards<'_>, now: Timestamp) {
        let (key, operation) = (self.keys[position], self.operations[position]);
        let shard = locked.shard_mut(key);
        if shard.quota(operation.handle.id).is_some_and(Quota::is_leased) {
            leased::count(shard, key, operation, now);
        }
    }

    fn count(&self, position: usize, locked: &mut LockedShards<'_>, now: Timestamp) {
        let (key, operation) = (self.keys[position], self.operations[position]);
        let shard = locked.shard_mut(key);
        // A read creates no counter.
        let Some(quota) = shard.quota(operation.handle.id).filter(|_| operation.amount != 0) else { return };
        if quota.is_leased() {
            return leased::count(shard, key, operation, now);
        }
        let quota = effective_quota(quota, operation.limit);
        let slot = shard.find(key);
        let state = normalised_state(shard.state(slot, operation.handle.id, now), &quota);
        let next = algorithm::charge(state, &quota, operation.amount, now);
        let placement = shard.store_state(slot, key, operation.handle.id, next, now);
        self.limiter.record_placement(placement);
    }
}

fn reading(
    state: Option<CounterState>,
    quota: &Quota,
    operation: &CountOperation,
    now: Timestamp,
) -> CountResult {
    let before = u64::from(algorithm::usage(state, quota, now).used);
    // Wider than the counter, so that even a full 32-bit counter can be over.
    let after = before.saturating_add_signed(operation.amount);
    let result = CountResult {
        before,
        after,
        is_over: after > u64::from(operation.limit),
        reset: None,
        needs_lease: false,
    };
    if quota.algorithm() == Algorithm::Gcra { spread(result, state, quota, operation, now) } else { result }
}

/// Corrects the result for a spread limit. Units expire gradually there, so the numbers alone do not show whether there
/// is room.
fn spread(
    result: CountResult,
    state: Option<CounterState>,
    quota: &Quota,
    operation: &CountOperation,
    now: Timestamp,
) -> CountResult {
    let cost = u32::try_from(operation.amount.max(0)).unwrap_or(u32::MAX);
    let (next, outcome) = algorithm::evaluate(state, quota, cost, now);
    let (is_over, reset) = match outcome {
        // A limit of zero admits nothing, except reads.
        _ if operation.limit == 0 => (cost > 0, quota.refill()),
        Outcome::Exceed { retry_after } if cost > 0 => (true, retry_after.unwrap_or_else(|| quota.refill())),
        Outcome::Exceed { .. } | Outcome::Conform => (false, algorithm::usage(Some(next), quota, now).reset),
    };
    // Rounding must not show usage for a rejected count, nor an excess for one within the limit.
    let limit = u64::from(operation.limit);
    let after = if is_over { result.after.max(limit.saturating_add(1)) } else { result.after.min(limit) };
    CountResult { after, is_over, reset: Some(reset), ..result }
}

/// Returns the quota for a count: that of the handle or, if the handle spreads limits, this limit spread over its
/// period, with a burst of the whole limit.
fn effective_quota(quota: &Quota, limit: u32) -> Quota {
    if quota.is_leased() {
        return quota_with_limit(*quota, Some(limit));
    }
    if quota.algorithm() != Algorithm::Gcra {
        return *quota;
    }
    let period = quota.limit().period;
    let count = limit.min(u32::try_from(period.nanos()).unwrap_or(u32::MAX));
    let count = NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN);
    Quota::new(Algorithm::Gcra, Limit::new(count, period), None).unwrap_or(*quota)
}

/// Bounds the remainder of a state, which may come from another limit of the same counter, to the range of `quota`.
fn normalised_state(state: Option<CounterState>, quota: &Quota) -> Option<CounterState> {
    let most = quota.limit().count.get() - 1;
    let fitted = |state: CounterState| CounterState { extra: state.extra.min(most), ..state };
    if quota.algorithm() == Algorithm::Gcra { state.map(fitted) } else { state }
}

#[cfg(test)]
mod tests;
