//! Where counters are kept: a sharded table of bounded size, shared by all workers.
//!
//! A shard is a short critical section under its own lock; the checks of one request lock all their shards in
//! ascending order, so they are decided and charged as one and never deadlock. Quotas live beside the
//! counters: a request names a meter, and the shard knows what that meter allows today, so that counter and
//! quota can never be of different generations.

mod histories;
mod shard;

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

pub(super) use self::shard::{Copied, Kept, Place, Shard};
use super::algorithm::conversion::OnChange;
use super::claims::Sharing;
use super::key::Fingerprint;
use super::quota::Quota;
use super::timestamp::Timestamp;

/// Keys per slot with the table full: beyond this, searches grow long.
const FILL: f64 = 0.88;
/// The same in the fullest shard, since keys do not spread evenly.
const FULLEST: f64 = 0.93;
/// From two to four mebibytes of slots: the allocator rounds smaller arrays up by more, and larger ones take
/// longer to replace when the shard grows.
const KEYS_PER_SHARD: usize = 48_000;
/// In a small table locks are too few before keys are: up to so many shards, with so many keys each.
const FEW_SHARDS: usize = 16;
const FEWEST_KEYS_PER_SHARD: usize = 100;
/// Bytes of histories of all shards together: of logs and precise windows.
const HISTORY_BYTES: usize = 64 << 20;

/// One limit of one rule, for as long as the rule keeps its name and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MeterId(pub(super) u32);

/// What every meter allows in one configuration generation.
///
/// The quotas are one allocation, for a decision looks there first.
#[derive(Clone, Debug)]
pub(super) struct Quotas(Arc<[Option<Quota>]>, Arc<[Succession]>);

/// How a meter's quota follows the one before it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Succession {
    /// What becomes of counters.
    pub(super) on_change: OnChange,
    /// Since when a unit is what it was when it was charged: nothing older can be given back, nor what was
    /// charged at that very moment, which may have been before.
    pub(super) kept_since: Timestamp,
    /// How a limit that is counted in the store is shared.
    pub(super) sharing: Option<Sharing>,
}

impl Quotas {
    /// Where they differ from those before, units used stay used.
    pub(super) fn new(quotas: &[Option<Quota>]) -> Self {
        Self::following(quotas, &[])
    }

    /// What becomes of counters where they differ from those before is in `successions`.
    pub(super) fn following(quotas: &[Option<Quota>], successions: &[Succession]) -> Self {
        Self(quotas.into(), successions.into())
    }

    pub(super) fn on_change(&self, meter: MeterId) -> OnChange {
        self.succession(meter).on_change
    }

    pub(super) fn kept_since(&self, meter: MeterId) -> Timestamp {
        self.succession(meter).kept_since
    }

    pub(super) fn sharing(&self, meter: MeterId) -> Option<Sharing> {
        self.succession(meter).sharing
    }

    fn succession(&self, meter: MeterId) -> Succession {
        self.1.get(meter.0 as usize).copied().unwrap_or_default()
    }

    pub(super) fn get(&self, meter: MeterId) -> Option<&Quota> {
        self.0.get(meter.0 as usize).and_then(Option::as_ref)
    }

    /// Whether this is the same table, and not just an equal one.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether nothing that counters were written under has changed or gone.
    fn all_kept_in(&self, next: &Self) -> bool {
        self.0
            .iter()
            .enumerate()
            .all(|(index, quota)| quota.is_none() || next.0.get(index).is_some_and(|next| next == quota))
    }
}

/// A cache line of its own for every lock, so that shards do not slow each other down.
#[derive(Debug)]
#[repr(align(128))]
struct Line(Mutex<Shard>);

/// The table.
#[derive(Debug)]
pub(super) struct Store {
    shards: Box<[Line]>,
}

/// The shards of one request, locked.
pub(super) struct Locked<'a> {
    store: &'a Store,
    /// In ascending order.
    held: SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>,
}

impl Locked<'_> {
    fn guard(&self, key: Fingerprint) -> usize {
        let shard = self.store.shard_of(key);
        self.held.binary_search_by_key(&shard, |(held, _)| *held).unwrap_or(0)
    }

    /// Where `key` is, which is among those that were locked.
    pub(super) fn shard(&self, key: Fingerprint) -> &Shard {
        &self.held[self.guard(key)].1
    }

    pub(super) fn shard_mut(&mut self, key: Fingerprint) -> &mut Shard {
        let guard = self.guard(key);
        &mut self.held[guard].1
    }
}

impl Store {
    /// A table for `keys` counters.
    pub(super) fn new(keys: usize) -> Self {
        let shards = (keys / KEYS_PER_SHARD).max((keys / FEWEST_KEYS_PER_SHARD).clamp(1, FEW_SHARDS));
        let shards = 1 << shards.ilog2();
        let mean = keys as f64 / shards as f64;
        // Four standard deviations: one shard in thirty thousand would need more before the table is full.
        let most = if shards == 1 { mean } else { mean + 4.0 * mean.sqrt() };
        let slots = (mean / FILL).max(most / FULLEST).ceil() as usize;
        let most = ((slots as f64 * FULLEST) as usize).max(1);
        let histories = HISTORY_BYTES / shards;
        let shards = (0..shards).map(|_| Line(Mutex::new(Shard::new(slots, most, histories)))).collect();
        Self { shards }
    }

    pub(super) fn shard_of(&self, key: Fingerprint) -> usize {
        key.shard(self.shards.len())
    }

    pub(super) fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].0.lock()
    }

    pub(super) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Copies the counters of one shard, which is locked for no longer than that takes.
    pub(super) fn copy(&self, shard: usize, now: Timestamp, copied: &mut Copied) {
        let live = self.lock(shard).live();
        copied.reserve(live);
        self.lock(shard).copy_to(now, copied);
    }

    /// Locks the shards of all `keys`, each once, in ascending order.
    pub(super) fn lock_all(&self, keys: impl Iterator<Item = Fingerprint>) -> Locked<'_> {
        let mut shards: SmallVec<[usize; 4]> = keys.map(|key| self.shard_of(key)).collect();
        shards.sort_unstable();
        shards.dedup();
        Locked { store: self, held: shards.iter().map(|&shard| (shard, self.lock(shard))).collect() }
    }

    /// Gives every shard another generation's quotas.
    pub(super) fn adopt(&self, quotas: &Quotas, now: Timestamp) {
        for shard in &self.shards {
            shard.0.lock().adopt(quotas, now);
        }
    }

    /// Calls `count` once per counter in use; locks one shard at a time.
    pub(super) fn for_each_used(&self, now: Timestamp, mut count: impl FnMut(MeterId)) {
        for shard in &self.shards {
            shard.0.lock().for_each_used(now, &mut count);
        }
    }

    /// Shards in which keys share counters.
    pub(super) fn crowded(&self) -> usize {
        self.shards.iter().filter(|shard| shard.0.lock().is_crowded()).count()
    }

    /// Entries in the table.
    pub(super) fn live(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.lock().live()).sum()
    }
}
