//! The timer of a request's body on its way to the upstream.

use std::cell::Cell;
use std::rc::Rc;
use std::task::Context;

use super::request::RequestTimer;
use super::{Timeout, TimeoutKind};

/// The timer of an upload, which ends when this is dropped.
#[derive(Debug)]
pub(in crate::proxy) struct UploadTimer {
    request: Rc<RequestTimer>,
    /// Which request of its connection it belongs to.
    number: u32,
    /// Of a stream: the upstream has not asked for more than it has got.
    is_held: Cell<bool>,
}

impl UploadTimer {
    /// The upload of `request` begins.
    pub(in crate::proxy) fn start(request: &Rc<RequestTimer>) -> Self {
        request.upload_started();
        Self { request: Rc::clone(request), number: request.number(), is_held: Cell::new(false) }
    }

    /// A part of the request's body has come.
    pub(in crate::proxy) fn received(&self, bytes: u64) {
        if self.is_current() {
            self.request.bytes_uploaded(bytes);
            self.hold(true);
        }
    }

    /// The next part of it is waited for.
    pub(in crate::proxy) fn awaits(&self) {
        self.hold(false);
        if self.is_current() {
            self.request.upload_awaited();
        }
    }

    /// Whether the client has been too slow with what is left of its request once the response is out. By then nothing but
    /// the upload serves a stream, so its task, that of `cx`, is woken for it.
    pub(in crate::proxy) fn is_expired(&self, cx: &Context<'_>) -> bool {
        let request = &self.request;
        if request.is_stream() {
            request.wake_upload_by(cx.waker());
        }
        let has_ended = request.is_stream() && !request.sends_response();
        has_ended && request.expired() == Some(TimeoutKind::StreamIdle)
    }

    /// The request's last byte has been read: nothing of it is left to linger for, nor held by the upstream.
    pub(in crate::proxy) fn is_whole(&self) {
        self.hold(false);
        if self.is_current() {
            self.request.body_is_read();
        }
    }

    /// The request's last byte is out: the response's head is due in `timeout`.
    pub(in crate::proxy) fn await_response(&self, timeout: Timeout) {
        if self.is_current() {
            self.request.await_response(timeout);
        }
    }

    fn hold(&self, is_held: bool) {
        if let Some(streams) = self.request.streams()
            && self.is_held.replace(is_held) != is_held
        {
            streams.hold_upload(is_held);
        }
    }

    /// Another request may have begun on the connection before this one's last byte was polled for.
    fn is_current(&self) -> bool {
        self.number == self.request.number()
    }
}

impl Drop for UploadTimer {
    fn drop(&mut self) {
        self.hold(false);
        if self.is_current() {
            self.request.upload_ended();
        }
    }
}
