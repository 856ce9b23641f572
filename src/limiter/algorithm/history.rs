//! What happened when: units in the order in which they were charged, for limits that look back exactly.
//!
//! A log tells every nanosecond apart; a precise sliding window is a log whose clock ticks once per sub-window,
//! so that at most as many entries as there are sub-windows, and one, are ever needed. Units count fully for as
//! long as the quota looks back, then, over one more tick, less and less: for a log that is a nanosecond.
//!
//! Entries carry running totals, so that how much is in use, and when how much will be, are found by halving. A
//! history is not copied like the twelve bytes of other counters: it is looked at where it is kept, and `follow`
//! makes it say what a decision has said in short.
//!
//! A debt, which is what a late charge adds beyond the count, is paid at the limit's rate: each unit of it counts from
//! the moment on at which the unit so many before it begins to fade, so its entry may lie in the future.

use std::collections::VecDeque;
use std::time::Duration;

use super::lookback::LookbackWindow;
use super::{Outcome, State, lump};
use crate::limiter::quota::{MOST_LOGGED, Quota};
use crate::limiter::timestamp::Timestamp;

/// The most entries whatever the quota says: an elastic log may have more units than requests it remembers.
const MOST_ENTRIES: u64 = 4 * MOST_LOGGED as u64;
/// Entries that a history begins with.
const FIRST_ENTRIES: usize = 2;
/// Smaller histories keep their room when they are emptied.
const WORTH_SHRINKING: usize = 16;

/// The units of one counter, by the time at which they were charged.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Running total before the first entry; totals wrap, their differences do not.
    before: u32,
    /// A lowered limit has left more in use than the count, or entries closer together than the count allows. None of it
    /// is a debt where the history is said in short, as in a lump.
    lapses: bool,
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

/// What bounds a history.
#[derive(Clone, Copy, Debug)]
struct Room {
    /// Units that the quota has.
    count: u32,
    /// Whether it may ask for memory.
    may_grow: bool,
}

/// Units at one moment.
struct Sum {
    full: u32,
    /// Of the entry that fades, and for how much of a tick more they count.
    fading: u32,
    overlap: u64,
}

impl Room {
    /// Entries of two rounds of the count, one between them, and one that fades.
    fn most(self) -> usize {
        (2 * u64::from(self.count) + 2).min(MOST_ENTRIES) as usize
    }
}

impl Sum {
    /// Fading units count by how much of their tick is still seen, rounded up.
    fn weight(&self, window: LookbackWindow) -> u32 {
        let weight = (u128::from(self.fading) * u128::from(self.overlap)).div_ceil(window.tick.into());
        u32::try_from(weight).unwrap_or(u32::MAX)
    }

    fn used(&self, window: LookbackWindow) -> u32 {
        self.full.saturating_add(self.weight(window))
    }
}

impl History {
    /// What a counter said in short, as one entry, or two where it is in debt.
    pub fn of(state: State, quota: &Quota, now: Timestamp) -> Self {
        let window = LookbackWindow::of(quota);
        let mut history = Self::default();
        let lump = lump::at(Some(state), quota, now);
        if lump.extra == 0 {
            return history;
        }
        history.lapses = lump.extra > count_of(quota) && !lump::is_in_debt(lump, quota, now);
        let at = window.tick_of(lump.word.saturating_sub(window.full).saturating_sub(window.tick));
        let last = match count_of(quota) {
            count if lump.extra > count && !history.lapses => (lump.extra - 1) % count + 1,
            _ => lump.extra,
        };
        if lump.extra > last {
            let before = window.tick_of(at.saturating_sub(window.full));
            history.entries.push_back(Entry { at: before, total: lump.extra - last });
        }
        history.entries.push_back(Entry { at, total: lump.extra });
        history
    }

    /// The counter in short: units in use, and when the last of them counts no more.
    pub fn in_short(&self, quota: &Quota, now: Timestamp) -> State {
        let window = LookbackWindow::of(quota);
        self.short(self.sum(window, now).used(window), quota, now)
    }

