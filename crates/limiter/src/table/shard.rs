//! One shard: an array of 32-byte slots, ordered by fingerprint. It grows with its entries up to a fixed size, so that
//! a table with few keys uses little memory and stays in the cache.
//!
//! An ordered hash table (Amble and Knuth 1974). A fingerprint, read as a number, gives an entry's home in the array.
//! Entries are stored in descending order, and a search ends at the first entry that is not greater, whether or not the
//! key is present. Removal shifts entries back instead of leaving tombstones, so the table does not slow down with age.
//! Searches read groups of four slots, two cache lines, and count within a group without branches, because the position
//! of a key is unpredictable. No counter in use is evicted: if no unused one can be reclaimed, new keys share an
//! overflow counter.

mod history_slots;
mod leases;
mod overrides;
mod plain;
mod request_quotas;
mod saved;
mod size;
mod slot;
mod warming;

use std::collections::BTreeMap;
use std::num::NonZeroU16;

use self::overrides::KeyOverrides;
use self::request_quotas::RequestQuotas;
pub(crate) use self::saved::Copied;
use self::slot::{
    FREE, SLOTS_PER_GROUP, Slot, SlotGroup, before, has_history, is_free, limit_of, new_slot, number_of,
    ordinal, ordinal_of, state_of, with_state,
};
use super::histories::Histories;
use super::{LimitId, QuotaTable};
use crate::algorithm::conversion::Change;
use crate::algorithm::{self, Counter, CounterState};
use crate::key::Fingerprint;
use crate::leases::LeaseAccounts;
use crate::quota::Quota;
use crate::reservation::Holds;
use crate::timestamp::Timestamp;

/// Slots that the clock hand visits per insertion, so that reclaiming keeps up with arrivals.
const SWEPT_PER_INSERT: usize = 2;
/// Slots that the hand visits before the shard counts as full; bounds the work of one request.
const SWEPT_WHEN_FULL: usize = 64;

/// Groups after the last home group, for entries that are pushed past it.
const SPARE_GROUPS: usize = 8;
/// Factor by which an array that is too small grows. Large, because allocators are slow to return the freed array, and
/// what they keep must stay small in relation to the table.
const GROWTH: usize = 32;
/// Minimum size of an array, in groups.
const MIN_GROUPS: usize = 8;

/// A part of the table under one lock.
#[derive(Debug)]
pub(crate) struct Shard {
    groups: Box<[SlotGroup]>,
    live: usize,
    /// Maximum number of entries before it grows or, at full size, is full.
    capacity: usize,
    hand: usize,
    full_groups: usize,
    max_entries: usize,
    quotas: QuotaTable,
    overflow: BTreeMap<LimitId, CounterState>,
    histories: Histories,
    holds: Holds,
    lease_accounts: LeaseAccounts,
    overrides: KeyOverrides,
    request_quotas: RequestQuotas,
    /// Whether another process has its counters, and has to be told of what settles here.
    is_transferred: bool,
}

/// Location of a counter.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SlotLookup {
    /// In this slot.
    Found(usize),
    /// Not in the table.
    Absent,
}

/// Where a state was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// In a counter of its own.
    Own,
    /// In the overflow counter, because the table is full.
    Overflow,
}

impl Shard {
    /// Creates a shard of up to `slots` slots and a few spare ones, at most `max_entries` of them in use,
    /// with up to `histories` bytes of histories.
    pub(crate) fn new(slots: usize, max_entries: usize, histories: usize) -> Self {
        let mut shard = Self {
            groups: Box::default(),
            live: 0,
            capacity: 0,
            hand: 0,
            full_groups: slots.div_ceil(SLOTS_PER_GROUP),
            max_entries: max_entries.min(slots),
            quotas: QuotaTable::new(&[]),
            overflow: BTreeMap::new(),
            histories: Histories::new(histories),
            holds: Holds::default(),
            lease_accounts: LeaseAccounts::new(),
            overrides: KeyOverrides::default(),
            request_quotas: RequestQuotas::default(),
            is_transferred: false,
        };
        let mut groups = shard.full_groups;
        while groups >= MIN_GROUPS * GROWTH {
            groups = groups.div_ceil(GROWTH);
        }
        shard.resize(groups);
        shard
    }

    pub(crate) fn quota(&self, limit: LimitId) -> Option<&Quota> {
        self.quotas.get(limit)
    }

