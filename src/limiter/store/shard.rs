//! One shard: an array of 32-byte slots, kept in the order of their fingerprints. It grows with its entries up to
//! a size fixed at the start, so that a table with few keys costs little memory and stays in the cache.
//!
//! An ordered hash table (Amble and Knuth 1974): a fingerprint, read as a number, says how far down the array
//! its entry belongs, entries stand in falling order from there on, and a search ends at the first entry
//! that is not greater, whether the key is present or not. Removal shifts back instead of leaving tombstones:
//! the table is as fast after a year as on its first day. Searches go by groups of four slots, two cache
//! lines, and count within a group without branching, since a processor cannot guess where a key will be.
//! Nothing is ever evicted that is still in use: where no unused counter can be reclaimed, new keys share an
//! overflow counter.

mod long;
mod saved;
mod slot;

use std::collections::BTreeMap;
use std::num::NonZeroU16;

pub(in crate::limiter) use self::saved::Copied;
use self::slot::{
    FREE, GROUP, Group, Own, Slot, before, is_free, is_long, meter_of, number_of, ordinal, ordinal_of, slot,
    state_of,
};
use super::histories::Histories;
use super::{MeterId, Quotas};
use crate::limiter::algorithm::conversion::Change;
use crate::limiter::algorithm::{self, Counter, State};
use crate::limiter::claims::{Book, Books};
use crate::limiter::key::Fingerprint;
use crate::limiter::quota::Quota;
use crate::limiter::reservation::Held;
use crate::limiter::timestamp::Timestamp;

/// Slots the clock hand looks at per insertion, so that expiry keeps ahead of arrival.
const SWEPT_PER_INSERT: usize = 2;
/// Slots it looks at before it declares the shard full: bounded work for the unlucky request.
const SWEPT_WHEN_FULL: usize = 64;

/// Groups after the last that entries belong to, for those that are pushed on from there.
const SPARE_GROUPS: usize = 8;
/// An array that has grown too small is replaced by one so many times its size. Much, since allocators are
/// slow to give back what it leaves behind, and what they keep must stay small beside the table.
const GROWTH: usize = 32;
/// Arrays smaller than this are not worth starting with.
const FEWEST_GROUPS: usize = 8;

/// A part of the table under one lock.
#[derive(Debug)]
pub(in crate::limiter) struct Shard {
    groups: Box<[Group]>,
    live: usize,
    /// Entries it takes before it grows or, at its full size, is full.
    room: usize,
    hand: usize,
    full_groups: usize,
    most: usize,
    quotas: Quotas,
    overflow: BTreeMap<MeterId, State>,
    histories: Histories,
    held: Held,
    books: Books,
}

/// Where a counter is.
#[derive(Clone, Copy, Debug)]
pub(in crate::limiter) enum Place {
    /// In this slot.
    At(usize),
    /// Nowhere yet.
    Absent,
}

/// Where a state was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::limiter) enum Kept {
    /// In a counter of its own.
    Own,
    /// In the overflow counter, for want of room.
    Shared,
}

impl Shard {
    /// Up to `slots` slots, some more for reserve, of which at most `most` are filled, and so many bytes of
    /// histories.
    pub(in crate::limiter) fn new(slots: usize, most: usize, histories: usize) -> Self {
        let mut shard = Self {
            groups: Box::default(),
            live: 0,
            room: 0,
            hand: 0,
            full_groups: slots.div_ceil(GROUP),
            most: most.min(slots),
            quotas: Quotas::new(&[]),
            overflow: BTreeMap::new(),
            histories: Histories::new(histories),
            held: Held::default(),
            books: Books::new(),
        };
        let mut groups = shard.full_groups;
        while groups >= FEWEST_GROUPS * GROWTH {
            groups = groups.div_ceil(GROWTH);
        }
        shard.resize(groups);
        shard
    }

    pub(in crate::limiter) fn quota(&self, meter: MeterId) -> Option<&Quota> {
        self.quotas.get(meter)
    }

    pub(in crate::limiter) fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// What is held of a counter, in units of its quota.
    pub(in crate::limiter) fn held_of(&self, key: Fingerprint, meter: MeterId) -> u64 {
        self.quota(meter).map_or(0, |quota| self.held.of(key, quota.shares()))
    }