    /// As [`super::evaluate`].
    pub(super) fn evaluate(&self, quota: &Quota, cost: u32, now: Timestamp) -> (State, Outcome) {
        let window = LookbackWindow::of(quota);
        let used = self.sum(window, now).used(window);
        let count = count_of(quota);
        if let Some(next) = used.checked_add(cost).filter(|next| *next <= count) {
            let end = if cost > 0 { window.end(self.tick(window, now)) } else { 0 };
            let state = self.short(next, quota, now);
            return (State { word: state.word.max(end), ..state }, Outcome::Conform);
        }
        let retry_after = count.checked_sub(cost).map(|room| {
            let moment = self.moment_of(room, window);
            Duration::from_nanos(moment.saturating_sub(now.as_nanos()))
        });
        (self.short(used, quota, now), Outcome::Exceed { retry_after })
    }

    /// Makes it say what `state` says: more units than are in use are charged now; where there are fewer, what
    /// was charged last is given back. Without `may_grow` it asks for no memory, and units seem younger than
    /// they are where there is no entry for them.
    pub fn follow(&mut self, state: State, quota: &Quota, now: Timestamp, may_grow: bool) {
        let window = LookbackWindow::of(quota);
        let sum = self.sum(window, now);
        // Units of a debt that were put together stay longer than they are said to be in use.
        let said = self.short(sum.used(window), quota, now).extra;
        if state.extra == 0 {
            self.entries.clear();
        } else if state.extra >= said {
            let room = Room { count: count_of(quota), may_grow };
            self.charge((said, state.extra - said), window, now, room);
        } else {
            self.give_back(said - state.extra, &sum, window);
        }
    }

    /// Gives back up to `units` that were charged at `charged`, as far as they still count. A debt moves up into the
    /// room that they leave, so that it is paid as if they had never been charged. `may_grow` as in [`Self::follow`].
    pub fn refund(
        &mut self,
        units: u32,
        quota: &Quota,
        (charged, now): (Timestamp, Timestamp),
        may_grow: bool,
    ) {
        let window = LookbackWindow::of(quota);
        let tick = window.tick_of(charged.as_nanos());
        // Where there was no entry for them they are in a later one.
        let index = self.entries.partition_point(|entry| entry.at < tick);
        if window.end(tick) <= now.as_nanos() || index == self.entries.len() {
            return;
        }
        let debt = self.first_after(now);
        let owed = self.total().wrapping_sub(self.total_before(debt));
        let there = if index < debt { units.min(self.units(index)) } else { 0 };
        self.take(there, index);
        // The rest was charged as a debt, if it is not paid by now.
        let rest = (units - there).min(owed);
        if there == 0 || owed == 0 {
            return self.drop_last(rest);
        }
        let room = Room { count: count_of(quota), may_grow };
        // Units that were put together stay longer than they are owed.
        let last = self.entries.back().map_or(0, |entry| entry.at);
        let rounds = last.saturating_sub(now.as_nanos()).div_ceil(window.full.max(1));
        let due = match self.lapses {
            true => owed,
            false => u32::try_from(rounds.saturating_mul(room.count.into())).unwrap_or(u32::MAX),
        };
        self.drop_last(owed);
        let used = self.sum(window, now).used(window);
        self.charge((used, owed.min(due).saturating_sub(rest)), window, now, room);
    }

    /// Every entry times `to / from`, rounded up in such a way that no sum grows by more than one unit.
    pub(super) fn scale(&mut self, from: u32, to: u32) {
        let before = std::mem::take(&mut self.before);
        for entry in &mut self.entries {
            let units = u64::from(entry.total.wrapping_sub(before)) * u64::from(to);
            entry.total = u32::try_from(units.div_ceil(from.max(1).into())).unwrap_or(u32::MAX);
        }
    }

    /// From now on the quota has another count.
    pub(super) fn pass_to(&mut self, from: &Quota, to: &Quota) {
        self.lapses |= count_of(to) < count_of(from);
    }

