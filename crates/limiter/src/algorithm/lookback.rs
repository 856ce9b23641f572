//! The lookback window of algorithms that record when units were charged.

use crate::timestamp::Timestamp;

/// How far back a quota looks, and at which resolution, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LookbackWindow {
    /// Length of a tick, and of the time in which units fade.
    pub(super) tick: u64,
    /// How long units count fully, from the start of their tick.
    pub(super) full: u64,
}

impl LookbackWindow {
    /// Start of the tick that contains `now`.
    pub(super) fn tick_of(self, now: u64) -> u64 {
        now - now % self.tick
    }

    /// Time at which units charged in the tick that began at `at` expire.
    pub(super) fn end(self, at: u64) -> u64 {
        at.saturating_add(self.full).saturating_add(self.tick)
    }

    /// Time at which units charged at `now` expire.
    pub(super) fn end_from(self, now: Timestamp) -> u64 {
        self.end(self.tick_of(now.as_nanos()))
    }

    /// Time at which units charged at `now` expire, if `rounds` rounds of the count have to be paid first.
    pub(super) fn end_after(self, rounds: u64, now: Timestamp) -> u64 {
        self.end_from(now).saturating_add(self.full.saturating_mul(rounds))
    }
}