    pub(crate) fn quotas(&self) -> &QuotaTable {
        &self.quotas
    }

    /// Units reserved on a counter, in units of its quota.
    pub(crate) fn reserved_of(&self, key: Fingerprint, limit: LimitId) -> u64 {
        self.quota(limit).map_or(0, |quota| self.holds.units_held(key, quota.units_per_request()))
    }

    /// Reserves units of its quota.
    pub(crate) fn hold(&mut self, key: Fingerprint, limit: LimitId, units: u32) {
        let shares = self.quota(limit).map_or(NonZeroU16::MIN, Quota::units_per_request);
        self.holds.hold(key, shares, units);
    }

    /// Reservations on its counters.
    pub(crate) fn holds_mut(&mut self) -> &mut Holds {
        &mut self.holds
    }

    /// Finds the counter of `key`.
    pub(crate) fn find(&self, key: Fingerprint) -> SlotLookup {
        let [first, second] = key.words();
        let Some((group, offset)) = self.search(first) else { return SlotLookup::Absent };
        let (slot, index) = (&self.groups[group][offset], group * SLOTS_PER_GROUP + offset);
        match slot[0] == first {
            true if slot[1] == second => SlotLookup::Found(index),
            true => self.find_among_equals(index, key),
            false => SlotLookup::Absent,
        }
    }

    /// Returns group and index of the first entry that is not before one with this first word.
    #[inline(always)]
    fn search(&self, first: u64) -> Option<(usize, usize)> {
        let home = self.home(first);
        let groups = self.groups[home..].iter().enumerate();
        let mut candidates = groups.map(|(distance, group)| (home + distance, before(group, first)));
        candidates.find(|(_, offset)| *offset < SLOTS_PER_GROUP)
    }

    /// First words are equal for one pair of keys in 2⁶³; the order then depends on the second.
    #[cold]
    fn find_among_equals(&self, from: usize, key: Fingerprint) -> SlotLookup {
        let wanted = ordinal(key.words());
        let ends = |slot: &Slot| ordinal_of(slot) <= wanted;
        match self.slots()[from..].iter().position(ends).map(|after| from + after) {
            Some(index) if ordinal_of(&self.slots()[index]) == wanted => SlotLookup::Found(index),
            _ => SlotLookup::Absent,
        }
    }