    /// From when on it says no more than a counter that nobody has used; nanoseconds since the epoch.
    pub(in crate::limiter) fn end(&self, quota: &Quota) -> u64 {
        self.entries.back().map_or(0, |entry| LookbackWindow::of(quota).end(entry.at))
    }

    /// Whether it has to ask for memory before it can take another entry.
    pub(in crate::limiter) fn is_at_capacity(&self) -> bool {
        self.entries.len() == self.entries.capacity()
    }

    /// Bytes of its entries.
    pub(in crate::limiter) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    fn short(&self, used: u32, quota: &Quota, now: Timestamp) -> State {
        let Some(last) = self.entries.back() else { return State { word: 0, extra: used } };
        let window = LookbackWindow::of(quota);
        let state = State { word: window.end(last.at), extra: used };
        if last.at > now.as_nanos() && self.lapses {
            return lump::leaving(state, quota);
        }
        if last.at <= now.as_nanos() {
            return lump::lapsing(state, quota, now);
        }
        // Entries that were put together stay longer than their units; the rounds until the last one ends do not.
        lump::at(Some(lump::owing(state, quota)), quota, now)
    }

    /// The tick for units that are charged now: the youngest entry's where the clock has stepped back behind it.
    fn tick(&self, window: LookbackWindow, now: Timestamp) -> u64 {
        self.entries.back().map_or(0, |entry| entry.at).max(window.tick_of(now.as_nanos()))
    }

