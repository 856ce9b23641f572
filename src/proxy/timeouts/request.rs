//! Timer of one request: from its head to the last byte of both bodies.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use super::min_rate::MinRate;
use super::response_timeout::{ResponseTimeout, Timeout};
use super::streams::StreamTracker;
use super::ticks::Ticks;
use super::{TimeoutKind, store, wake};
use crate::proxy::awaited::AwaitedClient;
use weir_upstream::RequestScarcity;

/// Timer of one request. Over HTTP/1.1 it is reused for the next request of the connection.
#[derive(Debug)]
pub(in crate::proxy) struct RequestTimer {
    ticks: Rc<Ticks>,
    /// HTTP/2: the state that all streams of the connection share.
    streams: Option<Rc<StreamTracker>>,
    /// Number of the request, so that the end of one request's upload is not attributed to the next.
    number: Cell<u32>,
    /// The tick at which the request ended; `None` while it is in flight.
    ended: Cell<Option<u32>>,
    /// What is still outstanding: the head of the response, its last byte, the last byte of the request, a flush.
    awaits_response: Cell<bool>,
    sends_response: Cell<bool>,
    uploads: Cell<bool>,
    unflushed: Cell<bool>,
    response_timeout: ResponseTimeout,
    /// The tick of the last progress, and the maximum time without progress while no response is due.
    progress: Cell<u32>,
    idle_timeout: Cell<u32>,
    min_rate: MinRate,
    has_unread_body: Cell<bool>,
    /// The client while an attempt is in flight whose response states the cost.
    awaits_cost: Cell<Option<AwaitedClient>>,
    /// Whether an upstream may work on the current attempt, and on an earlier one.
    is_attempt_sent: Cell<bool>,
    was_earlier_sent: Cell<bool>,
    expired: Cell<Option<TimeoutKind>>,
    waker: RefCell<Option<Waker>>,
    /// HTTP/2: the waker of the upload, which may outlive the task that serves the stream.
    upload_waker: RefCell<Option<Waker>>,
}

