//! The end of leases, when the process ends or another one replaces it.

use super::{SharedCounter, lease_of};
use crate::Limiter;
use crate::timestamp::Timestamp;

impl Limiter {
    /// Gives up all leases: queries return what is not spent, and request no more than waiting requests need. Returns the
    /// counters about which the store has to be queried for that. Those with a pending query are not among them.
    pub fn give_up_leases(&self, now: Timestamp) -> Vec<SharedCounter> {
        let mut counters = Vec::new();
        for shard in 0..self.table.shards() {
            let mut shard = self.table.lock(shard);
            let accounts: Vec<_> =
                shard.lease_accounts().iter().map(|(key, account)| (*key, account.limit_id)).collect();
            for (key, limit) in accounts {
                let (held, in_use) = (lease_of(&shard, key, limit, now), shard.reserved_of(key, limit));
                let account = shard.lease_accounts_mut().get_mut(&key);
                if account.is_some_and(|account| account.give_up(held, in_use, now)) {
                    counters.push(SharedCounter { limit, key });
                }
            }
        }
        counters
    }
}
