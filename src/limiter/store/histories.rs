//! Where the histories of one shard are kept: beside its slots, which hold their numbers, in bounded memory.
//!
//! Every history belongs to exactly one slot, and ends with it. Where there is no memory for another, a counter
//! goes on in twelve bytes (see `algorithm::lump`): it is stricter then, and nobody's quota is new.

use crate::limiter::algorithm::State;
use crate::limiter::algorithm::history::History;
use crate::limiter::quota::Quota;
use crate::limiter::timestamp::Timestamp;

/// The histories of one shard.
#[derive(Debug)]
pub(super) struct Histories {
    places: Vec<History>,
    free: Vec<u32>,
    bytes: usize,
    most: usize,
}

impl Histories {
    /// None yet, and room for `most` bytes of them.
    pub(super) const fn new(most: usize) -> Self {
        Self { places: Vec::new(), free: Vec::new(), bytes: 0, most }
    }

    /// The history of this number, which must be in use.
    pub(super) fn get(&self, number: u32) -> &History {
        &self.places[number as usize]
    }

    pub(super) fn get_mut(&mut self, number: u32) -> &mut History {
        &mut self.places[number as usize]
    }

    /// Begins a history with what a counter says in short; `None` if there is no room.
    pub(super) fn begin(&mut self, state: State, quota: &Quota, now: Timestamp) -> Option<u32> {
        let history = History::of(state, quota, now);
        let bytes = footprint(&history);
        if self.bytes + bytes > self.most {
            return None;
        }
        self.bytes += bytes;
        if let Some(number) = self.free.pop() {
            self.places[number as usize] = history;
            return Some(number);
        }
        let number = u32::try_from(self.places.len()).ok()?;
        self.places.push(history);
        Some(number)
    }

    /// Makes a history say what `state` says, growing only if there is room.
    pub(super) fn follow(&mut self, number: u32, state: State, quota: &Quota, now: Timestamp) {
        self.change(number, |history, may_grow| history.follow(state, quota, now, may_grow));
    }

    /// Takes back units charged at the first of two moments, at the second.
    pub(super) fn refund(&mut self, number: u32, units: u32, quota: &Quota, times: (Timestamp, Timestamp)) {
        self.change(number, |history, may_grow| history.refund(units, quota, times, may_grow));
    }

    fn change(&mut self, number: u32, change: impl FnOnce(&mut History, bool)) {
        let history = &mut self.places[number as usize];
        let before = footprint(history);
        // It grows by no more than it is large, or to its first entries.
        let may_grow = self.bytes + before <= self.most;
        change(history, may_grow);
        self.bytes = self.bytes - before + footprint(history);
    }

    /// Ends a history and gives back its memory.
    pub(super) fn end(&mut self, number: u32) {
        let history = std::mem::take(&mut self.places[number as usize]);
        self.bytes -= footprint(&history);
        self.free.push(number);
    }

    /// Histories in use.
    #[cfg(test)]
    pub(super) fn live(&self) -> usize {
        self.places.len() - self.free.len()
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
