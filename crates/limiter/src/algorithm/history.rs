//! Charge history: the units of one counter with the time of each charge, for limits that look back exactly.
//!
//! A sliding log has a tick of one nanosecond. A precise sliding window is a log with one tick per sub-window, so it
//! needs at most one entry more than it has sub-windows. Units count fully while the quota looks back at their tick,
//! and fade over one more tick; for a log that is a nanosecond.
//!
//! Entries hold running totals, so that the units in use, and the time at which a given number will be in use, are
//! found by binary search. A history is not copied like the twelve bytes of other counters: it is read in place, and
//! `apply_state` applies a decision that was made on the aggregate.
//!
//! A debt, which is what a late charge adds beyond the count, is paid at the limit's rate. Each unit of it counts from
//! the moment at which the unit one count before it begins to fade, so its entry may lie in the future.

use std::collections::VecDeque;
use std::time::Duration;

use super::lookback::LookbackWindow;
use super::{CounterState, Outcome, aggregate};
use crate::quota::{MAX_LOGGED_UNITS, Quota};
use crate::timestamp::Timestamp;

/// Maximum number of entries under any quota. An elastic log may have more units than [`MAX_LOGGED_UNITS`].
const MAX_ENTRIES: u64 = 4 * MAX_LOGGED_UNITS as u64;
/// Initial capacity, in entries.
const FIRST_ENTRIES: usize = 2;
/// Capacity, in entries, up to which a history is not shrunk.
const WORTH_SHRINKING: usize = 16;

/// The units of one counter, by the time at which they were charged.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Running total before the first entry; totals wrap, their differences do not.
    total_before_first: u32,
    /// Set after a limit was lowered, which leaves more units in use than the count, or entries closer together than
    /// the count allows. The excess is then no debt in the aggregate; see [`aggregate`].
    excess_lapses: bool,
    entries: VecDeque<HistoryEntry>,
}

/// Units charged in one tick. Packed, because entries are nearly all the memory of a history.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed(4))]
struct HistoryEntry {
    /// Start of the tick, in nanoseconds since the epoch.
    at: u64,
    /// Running total at the end of the tick.
    total: u32,
}

/// Bounds of a history.
#[derive(Clone, Copy, Debug)]
struct HistoryBounds {
    /// Units of the quota.
    count: u32,
    /// Whether it may allocate memory.
    may_grow: bool,
}

/// Units in use at one moment.
struct UnitsInUse {
    full: u32,
    /// Units of the entry that fades, and the remaining nanoseconds for which they count.
    fading: u32,
    overlap: u64,
}

impl HistoryBounds {
    /// Maximum number of entries: two rounds of the count, one between them, and one that fades.
    fn max_entries(self) -> usize {
        (2 * u64::from(self.count) + 2).min(MAX_ENTRIES) as usize
    }
}

impl UnitsInUse {
    /// Units that fade, weighted by the part of their tick that still counts; rounded up.
    fn weight(&self, window: LookbackWindow) -> u32 {
        let weight = (u128::from(self.fading) * u128::from(self.overlap)).div_ceil(window.tick.into());
        u32::try_from(weight).unwrap_or(u32::MAX)
    }

    fn used(&self, window: LookbackWindow) -> u32 {
        self.full.saturating_add(self.weight(window))
    }
}

impl History {
    /// Creates a history from an aggregate: one entry, or two if it is in debt.
    pub fn from_state(state: CounterState, quota: &Quota, now: Timestamp) -> Self {
        let window = aggregate::lookback(quota);
        let mut history = Self::default();
        let lump = aggregate::state_at(Some(state), quota, now);
        if lump.extra == 0 {
            return history;
        }
        history.excess_lapses = lump.extra > count_of(quota) && !aggregate::is_in_debt(lump, quota, now);
        let at = window.tick_of(lump.word.saturating_sub(window.full).saturating_sub(window.tick));
        let last = match count_of(quota) {
            count if lump.extra > count && !history.excess_lapses => (lump.extra - 1) % count + 1,
            _ => lump.extra,
        };
        if lump.extra > last {
            let before = window.tick_of(at.saturating_sub(window.full));
            history.entries.push_back(HistoryEntry { at: before, total: lump.extra - last });
        }
        history.entries.push_back(HistoryEntry { at, total: lump.extra });
        history
    }

    /// Returns the aggregate: units in use, and the time at which the last of them expires.
    pub fn compact_state(&self, quota: &Quota, now: Timestamp) -> CounterState {
        let window = aggregate::lookback(quota);
        self.compacted(self.sum(window, now).used(window), quota, now)
    }

