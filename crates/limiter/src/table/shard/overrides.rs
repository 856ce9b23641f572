//! Overrides of single counters: quotas and bans that an operator has set for one key, and pauses that a provider has
//! signalled.
//!
//! The state of an overridden counter is in units of its raised quota for as long as the override lasts. It is converted
//! when the override begins, changes and ends, as a reload converts it when a limit changes. So units used stay used.
//! Nearly always a shard has no overrides, and a decision then pays for one comparison.

use std::collections::BTreeMap;
use std::time::Duration;

use super::slot::{Slot, limit_of, quota_number_of, with_state};
use super::{LimitId, Shard, SlotLookup};
use crate::algorithm::CounterState;
use crate::algorithm::conversion::{Change, OnChange};
use crate::key::Fingerprint;
use crate::quota::{Quota, QuotaChange};
use crate::table::QuotaTable;
use crate::timestamp::Timestamp;

/// The overrides of one shard.
#[derive(Clone, Debug)]
pub(super) struct KeyOverrides {
    by_key: BTreeMap<Fingerprint, KeyOverride>,
    /// When the next of them ends.
    next_end: Timestamp,
}

/// What is overridden for one counter.
#[derive(Clone, Copy, Debug)]
struct KeyOverride {
    limit: LimitId,
    boost: Option<Boost>,
    banned_until: Option<Timestamp>,
    paused_until: Option<Timestamp>,
}

/// A raised quota.
#[derive(Clone, Copy, Debug)]
struct Boost {
    change: QuotaChange,
    /// The limit's quota with the change.
    quota: Quota,
    until: Timestamp,
}

impl Default for KeyOverrides {
    fn default() -> Self {
        Self { by_key: BTreeMap::new(), next_end: Timestamp::END }
    }
}

impl KeyOverride {
    fn next_end(&self) -> Timestamp {
        let ends = [self.boost.map(|boost| boost.until), self.banned_until, self.paused_until];
        ends.into_iter().flatten().min().unwrap_or(Timestamp::END)
    }

    const fn is_empty(&self) -> bool {
        self.boost.is_none() && self.banned_until.is_none() && self.paused_until.is_none()
    }
}

impl KeyOverrides {
    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    fn boosted_quota(&self, key: Fingerprint) -> Option<&Quota> {
        Some(&self.by_key.get(&key)?.boost.as_ref()?.quota)
    }

    /// Changes the overrides of one counter by `edit`, and removes them if nothing is left.
    fn edit(&mut self, key: Fingerprint, limit: LimitId, edit: impl FnOnce(&mut KeyOverride)) {
        let none = KeyOverride { limit, boost: None, banned_until: None, paused_until: None };
        let entry = self.by_key.entry(key).or_insert(none);
        edit(entry);
        if entry.is_empty() {
            self.by_key.remove(&key);
        }
        self.next_end = self.by_key.values().map(KeyOverride::next_end).min().unwrap_or(Timestamp::END);
    }

    /// Applies the changes to the quotas of another generation, and to those that requests have stated. Overrides of limits that are gone, or that can no longer
    /// be raised, end.
    fn rebase(&mut self, quotas: &QuotaTable, requested: &BTreeMap<Fingerprint, Quota>) {
        self.by_key.retain(|key, entry| {
            let Some(base) = quotas.get(entry.limit) else { return false };
            let base = requested.get(key).unwrap_or(base);
            entry.boost =
                entry.boost.and_then(|boost| Some(Boost { quota: boost.change.apply(base)?, ..boost }));
            !entry.is_empty()
        });
    }
}

impl KeyOverrides {
    /// Returns the quota of a counter whose own one becomes `own`: raised, if it is boosted. A boost that cannot raise it
    /// ends.
    pub(super) fn raise(&mut self, key: Fingerprint, own: &Quota) -> Quota {
        let Some(entry) = self.by_key.get_mut(&key) else { return *own };
        entry.boost = entry.boost.and_then(|boost| Some(Boost { quota: boost.change.apply(own)?, ..boost }));
        let raised = entry.boost.map_or(*own, |boost| boost.quota);
        if entry.is_empty() {
            self.by_key.remove(&key);
        }
        raised
    }
}

