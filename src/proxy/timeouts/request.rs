//! The timer of one request: from its head to the last byte of both bodies.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::min_rate::MinRate;
use super::response_timeout::{ResponseTimeout, SetBy, Timeout};
use super::streams::Streams;
use super::ticks::Ticks;
use super::{TimeoutKind, store, wake};
use crate::upstream::Scarcity;

/// The timer of one request, which over HTTP/1.1 is used again for the next one of the connection.
#[derive(Debug)]
pub(in crate::proxy) struct RequestTimer {
    ticks: Rc<Ticks>,
    /// Of a stream of HTTP/2: all streams of its connection.
    streams: Option<Rc<Streams>>,
    /// Counts requests, so that the end of one's upload is not taken for another's.
    number: Cell<u32>,
    /// The tick at which it ended; `None` while it is in flight.
    ended: Cell<Option<u32>>,
    /// What is still to come: the response's head, its last byte, the request's last byte, the flush.
    awaits_response: Cell<bool>,
    sends_response: Cell<bool>,
    uploads: Cell<bool>,
    unflushed: Cell<bool>,
    response_timeout: ResponseTimeout,
    /// The tick of the last progress, and how long a body may make none while no response is due.
    progress: Cell<u32>,
    idle_timeout: Cell<u32>,
    min_rate: MinRate,
    has_unread_body: Cell<bool>,
    expired: Cell<Option<TimeoutKind>>,
    waker: RefCell<Option<Waker>>,
    /// Of a stream: its upload's, which may outlast the task that serves it.
    upload_waker: RefCell<Option<Waker>>,
}

impl RequestTimer {
    pub(super) fn new(ticks: &Rc<Ticks>, streams: Option<Rc<Streams>>) -> Self {
        Self {
            ticks: Rc::clone(ticks),
            streams,
            number: Cell::new(0),
            ended: Cell::new(Some(ticks.now())),
            awaits_response: Cell::new(false),
            sends_response: Cell::new(false),
            uploads: Cell::new(false),
            unflushed: Cell::new(false),
            response_timeout: ResponseTimeout::default(),
            progress: Cell::new(ticks.now()),
            idle_timeout: Cell::new(u32::MAX),
            min_rate: MinRate::default(),
            has_unread_body: Cell::new(false),
            expired: Cell::new(None),
            waker: RefCell::default(),
            upload_waker: RefCell::default(),
        }
    }

    /// A request's head is complete.
    pub(super) fn start(&self, stream_idle_timeout: Duration) {
        self.number.set(self.number.get().wrapping_add(1));
        self.ended.set(None);
        self.awaits_response.set(true);
        self.sends_response.set(true);
        self.uploads.set(false);
        self.response_timeout.clear();
        self.set_stream_idle_timeout(stream_idle_timeout);
        self.min_rate.waive();
        // The rest of the request before has been read, or this one would not be here.
        self.has_unread_body.set(false);
        self.expired.set(None);
        self.progress();
    }

    /// Whether this is the timer of a stream of HTTP/2.
    pub(in crate::proxy) fn is_stream(&self) -> bool {
        self.streams.is_some()
    }

    /// Which request of its connection this is.
    pub(super) fn number(&self) -> u32 {
        self.number.get()
    }

    /// The tick at which the request ended, if it has.
    pub(super) fn ended(&self) -> Option<u32> {
        self.ended.get()
    }

    /// How long bodies may make no progress.
    pub(in crate::proxy) fn set_stream_idle_timeout(&self, timeout: Duration) {
        self.idle_timeout.set(super::ticks(timeout));
    }

    /// The client has to move a minimum of bytes while requests are `scarce`; `counts_upload` says whether that holds for
    /// the request's body.
    pub(in crate::proxy) fn require_min_rate(&self, scarce: Rc<Scarcity>, counts_upload: bool) {
        self.min_rate.require(scarce, counts_upload);
    }

    /// From now on the client may take as long as it likes.
    pub(in crate::proxy) fn waive_min_rate(&self) {
        self.min_rate.waive();
    }

    /// Nothing of the request is due, it is delayed.
    pub(in crate::proxy) fn pause_timeouts(&self) {
        self.response_timeout.suspend();
    }

    /// A delayed request goes on.
    pub(in crate::proxy) fn resume_timeouts(&self) {
        self.response_timeout.clear();
        self.progress();
    }

    /// The client has sent or taken something.
    pub(in crate::proxy) fn progress(&self) {
        self.progress.set(self.ticks.now());
    }

    /// A part of the response's body is ready for the client, which has not taken it yet.
    pub(in crate::proxy) fn data_ready(&self, bytes: usize) {
        self.progress();
        self.min_rate.data_ready(bytes);
    }

    /// More of the response's body is polled for: the client has taken what was ready. Over HTTP/1.1 its connection has
    /// counted that already.
    pub(in crate::proxy) fn data_polled(&self) {
        self.min_rate.data_taken(self.is_stream());
    }

    /// The client has taken so many bytes of its connection.
    pub(super) fn bytes_written(&self, count: usize) {
        self.progress();
        self.min_rate.moved(count as u64);
    }

