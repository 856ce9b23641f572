//! Sending of a body, as far as flow control and the output buffer permit (RFC 9113 section 5.2).

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;

use super::error::{Http2Error, Reason};
use super::handle::StreamHandle;
use super::head::encode_trailers;

/// The sending direction of a stream whose head was sent.
#[derive(Debug)]
pub struct SendStream {
    pub(super) handle: StreamHandle,
}

impl SendStream {
    /// Returns how many bytes may be sent now, at least one. Pending while the peer's windows or the output buffer are
    /// full; then `wanted` returns how many bytes there are to be sent.
    ///
    /// # Errors
    /// Why the stream has ended.
    pub fn poll_capacity(
        &mut self,
        wanted: impl FnOnce() -> usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<usize, Http2Error>> {
        let queued = &self.handle.stream;
        self.handle.with(|connection, _, stream| {
            stream.check_open_for_sending()?;
            let window = usize::try_from(stream.send_window).unwrap_or(0);
            let capacity = window.min(connection.capacity());
            if window > 0 && capacity == 0 {
                connection.enqueue(queued, wanted());
            } else {
                connection.dequeue(queued);
                connection.wake_waiting();
            }
            if capacity > 0 {
                return Poll::Ready(Ok(capacity));
            }
            stream.set_send_waker(cx);
            Poll::Pending
        })
    }

    /// Sends all of `data`, as far as the windows permit, and removes what was sent. `is_end`: the body ends with it.
    ///
    /// # Errors
    /// Why the stream has ended.
    pub fn poll_send(
        &mut self,
        data: &mut Bytes,
        is_end: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Http2Error>> {
        while !data.is_empty() {
            let capacity = ready!(self.poll_capacity(|| data.len(), cx))?;
            let part = data.split_to(capacity.min(data.len()));
            let is_last = is_end && data.is_empty();
            self.handle.with(|connection, id, stream| connection.put_data(id, stream, part, is_last));
            if is_last {
                return Poll::Ready(Ok(()));
            }
        }
        Poll::Ready(if is_end { self.send_end() } else { Ok(()) })
    }

    /// Ends the body without further data.
    ///
    /// # Errors
    /// Why the stream has ended.
    pub fn send_end(&mut self) -> Result<(), Http2Error> {
        self.handle.with(|connection, id, stream| {
            stream.check_open_for_sending()?;
            connection.put_data(id, stream, Bytes::new(), true);
            Ok(())
        })
    }

    /// Ends the body with trailers.
    ///
    /// # Errors
    /// Why the stream has ended.
    pub fn send_trailers(&mut self, trailers: &HeaderMap) -> Result<(), Http2Error> {
        self.handle.with(|connection, id, stream| {
            stream.check_open_for_sending()?;
            connection.check_unread(id, stream)?;
            connection.put_head(id, true, |encoder, out| encode_trailers(trailers, encoder, out));
            connection.end_sending(id, stream);
            Ok(())
        })
    }

    /// Resets the stream, unless it has ended.
    pub fn send_reset(&mut self, reason: Reason) {
        self.handle.reset(reason);
    }

    /// Ready when the stream has ended early: reset by the peer, or with its connection.
    pub fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<Http2Error> {
        poll_reset(&self.handle, cx)
    }
}

/// Ready when the stream has ended early.
pub(super) fn poll_reset(handle: &StreamHandle, cx: &mut Context<'_>) -> Poll<Http2Error> {
    handle.with(|_, _, stream| match &stream.end {
        Some(error) => Poll::Ready(error.clone()),
        None => {
            stream.set_send_waker(cx);
            Poll::Pending
        }
    })
}