    /// Holds units of its quota.
    pub(in crate::limiter) fn hold(&mut self, key: Fingerprint, meter: MeterId, units: u32) {
        let shares = self.quota(meter).map_or(NonZeroU16::MIN, Quota::shares);
        self.held.hold(key, shares, units);
    }

    /// Units of a shared limit that are left for all instances, beside those that the counter of `key` has in its slot.
    pub(in crate::limiter) fn beside(&self, key: Fingerprint, now: Timestamp) -> u32 {
        self.books.get(&key).map_or(0, |book| book.beside(now))
    }

    /// The same where the store has responded before.
    pub(in crate::limiter) fn known_beside(&self, key: Fingerprint, now: Timestamp) -> Option<u32> {
        self.books.get(&key).and_then(|book| book.known_beside(now))
    }

    /// Claims on shared limits, beside what the slots hold of them.
    pub(in crate::limiter) fn books(&self) -> &Books {
        &self.books
    }

    /// The same, to be changed.
    pub(in crate::limiter) fn books_mut(&mut self) -> &mut Books {
        &mut self.books
    }

    /// The book of a counter, begun if there is none; `None` where there are as many as there may be counters.
    pub(in crate::limiter) fn book(
        &mut self,
        key: Fingerprint,
        meter: MeterId,
        now: Timestamp,
    ) -> Option<&mut Book> {
        if self.books.len() >= self.most && !self.books.contains_key(&key) {
            return None;
        }
        Some(self.books.entry(key).or_insert_with(|| Book::new(meter, now)))
    }

    /// What is held of its counters.
    pub(in crate::limiter) fn held_mut(&mut self) -> &mut Held {
        &mut self.held
    }

    /// The counter that `key` has of its own, if it is all in its slot and stays there, and the quota it is held
    /// against. What most requests meet; everything else is for [`Self::find`].
    // Inline: passing it through memory costs as much as finding it.
    #[inline(always)]
    pub(in crate::limiter) fn own(&mut self, key: Fingerprint, meter: MeterId) -> Option<(Own<'_>, &Quota)> {
        let [first, second] = key.words();
        let (group, place) = self.search(first)?;
        let quota = self.quotas.get(meter).filter(|quota| !quota.looks_back())?;
        let slot = &mut self.groups[group][place];
        // The second word may still be hashed while the first waits for memory.
        let is_it = slot[0] == first && slot[1] == second && !is_long(slot);
        is_it.then_some((Own(slot), quota))
    }

    /// Finds the counter of `key`, if there is one.
    pub(in crate::limiter) fn find(&self, key: Fingerprint) -> Place {
        let [first, second] = key.words();
        let Some((group, place)) = self.search(first) else { return Place::Absent };
        let (slot, index) = (&self.groups[group][place], group * GROUP + place);
        match slot[0] == first {
            true if slot[1] == second => Place::At(index),
            true => self.find_among_equals(index, key),
            false => Place::Absent,
        }
    }

    /// Where the first entry stands that is not before one with this first word: its group, and its place there.
    #[inline(always)]
    fn search(&self, first: u64) -> Option<(usize, usize)> {
        let home = self.home(first);
        let groups = self.groups[home..].iter().enumerate();
        let mut places = groups.map(|(distance, group)| (home + distance, before(group, first)));
        places.find(|(_, place)| *place < GROUP)
    }

    /// Two keys in 2⁶³ have the same first word; the order goes by both.
    #[cold]
    fn find_among_equals(&self, from: usize, key: Fingerprint) -> Place {
        let wanted = ordinal(key.words());
        let ends = |slot: &Slot| ordinal_of(slot) <= wanted;
        match self.slots()[from..].iter().position(ends).map(|after| from + after) {
            Some(index) if ordinal_of(&self.slots()[index]) == wanted => Place::At(index),
            _ => Place::Absent,
        }
    }

