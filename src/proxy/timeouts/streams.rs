//! State that the timers of one HTTP/2 connection's streams share.

use std::cell::Cell;

use super::STREAMS_IN_WINDOW;

/// The streams of one connection.
#[derive(Debug, Default)]
pub(super) struct StreamTracker {
    open: Cell<u32>,
    /// The tick at which the last stream ended.
    ended: Cell<u32>,
    /// Number of streams whose upload waits for the upstream.
    held_uploads: Cell<u32>,
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

    /// Records that the upload of a stream waits for the upstream, or no longer does.
    pub(super) fn hold_upload(&self, is_held: bool) {
        let held = self.held_uploads.get();
        self.held_uploads.set(if is_held { held + 1 } else { held.saturating_sub(1) });
    }

    #[cfg(test)]
    pub(super) fn held_uploads(&self) -> u32 {
        self.held_uploads.get()
    }

    /// Whether uploads that wait for the upstream may fill the connection's window and so block other streams.
    pub(super) fn window_may_be_full(&self) -> bool {
        self.held_uploads.get() >= STREAMS_IN_WINDOW
    }
}