    /// State of the counter at `slot`. A new key starts from the overflow counter while that is in use, so a client
    /// that was counted there does not get an unused quota when there is room again.
    pub(crate) fn counter(&self, slot: SlotLookup, limit: LimitId) -> Counter<'_> {
        match slot {
            SlotLookup::Found(index) => self.counter_of(&self.slots()[index]),
            SlotLookup::Absent if self.overflow.is_empty() => Counter::Unused,
            SlotLookup::Absent => self.overflowed(limit).into(),
        }
    }

    fn overflowed(&self, limit: LimitId) -> Option<CounterState> {
        self.overflow.get(&limit).copied()
    }

    /// The counter in twelve bytes, as of `now`.
    pub(crate) fn state(&self, slot: SlotLookup, limit: LimitId, now: Timestamp) -> Option<CounterState> {
        match self.counter(slot, limit) {
            Counter::Unused => None,
            Counter::Compact(state) => Some(state),
            long @ Counter::WithHistory(_) => long.compact_state(self.quota_at(slot, limit)?, now),
        }
    }

    fn quota_at(&self, slot: SlotLookup, limit: LimitId) -> Option<&Quota> {
        match slot {
            SlotLookup::Found(index) => self.quota_of_slot(&self.slots()[index]),
            SlotLookup::Absent => self.quotas.get(limit),
        }
    }

    /// Stores `state` for `key`; `slot` must come from [`Self::find`] with no change since.
    pub(crate) fn store_state(
        &mut self,
        slot: SlotLookup,
        key: Fingerprint,
        limit: LimitId,
        state: CounterState,
        now: Timestamp,
    ) -> Placement {
        match slot {
            SlotLookup::Found(index) if !self.needs_history(key, limit) => {
                self.slots_mut()[index] = with_state(&self.slots()[index], state);
                Placement::Own
            }
            slot => self.store_new_or_history(slot, key, limit, state, now),
        }
    }

    fn store_new_or_history(
        &mut self,
        slot: SlotLookup,
        key: Fingerprint,
        limit: LimitId,
        state: CounterState,
        now: Timestamp,
    ) -> Placement {
        let placement = match slot {
            SlotLookup::Found(_) => Placement::Own,
            SlotLookup::Absent => self.insert(key, limit, state, now),
        };
        if placement == Placement::Own
            && self.needs_history(key, limit)
            && let SlotLookup::Found(index) = self.find(key)
        {
            self.store_history(index, state, now);
        }
        placement
    }

    /// Stores `state` only if there is room for a counter of its own; returns whether there was. For counters without a
    /// history.
    pub(crate) fn store_own_state(
        &mut self,
        slot: SlotLookup,
        key: Fingerprint,
        limit: LimitId,
        state: CounterState,
        now: Timestamp,
    ) -> bool {
        let entry = new_slot(key, limit, state);
        match slot {
            SlotLookup::Found(index) => {
                self.slots_mut()[index] = entry;
                true
            }
            SlotLookup::Absent => self.insert_entry(entry, now),
        }
    }

    /// Gives back units charged at `charged`, as of `now`; `None` if there is no counter.
    pub(crate) fn refund(
        &mut self,
        slot: SlotLookup,
        key: Fingerprint,
        limit: LimitId,
        units: u32,
        charged: Timestamp,
        now: Timestamp,
    ) -> Option<CounterState> {
        let quota = *self.quota_of(key, limit)?;
        match (slot, self.counter(slot, limit)) {
            (_, Counter::Unused) => return None,
            (SlotLookup::Found(index), Counter::WithHistory(_)) => {
                self.refund_history(index, units, charged, now)
            }
            (slot, counter) => {
                let state = counter.compact_state(&quota, now);
                let next = algorithm::refund(state, &quota, units, charged, now);
                match slot {
                    SlotLookup::Found(_) => drop(self.store_state(slot, key, limit, next, now)),
                    // Units charged to the overflow counter are given back to it.
                    SlotLookup::Absent => drop(self.overflow.insert(limit, next)),
                }
            }
        }
        self.state(slot, limit, now)
    }

    /// Adopts the quotas of another generation: converts every counter whose quota changed, and drops those whose limit
    /// is gone.
    pub(crate) fn adopt_quotas(&mut self, quotas: &QuotaTable, now: Timestamp) {
        let old = self.quotas.clone();
        let change_of = self.replace_quotas(quotas);
        if old.is_unchanged_in(quotas) {
            return;
        }
        // Into a new array: removals in place would shift entries past the cursor and convert them twice.
        let entries = self.resize(self.home_groups());
        for entry in entries.as_flattened().iter().filter(|entry| !is_free(entry)) {
            let quotas = change_of(entry);
            let change =
                quotas.as_ref().map(|(from, to, on_change)| Change { from, to, on_change: *on_change });
            if let Some(entry) = self.carried(entry, change, now) {
                // Fits: a subset of the entries never reaches further than all of them did.
                self.place_entry(self.without_dropped_quota(entry));
            }
        }
        let change = |limit| {
            let (from, to) = (old.get(limit)?, quotas.get(limit)?);
            Some(Change { from, to, on_change: quotas.on_change(limit) })
        };
        self.overflow = std::mem::take(&mut self.overflow)
            .into_iter()
            .filter_map(|(limit, state)| Some((limit, change(limit)?.convert(state, now)?)))
            .collect();
    }

    /// Calls `count` for every counter in use.
    pub(crate) fn for_each_used(&self, now: Timestamp, mut count: impl FnMut(LimitId)) {
        for slot in self.slots().iter().filter(|slot| !is_free(slot)) {
            if !self.is_reclaimable(slot, now) {
                count(limit_of(slot));
            }
        }
    }

    /// Whether `key` has a counter of its own.
    pub(crate) fn contains(&self, key: Fingerprint) -> bool {
        matches!(self.find(key), SlotLookup::Found(_))
    }

    /// Whether there are overflow counters.
    pub(crate) fn has_overflow(&self) -> bool {
        !self.overflow.is_empty()
    }

    /// Number of entries, in use or not yet reclaimed.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Inserts a counter that is not in the table, or charges the overflow counter.
    pub(crate) fn insert(
        &mut self,
        key: Fingerprint,
        limit: LimitId,
        state: CounterState,
        now: Timestamp,
    ) -> Placement {
        if self.insert_entry(new_slot(key, limit, state), now) {
            return Placement::Own;
        }
        // The overflow counter is in units of the limit's own quota. A key with a raised one is not counted there.
        if !self.is_boosted(key) {
            self.overflow.insert(limit, state);
        }
        Placement::Overflow
    }

    /// Inserts an entry, if room can be made for it.
    fn insert_entry(&mut self, entry: Slot, now: Timestamp) -> bool {
        self.sweep(SWEPT_PER_INSERT, now);
        while !self.place_new(entry) {
            if self.home_groups() < self.full_groups {
                self.grow();
                continue;
            }
            self.sweep(SWEPT_WHEN_FULL, now);
            return self.place_new(entry);
        }
        true
    }

    /// Inserts an entry that is not in the table, if that has room for it; returns whether it had.
    fn place_new(&mut self, entry: Slot) -> bool {
        self.live < self.capacity && self.place_entry(entry)
    }

    /// Inserts an entry that is not in the table, moving lesser ones on; returns whether there was a slot. Those that a new
    /// array takes over may be more than a smaller maximum admits.
    fn place_entry(&mut self, entry: Slot) -> bool {
        let wanted = ordinal_of(&entry);
        let home = self.home(entry[0]) * SLOTS_PER_GROUP;
        let slots = self.groups.as_flattened_mut();
        let Some(index) = (home..slots.len()).find(|index| ordinal_of(&slots[*index]) < wanted) else {
            return false;
        };
        let Some(free) = (index..slots.len()).find(|index| is_free(&slots[*index])) else { return false };
        slots.copy_within(index..free, index + 1);
        slots[index] = entry;
        self.live += 1;
        true
    }

    /// Moves the clock hand over `slots` slots and frees those of unused counters.
    fn sweep(&mut self, slots: usize, now: Timestamp) {
        for _ in 0..slots {
            let index = self.hand;
            let slot = &self.slots()[index];
            if !is_free(slot) && self.is_reclaimable(slot, now) {
                self.remove(index);
            } else {
                self.hand = if index + 1 == self.slots().len() { 0 } else { index + 1 };
            }
        }
        if !self.overflow.is_empty() && self.live < self.capacity {
            let quotas = &self.quotas;
            self.overflow.retain(|limit, state| {
                quotas.get(*limit).is_some_and(|quota| !algorithm::is_unused(*state, quota, now))
            });
        }
    }

    fn is_reclaimable(&self, slot: &Slot, now: Timestamp) -> bool {
        if self.is_kept_for_request(slot, now) {
            return false;
        }
        if has_history(slot) {
            return slot[2] <= now.as_nanos();
        }
        self.quota_of_slot(slot).is_none_or(|quota| algorithm::is_unused(state_of(slot), quota, now))
    }

    fn counter_of(&self, slot: &Slot) -> Counter<'_> {
        if has_history(slot) {
            Counter::WithHistory(self.histories.get(number_of(slot)))
        } else {
            Counter::Compact(state_of(slot))
        }
    }

    fn needs_history(&self, key: Fingerprint, limit: LimitId) -> bool {
        self.quota_of(key, limit).is_some_and(Quota::needs_history)
    }

    /// Frees a slot and moves the following entries back, as far as their homes allow.
    fn remove(&mut self, index: usize) {
        self.release_history(&self.slots()[index].clone());
        let rest = &self.slots()[index + 1..];
        let stays =
            |(at, slot): (usize, &Slot)| is_free(slot) || self.home(slot[0]) * SLOTS_PER_GROUP > index + at;
        let moving = rest.iter().enumerate().position(|(at, slot)| stays((at, slot))).unwrap_or(rest.len());
        let slots = self.slots_mut();
        slots.copy_within(index + 1..=index + moving, index);
        slots[index + moving] = FREE;
        self.live -= 1;
    }

    /// Home group of an entry with this first word; the greater the word, the earlier the group.
    fn home(&self, first: u64) -> usize {
        let groups = self.home_groups() as u128;
        // The top bit is always set.
        ((u128::from(!(first << 1)) * groups) >> 64) as usize
    }

    fn home_groups(&self) -> usize {
        self.groups.len() - SPARE_GROUPS
    }

    fn slots(&self) -> &[Slot] {
        self.groups.as_flattened()
    }

    fn slots_mut(&mut self) -> &mut [Slot] {
        self.groups.as_flattened_mut()
    }
}

#[cfg(test)]
mod tests;
