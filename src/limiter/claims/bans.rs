//! Bans that instances share: one that begins in an instance is told to the store, and what the store says of others is put
//! where requests are decided.
//!
//! A ban is remembered in the store beside a counter of its rule, and told with every question about that counter. So an instance
//! that has units of the counter learns of a ban when those lapse, and one that has none with its first question.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::SharedCounter;
use crate::limiter::algorithm::ban;
use crate::limiter::key::{Fingerprint, KeyHash};
use crate::limiter::quota::Ban;
use crate::limiter::store::MeterId;
use crate::limiter::timestamp::Timestamp;
use crate::limiter::{Limiter, Meter};

/// Bans that begin while the store is not asked, at most; those beyond stay with this instance.
const MAX_BEGUN: usize = 65_536;

/// The bans of shared limits.
#[derive(Debug, Default)]
pub(in crate::limiter) struct SharedBans {
    /// Of a ban's meter that of the limit beside whose counters it is remembered, and the other way round.
    links: HashMap<MeterId, Link>,
    /// Counters beside which a ban has begun that the store has not been told of.
    begun: BTreeSet<SharedCounter>,
}

/// How a counter of one meter is found from that of another with the same key.
#[derive(Clone, Copy, Debug)]
struct Link {
    other: MeterId,
    salts: KeyHash,
}

impl Limiter {
    /// From now on the bans of these meters, each with that of a limit of its rule, are those of all instances.
    pub fn share_bans(&self, bans: impl Iterator<Item = (Meter, Meter)>) {
        let mut links = HashMap::new();
        for (ban, limit) in bans {
            let salts = ban.salt.and_other(limit.salt);
            links.insert(ban.id, Link { other: limit.id, salts });
            links.insert(limit.id, Link { other: ban.id, salts });
        }
        self.bans.lock().links = links;
    }

    /// Whether any ban is that of all instances.
    pub fn shares_bans(&self) -> bool {
        !self.bans.lock().links.is_empty()
    }

    /// The counters beside which a ban has begun since the last time.
    pub fn take_bans(&self) -> BTreeSet<SharedCounter> {
        std::mem::take(&mut self.bans.lock().begun)
    }

    /// How long the bans last that are remembered beside `counter`, and how long ago the one began that runs here; `None` where
    /// there are no bans.
    pub fn ban_beside(&self, counter: SharedCounter, now: Timestamp) -> Option<(Ban, Option<Duration>)> {
        let (key, meter) = self.linked(counter)?;
        let shard = self.store.lock(self.store.shard_of(key));
        let quota = shard.quota(meter)?;
        let state = shard.state(shard.find(key), meter, now);
        Some((quota.as_ban()?, ban::age(state, quota, now)))
    }

    /// The store says that the key of `counter` is banned for so long, and how often that has been doubled.
    pub fn banned(&self, counter: SharedCounter, (rest, doubled): (Duration, u32), now: Timestamp) {
        let Some((key, meter)) = self.linked(counter).filter(|_| !rest.is_zero()) else { return };
        let mut shard = self.store.lock(self.store.shard_of(key));
        if shard.quota(meter).is_none() {
            return;
        }
        let (place, until) = (shard.find(key), now.saturating_add(rest));
        let next = ban::running(shard.state(place, meter, now), until, doubled);
        // Without room for it only the store knows of it, and says so again with the next response.
        shard.keep_own(place, key, meter, next, now);
    }

    /// A ban has begun here.
    pub(in crate::limiter) fn note_ban(&self, meter: MeterId, key: Fingerprint) {
        let mut bans = self.bans.lock();
        let Some(Link { other, salts }) = bans.links.get(&meter).copied() else { return };
        if bans.begun.len() < MAX_BEGUN {
            bans.begun.insert(SharedCounter { meter: other, key: key.under(salts) });
        }
    }

    fn linked(&self, SharedCounter { meter, key }: SharedCounter) -> Option<(Fingerprint, MeterId)> {
        let link = *self.bans.lock().links.get(&meter)?;
        Some((key.under(link.salts), link.other))
    }
}
