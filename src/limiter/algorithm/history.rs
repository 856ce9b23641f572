//! What happened when: units in the order in which they were charged, for limits that look back exactly.
//!
//! A log tells every nanosecond apart; a precise sliding window is a log whose clock ticks once per sub-window,
//! so that at most as many entries as there are sub-windows, and one, are ever needed. Units count fully for as
//! long as the quota looks back, then, over one more tick, less and less: for a log that is a nanosecond.
//!
//! Entries carry running totals, so that how much is in use, and when how much will be, are found by halving. A
//! history is not copied like the twelve bytes of other counters: it is looked at where it is kept, and `follow`
//! makes it say what a decision has said in short.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Outcome, State};
use crate::limiter::quota::{MOST_LOGGED, Quota};
use crate::limiter::timestamp::Timestamp;

/// The most entries whatever the quota says: an elastic log may have more units than requests it remembers.
const MOST_ENTRIES: u32 = 4 * MOST_LOGGED;
/// Entries that a history begins with.
const FIRST_ENTRIES: usize = 2;
/// Smaller histories keep their room when they are emptied.
const WORTH_SHRINKING: usize = 16;

/// The units of one counter, by the time at which they were charged.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Running total before the first entry; totals wrap, their differences do not.
    before: u32,
    entries: VecDeque<Entry>,
}

/// Units charged in one tick. Packed: memory is what a history costs.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed(4))]
struct Entry {
    /// When the tick began, in nanoseconds since the epoch.
    at: u64,
    /// Running total up to its end.
    total: u32,
}

/// How far back a quota looks, and how finely, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sight {
    /// The length of a tick, and how long units take to fade.
    pub(super) tick: u64,
    /// How long they count fully after their tick has begun.
    pub(super) full: u64,
}

/// Units at one moment.
struct Sum {
    full: u32,
    /// Of the entry that fades, and for how much of a tick more they count.
    fading: u32,
    overlap: u64,
}

impl Sight {
    pub(super) fn of(quota: &Quota) -> Self {
        super::sliding_window::sight(quota).unwrap_or_else(|| super::sliding_log::sight(quota))
    }

    fn tick_of(self, now: u64) -> u64 {
        now - now % self.tick
    }

    /// When units that were charged in the tick that began at `at` count no more.
    pub(super) fn end(self, at: u64) -> u64 {
        at.saturating_add(self.full).saturating_add(self.tick)
    }

    /// When units that are charged at `now` count no more.
    pub(super) fn end_from(self, now: Timestamp) -> u64 {
        self.end(self.tick_of(now.as_nanos()))
    }
}

impl Sum {
    /// Fading units count by how much of their tick is still seen, rounded up.
    fn weight(&self, sight: Sight) -> u32 {
        let weight = (u128::from(self.fading) * u128::from(self.overlap)).div_ceil(sight.tick.into());
        u32::try_from(weight).unwrap_or(u32::MAX)
    }

    fn used(&self, sight: Sight) -> u32 {
        self.full.saturating_add(self.weight(sight))
    }
}

impl History {
    /// What a counter said in short, as one entry.
    pub fn of(state: State, quota: &Quota, now: Timestamp) -> Self {
        let sight = Sight::of(quota);
        let mut history = Self::default();
        if state.word > now.as_nanos() && state.extra > 0 {
            let at = sight.tick_of(state.word.saturating_sub(sight.full).saturating_sub(sight.tick));
            history.entries.push_back(Entry { at, total: state.extra });
        }
        history
    }

    /// The counter in short: units in use, and when the last of them counts no more.
    pub fn in_short(&self, quota: &Quota, now: Timestamp) -> State {
        let sight = Sight::of(quota);
        self.short(self.sum(sight, now).used(sight), sight)
    }

