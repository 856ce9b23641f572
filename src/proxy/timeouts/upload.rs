//! Timer of a request body on its way to the upstream.

use std::rc::Rc;
use std::task::Context;

use super::request::RequestTimer;
use super::{Timeout, TimeoutKind};

/// Timer of an upload, which ends when this is dropped.
#[derive(Debug)]
pub(in crate::proxy) struct UploadTimer {
    request: Rc<RequestTimer>,
    /// Number of the request on its connection.
    number: u32,
}

impl UploadTimer {
    pub(in crate::proxy) fn start(request: &Rc<RequestTimer>) -> Self {
        request.upload_started();
        Self { request: Rc::clone(request), number: request.number() }
    }

    /// Records that a part of the request body has arrived.
    pub(in crate::proxy) fn received(&self, bytes: u64) {
        if self.is_current() {
            self.request.bytes_uploaded(bytes);
        }
    }

    /// Records that the next part of the request body is awaited.
    pub(in crate::proxy) fn data_awaited(&self) {
        if self.is_current() {
            self.request.upload_awaited();
        }
    }

    /// Records that a limit holds a part of the request body that has arrived.
    pub(in crate::proxy) fn data_held(&self) {
        if self.is_current() {
            self.request.upload_held();
        }
    }

    /// Whether the client has been too slow with the rest of its request after the response was sent. By then, only the
    /// upload task still serves the stream, so the task of `cx` is registered to be woken.
    pub(in crate::proxy) fn is_expired(&self, cx: &Context<'_>) -> bool {
        let request = &self.request;
        if request.is_stream() {
            request.register_upload_waker(cx.waker());
        }
        let has_ended = request.is_stream() && !request.sends_response();
        has_ended && request.expired() == Some(TimeoutKind::StreamIdle)
    }

    /// Records that the last byte of the request has been read: nothing is left to linger for.
    pub(in crate::proxy) fn body_complete(&self) {
        if self.is_current() {
            self.request.body_read();
        }
    }

    /// Starts the response timeout after the last byte of the request.
    pub(in crate::proxy) fn await_response(&self, timeout: Timeout) {
        if self.is_current() {
            self.request.await_response(timeout);
        }
    }

    /// Whether the timer still belongs to this request. The next request may have begun before the end of this body was
    /// polled for.
    fn is_current(&self) -> bool {
        self.number == self.request.number()
    }
}

impl Drop for UploadTimer {
    fn drop(&mut self) {
        if self.is_current() {
            self.request.upload_ended();
        }
    }
}
