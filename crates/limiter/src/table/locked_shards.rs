//! The locked shards of one request.
//!
//! Shards are locked in ascending order, so that requests cannot wait for each other. Up to 64 shards are a set of bits,
//! which is in order without sorting.

use parking_lot::MutexGuard;
use smallvec::SmallVec;

use super::shard::Shard;
use super::{CounterTable, Fingerprint, Timestamp};

/// Maximum number of shards that a [`ShardMask`] can contain.
const MAX_MASKED_SHARDS: usize = u64::BITS as usize;

/// A set of shards, one bit each.
#[derive(Clone, Copy, Debug, Default)]
struct ShardMask(u64);

/// The locked shards of one request.
pub(crate) struct LockedShards<'a> {
    table: &'a CounterTable,
    /// In ascending order.
    held: SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>,
}

impl ShardMask {
    const fn with(self, shard: usize) -> Self {
        Self(self.0 | 1 << shard)
    }
}

/// Removes the shards in ascending order.
impl Iterator for ShardMask {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let first = self.0.trailing_zeros();
        // Clears the lowest bit.
        self.0 &= self.0.wrapping_sub(1);
        if first == u64::BITS { None } else { Some(first as usize) }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = self.0.count_ones() as usize;
        (count, Some(count))
    }
}

impl CounterTable {
    /// Locks the shards of all `keys`, each once, in ascending order.
    pub(crate) fn lock_all(&self, keys: impl Iterator<Item = Fingerprint>) -> LockedShards<'_> {
        let shards = keys.map(|key| self.shard_of(key));
        if self.shards() <= MAX_MASKED_SHARDS {
            let mask = shards.fold(ShardMask::default(), ShardMask::with);
            let held = mask.map(|shard| (shard, self.lock(shard))).collect();
            return LockedShards { table: self, held };
        }
        let mut shards: SmallVec<[usize; 4]> = shards.collect();
        shards.sort_unstable();
        shards.dedup();
        let held = shards.iter().map(|&shard| (shard, self.lock(shard))).collect();
        LockedShards { table: self, held }
    }
}

impl LockedShards<'_> {
    /// Returns the position of the shard of `key`, which must be one of the locked keys.
    fn position(&self, key: Fingerprint) -> usize {
        let shard = self.table.shard_of(key);
        self.held.binary_search_by_key(&shard, |(held, _)| *held).unwrap_or(0)
    }

    /// Returns the positions of the shards of `keys`, which must be among the locked keys.
    pub(crate) fn positions(&self, keys: &[Fingerprint]) -> SmallVec<[usize; 4]> {
        if self.table.shards() > MAX_MASKED_SHARDS {
            return keys.iter().map(|key| self.position(*key)).collect();
        }
        // For several keys, one table costs less than a search each.
        let mut positions = [0; MAX_MASKED_SHARDS];
        for (position, (shard, _)) in (0_u8..).zip(&self.held) {
            positions[shard % MAX_MASKED_SHARDS] = position;
        }
        let position = |key: &Fingerprint| positions[self.table.shard_of(*key) % MAX_MASKED_SHARDS];
        keys.iter().map(|key| position(key).into()).collect()
    }

    /// Returns the shard of `key`, which must be one of the locked keys.
    pub(crate) fn shard(&self, key: Fingerprint) -> &Shard {
        self.at(self.position(key))
    }

    /// Returns the shard at a position.
    pub(crate) fn at(&self, position: usize) -> &Shard {
        &self.held[position].1
    }

    /// Returns the shard at a position.
    pub(crate) fn at_mut(&mut self, position: usize) -> &mut Shard {
        &mut self.held[position].1
    }

    /// Ends the overrides whose time is over.
    pub(crate) fn end_overrides(&mut self, now: Timestamp) {
        self.held.iter_mut().for_each(|(_, shard)| shard.end_overrides(now));
    }

    /// Returns the shard of `key`, which must be one of the locked keys.
    pub(crate) fn shard_mut(&mut self, key: Fingerprint) -> &mut Shard {
        self.at_mut(self.position(key))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Tables of one shard, of few, and of too many for a mask.
        #[test]
        fn every_key_finds_its_locked_shard(
            max_keys in prop::sample::select(vec![1_usize, 1_000, 48_000 * 64, 48_000 * 128]),
            keys in prop::collection::vec(any::<u64>(), 1..60),
        ) {
            let table = CounterTable::new(max_keys);
            let keys: Vec<_> = keys.into_iter().map(|key| Fingerprint::with_words([key, 0])).collect();
            let locked = table.lock_all(keys.iter().copied());
            prop_assert!(locked.held.is_sorted_by(|(one, _), (next, _)| one < next));
            for (key, position) in keys.iter().zip(locked.positions(&keys)) {
                prop_assert_eq!(locked.held[position].0, table.shard_of(*key));
                prop_assert_eq!(locked.position(*key), position);
            }
        }
    }
}
