//! Flow control of what is received (RFC 9113 section 5.2): how much the peer may send before it is read.
//!
//! Only the window of a stream holds its peer back. The connection's window is large, and what arrives is given back at
//! once, so data that one stream does not read takes nothing from another. Memory is limited by the sum of the streams'
//! windows: each has a small one of its own, which grows out of a budget that all streams share while its data is read.

use super::error::Reason;
use super::frame::FrameKind;
use super::settings::{CONNECTION_WINDOW, DEFAULT_WINDOW, Http2Settings};
use super::shared::Http2State;
use super::stream::{ReceivedData, StreamState};

/// A stream may take this part of what is left of the shared budget, so that something is left for the next one.
const BUDGET_DIVISOR: u32 = 8;

/// Windows of a connection that are granted to the peer.
#[derive(Debug)]
pub(super) struct ReceiveWindows {
    /// Bytes that the peer may still send on all streams.
    pub(super) left: i64,
    /// Bytes to be given back that were not announced to the peer.
    pub(super) released: u32,
    /// Bytes that are given back when they have been read: those that arrived before `is_acknowledged`.
    pub(super) unread: u32,
    /// Whether the peer has applied the windows of our settings. Until then a client may fill the default windows of any
    /// number of streams, and only the connection's window limits it.
    pub(super) is_acknowledged: bool,
    /// What is left of the shared budget.
    pub(super) budget: u32,
}

impl ReceiveWindows {
    pub(super) fn new(is_server: bool, settings: &Http2Settings) -> Self {
        Self {
            left: settings.first_connection_window(is_server).into(),
            released: 0,
            unread: 0,
            // A server has applied the settings of a client before its requests.
            is_acknowledged: !is_server,
            budget: settings.shared_window,
        }
    }
}

impl Http2State {
    /// Returns the window with which the peer opens a stream, or begins the response to a request.
    pub(super) fn first_stream_window(&self) -> u32 {
        let window = self.settings.stream_window;
        if self.receive.is_acknowledged { window } else { window.max(DEFAULT_WINDOW) }
    }

    /// Records bytes of DATA, on any stream.
    ///
    /// # Errors
    /// FLOW_CONTROL_ERROR if the connection's window does not permit them.
    pub(super) fn count_received(&mut self, bytes: u32) -> Result<(), Reason> {
        self.receive.left -= i64::from(bytes);
        if bytes > 0 && self.receive.left < 0 {
            return Err(Reason::FLOW_CONTROL_ERROR);
        }
        if self.receive.is_acknowledged {
            self.grow_connection_window(bytes);
        } else {
            self.receive.unread = self.receive.unread.saturating_add(bytes);
        }
        Ok(())
    }

    /// Handles the acknowledgement of our settings: the windows of all streams are as small as they state from now on, and
    /// the connection's window is not needed any more.
    pub(super) fn settings_acknowledged(&mut self) {
        if self.receive.is_acknowledged {
            return;
        }
        let before = self.first_stream_window();
        self.receive.is_acknowledged = true;
        let cut = i64::from(before - self.settings.stream_window);
        for stream in self.streams.values() {
            // May become negative: the peer has sent more before it has seen the settings.
            stream.state.borrow_mut().receive_window -= cut;
        }
        let unread = std::mem::take(&mut self.receive.unread);
        let more = CONNECTION_WINDOW.saturating_sub(self.settings.first_connection_window(self.is_server));
        self.grow_connection_window(unread.saturating_add(more));
    }

    /// Permits the peer to send bytes that were read or discarded again, on the connection.
    pub(super) fn give_back(&mut self, bytes: u32) {
        // Otherwise it was permitted when they arrived.
        let bytes = bytes.min(self.receive.unread);
        if bytes > 0 {
            self.receive.unread -= bytes;
            self.grow_connection_window(bytes);
        }
    }

    fn grow_connection_window(&mut self, bytes: u32) {
        self.receive.released = self.receive.released.saturating_add(bytes);
        if self.end.is_none() && is_update_due(self.receive.released, self.receive.left) {
            let increment = std::mem::take(&mut self.receive.released);
            self.receive.left += i64::from(increment);
            self.put_reply(FrameKind::WindowUpdate, 0, 0, &increment.to_be_bytes());
            self.wake();
        }
    }

    /// Discards what was received on a stream, and what will be.
    pub(super) fn discard_received(&mut self, stream: &mut StreamState) {
        stream.is_unread = true;
        stream.received = ReceivedData::default();
        let unread = std::mem::take(&mut stream.unreleased);
        self.give_back(unread);
        let extra = std::mem::take(&mut stream.extra_window);
        self.receive.budget = self.receive.budget.saturating_add(extra);
    }

    /// Permits the peer to send as many bytes again, on a stream and on the connection.
    pub(super) fn release_window(&mut self, id: u32, stream: &mut StreamState, bytes: u32) {
        let bytes = bytes.min(stream.unreleased);
        stream.unreleased -= bytes;
        self.give_back(bytes);
        stream.released = stream.released.saturating_add(bytes);
        if stream.receive_ended || stream.is_closed() || stream.is_unread || self.end.is_some() {
            return;
        }
        if is_update_due(stream.released, stream.receive_window) {
            self.resize_stream_window(stream);
            let increment = std::mem::take(&mut stream.released);
            if increment > 0 {
                stream.receive_window += i64::from(increment);
                self.put_reply(FrameKind::WindowUpdate, 0, id, &increment.to_be_bytes());
                self.wake();
            }
        }
    }

    /// Changes the window of a stream whose data is read: it grows while there is budget, and shrinks while others have
    /// used most of it.
    fn resize_stream_window(&mut self, stream: &mut StreamState) {
        let budget = self.receive.budget;
        if budget < self.settings.shared_window / BUDGET_DIVISOR {
            let cut = stream.extra_window.div_ceil(2).min(stream.released);
            stream.released -= cut;
            stream.extra_window -= cut;
            self.receive.budget = budget.saturating_add(cut);
            return;
        }
        let max = self.settings.max_stream_window.saturating_sub(self.settings.stream_window);
        let wanted = max.saturating_sub(stream.extra_window);
        // A body of known length needs no more than what is left of it.
        let to_come = stream.remaining.map_or(u32::MAX, |left| u32::try_from(left).unwrap_or(u32::MAX));
        let more = wanted.min(budget / BUDGET_DIVISOR).min(to_come);
        stream.released = stream.released.saturating_add(more);
        stream.extra_window += more;
        self.receive.budget = budget - more;
    }
}

/// Whether released bytes are announced to the peer: when they are half of what it may still send.
fn is_update_due(released: u32, window: i64) -> bool {
    released > 0 && i64::from(released) >= window / 2
}
