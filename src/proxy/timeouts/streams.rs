//! State that the timers of one HTTP/2 connection's streams share.

use std::cell::Cell;

/// The streams of one connection.
#[derive(Debug, Default)]
pub(super) struct StreamTracker {
    open: Cell<u32>,
    /// The tick at which the last stream ended.
    ended: Cell<u32>,
    /// Number of the incomplete header section or frame that the client is sending, if there is one.
    incomplete: Cell<Option<u64>>,
    /// The tick at which it began.
    incomplete_since: Cell<u32>,
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

    /// Records what the client is sending, since the tick `now` if it is something else than before.
    pub(super) fn receiving(&self, incomplete: Option<u64>, now: u32) {
        if self.incomplete.replace(incomplete) != incomplete {
            self.incomplete_since.set(now);
        }
    }

    /// Returns the tick since which the client has been sending the same header section or frame.
    pub(super) fn incomplete_since(&self) -> Option<u32> {
        self.incomplete.get().map(|_| self.incomplete_since.get())
    }
}
