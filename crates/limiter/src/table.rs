//! Counter storage: a sharded table of bounded size, shared by all workers.
//!
//! Each shard has its own lock, held briefly. The checks of one request lock all their shards in ascending order, so
//! they are decided and charged together and cannot deadlock. Quotas are stored with the counters: a request names a
//! limit and the shard has its current quota, so that counter and quota are always of the same generation.

mod histories;
mod locked_shards;
mod shard;

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

pub(super) use self::locked_shards::LockedShards;
pub(super) use self::shard::{Copied, Placement, Shard, SlotLookup};
use super::algorithm::conversion::OnChange;
use super::key::Fingerprint;
use super::leases::LeasePolicy;
use super::quota::Quota;
use super::timestamp::Timestamp;

/// Occupied fraction of the slots of a full table. Above it, searches become long.
const FILL: f64 = 0.88;
/// Occupied fraction of the fullest shard, because keys are not spread evenly.
const MAX_SHARD_FILL: f64 = 0.93;
/// Keys per shard: two to four mebibytes of slots. Allocators round smaller arrays up by more, and larger ones take
/// longer to replace when the shard grows.
const KEYS_PER_SHARD: usize = 48_000;
/// A small table has up to this number of shards, with at least [`MIN_KEYS_PER_SHARD`] keys each, because lock
/// contention matters before size does.
const MAX_SMALL_SHARDS: usize = 16;
const MIN_KEYS_PER_SHARD: usize = 100;
/// Maximum memory for histories (logs and precise windows) of all shards together, in bytes.
const HISTORY_BYTES: usize = 64 << 20;

/// Id of one limit of one rule, valid while the rule keeps its name and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitId(pub(super) u32);

/// The quota of every limit in one configuration generation.
///
/// The quotas are one allocation, because every decision reads them first.
#[derive(Clone, Debug)]
pub(super) struct QuotaTable(Arc<[Option<Quota>]>, Arc<[QuotaTransition]>);

/// How a limit's quota relates to its previous one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QuotaTransition {
    /// What happens to the counters.
    pub(super) on_change: OnChange,
    /// Time since which units are comparable: nothing charged before, or at that very moment, can be given back.
    pub(super) refundable_since: Timestamp,
    /// How a limit that the store counts is shared.
    pub(super) lease_policy: Option<LeasePolicy>,
}

impl QuotaTable {
    /// Creates a table after which units in use stay in use where quotas differ.
    pub(super) fn new(quotas: &[Option<Quota>]) -> Self {
        Self::with_transitions(quotas, &[])
    }

    /// Creates a table; `successions` has what happens to counters where quotas differ.
    pub(super) fn with_transitions(quotas: &[Option<Quota>], successions: &[QuotaTransition]) -> Self {
        Self(quotas.into(), successions.into())
    }

    pub(super) fn on_change(&self, limit: LimitId) -> OnChange {
        self.transition(limit).on_change
    }

    pub(super) fn refundable_since(&self, limit: LimitId) -> Timestamp {
        self.transition(limit).refundable_since
    }

    pub(super) fn lease_policy(&self, limit: LimitId) -> Option<LeasePolicy> {
        self.transition(limit).lease_policy
    }

    /// Yields how the limits in force are shared that are counted in the store.
    pub(super) fn lease_policies(&self) -> impl Iterator<Item = LeasePolicy> {
        let in_force = self.0.iter().zip(&*self.1).filter(|(quota, _)| quota.is_some());
        in_force.filter_map(|(_, transition)| transition.lease_policy)
    }

    fn transition(&self, limit: LimitId) -> QuotaTransition {
        self.1.get(limit.0 as usize).copied().unwrap_or_default()
    }

    pub(super) fn get(&self, limit: LimitId) -> Option<&Quota> {
        self.0.get(limit.0 as usize).and_then(Option::as_ref)
    }

