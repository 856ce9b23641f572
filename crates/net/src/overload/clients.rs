//! Number of connections of each client. Clients without a connection take no memory.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

/// Number of locks: workers that accept at the same time seldom contend for one.
const SHARDS: usize = 16;

type ClientShard = Mutex<HashMap<IpAddr, u32>>;

/// Connections of each client. An entry is removed with its last connection, so there are never more entries than
/// connections.
#[derive(Debug, Default)]
pub(super) struct ClientConnections {
    /// 0 for no maximum.
    max: AtomicU32,
    hasher: RandomState,
    shards: [ClientShard; SHARDS],
}

impl ClientConnections {
    /// Sets the maximum of each client, which applies to connections from now on.
    pub(super) fn set_max(&self, max: Option<NonZeroU32>) {
        self.max.store(max.map_or(0, NonZeroU32::get), Ordering::Relaxed);
    }

    /// Whether clients have a maximum.
    pub(super) fn are_limited(&self) -> bool {
        self.max.load(Ordering::Relaxed) > 0
    }

    /// Counts one more connection of `client`. Returns `false` and counts nothing if the client has reached its
    /// maximum.
    pub(super) fn acquire(&self, client: IpAddr) -> bool {
        let mut shard = self.shard(client).lock();
        let count = shard.entry(client).or_insert(0);
        let max = self.max.load(Ordering::Relaxed);
        // A reload may have removed the maximum meanwhile.
        let is_admitted = max == 0 || *count < max;
        *count += u32::from(is_admitted);
        if *count == 0 {
            shard.remove(&client);
        }
        is_admitted
    }

    /// Removes one connection of `client`.
    pub(super) fn release(&self, client: IpAddr) {
        let mut shard = self.shard(client).lock();
        if let Entry::Occupied(mut count) = shard.entry(client) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        // Releases the memory that a flood of clients made the table take.
        if shard.capacity() > 4 * shard.len().max(64) {
            let keep = 2 * shard.len();
            shard.shrink_to(keep);
        }
    }

    fn shard(&self, client: IpAddr) -> &ClientShard {
        let hash = self.hasher.hash_one(client);
        &self.shards[usize::try_from(hash % SHARDS as u64).unwrap_or(0)]
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}
