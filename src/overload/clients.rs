//! How many connections each client has; nothing of clients that have none.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::num::NonZeroU32;

use parking_lot::Mutex;

/// Workers that accept at once seldom meet in one of so many.
const SHARDS: usize = 16;

type Shard = Mutex<HashMap<IpAddr, u32>>;

/// The connections of each client. There are never more entries than connections, for those whose last connection
/// has gone are taken out.
#[derive(Debug)]
pub(super) struct Clients {
    max: u32,
    hasher: RandomState,
    shards: [Shard; SHARDS],
}

impl Clients {
    pub(super) fn new(max: NonZeroU32) -> Self {
        Self { max: max.get(), hasher: RandomState::default(), shards: Default::default() }
    }

    /// Counts one more connection of `client`, unless it has as many as it may.
    pub(super) fn acquire(&self, client: IpAddr) -> bool {
        let mut shard = self.shard(client).lock();
        let count = shard.entry(client).or_insert(0);
        let is_admitted = *count < self.max;
        *count += u32::from(is_admitted);
        is_admitted
    }

    /// One of them is gone.
    pub(super) fn release(&self, client: IpAddr) {
        let mut shard = self.shard(client).lock();
        if let Entry::Occupied(mut count) = shard.entry(client) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        // What a flood of clients has made of the table is given back after it.
        if shard.capacity() > 4 * shard.len().max(64) {
            let keep = 2 * shard.len();
            shard.shrink_to(keep);
        }
    }

    fn shard(&self, client: IpAddr) -> &Shard {
        let hash = self.hasher.hash_one(client);
        &self.shards[usize::try_from(hash % SHARDS as u64).unwrap_or(0)]
    }

    /// Clients that have a connection.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}