    /// As [`super::evaluate`].
    pub(super) fn evaluate(&self, quota: &Quota, cost: u32, now: Timestamp) -> (State, Outcome) {
        let sight = Sight::of(quota);
        let used = self.sum(sight, now).used(sight);
        let count = u32::try_from(quota.count()).unwrap_or(u32::MAX);
        if let Some(next) = used.checked_add(cost).filter(|next| *next <= count) {
            let end = if cost > 0 { sight.end(self.tick(sight, now)) } else { 0 };
            let state = self.short(next, sight);
            return (State { word: state.word.max(end), ..state }, Outcome::Conform);
        }
        let retry_after = count.checked_sub(cost).map(|room| {
            let moment = self.moment_of(room, sight);
            Duration::from_nanos(moment.saturating_sub(now.as_nanos()))
        });
        (self.short(used, sight), Outcome::Exceed { retry_after })
    }

    /// Makes it say what `state` says: more units than are in use are charged now; where there are fewer, what
    /// was charged last is given back. Without `may_grow` it asks for no memory, and units seem younger than
    /// they are where there is no entry for them.
    pub fn follow(&mut self, state: State, quota: &Quota, now: Timestamp, may_grow: bool) {
        let sight = Sight::of(quota);
        let sum = self.sum(sight, now);
        let used = sum.used(sight);
        if state.extra >= used {
            let count = u32::try_from(quota.count()).unwrap_or(u32::MAX);
            let most = count.saturating_add(1).min(MOST_ENTRIES) as usize;
            self.charge(state.extra - used, sight, now, (most, may_grow));
        } else {
            self.give_back(used - state.extra, &sum, sight);
        }
    }

    /// Gives back up to `units` that were charged at `charged`, as far as they still count.
    pub fn refund(&mut self, units: u32, quota: &Quota, (charged, now): (Timestamp, Timestamp)) {
        let sight = Sight::of(quota);
        let tick = sight.tick_of(charged.as_nanos());
        if sight.end(tick) <= self.latest(now) {
            return;
        }
        // Where there was no entry for them they are in a later one.
        let index = self.entries.partition_point(|entry| entry.at < tick);
        if index < self.entries.len() {
            let units = units.min(self.units(index));
            self.entries.range_mut(index..).for_each(|entry| entry.total = entry.total.wrapping_sub(units));
            if self.units(index) == 0 {
                self.entries.remove(index);
            }
        }
    }

    /// Every entry times `to / from`, rounded up in such a way that no sum grows by more than one unit.
    pub(super) fn scale(&mut self, from: u32, to: u32) {
        let before = std::mem::take(&mut self.before);
        for entry in &mut self.entries {
            let units = u64::from(entry.total.wrapping_sub(before)) * u64::from(to);
            entry.total = u32::try_from(units.div_ceil(from.max(1).into())).unwrap_or(u32::MAX);
        }
    }

    /// From when on it says no more than a counter that nobody has used; nanoseconds since the epoch.
    pub(in crate::limiter) fn end(&self, quota: &Quota) -> u64 {
        self.entries.back().map_or(0, |entry| Sight::of(quota).end(entry.at))
    }

    /// Whether it has to ask for memory before it can take another entry.
    pub(in crate::limiter) fn is_at_capacity(&self) -> bool {
        self.entries.len() == self.entries.capacity()
    }

    /// Bytes of its entries.
    pub(in crate::limiter) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    fn short(&self, used: u32, sight: Sight) -> State {
        State { word: self.entries.back().map_or(0, |entry| sight.end(entry.at)), extra: used }
    }

    /// `now`, or the youngest entry's tick where the clock has stepped back behind it.
    fn latest(&self, now: Timestamp) -> u64 {
        self.entries.back().map_or(0, |entry| entry.at).max(now.as_nanos())
    }

    fn tick(&self, sight: Sight, now: Timestamp) -> u64 {
        sight.tick_of(self.latest(now))
    }

    fn total(&self) -> u32 {
        self.entries.back().map_or(self.before, |entry| entry.total)
    }

    fn total_before(&self, index: usize) -> u32 {
        index
            .checked_sub(1)
            .and_then(|before| self.entries.get(before))
            .map_or(self.before, |entry| entry.total)
    }

    fn units(&self, index: usize) -> u32 {
        self.entries.get(index).map_or(0, |entry| entry.total.wrapping_sub(self.total_before(index)))
    }