impl RequestTimer {
    pub(super) fn new(ticks: &Rc<Ticks>, streams: Option<Rc<StreamTracker>>) -> Self {
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
            awaits_cost: Cell::new(None),
            is_attempt_sent: Cell::new(false),
            was_earlier_sent: Cell::new(false),
            expired: Cell::new(None),
            waker: RefCell::default(),
            upload_waker: RefCell::default(),
        }
    }

    /// Starts a request whose head is complete.
    pub(super) fn start(&self, stream_idle_timeout: Duration) {
        self.number.set(self.number.get().wrapping_add(1));
        self.ended.set(None);
        self.awaits_response.set(true);
        self.sends_response.set(true);
        self.uploads.set(false);
        self.response_timeout.clear();
        self.set_stream_idle_timeout(stream_idle_timeout);
        self.min_rate.waive();
        // The previous request has been read completely, or this one could not have been read.
        self.has_unread_body.set(false);
        self.awaits_cost.set(None);
        self.is_attempt_sent.set(false);
        self.was_earlier_sent.set(false);
        self.expired.set(None);
        self.record_progress();
    }

    /// Whether this is the timer of an HTTP/2 stream.
    pub(in crate::proxy) fn is_stream(&self) -> bool {
        self.streams.is_some()
    }

    /// Records whether an attempt is in flight whose response states the cost, for this client.
    pub(in crate::proxy) fn set_awaits_cost(&self, client: Option<AwaitedClient>) {
        self.awaits_cost.set(client);
    }

    /// Returns the client if the upstream has some of the request, and the response that it owes states the cost.
    pub(in crate::proxy) fn awaits_cost(&self) -> Option<AwaitedClient> {
        self.awaits_cost.get().filter(|_| self.was_sent())
    }

    /// Returns whether an upstream may work on the request: some of it was sent in an attempt without a response.
    pub(in crate::proxy) fn was_sent(&self) -> bool {
        self.is_attempt_sent.get() || self.was_earlier_sent.get()
    }

    /// Returns the cell that is set while an upstream may work on the current attempt.
    pub(in crate::proxy) fn attempt_sent(&self) -> &Cell<bool> {
        &self.is_attempt_sent
    }

    /// Records the end of an attempt that is followed by another. An upstream may still work on it unless it responded.
    pub(in crate::proxy) fn attempt_ended(&self, has_response: bool) {
        if self.is_attempt_sent.take() && !has_response {
            self.was_earlier_sent.set(true);
        }
    }

    /// Returns the number of the request on its connection.
    pub(in crate::proxy) fn number(&self) -> u32 {
        self.number.get()
    }

    /// Returns the tick at which the request ended, if it has.
    pub(super) fn ended(&self) -> Option<u32> {
        self.ended.get()
    }

    /// Sets the maximum time without progress of the bodies.
    pub(in crate::proxy) fn set_stream_idle_timeout(&self, timeout: Duration) {
        self.idle_timeout.set(super::ticks(timeout));
    }

    /// Returns the maximum time without progress of the bodies, in whole ticks.
    pub(in crate::proxy) fn stream_idle_timeout(&self) -> Duration {
        super::TICK.saturating_mul(self.idle_timeout.get())
    }

    /// Requires a minimum rate of the client while permits are scarce. `counts_upload`: whether it also applies to
    /// the request body.
    pub(in crate::proxy) fn require_min_rate(&self, scarce: Rc<RequestScarcity>, counts_upload: bool) {
        self.min_rate.require(scarce, counts_upload);
    }

    /// Removes the minimum rate.
    pub(in crate::proxy) fn waive_min_rate(&self) {
        self.min_rate.waive();
    }

    /// Pauses the timeouts while the request is delayed.
    pub(in crate::proxy) fn pause_timeouts(&self) {
        self.response_timeout.suspend();
    }

    pub(in crate::proxy) fn is_paused(&self) -> bool {
        self.response_timeout.is_suspended()
    }

    /// Resumes the timeouts of a delayed request.
    pub(in crate::proxy) fn resume_timeouts(&self) {
        self.response_timeout.clear();
        self.record_progress();
    }

    /// Records that the client has sent or taken something.
    pub(in crate::proxy) fn record_progress(&self) {
        self.progress.set(self.ticks.now());
    }

    /// Records that a part of the response body is ready for the client.
    pub(in crate::proxy) fn data_ready(&self, bytes: usize) {
        self.record_progress();
        self.min_rate.data_ready(bytes);
    }

    /// Records that the next part of the response body is polled for: the client has taken the last one. Over HTTP/1.1,
    /// the connection has counted its bytes already.
    pub(in crate::proxy) fn data_polled(&self) {
        self.min_rate.data_taken(self.is_stream());
    }

    /// HTTP/1.1: records that the client has taken `count` bytes.
    pub(super) fn bytes_written(&self, count: usize) {
        self.record_progress();
        self.min_rate.moved(count as u64);
    }

    /// Records that a part of the request body has arrived.
    pub(super) fn bytes_uploaded(&self, count: u64) {
        self.record_progress();
        self.min_rate.upload_received(count);
    }

    /// Records that the next part of the request body is awaited.
    pub(super) fn upload_awaited(&self) {
        self.min_rate.upload_awaited();
    }

    /// Records that a part of the request body is held by a limit. The client owes nothing meanwhile.
    pub(super) fn upload_held(&self) {
        self.record_progress();
        self.min_rate.upload_received(0);
    }

    /// Starts a response timeout, after the last byte of the request or for a deadline of the client. If the head of
    /// the response has not arrived, it is due in `timeout`, or at its earlier due time if there is one.
    pub(in crate::proxy) fn await_response(&self, timeout: Timeout) {
        if self.awaits_response.get() {
            self.response_timeout.add(timeout, self.ticks.now());
        }
    }

    /// Awaits `future`, which needs the head of the response or a part of the request.
    ///
    /// # Errors
    /// The timeout of the request that expires before.
    pub(in crate::proxy) async fn limit<F: Future + Unpin>(
        &self,
        mut future: F,
    ) -> Result<F::Output, TimeoutKind> {
        poll_fn(|cx| {
            if let Poll::Ready(output) = Pin::new(&mut future).poll(cx) {
                return Poll::Ready(Ok(output));
            }
            // A short timeout has a timer of its own, which wakes this task.
            if let Poll::Ready(set_by) = self.response_timeout.poll_timer(cx) {
                return Poll::Ready(Err(TimeoutKind::Response(set_by)));
            }
            // Another one that expires wakes the task of this connection.
            match self.expired() {
                Some(expired @ (TimeoutKind::Response(_) | TimeoutKind::StreamIdle)) => {
                    Poll::Ready(Err(expired))
                }
                _ => Poll::Pending,
            }
        })
        .await
    }

    /// Records that the head of the response is available.
    pub(in crate::proxy) fn response_started(&self) {
        if matches!(self.expired.get(), Some(TimeoutKind::Response(_) | TimeoutKind::StreamIdle)) {
            self.expired.set(None);
        }
        self.awaits_response.set(false);
        self.response_timeout.clear();
        self.record_progress();
    }

    /// Whether the head of the response has not arrived yet.
    pub(in crate::proxy) fn awaits_response(&self) -> bool {
        self.awaits_response.get()
    }

    /// Whether the last byte of the response is still to come.
    pub(super) fn sends_response(&self) -> bool {
        self.sends_response.get()
    }

    /// Records that the last byte of the response is ready. The request lasts until that is flushed.
    pub(in crate::proxy) fn response_ended(&self) {
        self.response_started();
        self.min_rate.data_taken(false);
        self.sends_response.set(false);
        self.unflushed.set(true);
    }

    /// Records that all written bytes have been passed to the kernel.
    pub(super) fn flushed(&self) {
        if !self.sends_response.get() {
            self.unflushed.set(false);
            self.end_if_complete();
        }
    }

    /// Records that the upload of the request body has started.
    pub(super) fn upload_started(&self) {
        self.uploads.set(true);
    }

    /// Records that the upload of the request body has ended.
    pub(super) fn upload_ended(&self) {
        self.uploads.set(false);
        self.min_rate.upload_received(0);
        self.end_if_complete();
    }

    /// Marks a part of the request as unread: closing the connection then has to wait for the client.
    pub(in crate::proxy) fn must_linger(&self) {
        self.has_unread_body.set(true);
    }

    /// Records that the last byte of the request has been read.
    pub(super) fn body_read(&self) {
        self.has_unread_body.set(false);
    }

    pub(super) fn has_unread_body(&self) -> bool {
        self.has_unread_body.get()
    }

    /// Returns the timeout that has expired, if any.
    pub(in crate::proxy) fn expired(&self) -> Option<TimeoutKind> {
        self.expired.get()
    }

    /// Registers the task to wake when a timeout expires.
    pub(in crate::proxy) fn register_waker(&self, waker: &Waker) {
        store(&self.waker, waker);
    }

    pub(super) fn register_upload_waker(&self, waker: &Waker) {
        store(&self.upload_waker, waker);
    }

    fn end_if_complete(&self) {
        let is_open = self.sends_response.get() || self.uploads.get() || self.unflushed.get();
        if !is_open && self.ended.get().is_none() {
            self.expired.set(None);
            self.ended.set(Some(self.ticks.now()));
        }
    }

    /// Checks the timeouts, and wakes the request's tasks if one has expired.
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

    /// Whether the minimum rate applies to the request body. It does not while the response is being sent, when both
    /// sides may send at any time.
    fn is_upload_due(&self) -> bool {
        self.awaits_response.get() || !self.sends_response.get()
    }
}

impl Drop for RequestTimer {
    fn drop(&mut self) {
        if let Some(streams) = &self.streams {
            streams.closed(self.ticks.now());
        }
    }
}