    /// The first entry of a debt.
    fn first_after(&self, now: Timestamp) -> usize {
        self.entries.partition_point(|entry| entry.at <= now.as_nanos())
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

    fn sum(&self, window: LookbackWindow, now: Timestamp) -> Sum {
        let now = now.as_nanos();
        let first_full = self.entries.partition_point(|entry| entry.at.saturating_add(window.full) <= now);
        let full = self.total().wrapping_sub(self.total_before(first_full));
        let before = first_full.checked_sub(1).and_then(|index| Some((index, self.entries.get(index)?.at)));
        match before.map(|(index, at)| (self.units(index), window.end(at).saturating_sub(now))) {
            Some((fading, overlap @ 1..)) => Sum { full, fading, overlap },
            _ => Sum { full, fading: 0, overlap: 0 },
        }
    }

    /// When no more than `units` will be in use, which are fewer than there are now.
    fn moment_of(&self, units: u32, window: LookbackWindow) -> u64 {
        let total = self.total();
        // The entry that has to fade: with it there are too many, with those after it there are not.
        let index = self.entries.partition_point(|entry| total.wrapping_sub(entry.total) > units);
        let Some(entry) = self.entries.get(index) else { return 0 };
        let left = units - total.wrapping_sub(entry.total);
        let overlap = u128::from(left) * u128::from(window.tick) / u128::from(self.units(index).max(1));
        window.end(entry.at).saturating_sub(u64::try_from(overlap).unwrap_or(u64::MAX))
    }

    /// Charges `units` beside those that are said to be in use.
    fn charge(&mut self, (used, units): (u32, u32), window: LookbackWindow, now: Timestamp, room: Room) {
        self.forget(window, now);
        let tick = self.tick(window, now);
        let units = units.min(u32::MAX - self.total().wrapping_sub(self.before));
        let full = self.sum(window, now).full;
        // Units dated by a larger count may lie ahead as well.
        self.lapses &= full > room.count;
        // As long as those that count fully are no more than the count nobody has to fade before.
        let paid = units.min(room.count.saturating_sub(full));
        self.push(paid, tick, room);
        let owed = units - paid;
        if owed > 0 && !room.may_grow && !self.has_spare_entries() {
            let rounds = u64::from(used.saturating_add(units) - 1) / u64::from(room.count);
            let last = window.tick_of(now.as_nanos()).saturating_add(window.full.saturating_mul(rounds));
            self.push(owed, last.max(tick), room);
        } else {
            self.owe(owed, window, room);
        }
        // What is older than two rounds of the count decides nothing, as long as the rest is there.
        while self.entries.len() > room.most() {
            self.entries.pop_front();
        }
    }

    /// Whether a debt fits into the memory there is: an entry for each of the count before it, one that is split, and one
    /// between them.
    fn has_spare_entries(&self) -> bool {
        self.entries.capacity() - self.entries.len() >= self.entries.len() + 2
    }

    /// Charges `units` beyond the count, each for when the one a round of the count before it fades.
    fn owe(&mut self, units: u32, window: LookbackWindow, room: Room) {
        let Some(whole) = units.checked_sub(1).map(|before| before / room.count) else { return };
        let (rest, later) = (units - whole * room.count, window.full.saturating_mul(whole.into()));
        let end = self.total().wrapping_sub(self.before);
        let start = end.saturating_sub(room.count);
        let middle = start.saturating_add(rest).min(end);
        if whole > 0 {
            // Of many rounds only the last decides anything; what comes before it is taken for as young as its first.
            let between = (whole - 1) * room.count + rest;
            let first = self.date_of(middle.min(end.saturating_sub(1)));
            self.push(between, first.saturating_add(later), room);
            self.repeat((middle, end), later, room);
        }
        self.repeat((start, middle), later.saturating_add(window.full), room);
    }

    /// Charges as many units as there are from the first of two on and before the second, each so much later than that.
    fn repeat(&mut self, (mut unit, end): (u32, u32), later: u64, room: Room) {
        while unit < end {
            let index = self.holding(unit);
            let last =
                self.entries.get(index).map_or(0, |entry| entry.total.wrapping_sub(self.before)).min(end);
            self.push(last.max(unit + 1) - unit, self.date_of(unit).saturating_add(later), room);
            unit = last.max(unit + 1);
        }
    }

    /// The entry of the unit with this number, counted from the first that is remembered.
    fn holding(&self, unit: u32) -> usize {
        self.entries.partition_point(|entry| entry.total.wrapping_sub(self.before) <= unit)
    }

    fn date_of(&self, unit: u32) -> u64 {
        self.entries.get(self.holding(unit)).map_or(0, |entry| entry.at)
    }

    /// Charges `units` in the tick that begins at `at`, which is no earlier than that of the last entry.
    fn push(&mut self, units: u32, at: u64, room: Room) {
        if units == 0 {
            return;
        }
        let total = self.total().wrapping_add(units);
        let is_full = self.is_at_capacity() && !room.may_grow;
        match self.entries.back_mut() {
            Some(last) if last.at >= at => last.total = total,
            Some(last) if is_full => *last = Entry { at, total },
            // Without an entry there is nothing to be less exact with: the first is always made.
            _ => {
                self.make_room(room.most());
                self.entries.push_back(Entry { at, total });
            }
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
    fn forget(&mut self, window: LookbackWindow, now: Timestamp) {
        let now = now.as_nanos();
        while let Some(first) = self.entries.front().filter(|first| window.end(first.at) <= now) {
            self.before = first.total;
            self.entries.pop_front();
        }
        if self.entries.capacity() > WORTH_SHRINKING.max(4 * self.entries.len()) {
            self.entries.shrink_to(2 * self.entries.len());
        }
    }

    /// Takes `units` off the entry at `index`, which has as many.
    fn take(&mut self, units: u32, index: usize) {
        self.entries.range_mut(index..).for_each(|entry| entry.total = entry.total.wrapping_sub(units));
        if self.units(index) == 0 {
            self.entries.remove(index);
        }
    }

    fn give_back(&mut self, units: u32, sum: &Sum, window: LookbackWindow) {
        self.drop_last(units.min(sum.full));
        let rest = units.saturating_sub(sum.full);
        if rest > 0 && sum.overlap > 0 {
            let left = sum.weight(window).saturating_sub(rest);
            // The most of which no more than that still counts.
            let whole = u128::from(left) * u128::from(window.tick) / u128::from(sum.overlap);
            self.drop_last(sum.fading.saturating_sub(u32::try_from(whole).unwrap_or(u32::MAX)));
        }
        if sum.used(window) <= units {
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

/// Units that the quota has.
fn count_of(quota: &Quota) -> u32 {
    u32::try_from(quota.count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