    /// What the counter at `place` remembers. A new key starts from the overflow counter while that is in use:
    /// a client that was counted there does not get a fresh quota when room appears.
    pub(in crate::limiter) fn counter(&self, place: Place, meter: MeterId) -> Counter<'_> {
        match place {
            Place::At(index) => self.counter_of(&self.slots()[index]),
            Place::Absent if self.overflow.is_empty() => Counter::Unused,
            Place::Absent => self.overflowed(meter).into(),
        }
    }

    fn overflowed(&self, meter: MeterId) -> Option<State> {
        self.overflow.get(&meter).copied()
    }

    /// The same in twelve bytes, as it is at `now`.
    pub(in crate::limiter) fn state(&self, place: Place, meter: MeterId, now: Timestamp) -> Option<State> {
        match self.counter(place, meter) {
            Counter::Unused => None,
            Counter::Short(state) => Some(state),
            long @ Counter::Long(_) => long.in_short(self.quotas.get(meter)?, now),
        }
    }

    /// Keeps `state` for `key`; `place` must come from [`Self::find`] with nothing changed since.
    pub(in crate::limiter) fn keep(
        &mut self,
        place: Place,
        key: Fingerprint,
        meter: MeterId,
        state: State,
        now: Timestamp,
    ) -> Kept {
        match place {
            Place::At(index) if !self.looks_back(meter) => {
                self.slots_mut()[index] = slot(key, meter, state);
                Kept::Own
            }
            place => self.keep_new_or_long(place, key, meter, state, now),
        }
    }

    fn keep_new_or_long(
        &mut self,
        place: Place,
        key: Fingerprint,
        meter: MeterId,
        state: State,
        now: Timestamp,
    ) -> Kept {
        let kept = match place {
            Place::At(_) => Kept::Own,
            Place::Absent => self.insert(key, meter, state, now),
        };
        if kept == Kept::Own
            && self.looks_back(meter)
            && let Place::At(index) = self.find(key)
        {
            self.keep_long(index, meter, state, now);
        }
        kept
    }

    /// The same, but nowhere if there is no room for a counter of its own; whether there was. For counters that
    /// have no history.
    pub(in crate::limiter) fn keep_own(
        &mut self,
        place: Place,
        key: Fingerprint,
        meter: MeterId,
        state: State,
        now: Timestamp,
    ) -> bool {
        let entry = slot(key, meter, state);
        match place {
            Place::At(index) => {
                self.slots_mut()[index] = entry;
                true
            }
            Place::Absent => self.make_place(entry, now),
        }
    }

    /// Gives back units charged at the first of two moments, at the second; `None` where there is no counter.
    pub(in crate::limiter) fn refund(
        &mut self,
        place: Place,
        key: Fingerprint,
        meter: MeterId,
        units: u32,
        (charged, now): (Timestamp, Timestamp),
    ) -> Option<State> {
        let quota = *self.quotas.get(meter)?;
        match (place, self.counter(place, meter)) {
            (_, Counter::Unused) => return None,
            (Place::At(index), Counter::Long(_)) => self.refund_long(index, meter, units, (charged, now)),
            (place, counter) => {
                let state = counter.in_short(&quota, now);
                let next = algorithm::refund(state, &quota, units, (charged, now));
                match place {
                    Place::At(_) => drop(self.keep(place, key, meter, next, now)),
                    // What was counted together is given back together.
                    Place::Absent => drop(self.overflow.insert(meter, next)),
                }
            }
        }
        self.state(place, meter, now)
    }

    /// Takes over another generation's quotas, converting every counter whose quota changed and dropping
    /// those whose meter is gone.
    pub(in crate::limiter) fn adopt(&mut self, quotas: &Quotas, now: Timestamp) {
        let old = std::mem::replace(&mut self.quotas, quotas.clone());
        if old.all_kept_in(quotas) {
            return;
        }
        let change = |meter| {
            let (from, to) = (old.get(meter)?, quotas.get(meter)?);
            Some(Change { from, to, on_change: quotas.on_change(meter) })
        };
        // Into a fresh array: removals in place would shift entries past the cursor and convert them twice.
        let entries = self.resize(self.home_groups());
        for entry in entries.as_flattened().iter().filter(|entry| !is_free(entry)) {
            if let Some(entry) = self.carried(entry, change(meter_of(entry)), now) {
                // Fits: a part of the entries never reaches further than all of them did.
                self.place(entry);
            }
        }
        self.overflow = std::mem::take(&mut self.overflow)
            .into_iter()
            .filter_map(|(meter, state)| Some((meter, change(meter)?.convert(state, now)?)))
            .collect();
    }

    /// Calls `count` for every counter that is still in use.
    pub(in crate::limiter) fn for_each_used(&self, now: Timestamp, mut count: impl FnMut(MeterId)) {
        for slot in self.slots().iter().filter(|slot| !is_free(slot)) {
            if !self.is_reclaimable(slot, now) {
                count(meter_of(slot));
            }
        }
    }

    /// Whether there are overflow counters.
    pub(in crate::limiter) fn is_crowded(&self) -> bool {
        !self.overflow.is_empty()
    }

    /// Entries, in use or not yet reclaimed.
    pub(in crate::limiter) fn live(&self) -> usize {
        self.live
    }

    fn insert(&mut self, key: Fingerprint, meter: MeterId, state: State, now: Timestamp) -> Kept {
        if self.make_place(slot(key, meter, state), now) {
            return Kept::Own;
        }
        self.overflow.insert(meter, state);
        Kept::Shared
    }

    /// Puts an entry where it belongs, if room can be made for it.
    fn make_place(&mut self, entry: Slot, now: Timestamp) -> bool {
        self.sweep(SWEPT_PER_INSERT, now);
        while !self.place(entry) {
            if self.home_groups() < self.full_groups {
                self.grow();
                continue;
            }
            self.sweep(SWEPT_WHEN_FULL, now);
            return self.place(entry);
        }
        true
    }

    fn grow(&mut self) {
        let entries = self.resize((self.home_groups() * GROWTH).min(self.full_groups));
        for entry in entries.as_flattened().iter().filter(|entry| !is_free(entry)) {
            // Fits: the more groups there are, the less entries push each other on.
            self.place(*entry);
        }
    }

    /// Makes an empty array in which entries belong to `groups` groups, and answers the one before.
    fn resize(&mut self, groups: usize) -> Box<[Group]> {
        let free = vec![[FREE; GROUP]; groups + SPARE_GROUPS].into_boxed_slice();
        let slots = groups * GROUP;
        self.room = if groups < self.full_groups { slots - slots / 5 } else { self.most };
        (self.live, self.hand) = (0, 0);
        std::mem::replace(&mut self.groups, free)
    }

    /// Puts an entry that is not there yet where the order wants it, moving lesser ones on; whether there was
    /// room for it and them.
    fn place(&mut self, entry: Slot) -> bool {
        if self.live >= self.room {
            return false;
        }
        let wanted = ordinal_of(&entry);
        let home = self.home(entry[0]) * GROUP;
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

    /// Moves the clock hand over `slots` slots and frees those that say nothing any more.
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
        if !self.overflow.is_empty() && self.live < self.room {
            let quotas = &self.quotas;
            self.overflow.retain(|meter, state| {
                quotas.get(*meter).is_some_and(|quota| !algorithm::is_unused(*state, quota, now))
            });
        }
    }

    fn is_reclaimable(&self, slot: &Slot, now: Timestamp) -> bool {
        if is_long(slot) {
            return slot[2] <= now.as_nanos();
        }
        self.quotas.get(meter_of(slot)).is_none_or(|quota| algorithm::is_unused(state_of(slot), quota, now))
    }

    fn counter_of(&self, slot: &Slot) -> Counter<'_> {
        if is_long(slot) {
            Counter::Long(self.histories.get(number_of(slot)))
        } else {
            Counter::Short(state_of(slot))
        }
    }

    fn looks_back(&self, meter: MeterId) -> bool {
        self.quotas.get(meter).is_some_and(Quota::looks_back)
    }

    /// Frees a slot and lets those after it move up, as far as their homes allow.
    fn remove(&mut self, index: usize) {
        self.release(&self.slots()[index].clone());
        let rest = &self.slots()[index + 1..];
        let stays = |(at, slot): (usize, &Slot)| is_free(slot) || self.home(slot[0]) * GROUP > index + at;
        let moving = rest.iter().enumerate().position(|(at, slot)| stays((at, slot))).unwrap_or(rest.len());
        let slots = self.slots_mut();
        slots.copy_within(index + 1..=index + moving, index);
        slots[index + moving] = FREE;
        self.live -= 1;
    }

    /// The group in which an entry with this first word would be if the table were empty; the greater the
    /// word, the earlier.
    fn home(&self, first: u64) -> usize {
        let groups = self.home_groups() as u128;
        // The top bit is always set and says nothing.
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