    /// A part of the request's body has come.
    pub(super) fn bytes_uploaded(&self, count: u64) {
        self.progress();
        self.min_rate.upload_received(count);
    }

    /// The next part of the request's body is waited for.
    pub(super) fn upload_awaited(&self) {
        self.min_rate.upload_awaited();
    }

    /// The request's last byte is out, or its client has set a deadline: the response's head, if it is still to come, is due
    /// in `timeout`, or when it was due before if that is earlier.
    pub(in crate::proxy) fn await_response(&self, timeout: Timeout) {
        if self.awaits_response.get() {
            self.response_timeout.add(timeout, self.ticks.now());
        }
    }

    /// Who set the response timeout that has expired, where a tick would be too coarse for it. Otherwise its timer wakes the
    /// task of `cx`.
    pub(in crate::proxy) fn poll_response_timeout(&self, cx: &mut Context<'_>) -> Poll<SetBy> {
        self.response_timeout.poll_timer(cx)
    }

    /// The response's head is here.
    pub(in crate::proxy) fn response_started(&self) {
        if matches!(self.expired.get(), Some(TimeoutKind::Response(_) | TimeoutKind::StreamIdle)) {
            self.expired.set(None);
        }
        self.awaits_response.set(false);
        self.response_timeout.clear();
        self.progress();
    }

    /// Whether the response's head is still to come.
    pub(in crate::proxy) fn awaits_response(&self) -> bool {
        self.awaits_response.get()
    }

    /// Whether the response's last byte is still to come.
    pub(super) fn sends_response(&self) -> bool {
        self.sends_response.get()
    }

    /// The response's last byte is ready; the request lasts until it is flushed.
    pub(in crate::proxy) fn response_ended(&self) {
        self.response_started();
        self.min_rate.data_taken(false);
        self.sends_response.set(false);
        self.unflushed.set(true);
    }

    /// All bytes written are with the kernel.
    pub(super) fn flushed(&self) {
        if !self.sends_response.get() {
            self.unflushed.set(false);
            self.end_if_complete();
        }
    }

    /// The request's body is on its way.
    pub(super) fn upload_started(&self) {
        self.uploads.set(true);
    }

    /// The request's body is no longer on its way.
    pub(super) fn upload_ended(&self) {
        self.uploads.set(false);
        self.min_rate.upload_received(0);
        self.end_if_complete();
    }

    /// Some of the request is unread, so that closing the connection has to wait for the client.
    pub(in crate::proxy) fn must_linger(&self) {
        self.has_unread_body.set(true);
    }

    /// The request's last byte has been read.
    pub(super) fn body_is_read(&self) {
        self.has_unread_body.set(false);
    }

    pub(super) fn has_unread_body(&self) -> bool {
        self.has_unread_body.get()
    }

    /// The timeout that has expired, if any.
    pub(in crate::proxy) fn expired(&self) -> Option<TimeoutKind> {
        self.expired.get()
    }

    /// Registers the task to wake when a timeout expires.
    pub(in crate::proxy) fn wake_by(&self, waker: &Waker) {
        store(&self.waker, waker);
    }

    pub(super) fn wake_upload_by(&self, waker: &Waker) {
        store(&self.upload_waker, waker);
    }

    /// All streams of the connection, of a stream of HTTP/2.
    pub(super) fn streams(&self) -> Option<&Streams> {
        self.streams.as_deref()
    }

    fn end_if_complete(&self) {
        let is_open = self.sends_response.get() || self.uploads.get() || self.unflushed.get();
        if !is_open && self.ended.get().is_none() {
            self.expired.set(None);
            self.ended.set(Some(self.ticks.now()));
        }
    }

    /// Checks the timeouts; wakes the request's tasks if one has expired.
    pub(super) fn sweep(&self) -> Option<TimeoutKind> {
        if self.expired.get().is_none() {
            self.expired.set(self.find_expired());
        }
        if self.expired.get().is_some() {
            wake(&self.waker);
            wake(&self.upload_waker);
        }
        self.expired.get()
    }

    fn find_expired(&self) -> Option<TimeoutKind> {
        if self.ended.get().is_some() {
            return None;
        }
        if self.min_rate.is_missed(self.is_upload_due()) {
            return Some(TimeoutKind::StreamIdle);
        }
        match self.response_timeout.get() {
            Some(due) => due.expired(self.ticks.now()).map(TimeoutKind::Response),
            None => {
                let elapsed = self.ticks.since(self.progress.get());
                (elapsed > self.idle_timeout.get()).then_some(TimeoutKind::StreamIdle)
            }
        }
    }

    /// Whether the request's body has to keep up: not while the response is on its way, when both sides may send when they
    /// like, nor while other streams of the connection may keep the client from sending.
    fn is_upload_due(&self) -> bool {
        let is_held_up = self.streams.as_ref().is_some_and(|streams| streams.window_may_be_full());
        (self.awaits_response.get() || !self.sends_response.get()) && !is_held_up
    }
}

impl Drop for RequestTimer {
    fn drop(&mut self) {
        if let Some(streams) = &self.streams {
            streams.closed(self.ticks.now());
        }
    }
}
