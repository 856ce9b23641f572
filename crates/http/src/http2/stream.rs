//! State of one stream (RFC 9113 section 5).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::task::{Context, Waker};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Response};

use super::error::{Http2Error, Reason};

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) id: u32,
    pub(super) state: RefCell<StreamState>,
    /// Whether the stream is in the connection's queue for capacity.
    pub(super) is_queued: Cell<bool>,
    /// Number of bytes that it would send then.
    pub(super) wanted: Cell<usize>,
    pub(super) handles: Cell<u32>,
}

/// What frames and handles change.
#[derive(Debug)]
pub(super) struct StreamState {
    /// Bytes that the peer may still send.
    pub(super) receive_window: i64,
    /// Received bytes that have not been released, whether read or not.
    pub(super) unreleased: u32,
    /// Released bytes that were not announced to the peer.
    pub(super) released: u32,
    /// Bytes of the shared budget by which the window is larger than the first one.
    pub(super) extra_window: u32,
    /// Bytes that may still be sent; negative after the peer has reduced its initial window.
    pub(super) send_window: i64,
    /// Data that was not read.
    pub(super) received: ReceivedData,
    pub(super) trailers: Option<Box<HeaderMap>>,
    /// Bytes of the body that are still to come, if the head states its length.
    pub(super) remaining: Option<u64>,
    /// Whether the peer has ended its direction.
    pub(super) receive_ended: bool,
    /// Whether this end has ended its direction.
    pub(super) send_ended: bool,
    /// Whether the head of the response was sent (server) or received (client).
    pub(super) has_response: bool,
    /// Whether what is received is discarded, because nothing reads it.
    pub(super) is_unread: bool,
    /// Why the stream has ended early.
    pub(super) end: Option<Http2Error>,
    /// Interim responses that were received and not taken.
    pub(super) interims: VecDeque<Response<()>>,
    /// The response, until it is taken.
    pub(super) response: Option<Box<Response<()>>>,
    /// What the `content-length` of the response means.
    pub(super) response_length: ResponseLength,
    receive_waker: Option<Waker>,
    send_waker: Option<Waker>,
}

/// What the `content-length` of a response means (RFC 9110 section 8.6), which depends on the method of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseLength {
    OfContent,
    /// The length that a response to GET would have. There is no content: HEAD.
    OfGet,
    /// Nothing, because a tunnel follows: CONNECT.
    Ignored,
}

/// Received data in its order: large pieces as they were received, then small ones in one buffer.
#[derive(Debug, Default)]
pub(super) struct ReceivedData {
    pieces: VecDeque<Bytes>,
    small: BytesMut,
}

impl ReceivedData {
    /// Appends a copy of a small piece.
    pub(super) fn push_small(&mut self, piece: &[u8]) {
        self.small.extend_from_slice(piece);
    }

    /// Appends a large piece.
    pub(super) fn push(&mut self, piece: Bytes) {
        if !self.small.is_empty() {
            self.pieces.push_back(std::mem::take(&mut self.small).freeze());
        }
        self.pieces.push_back(piece);
    }

    fn pop(&mut self) -> Option<Bytes> {
        match self.pieces.pop_front() {
            None if self.small.is_empty() => None,
            None => Some(std::mem::take(&mut self.small).freeze()),
            piece => piece,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.small.is_empty()
    }
}

impl StreamState {
    /// Creates the state of a stream whose windows have these sizes.
    pub(super) fn new(receive_window: u32, send_window: u32) -> Self {
        Self {
            receive_window: receive_window.into(),
            unreleased: 0,
            released: 0,
            extra_window: 0,
            send_window: send_window.into(),
            received: ReceivedData::default(),
            trailers: None,
            remaining: None,
            receive_ended: false,
            send_ended: false,
            has_response: false,
            is_unread: false,
            end: None,
            interims: VecDeque::new(),
            response: None,
            response_length: ResponseLength::OfContent,
            receive_waker: None,
            send_waker: None,
        }
    }

    /// Whether both directions have ended, or the stream was reset.
    pub(super) const fn is_closed(&self) -> bool {
        self.end.is_some() || (self.receive_ended && self.send_ended)
    }

    /// # Errors
    /// Why nothing can be sent any more.
    pub(super) fn check_open_for_sending(&self) -> Result<(), Http2Error> {
        match &self.end {
            Some(error) => Err(error.clone()),
            None if self.send_ended => Err(Http2Error::Cancelled(Reason::NO_ERROR)),
            None => Ok(()),
        }
    }

    /// Whether data may be sent, as far as the stream's own window is concerned.
    pub(super) const fn can_send(&self) -> bool {
        !self.is_closed() && !self.send_ended && self.send_window > 0
    }

    /// Returns the next received data. The rest of a stream that was reset can still be read.
    pub(super) fn pop_data(&mut self) -> Option<Bytes> {
        self.received.pop()
    }

    pub(super) fn set_receive_waker(&mut self, cx: &Context<'_>) {
        set_waker(&mut self.receive_waker, cx);
    }

    pub(super) fn set_send_waker(&mut self, cx: &Context<'_>) {
        set_waker(&mut self.send_waker, cx);
    }

    pub(super) fn wake_receiver(&mut self) {
        if let Some(waker) = self.receive_waker.take() {
            waker.wake();
        }
    }

    /// Returns whether a task waited.
    pub(super) fn wake_sender(&mut self) -> bool {
        self.send_waker.take().map(Waker::wake).is_some()
    }

    /// Ends the stream early, unless it has ended.
    pub(super) fn fail(&mut self, error: Http2Error) {
        self.end.get_or_insert(error);
        self.wake_receiver();
        self.wake_sender();
    }
}

fn set_waker(slot: &mut Option<Waker>, cx: &Context<'_>) {
    match slot {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *slot = Some(cx.waker().clone()),
    }
}

impl Stream {
    pub(super) const fn new(id: u32, state: StreamState) -> Self {
        Self {
            id,
            state: RefCell::new(state),
            is_queued: Cell::new(false),
            wanted: Cell::new(0),
            handles: Cell::new(0),
        }
    }
}
