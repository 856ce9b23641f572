//! Bodies of HTTP/2 messages, as far as flow control permits (RFC 9113 section 5.2).

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use hyper::body::{Body, Frame, SizeHint};

use weir_http::http2::{Http2Error, Reason, ReceiveStream, SendStream};

/// A body that is not received completely. The peer's window grows by what is read.
#[derive(Debug)]
pub struct Http2Body {
    stream: ReceiveStream,
    /// Remaining bytes, if the message has a `content-length`; the connection checks that it is right.
    left: Option<u64>,
    data_ended: bool,
    /// The client waits for `100 Continue`.
    expects_continue: bool,
}

impl Http2Body {
    /// Creates the body of a message with these headers.
    pub fn new(headers: &HeaderMap, stream: ReceiveStream) -> Self {
        let left = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        Self { stream, left, data_ended: false, expects_continue: false }
    }

    /// Sends `100 Continue` when the body is read and has not arrived, if `expects_continue`.
    #[must_use]
    pub fn with_expectation(self, expects_continue: bool) -> Self {
        Self { expects_continue, ..self }
    }
}

impl Body for Http2Body {
    type Data = Bytes;
    type Error = Http2Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Http2Error>>> {
        if !self.data_ended {
            let polled = self.stream.poll_data(cx);
            if polled.is_pending() && std::mem::take(&mut self.expects_continue) {
                self.stream.send_continue();
            }
            match ready!(polled) {
                Some(Ok(data)) => {
                    // A client that has begun to send waits for nothing.
                    self.expects_continue = false;
                    self.stream.release(data.len());
                    self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => self.data_ended = true,
            }
        }
        Poll::Ready(self.stream.take_trailers().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// A body that is being sent after its head. Dropping it before its end resets the stream.
#[derive(Debug)]
pub struct SentBody<B> {
    stream: SendStream,
    body: B,
    /// Data that was taken from the body and not sent.
    pending: Bytes,
}

impl<B: Body<Data = Bytes> + Unpin> SentBody<B> {
    /// Creates the body of a message whose head was sent on `stream`.
    pub const fn new(stream: SendStream, body: B) -> Self {
        Self { stream, body, pending: Bytes::new() }
    }

    /// Sends as much as the peer's windows permit. The body is polled only if they have room, so that a peer that does
    /// not read holds its source back. Ready at the end of the body or of the stream.
    ///
    /// # Errors
    /// If the stream has ended before the body.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Http2Error>> {
        loop {
            if !self.pending.is_empty() {
                let is_last = self.body.is_end_stream();
                ready!(self.stream.poll_send(&mut self.pending, is_last, cx))?;
                if is_last {
                    return Poll::Ready(Ok(()));
                }
            }
            let body = &self.body;
            let wanted =
                || body.size_hint().exact().and_then(|bytes| bytes.try_into().ok()).unwrap_or(usize::MAX);
            ready!(self.stream.poll_capacity(wanted, cx))?;
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) if data.is_empty() && self.body.is_end_stream() => {
                        return Poll::Ready(self.stream.send_end());
                    }
                    Ok(data) => self.pending = data,
                    Err(frame) => {
                        let trailers = frame.into_trailers().unwrap_or_default();
                        return Poll::Ready(self.stream.send_trailers(&trailers));
                    }
                },
                Poll::Ready(Some(Err(_))) => {
                    // The message must not look complete.
                    self.stream.send_reset(Reason::INTERNAL_ERROR);
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(None) => return Poll::Ready(self.stream.send_end()),
                Poll::Pending => return self.stream.poll_reset(cx).map(Err),
            }
        }
    }
}
