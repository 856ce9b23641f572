//! State that the timers of one HTTP/2 connection's streams share.

use std::cell::Cell;

/// The streams of one connection.
#[derive(Debug, Default)]
pub(super) struct StreamTracker {
    open: Cell<u32>,
    /// The tick at which the last stream ended.
    ended: Cell<u32>,
}

impl StreamTracker {
    pub(super) fn opened(&self) {
        self.open.set(self.open.get().saturating_add(1));
    }

    pub(super) fn closed(&self, now: u32) {
        self.open.set(self.open.get().saturating_sub(1));
        self.ended.set(now);
    }

    /// Returns the tick since which there has been no stream, but not before `since`; `None` while there is one.
    pub(super) fn unused_since(&self, since: u32) -> Option<u32> {
        (self.open.get() == 0).then(|| since.max(self.ended.get()))
    }
}
