//! The end of a connection: graceful shutdown, GOAWAY and errors (RFC 9113 sections 5.4 and 6.8).

use std::collections::VecDeque;

use super::error::{Http2Error, Reason};
use super::frame::{FrameKind, put_frame};
use super::settings::MAX_WINDOW;
use super::shared::{Http2State, Shutdown};

/// Payload of the PING by which the end of new streams is noticed.
const SHUTDOWN_PING: [u8; 8] = *b"shutdown";

impl Http2State {
    /// Begins the graceful shutdown of a server.
    pub(super) fn begin_shutdown(&mut self) {
        if self.shutdown == Shutdown::None && self.end.is_none() {
            self.shutdown = Shutdown::Announced;
            self.put_goaway(MAX_WINDOW, Reason::NO_ERROR);
            put_frame(self.output.buffer_mut(), FrameKind::Ping, 0, 0, &SHUTDOWN_PING);
            self.wake();
        }
    }

    /// Handles the acknowledgement of a PING: the peer has seen GOAWAY, and the streams that it has opened before have
    /// arrived.
    pub(super) fn ping_acknowledged(&mut self, payload: &[u8]) {
        if self.shutdown == Shutdown::Announced && payload == SHUTDOWN_PING {
            self.shutdown = Shutdown::Final;
            self.put_goaway(self.last_accepted, Reason::NO_ERROR);
        }
    }

    /// Handles GOAWAY of the peer.
    pub(super) fn peer_goes_away(&mut self, last: u32, reason: Reason) {
        self.peer_goes_away = true;
        if !self.is_server {
            let unprocessed: Vec<_> = self.streams.keys().copied().filter(|id| *id > last).collect();
            for id in unprocessed {
                if let Some(stream) = self.streams.remove(&id) {
                    self.dequeue(&stream);
                    stream.state.borrow_mut().fail(Http2Error::GoneAway(reason));
                }
            }
            self.waiting.retain(|waiting| waiting.id <= last);
            self.queue.wake_all();
        }
    }

    /// Appends GOAWAY.
    pub(super) fn put_goaway(&mut self, last: u32, reason: Reason) {
        let payload = (u64::from(last) << 32 | u64::from(reason.0)).to_be_bytes();
        put_frame(self.output.buffer_mut(), FrameKind::GoAway, 0, 0, &payload);
    }

    /// Appends GOAWAY without an error, unless it was sent.
    pub(super) fn announce_end(&mut self) {
        if self.shutdown != Shutdown::Final {
            self.shutdown = Shutdown::Final;
            self.put_goaway(self.last_accepted, Reason::NO_ERROR);
        }
    }

    /// Ends the connection with GOAWAY, because the peer has violated the protocol.
    pub(super) fn close_for_error(&mut self, reason: Reason) {
        if self.end.is_none() {
            self.put_goaway(self.last_accepted, reason);
            self.end_all(Http2Error::Violation(reason));
        }
    }

    /// Ends all streams with the connection.
    pub(super) fn end_all(&mut self, error: Http2Error) {
        for stream in std::mem::take(&mut self.streams).into_values() {
            stream.state.borrow_mut().fail(error.clone());
        }
        self.end.get_or_insert(error);
        self.waiting = VecDeque::new();
        self.queue.wake_all();
    }

    /// Whether nothing more will happen on the connection, so that it can be closed.
    pub(super) fn is_finished(&self) -> bool {
        let no_new_streams = self.shutdown == Shutdown::Final
            || self.peer_goes_away
            || (!self.is_server && self.queue.has_no_senders());
        no_new_streams && self.streams.is_empty()
    }
}
