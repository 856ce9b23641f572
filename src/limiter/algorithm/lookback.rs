//! How far back limits look that remember when units were charged.

use super::{sliding_log, sliding_window};
use crate::limiter::quota::Quota;
use crate::limiter::timestamp::Timestamp;

/// How far back a quota looks, and how finely, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LookbackWindow {
    /// The length of a tick, and how long units take to fade.
    pub(super) tick: u64,
    /// How long they count fully after their tick has begun.
    pub(super) full: u64,
}

impl LookbackWindow {
    pub(super) fn of(quota: &Quota) -> Self {
        sliding_window::lookback(quota).unwrap_or_else(|| sliding_log::lookback(quota))
    }

    /// The beginning of the tick that `now` is in.
    pub(super) fn tick_of(self, now: u64) -> u64 {
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

    /// The same of units for which others have to be paid first, in so many rounds of the count.
    pub(super) fn end_after(self, rounds: u64, now: Timestamp) -> u64 {
        self.end_from(now).saturating_add(self.full.saturating_mul(rounds))
    }
}
