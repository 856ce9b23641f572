//! Storage of one shard's charge histories, in bounded memory. Slots refer to them by number.
//!
//! Every history belongs to exactly one slot and is removed with it. If there is no memory for another history, a
//! counter continues as an aggregate in twelve bytes (see `algorithm::aggregate`): it is stricter then, but
//! no usage is lost.

use crate::algorithm::CounterState;
use crate::algorithm::history::History;
use crate::quota::Quota;
use crate::timestamp::Timestamp;

/// The histories of one shard.
#[derive(Debug)]
pub(super) struct Histories {
    slots: Vec<History>,
    free: Vec<u32>,
    bytes: usize,
    max_bytes: usize,
}

impl Histories {
    /// Creates storage without histories, for `max_bytes` bytes of them.
    pub(super) const fn new(max_bytes: usize) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), bytes: 0, max_bytes }
    }

    /// Returns the history with this number, which must be in use.
    pub(super) fn get(&self, number: u32) -> &History {
        &self.slots[number as usize]
    }

    pub(super) fn get_mut(&mut self, number: u32) -> &mut History {
        &mut self.slots[number as usize]
    }

    /// Creates a history from an aggregate; `None` if there is no room.
    pub(super) fn insert(&mut self, state: CounterState, quota: &Quota, now: Timestamp) -> Option<u32> {
        let history = History::from_state(state, quota, now);
        let bytes = footprint(&history);
        if self.bytes + bytes > self.max_bytes {
            return None;
        }
        self.bytes += bytes;
        if let Some(number) = self.free.pop() {
            self.slots[number as usize] = history;
            return Some(number);
        }
        let number = u32::try_from(self.slots.len()).ok()?;
        self.slots.push(history);
        Some(number)
    }

    /// Adds a copy of a history, whatever room there is; returns its number.
    pub(super) fn add_copy(&mut self, history: &History) -> u32 {
        self.bytes += footprint(history);
        self.slots.push(history.clone());
        u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
    }

    /// Changes a history to match `state`; it grows only if there is room.
    pub(super) fn apply_state(&mut self, number: u32, state: CounterState, quota: &Quota, now: Timestamp) {
        self.change(number, |history, may_grow| history.apply_state(state, quota, now, may_grow));
    }

    /// Gives back units charged at `charged`, as of `now`.
    pub(super) fn refund(
        &mut self,
        number: u32,
        units: u32,
        quota: &Quota,
        charged: Timestamp,
        now: Timestamp,
    ) {
        self.change(number, |history, may_grow| history.refund(units, quota, charged, now, may_grow));
    }

    fn change(&mut self, number: u32, change: impl FnOnce(&mut History, bool)) {
        let history = &mut self.slots[number as usize];
        let before = footprint(history);
        // A history at most doubles, or grows to its first entries.
        let may_grow = self.bytes + before <= self.max_bytes;
        change(history, may_grow);
        self.bytes = self.bytes - before + footprint(history);
    }

    /// Removes a history and frees its memory.
    pub(super) fn remove(&mut self, number: u32) {
        let history = std::mem::take(&mut self.slots[number as usize]);
        self.bytes -= footprint(&history);
        self.free.push(number);
    }

    /// Histories in use.
    #[cfg(test)]
    pub(super) fn live(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Bytes in use.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

fn footprint(history: &History) -> usize {
    size_of::<History>() + history.bytes()
}