    /// Whether both are the same table, not only equal ones.
    pub(super) fn is_same_table(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether every quota of this table is unchanged in `next`.
    fn is_unchanged_in(&self, next: &Self) -> bool {
        self.0
            .iter()
            .enumerate()
            .all(|(index, quota)| quota.is_none() || next.0.get(index).is_some_and(|next| next == quota))
    }
}

/// Returns the maximum numbers of slots and of entries of each of `shards` shards for `keys` counters.
fn shard_size(keys: usize, shards: usize) -> (usize, usize) {
    let mean = keys as f64 / shards as f64;
    // Four standard deviations: one shard in thirty thousand would need more before the table is full.
    let most = if shards == 1 { mean } else { mean + 4.0 * mean.sqrt() };
    let slots = (mean / FILL).max(most / MAX_SHARD_FILL).ceil() as usize;
    (slots, ((slots as f64 * MAX_SHARD_FILL) as usize).max(1))
}

/// A lock with a cache line of its own, so that shards do not slow each other down.
#[derive(Debug)]
#[repr(align(128))]
struct AlignedShard(Mutex<Shard>);

/// The counter table.
#[derive(Debug)]
pub(super) struct CounterTable {
    shards: Box<[AlignedShard]>,
}

impl CounterTable {
    /// Creates a table for `keys` counters.
    pub(super) fn new(keys: usize) -> Self {
        let shards = (keys / KEYS_PER_SHARD).max((keys / MIN_KEYS_PER_SHARD).clamp(1, MAX_SMALL_SHARDS));
        let shards = 1 << shards.ilog2();
        let (slots, most) = shard_size(keys, shards);
        let histories = HISTORY_BYTES / shards;
        let shards =
            (0..shards).map(|_| AlignedShard(Mutex::new(Shard::new(slots, most, histories)))).collect();
        Self { shards }
    }

    /// Changes the number of counters for which there is room. The number of shards stays.
    pub(super) fn set_max_keys(&self, keys: usize) {
        let (slots, most) = shard_size(keys, self.shards.len());
        self.shards.iter().for_each(|shard| shard.0.lock().set_max(slots, most));
    }

    pub(super) fn shard_of(&self, key: Fingerprint) -> usize {
        key.shard(self.shards.len())
    }

    pub(super) fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].0.lock()
    }

    /// Reads from where the counters of `keys` are, so that the processor fetches them from memory at the same time. Needs
    /// no lock, and so no ordering of the reads.
    pub(super) fn warm(&mut self, keys: impl Iterator<Item = Fingerprint>) {
        let number = self.shards.len();
        let words = keys.map(|key| self.shards[key.shard(number)].0.get_mut().words_near(key));
        std::hint::black_box(words.fold(0, |all, word| all | word));
    }

    pub(super) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Copies the counters of one shard, which is locked only for the copying.
    pub(super) fn copy(&self, shard: usize, now: Timestamp, copied: &mut Copied) {
        let live = self.lock(shard).live();
        copied.reserve(live);
        self.lock(shard).copy_to(now, copied);
    }

    /// Copies the counters and reservations of one shard, and marks them as transferred.
    pub(super) fn transfer(&self, shard: usize, now: Timestamp, copied: &mut Copied) {
        let live = self.lock(shard).live();
        copied.reserve(live);
        self.lock(shard).transfer_to(now, copied);
    }

    /// Marks all counters as those of this process again.
    pub(super) fn end_transfer(&self) {
        self.shards.iter().for_each(|shard| shard.0.lock().set_transferred(false));
    }

    /// Gives every shard the quotas of another generation.
    pub(super) fn adopt_quotas(&self, quotas: &QuotaTable, now: Timestamp) {
        for shard in &self.shards {
            shard.0.lock().adopt_quotas(quotas, now);
        }
    }

    /// Calls `count` once per counter in use; locks one shard at a time.
    pub(super) fn for_each_used(&self, now: Timestamp, mut count: impl FnMut(LimitId)) {
        for shard in &self.shards {
            shard.0.lock().for_each_used(now, &mut count);
        }
    }

    /// Number of shards in which keys share overflow counters.
    pub(super) fn overflowing_shards(&self) -> usize {
        self.shards.iter().filter(|shard| shard.0.lock().has_overflow()).count()
    }

    /// Number of limits of requests that did not apply for lack of room.
    pub(super) fn request_limits_dropped(&self) -> u64 {
        self.shards.iter().fold(0, |sum, shard| sum.saturating_add(shard.0.lock().request_limits_dropped()))
    }

    /// Returns the states that saving the table writes.
    #[cfg(test)]
    pub(super) fn saved_states(&self, now: Timestamp) -> Vec<super::algorithm::CounterState> {
        let mut copied = Copied::default();
        let mut states = Vec::new();
        for shard in 0..self.shards() {
            self.copy(shard, now, &mut copied);
            states.extend(copied.counters().map(|(_, _, state)| state));
        }
        states
    }

    /// Number of entries in the table.
    pub(super) fn live(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.lock().live()).sum()
    }
}