    fn sum(&self, sight: Sight, now: Timestamp) -> Sum {
        let now = self.latest(now);
        let first_full = self.entries.partition_point(|entry| entry.at.saturating_add(sight.full) <= now);
        let full = self.total().wrapping_sub(self.total_before(first_full));
        let before = first_full.checked_sub(1).and_then(|index| Some((index, self.entries.get(index)?.at)));
        match before.map(|(index, at)| (self.units(index), sight.end(at).saturating_sub(now))) {
            Some((fading, overlap @ 1..)) => Sum { full, fading, overlap },
            _ => Sum { full, fading: 0, overlap: 0 },
        }
    }

    /// When no more than `units` will be in use, which are fewer than there are now.
    fn moment_of(&self, units: u32, sight: Sight) -> u64 {
        let total = self.total();
        // The entry that has to fade: with it there are too many, with those after it there are not.
        let index = self.entries.partition_point(|entry| total.wrapping_sub(entry.total) > units);
        let Some(entry) = self.entries.get(index) else { return 0 };
        let left = units - total.wrapping_sub(entry.total);
        let overlap = u128::from(left) * u128::from(sight.tick) / u128::from(self.units(index).max(1));
        sight.end(entry.at).saturating_sub(u64::try_from(overlap).unwrap_or(u64::MAX))
    }

    fn charge(&mut self, units: u32, sight: Sight, now: Timestamp, (most, may_grow): (usize, bool)) {
        self.forget(sight, now);
        let tick = self.tick(sight, now);
        let units = units.min(u32::MAX - self.total().wrapping_sub(self.before));
        if units == 0 {
            return;
        }
        let total = self.total().wrapping_add(units);
        let is_full = self.is_at_capacity() && !may_grow;
        match self.entries.back_mut() {
            Some(last) if last.at == tick || is_full => *last = Entry { at: tick, total },
            // Without an entry there is nothing to be less exact with: the first is always made.
            _ => {
                self.make_room(most);
                self.entries.push_back(Entry { at: tick, total });
            }
        }
        // A log is in debt: what is beyond the count decides nothing, as long as the rest is there.
        while self.entries.len() > most {
            self.entries.pop_front();
        }
    }

    /// Grows by as much as there is, but not beyond what can be of use.
    fn make_room(&mut self, most: usize) {
        if self.is_at_capacity() {
            let length = self.entries.len();
            let more = length.max(FIRST_ENTRIES).min(most.saturating_sub(length)).max(1);
            self.entries.reserve_exact(more);
        }
    }

    /// Drops what counts no more, and the memory it took.
    fn forget(&mut self, sight: Sight, now: Timestamp) {
        let now = self.latest(now);
        while let Some(first) = self.entries.front().filter(|first| sight.end(first.at) <= now) {
            self.before = first.total;
            self.entries.pop_front();
        }
        if self.entries.capacity() > WORTH_SHRINKING.max(4 * self.entries.len()) {
            self.entries.shrink_to(2 * self.entries.len());
        }
    }

    fn give_back(&mut self, units: u32, sum: &Sum, sight: Sight) {
        self.drop_last(units.min(sum.full));
        let rest = units.saturating_sub(sum.full);
        if rest > 0 && sum.overlap > 0 {
            let left = sum.weight(sight).saturating_sub(rest);
            // The most of which no more than that still counts.
            let whole = u128::from(left) * u128::from(sight.tick) / u128::from(sum.overlap);
            self.drop_last(sum.fading.saturating_sub(u32::try_from(whole).unwrap_or(u32::MAX)));
        }
        if sum.used(sight) <= units {
            self.entries.clear();
        }
    }

    /// Takes `units` off the end, entry by entry.
    fn drop_last(&mut self, mut units: u32) {
        while let Some(last) = self.entries.len().checked_sub(1).filter(|_| units > 0) {
            let of_last = self.units(last);
            if of_last > units {
                if let Some(entry) = self.entries.back_mut() {
                    entry.total = entry.total.wrapping_sub(units);
                }
                return;
            }
            units -= of_last;
            self.entries.pop_back();
        }
    }
}
