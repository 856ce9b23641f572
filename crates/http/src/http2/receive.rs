//! Receiving of a body. The peer's window grows by what is released.

use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use super::error::Http2Error;
use super::handle::StreamHandle;

/// The receiving direction of a stream. Dropping it discards what still arrives.
#[derive(Debug)]
pub struct ReceiveStream {
    pub(super) handle: StreamHandle,
}

impl ReceiveStream {
    /// Returns the next data; `None` at the end of the body. Its bytes count against the peer's window until they are
    /// released.
    ///
    /// # Errors
    /// Why the stream has ended early.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Http2Error>>> {
        self.handle.with(|_, _, stream| {
            if let Some(data) = stream.pop_data() {
                return Poll::Ready(Some(Ok(data)));
            }
            match &stream.end {
                _ if stream.receive_ended => Poll::Ready(None),
                Some(error) => Poll::Ready(Some(Err(error.clone()))),
                None => {
                    stream.set_receive_waker(cx);
                    Poll::Pending
                }
            }
        })
    }

    /// Makes a client send the body that it has held back (RFC 9110 section 15.2.1), unless the response has begun.
    pub fn send_continue(&mut self) {
        self.handle.with(|connection, id, stream| {
            if !stream.has_response && stream.check_open_for_sending().is_ok() {
                connection.put_head(id, false, |encoder, out| encoder.status(StatusCode::CONTINUE, out));
            }
        });
    }

    /// Permits the peer to send as many bytes again. At most as many as were received.
    pub fn release(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.handle.with(|connection, id, stream| connection.release_window(id, stream, bytes));
    }

    /// Returns the trailers after the end of the body, if there are any.
    pub fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.handle.with(|_, _, stream| stream.trailers.take()).map(|trailers| *trailers)
    }

    /// Whether the body has been read completely, and there are no trailers.
    pub fn is_end_stream(&self) -> bool {
        self.handle.with(|_, _, stream| {
            stream.receive_ended && stream.received.is_empty() && stream.trailers.is_none()
        })
    }
}

impl Drop for ReceiveStream {
    fn drop(&mut self) {
        self.handle.with(|connection, _, stream| connection.discard_received(stream));
    }
}
