//! Bans that instances share: a ban that begins on an instance is reported to the store, and bans of other instances
//! are applied where requests are decided.
//!
//! The store keeps a ban with a counter of its rule, and returns it with every query about that counter. So an instance
//! with a lease learns of a ban when the lease expires, and one without a lease with its first query.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::SharedCounter;
use crate::algorithm::ban;
use crate::key::{Fingerprint, KeyHash};
use crate::quota::Ban;
use crate::table::LimitId;
use crate::timestamp::Timestamp;
use crate::{LimitHandle, Limiter};

/// Maximum number of new bans that are not yet reported. Bans beyond it remain local to this instance.
const MAX_UNREPORTED_BANS: usize = 65_536;

/// The bans of shared limits.
#[derive(Debug, Default)]
pub(crate) struct SharedBans {
    /// Maps the limit id of a ban to that of the limit whose counters it is kept with, and vice versa.
    links: HashMap<LimitId, Link>,
    /// Counters with a new ban that has not been reported to the store.
    unreported: BTreeSet<SharedCounter>,
}

/// How the counter of one limit is found from that of another with the same key.
#[derive(Clone, Copy, Debug)]
struct Link {
    other: LimitId,
    salts: KeyHash,
}

impl Limiter {
    /// Sets which bans instances share: pairs of a ban's handle and the handle of a limit of its rule.
    pub fn share_bans(&self, bans: impl Iterator<Item = (LimitHandle, LimitHandle)>) {
        let mut links = HashMap::new();
        for (ban, limit) in bans {
            let salts = ban.salt.salt_difference(limit.salt);
            links.insert(ban.id, Link { other: limit.id, salts });
            links.insert(limit.id, Link { other: ban.id, salts });
        }
        self.bans.lock().links = links;
    }

    /// Whether instances share any ban.
    pub fn has_shared_bans(&self) -> bool {
        !self.bans.lock().links.is_empty()
    }

    /// Takes the counters with bans that began since the last call.
    pub fn take_unreported_bans(&self) -> BTreeSet<SharedCounter> {
        std::mem::take(&mut self.bans.lock().unreported)
    }

    /// Returns the durations of bans kept with `counter`, and the time since the running one began; `None` if there are
    /// no bans.
    pub fn ban_of_counter(&self, counter: SharedCounter, now: Timestamp) -> Option<(Ban, Option<Duration>)> {
        let (key, limit) = self.linked_counter(counter)?;
        let shard = self.table.lock(self.table.shard_of(key));
        let quota = shard.quota(limit)?;
        let state = shard.state(shard.find(key), limit, now);
        Some((quota.as_ban()?, ban::age(state, quota, now)))
    }

    /// Applies a ban from the store: the key of `counter` is banned for `remaining`, after `doubled`
    /// doublings.
    pub fn apply_shared_ban(
        &self,
        counter: SharedCounter,
        remaining: Duration,
        doubled: u32,
        now: Timestamp,
    ) {
        let Some((key, limit)) = self.linked_counter(counter).filter(|_| !remaining.is_zero()) else {
            return;
        };
        let mut shard = self.table.lock(self.table.shard_of(key));
        if shard.quota(limit).is_none() {
            return;
        }
        let (slot, until) = (shard.find(key), now.saturating_add(remaining));
        let next = ban::extended_until(shard.state(slot, limit, now), until, doubled);
        // Without room for it, the next response of the store contains it again.
        shard.store_own_state(slot, key, limit, next, now);
    }

    /// Records that a ban has begun on this instance.
    pub(crate) fn record_ban(&self, limit: LimitId, key: Fingerprint) {
        let mut bans = self.bans.lock();
        let Some(Link { other, salts }) = bans.links.get(&limit).copied() else { return };
        if bans.unreported.len() < MAX_UNREPORTED_BANS {
            bans.unreported.insert(SharedCounter { limit: other, key: key.resalted(salts) });
        }
    }

    fn linked_counter(&self, SharedCounter { limit, key }: SharedCounter) -> Option<(Fingerprint, LimitId)> {
        let link = *self.bans.lock().links.get(&limit)?;
        Some((key.resalted(link.salts), link.other))
    }
}
