//! Overrides of single counters: a raised quota, a ban, or a counter that starts again, which an operator sets, and a
//! pause, which a provider has signalled.
//!
//! Each override belongs to one counter of one limit and ends by itself. This module has no notion of rules; what an
//! override of a rule's key consists of is decided by `engine::overrides`.

use std::time::Duration;

use super::algorithm::Refill;
use super::key::KeyHash;
use super::quota::{Quota, QuotaChange};
use super::registry::LimitHandle;
use super::timestamp::Timestamp;
use super::{Limiter, algorithm};

impl Limiter {
    /// Raises the quota of one counter until `until`; returns whether the raised quota is valid and the limit installed.
    /// Units used stay used. A limit that the store counts is counted here meanwhile.
    pub fn boost_counter(
        &self,
        limit: LimitHandle,
        key: KeyHash,
        change: QuotaChange,
        until: Timestamp,
        now: Timestamp,
    ) -> bool {
        let key = key.salted(limit.salt);
        let is_set = self.table.lock(self.table.shard_of(key)).set_boost(key, limit.id, change, until, now);
        self.notify_waiting(key);
        is_set
    }

    /// Ends the raised quota of one counter. Units used stay used.
    pub fn unboost_counter(&self, limit: LimitHandle, key: KeyHash, now: Timestamp) {
        let key = key.salted(limit.salt);
        self.table.lock(self.table.shard_of(key)).clear_boost(key, limit.id, now);
        self.notify_waiting(key);
    }

    /// Rejects every request of one counter until `until`; `None` ends such a ban.
    pub fn ban_counter(&self, limit: LimitHandle, key: KeyHash, until: Option<Timestamp>) {
        let key = key.salted(limit.salt);
        self.table.lock(self.table.shard_of(key)).set_ban(key, limit.id, until);
        self.notify_waiting(key);
    }

    /// Pauses one counter until `until`, unless it is paused longer: it has no room before. A quota that refills
    /// continuously has room for one request then, and not for the burst that the time of the pause would have refilled.
    pub fn pause_counter(&self, limit: LimitHandle, key: KeyHash, until: Timestamp, now: Timestamp) {
        let key = key.salted(limit.salt);
        let mut shard = self.table.lock(self.table.shard_of(key));
        shard.set_pause(key, limit.id, until);
        let Some(quota) = shard
            .quota_of(key, limit.id)
            .filter(|quota| quota.algorithm().refill() == Refill::Continuous)
            .copied()
        else {
            return;
        };
        let slot = shard.find(key);
        let state = shard.state(slot, limit.id, now);
        let left = algorithm::usage(state, &quota, until).remaining;
        let refilled = left.saturating_sub(quota.units_per_request().get().into());
        if refilled > 0 {
            let next = algorithm::charge(state, &quota, refilled.into(), until);
            self.record_placement(shard.store_state(slot, key, limit.id, next, now));
        }
    }

    /// Returns the time until the ban of one counter ends that [`Self::ban_counter`] has set; `None` if there is none.
    pub fn time_banned(&self, limit: LimitHandle, key: KeyHash, now: Timestamp) -> Option<Duration> {
        let key = key.salted(limit.salt);
        self.table.lock(self.table.shard_of(key)).time_banned(key, now)
    }

    /// Frees one counter, so that nothing of its quota is used; returns whether there was one. Requests in flight stay
    /// counted until they end.
    pub fn reset_counter(&self, limit: LimitHandle, key: KeyHash) -> bool {
        let key = key.salted(limit.salt);
        let is_freed = self.table.lock(self.table.shard_of(key)).free_counter(key);
        self.notify_waiting(key);
        is_freed
    }

    /// Returns the quota of a limit, without overrides; `None` if the limit is gone.
    pub fn quota(&self, limit: LimitHandle) -> Option<Quota> {
        self.table.lock(0).quota(limit.id).copied()
    }

    /// Returns the quota by which one counter is decided; `None` if the limit is gone.
    pub fn quota_in_force(&self, limit: LimitHandle, key: KeyHash, now: Timestamp) -> Option<Quota> {
        let key = key.salted(limit.salt);
        let mut shard = self.table.lock(self.table.shard_of(key));
        shard.end_overrides(now);
        shard.quota_of(key, limit.id).copied()
    }

    /// Returns the usage of one counter by its quota in force, including units that are only reserved.
    pub fn usage_with_holds(
        &self,
        limit: LimitHandle,
        key: KeyHash,
        now: Timestamp,
    ) -> Option<algorithm::CounterUsage> {
        let usage = self.usage(limit, key, now)?;
        let key = key.salted(limit.salt);
        let held = self.table.lock(self.table.shard_of(key)).held_of(key, limit.id);
        Some(usage.with_held(u32::try_from(held).unwrap_or(u32::MAX)))
    }
}

#[cfg(test)]
mod tests;
