//! Time of a worker's timers, in ticks.

use std::cell::Cell;

/// Ticks since the worker started, and the tick at which its drain began.
#[derive(Debug, Default)]
pub(super) struct Ticks {
    now: Cell<u32>,
    draining_since: Cell<Option<u32>>,
}

impl Ticks {
    pub(super) fn now(&self) -> u32 {
        self.now.get()
    }

    pub(super) fn advance(&self) {
        self.now.set(self.now.get().saturating_add(1));
    }

    pub(super) fn since(&self, tick: u32) -> u32 {
        self.now.get().saturating_sub(tick)
    }

    /// Records that the drain has begun.
    pub(super) fn drain(&self) {
        self.draining_since.set(Some(self.now.get()));
    }

    /// Returns the tick at which the drain began, if it has.
    pub(super) fn draining_since(&self) -> Option<u32> {
        self.draining_since.get()
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining_since.get().is_some()
    }
}