    /// As [`super::evaluate`].
    pub(super) fn evaluate(&self, quota: &Quota, cost: u32, now: Timestamp) -> (CounterState, Outcome) {
        let window = aggregate::lookback(quota);
        let used = self.sum(window, now).used(window);
        let count = count_of(quota);
        if let Some(next) = used.checked_add(cost).filter(|next| *next <= count) {
            let end = if cost > 0 { window.end(self.tick(window, now)) } else { 0 };
            let state = self.compacted(next, quota, now);
            return (CounterState { word: state.word.max(end), ..state }, Outcome::Conform);
        }
        let retry_after = count.checked_sub(cost).map(|room| {
            let moment = self.time_when_in_use(room, window);
            Duration::from_nanos(moment.saturating_sub(now.as_nanos()))
        });
        (self.compacted(used, quota, now), Outcome::Exceed { retry_after })
    }

    /// Changes the history to match `state`: if that has more units in use, the difference is charged now; if fewer,
    /// the units charged last are given back. Without `may_grow` it allocates nothing; units without an entry of their
    /// own then seem younger than they are.
    pub fn apply_state(&mut self, state: CounterState, quota: &Quota, now: Timestamp, may_grow: bool) {
        let window = aggregate::lookback(quota);
        let sum = self.sum(window, now);
        // Merged units of a debt keep their entry longer than they are reported as in use.
        let said = self.compacted(sum.used(window), quota, now).extra;
        if state.extra == 0 {
            self.entries.clear();
        } else if state.extra >= said {
            let room = HistoryBounds { count: count_of(quota), may_grow };
            self.charge(said, state.extra - said, window, now, room);
        } else {
            self.give_back(said - state.extra, &sum, window);
        }
    }

    /// Gives back up to `units` that were charged at `charged`, as far as they still count. A debt is dated anew into
    /// the room that they leave, so that it is paid as if they had never been charged. `may_grow` as in
    /// [`Self::apply_state`].
    pub fn refund(&mut self, units: u32, quota: &Quota, charged: Timestamp, now: Timestamp, may_grow: bool) {
        let window = aggregate::lookback(quota);
        let tick = window.tick_of(charged.as_nanos());
        // Units that got no entry of their own are in a later one.
        let index = self.entries.partition_point(|entry| entry.at < tick);
        if window.end(tick) <= now.as_nanos() || index == self.entries.len() {
            return;
        }
        let debt = self.first_after(now);
        let owed = self.total().wrapping_sub(self.total_before(debt));
        let there = if index < debt { units.min(self.units(index)) } else { 0 };
        self.take_units(there, index);
        // The rest was charged as a debt, if it is not paid yet.
        let rest = (units - there).min(owed);
        if there == 0 || owed == 0 {
            return self.drop_last(rest);
        }
        let room = HistoryBounds { count: count_of(quota), may_grow };
        // Merged units keep their entry longer than they are owed.
        let last = self.entries.back().map_or(0, |entry| entry.at);
        let rounds = last.saturating_sub(now.as_nanos()).div_ceil(window.full.max(1));
        let due = match self.excess_lapses {
            true => owed,
            false => u32::try_from(rounds.saturating_mul(room.count.into())).unwrap_or(u32::MAX),
        };
        self.drop_last(owed);
        let used = self.sum(window, now).used(window);
        self.charge(used, owed.min(due).saturating_sub(rest), window, now, room);
    }

    /// Multiplies every entry by `to / from`, rounding up so that no sum grows by more than one unit.
    pub(super) fn scale(&mut self, from: u32, to: u32) {
        let before = std::mem::take(&mut self.total_before_first);
        for entry in &mut self.entries {
            let units = u64::from(entry.total.wrapping_sub(before)) * u64::from(to);
            entry.total = u32::try_from(units.div_ceil(from.max(1).into())).unwrap_or(u32::MAX);
        }
    }

    /// Adapts the history to a change of the quota's count.
    pub(super) fn adopt_quota(&mut self, from: &Quota, to: &Quota) {
        self.excess_lapses |= count_of(to) < count_of(from);
    }

    /// Time from which it is equivalent to an unused counter, in nanoseconds since the epoch.
    pub(crate) fn expires_at(&self, quota: &Quota) -> u64 {
        self.entries.back().map_or(0, |entry| aggregate::lookback(quota).end(entry.at))
    }

    /// Whether it must allocate memory before it can store another entry.
    pub(crate) fn is_at_capacity(&self) -> bool {
        self.entries.len() == self.entries.capacity()
    }