impl Shard {
    /// Returns the quota of one counter: that of its limit, unless a request of its key has stated another one or it is
    /// overridden.
    #[inline(always)]
    pub(crate) fn quota_of(&self, key: Fingerprint, limit: LimitId) -> Option<&Quota> {
        if self.overrides.is_empty() && self.request_quotas.is_empty() {
            return self.quotas.get(limit);
        }
        self.changed_quota(key, limit)
    }

    #[cold]
    fn changed_quota(&self, key: Fingerprint, limit: LimitId) -> Option<&Quota> {
        let own = self.own_quota(key, limit)?;
        Some(self.overrides.boosted_quota(key).unwrap_or(own))
    }

    /// Returns the quota of the counter in `slot`.
    #[inline]
    pub(super) fn quota_of_slot(&self, slot: &Slot) -> Option<&Quota> {
        let own = self.own_quota_of_slot(slot)?;
        if self.overrides.is_empty() {
            return Some(own);
        }
        let key = Fingerprint::from_words([slot[0], slot[1]]);
        Some(key.and_then(|key| self.overrides.boosted_quota(key)).unwrap_or(own))
    }

    /// Whether the quota of `key` is raised.
    #[inline]
    pub(crate) fn is_boosted(&self, key: Fingerprint) -> bool {
        !self.overrides.is_empty() && self.overrides.boosted_quota(key).is_some()
    }

    /// Time until the operator's ban of `key` ends; `None` if there is none.
    #[inline]
    pub(crate) fn time_banned(&self, key: Fingerprint, now: Timestamp) -> Option<Duration> {
        if self.overrides.is_empty() {
            return None;
        }
        let left = self.overrides.by_key.get(&key)?.banned_until?.since(now);
        (!left.is_zero()).then_some(left)
    }

    /// Time until the pause of `key` ends; `None` if there is none.
    #[inline]
    pub(crate) fn time_paused(&self, key: Fingerprint, now: Timestamp) -> Option<Duration> {
        if self.overrides.is_empty() {
            return None;
        }
        let left = self.overrides.by_key.get(&key)?.paused_until?.since(now);
        (!left.is_zero()).then_some(left)
    }

    /// Ends the overrides whose time is over.
    #[inline]
    pub(crate) fn end_overrides(&mut self, now: Timestamp) {
        if now >= self.overrides.next_end {
            self.end_overrides_at(now);
        }
    }

    #[cold]
    fn end_overrides_at(&mut self, now: Timestamp) {
        let ended = self.overrides.by_key.iter().filter(|(_, entry)| entry.next_end() <= now);
        let ended: Vec<_> = ended.map(|(key, entry)| (*key, *entry)).collect();
        for (key, entry) in ended {
            if entry.boost.is_some_and(|boost| boost.until <= now) {
                self.clear_boost(key, entry.limit, now);
            }
            if entry.banned_until.is_some_and(|until| until <= now) {
                self.set_ban(key, entry.limit, None);
            }
            if entry.paused_until.is_some_and(|until| until <= now) {
                self.overrides.edit(key, entry.limit, |entry| entry.paused_until = None);
            }
        }
    }

    /// Raises the quota of a counter until `until`; returns whether the raised quota is valid.
    pub(crate) fn set_boost(
        &mut self,
        key: Fingerprint,
        limit: LimitId,
        change: QuotaChange,
        until: Timestamp,
        now: Timestamp,
    ) -> bool {
        let raised = self.own_quota(key, limit).and_then(|own| change.apply(own));
        let (Some(to), Some(from)) = (raised, self.quota_of(key, limit).copied()) else { return false };
        self.convert_counter(key, &from, &to, now);
        let boost = Boost { change, quota: to, until };
        self.overrides.edit(key, limit, |entry| entry.boost = Some(boost));
        true
    }

    /// Ends the raised quota of a counter, if there is one.
    pub(crate) fn clear_boost(&mut self, key: Fingerprint, limit: LimitId, now: Timestamp) {
        let (Some(from), Some(to)) =
            (self.overrides.boosted_quota(key).copied(), self.own_quota(key, limit).copied())
        else {
            return;
        };
        self.convert_counter(key, &from, &to, now);
        self.overrides.edit(key, limit, |entry| entry.boost = None);
    }

    /// Bans a counter's key until the given time, or ends its ban.
    pub(crate) fn set_ban(&mut self, key: Fingerprint, limit: LimitId, until: Option<Timestamp>) {
        self.overrides.edit(key, limit, |entry| entry.banned_until = until);
    }

