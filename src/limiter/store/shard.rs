//! One shard: a fixed array of 32-byte slots, searched by linear probing in Robin Hood order.
//!
//! Robin Hood order (Celis, Larson and Munro 1985) keeps entries sorted by their home, so that a search for
//! an absent key ends as early as for a present one, and removal shifts back instead of leaving tombstones:
//! the table is as fast after a year as on its first day. Nothing is ever evicted that is still in use: where
//! no unused counter can be reclaimed, new keys share an overflow counter.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{MeterId, Quotas};
use crate::limiter::algorithm::{self, State};
use crate::limiter::key::Fingerprint;
use crate::limiter::quota::Quota;
use crate::limiter::timestamp::Timestamp;

/// Slots the clock hand looks at per insertion, so that expiry keeps ahead of arrival.
const SWEPT_PER_INSERT: usize = 2;
/// Slots it looks at before it declares the shard full: bounded work for the unlucky request.
const SWEPT_WHEN_FULL: usize = 64;

/// Fingerprint (two words, the first zero when free), state word, and state extra beside the meter id.
type Slot = [u64; 4];
const FREE: Slot = [0; 4];

/// A part of the table under one lock.
#[derive(Debug)]
pub(in crate::limiter) struct Shard {
    slots: Box<[Slot]>,
    live: usize,
    most: usize,
    hand: usize,
    quotas: Arc<Quotas>,
    overflow: BTreeMap<MeterId, State>,
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
    /// `slots` slots of which at most `most` are filled (`most < slots`).
    pub(in crate::limiter) fn new(slots: usize, most: usize) -> Self {
        Self {
            slots: vec![FREE; slots].into_boxed_slice(),
            live: 0,
            most: most.min(slots.saturating_sub(1)),
            hand: 0,
            quotas: Arc::default(),
            overflow: BTreeMap::new(),
        }
    }

    pub(in crate::limiter) fn quota(&self, meter: MeterId) -> Option<&Quota> {
        self.quotas.get(meter)
    }

    /// Finds the counter of `key`, if there is one.
    pub(in crate::limiter) fn find(&self, key: Fingerprint) -> Place {
        let words = key.words();
        let mut index = self.home(words);
        let mut distance = 0;
        loop {
            let slot = &self.slots[index];
            if slot[0] == words[0] && slot[1] == words[1] {
                return Place::At(index);
            }
            if slot[0] == 0 || self.distance(index) < distance {
                return Place::Absent;
            }
            index = self.after(index);
            distance += 1;
        }
    }

    /// What the counter at `place` remembers. A new key starts from the overflow counter while that is in use:
    /// a client that was counted there does not get a fresh quota when room appears.
    pub(in crate::limiter) fn state(&self, place: Place, meter: MeterId) -> Option<State> {
        match place {
            Place::At(index) => Some(state_of(&self.slots[index])),
            Place::Absent if self.overflow.is_empty() => None,
            Place::Absent => self.overflow.get(&meter).copied(),
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
            Place::At(index) => {
                self.slots[index] = slot(key, meter, state);
                Kept::Own
            }
            Place::Absent => self.insert(key, meter, state, now),
        }
    }

    /// Takes over another generation's quotas, converting every counter whose quota changed and dropping
    /// those whose meter is gone.
    pub(in crate::limiter) fn adopt(&mut self, quotas: &Arc<Quotas>, now: Timestamp) {
        let old = std::mem::replace(&mut self.quotas, Arc::clone(quotas));
        if old.all_kept_in(quotas) {
            return;
        }
        let convert = |meter, state| match (old.get(meter), quotas.get(meter)) {
            (Some(from), Some(to)) => algorithm::convert(state, from, to, now),
            _ => None,
        };
        // Into a fresh array: removals in place would shift entries past the cursor and convert them twice.
        let free = vec![FREE; self.slots.len()].into_boxed_slice();
        let entries = std::mem::replace(&mut self.slots, free);
        self.live = 0;
        for entry in entries.iter().filter(|entry| entry[0] != 0) {
            let meter = meter_of(entry);
            if let Some(state) = convert(meter, state_of(entry)) {
                self.place([entry[0], entry[1], state.word, tail(meter, state)]);
            }
        }
        self.overflow = std::mem::take(&mut self.overflow)
            .into_iter()
            .filter_map(|(meter, state)| Some((meter, convert(meter, state)?)))
            .collect();
    }