    /// Bytes of its entries.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<HistoryEntry>()
    }

    fn compacted(&self, used: u32, quota: &Quota, now: Timestamp) -> CounterState {
        let Some(last) = self.entries.back() else { return CounterState { word: 0, extra: used } };
        let window = aggregate::lookback(quota);
        let state = CounterState { word: window.end(last.at), extra: used };
        if last.at > now.as_nanos() && self.excess_lapses {
            return aggregate::with_excess_until_expiry(state, quota);
        }
        if last.at <= now.as_nanos() {
            return aggregate::with_lapsing_excess(state, quota, now);
        }
        // Merged entries exist longer than their units are owed; the rounds until the last entry ends bound the units.
        aggregate::state_at(Some(aggregate::with_excess_as_debt(state, quota)), quota, now)
    }

    /// Tick for units charged now: that of the youngest entry if the clock has stepped back behind it.
    fn tick(&self, window: LookbackWindow, now: Timestamp) -> u64 {
        self.entries.back().map_or(0, |entry| entry.at).max(window.tick_of(now.as_nanos()))
    }

    /// Index of the first entry in the future, which belongs to a debt.
    fn first_after(&self, now: Timestamp) -> usize {
        self.entries.partition_point(|entry| entry.at <= now.as_nanos())
    }

    fn total(&self) -> u32 {
        self.entries.back().map_or(self.total_before_first, |entry| entry.total)
    }

    fn total_before(&self, index: usize) -> u32 {
        index
            .checked_sub(1)
            .and_then(|before| self.entries.get(before))
            .map_or(self.total_before_first, |entry| entry.total)
    }

    fn units(&self, index: usize) -> u32 {
        self.entries.get(index).map_or(0, |entry| entry.total.wrapping_sub(self.total_before(index)))
    }

    fn sum(&self, window: LookbackWindow, now: Timestamp) -> UnitsInUse {
        let now = now.as_nanos();
        let first_full = self.entries.partition_point(|entry| entry.at.saturating_add(window.full) <= now);
        let full = self.total().wrapping_sub(self.total_before(first_full));
        let before = first_full.checked_sub(1).and_then(|index| Some((index, self.entries.get(index)?.at)));
        match before.map(|(index, at)| (self.units(index), window.end(at).saturating_sub(now))) {
            Some((fading, overlap @ 1..)) => UnitsInUse { full, fading, overlap },
            _ => UnitsInUse { full, fading: 0, overlap: 0 },
        }
    }

    /// Time at which at most `units` will be in use, which are fewer than now; nanoseconds since the epoch.
    fn time_when_in_use(&self, units: u32, window: LookbackWindow) -> u64 {
        let total = self.total();
        // The entry that has to fade: with it too many units are in use, with the entries after it not.
        let index = self.entries.partition_point(|entry| total.wrapping_sub(entry.total) > units);
        let Some(entry) = self.entries.get(index) else { return 0 };
        let left = units - total.wrapping_sub(entry.total);
        let overlap = u128::from(left) * u128::from(window.tick) / u128::from(self.units(index).max(1));
        window.end(entry.at).saturating_sub(u64::try_from(overlap).unwrap_or(u64::MAX))
    }

    /// Charges `units` in addition to the `used` ones.
    fn charge(&mut self, used: u32, units: u32, window: LookbackWindow, now: Timestamp, room: HistoryBounds) {
        self.forget(window, now);
        let tick = self.tick(window, now);
        let units = units.min(u32::MAX - self.total().wrapping_sub(self.total_before_first));
        let full = self.sum(window, now).full;
        // Units that were dated under a larger count may lie in the future as well.
        self.excess_lapses &= full > room.count;
        // Up to the count, no other unit has to begin to fade first.
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
        // Entries more than two rounds of the count old affect no decision while the others exist.
        while self.entries.len() > room.max_entries() {
            self.entries.pop_front();
        }
    }

    /// Whether the allocated memory has room for a debt: an entry for each existing one, one for an entry that is
    /// split, and one between the two rounds.
    fn has_spare_entries(&self) -> bool {
        self.entries.capacity() - self.entries.len() >= self.entries.len() + 2
    }

    /// Charges `units` beyond the count, each dated to the moment at which the unit one count before it begins to fade.
    fn owe(&mut self, units: u32, window: LookbackWindow, room: HistoryBounds) {
        let Some(whole) = units.checked_sub(1).map(|before| before / room.count) else { return };
        let (rest, later) = (units - whole * room.count, window.full.saturating_mul(whole.into()));
        let end = self.total().wrapping_sub(self.total_before_first);
        let start = end.saturating_sub(room.count);
        let middle = start.saturating_add(rest).min(end);
        if whole > 0 {
            // Of several rounds only the last one affects decisions; earlier units are dated like its first.
            let between = (whole - 1) * room.count + rest;
            let first = self.time_of_unit(middle.min(end.saturating_sub(1)));
            self.push(between, first.saturating_add(later), room);
            self.repeat(middle, end, later, room);
        }
        self.repeat(start, middle, later.saturating_add(window.full), room);
    }

    /// Charges copies of the units from `unit` up to `end`, each dated `later` nanoseconds after the original.
    fn repeat(&mut self, mut unit: u32, end: u32, later: u64, room: HistoryBounds) {
        while unit < end {
            let index = self.holding(unit);
            let last = self
                .entries
                .get(index)
                .map_or(0, |entry| entry.total.wrapping_sub(self.total_before_first))
                .min(end);
            self.push(last.max(unit + 1) - unit, self.time_of_unit(unit).saturating_add(later), room);
            unit = last.max(unit + 1);
        }
    }

    /// Index of the entry with this unit, counted from the first one stored.
    fn holding(&self, unit: u32) -> usize {
        self.entries.partition_point(|entry| entry.total.wrapping_sub(self.total_before_first) <= unit)
    }

    fn time_of_unit(&self, unit: u32) -> u64 {
        self.entries.get(self.holding(unit)).map_or(0, |entry| entry.at)
    }

    /// Charges `units` in the tick that begins at `at`, which is not before that of the last entry.
    fn push(&mut self, units: u32, at: u64, room: HistoryBounds) {
        if units == 0 {
            return;
        }
        let total = self.total().wrapping_add(units);
        let is_full = self.is_at_capacity() && !room.may_grow;
        match self.entries.back_mut() {
            Some(last) if last.at >= at => last.total = total,
            Some(last) if is_full => *last = HistoryEntry { at, total },
            // The first entry is always allocated, because there is none to merge with.
            _ => {
                self.make_room(room.max_entries());
                self.entries.push_back(HistoryEntry { at, total });
            }
        }
    }

    /// Doubles the capacity, but not beyond `max_entries` entries.
    fn make_room(&mut self, max_entries: usize) {
        if self.is_at_capacity() {
            let length = self.entries.len();
            let more = length.max(FIRST_ENTRIES).min(max_entries.saturating_sub(length)).max(1);
            self.entries.reserve_exact(more);
        }
    }

    /// Drops expired entries, and their memory.
    fn forget(&mut self, window: LookbackWindow, now: Timestamp) {
        let now = now.as_nanos();
        while let Some(first) = self.entries.front().filter(|first| window.end(first.at) <= now) {
            self.total_before_first = first.total;
            self.entries.pop_front();
        }
        if self.entries.capacity() > WORTH_SHRINKING.max(4 * self.entries.len()) {
            self.entries.shrink_to(2 * self.entries.len());
        }
    }

    /// Removes `units` from the entry at `index`, which has at least as many.
    fn take_units(&mut self, units: u32, index: usize) {
        self.entries.range_mut(index..).for_each(|entry| entry.total = entry.total.wrapping_sub(units));
        if self.units(index) == 0 {
            self.entries.remove(index);
        }
    }

    fn give_back(&mut self, units: u32, sum: &UnitsInUse, window: LookbackWindow) {
        self.drop_last(units.min(sum.full));
        let rest = units.saturating_sub(sum.full);
        if rest > 0 && sum.overlap > 0 {
            let left = sum.weight(window).saturating_sub(rest);
            // The maximum number of fading units whose weight is at most `left`.
            let whole = u128::from(left) * u128::from(window.tick) / u128::from(sum.overlap);
            self.drop_last(sum.fading.saturating_sub(u32::try_from(whole).unwrap_or(u32::MAX)));
        }
        if sum.used(window) <= units {
            self.entries.clear();
        }
    }

    /// Removes the last `units`, entry by entry.
    fn drop_last(&mut self, mut units: u32) {
        while let Some(last) = self.entries.len().checked_sub(1).filter(|_| units > 0) {
            let last_units = self.units(last);
            if last_units > units {
                if let Some(entry) = self.entries.back_mut() {
                    entry.total = entry.total.wrapping_sub(units);
                }
                return;
            }
            units -= last_units;
            self.entries.pop_back();
        }
    }
}

/// Units of the quota.
fn count_of(quota: &Quota) -> u32 {
    u32::try_from(quota.count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