    /// Pauses a counter until `until`, unless it is paused longer.
    pub(crate) fn set_pause(&mut self, key: Fingerprint, limit: LimitId, until: Timestamp) {
        self.overrides.edit(key, limit, |entry| entry.paused_until = entry.paused_until.max(Some(until)));
    }

    /// Frees a counter, so that nothing of its quota is used; returns whether there was one.
    pub(crate) fn free_counter(&mut self, key: Fingerprint) -> bool {
        let SlotLookup::Found(index) = self.find(key) else { return false };
        self.remove(index);
        true
    }

    /// Gives the shard the quotas of another generation, with the overrides applied to them. Returns how the quota of a
    /// counter changes: a function of its key and its limit.
    pub(super) fn replace_quotas(
        &mut self,
        quotas: &QuotaTable,
    ) -> impl Fn(&Slot) -> Option<(Quota, Quota, OnChange)> + use<> {
        let old = std::mem::replace(&mut self.quotas, quotas.clone());
        let (boosted_before, requested_before) = (self.overrides.clone(), self.request_quotas.clone());
        self.request_quotas.rebase(quotas);
        self.overrides.rebase(quotas, &self.requested_quotas());
        let (boosted, requested) = (self.overrides.clone(), self.request_quotas.clone());
        let quotas = quotas.clone();
        move |slot| {
            let limit = limit_of(slot);
            let key = Fingerprint::from_words([slot[0], slot[1]])?;
            let (number, base) = (quota_number_of(slot), quotas.get(limit)?);
            let before = boosted_before.boosted_quota(key).or_else(|| requested_before.quota(number));
            let from = before.or_else(|| old.get(limit))?;
            let to = boosted.boosted_quota(key).or_else(|| requested.quota(number)).unwrap_or(base);
            Some((*from, *to, quotas.on_change(limit)))
        }
    }

    /// Returns the quotas of boosted counters that requests have stated.
    fn requested_quotas(&self) -> BTreeMap<Fingerprint, Quota> {
        let boosted = self.overrides.by_key.iter();
        let own = boosted.filter_map(|(key, entry)| Some((*key, *self.own_quota(*key, entry.limit)?)));
        own.collect()
    }

    /// Returns a copy of an entry in units of its limit's quota, without overrides and history; `None` if nothing of it
    /// is used.
    #[cold]
    pub(super) fn without_boost(&self, slot: &Slot, now: Timestamp) -> Option<Slot> {
        let (from, to) = (self.quota_of_slot(slot)?, self.quotas.get(limit_of(slot))?);
        let state = self.counter_of(slot).compact_state(from, now)?;
        let next = Change { from, to, on_change: OnChange::Keep }.convert(state, now)?;
        Some(with_state(slot, next))
    }

    pub(super) fn convert_counter(&mut self, key: Fingerprint, from: &Quota, to: &Quota, now: Timestamp) {
        let SlotLookup::Found(index) = self.find(key) else { return };
        let entry = self.slots()[index];
        let change = Change { from, to, on_change: OnChange::Keep };
        if let Some(next) = self.carried(&entry, Some(change), now) {
            self.slots_mut()[index] = next;
            return;
        }
        // Its history, if it had one, has been removed already.
        self.slots_mut()[index] = with_state(&entry, CounterState { word: 0, extra: 0 });
        self.remove(index);
    }

    /// Copies the counter of `key`, with everything that decides about it, into the empty place in `target`.
    pub(crate) fn copy_counter(&self, key: Fingerprint, limit: LimitId, target: &mut Self) {
        match self.find(key) {
            SlotLookup::Found(index) => {
                let entry = self.slots()[index];
                let copy = self.copy_history(&entry, target);
                let copy = self.copy_request_quota(&entry, copy, target);
                target.place_entry(copy);
            }
            SlotLookup::Absent => {
                target.overflow.extend(self.overflow.get(&limit).map(|state| (limit, *state)));
            }
        }
        self.holds.copy_key(key, &mut target.holds);
        target.lease_accounts.extend(self.lease_accounts.get(&key).map(|account| (key, account.clone())));
        if let Some(entry) = self.overrides.by_key.get(&key) {
            target.overrides.edit(key, limit, |copy| *copy = *entry);
        }
    }
}