    /// Calls `count` for every counter that is still in use.
    pub(in crate::limiter) fn for_each_used(&self, now: Timestamp, mut count: impl FnMut(MeterId)) {
        for slot in self.slots.iter().filter(|slot| slot[0] != 0) {
            if !self.is_reclaimable(slot, now) {
                count(meter_of(slot));
            }
        }
    }

    /// Entries, in use or not yet reclaimed.
    pub(in crate::limiter) fn live(&self) -> usize {
        self.live
    }

    fn insert(&mut self, key: Fingerprint, meter: MeterId, state: State, now: Timestamp) -> Kept {
        self.sweep(SWEPT_PER_INSERT, now);
        if self.live >= self.most {
            self.sweep(SWEPT_WHEN_FULL, now);
        }
        if self.live >= self.most {
            self.overflow.insert(meter, state);
            return Kept::Shared;
        }
        self.place(slot(key, meter, state));
        Kept::Own
    }

    /// Puts an entry that is not there yet where Robin Hood order wants it, moving the poorer ones on.
    fn place(&mut self, entry: Slot) {
        let mut index = self.home([entry[0], entry[1]]);
        let mut distance = 0;
        while self.slots[index][0] != 0 && self.distance(index) >= distance {
            index = self.after(index);
            distance += 1;
        }
        let mut carried = entry;
        while carried[0] != 0 {
            std::mem::swap(&mut self.slots[index], &mut carried);
            index = self.after(index);
        }
        self.live += 1;
    }

    /// Moves the clock hand over `slots` slots and frees those that say nothing any more.
    fn sweep(&mut self, slots: usize, now: Timestamp) {
        for _ in 0..slots {
            let index = self.hand;
            if self.slots[index][0] != 0 && self.is_reclaimable(&self.slots[index], now) {
                self.remove(index);
            } else {
                self.hand = self.after(index);
            }
        }
        if !self.overflow.is_empty() && self.live < self.most {
            let quotas = &self.quotas;
            self.overflow.retain(|meter, state| {
                quotas.get(*meter).is_some_and(|quota| !algorithm::is_unused(*state, quota, now))
            });
        }
    }

    fn is_reclaimable(&self, slot: &Slot, now: Timestamp) -> bool {
        self.quotas.get(meter_of(slot)).is_none_or(|quota| algorithm::is_unused(state_of(slot), quota, now))
    }

    fn remove(&mut self, index: usize) {
        let mut hole = index;
        loop {
            let next = self.after(hole);
            if self.slots[next][0] == 0 || self.distance(next) == 0 {
                break;
            }
            self.slots[hole] = self.slots[next];
            hole = next;
        }
        self.slots[hole] = FREE;
        self.live -= 1;
    }

    /// Where a fingerprint would be if the table were empty.
    fn home(&self, words: [u64; 2]) -> usize {
        ((u128::from(words[1]) * self.slots.len() as u128) >> 64) as usize
    }

    /// How far the entry at `index` is from its home.
    fn distance(&self, index: usize) -> usize {
        let slot = &self.slots[index];
        let home = self.home([slot[0], slot[1]]);
        if index >= home { index - home } else { index + self.slots.len() - home }
    }

    fn after(&self, index: usize) -> usize {
        if index + 1 == self.slots.len() { 0 } else { index + 1 }
    }
}

fn slot(key: Fingerprint, meter: MeterId, state: State) -> Slot {
    let [low, high] = key.words();
    [low, high, state.word, tail(meter, state)]
}

const fn tail(meter: MeterId, state: State) -> u64 {
    (state.extra as u64) << 32 | meter.0 as u64
}

const fn state_of(slot: &Slot) -> State {
    State { word: slot[2], extra: (slot[3] >> 32) as u32 }
}

const fn meter_of(slot: &Slot) -> MeterId {
    MeterId(slot[3] as u32)
}

#[cfg(test)]
mod tests;
