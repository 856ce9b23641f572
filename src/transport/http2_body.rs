//! Bodies of HTTP/2 messages, as far as flow control permits (RFC 9113 section 5.2).

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use hyper::body::{Body, Frame, SizeHint};

/// A body that is not received completely. The peer's window grows by what is read.
#[derive(Debug)]
pub struct Http2Body {
    stream: RecvStream,
    /// Remaining bytes, if the message has a `content-length`; `h2` checks that it is right.
    left: Option<u64>,
    data_ended: bool,
}

impl Http2Body {
    /// Creates the body of a message with these headers.
    pub fn new(headers: &HeaderMap, stream: RecvStream) -> Self {
        let left = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        Self { stream, left, data_ended: false }
    }
}

impl Body for Http2Body {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if !self.data_ended {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    // Fails only if the stream has ended, when its window no longer matters.
                    let _ = self.stream.flow_control().release_capacity(data.len());
                    self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => self.data_ended = true,
            }
        }
        self.stream.poll_trailers(cx).map(|trailers| trailers.transpose().map(|all| all.map(Frame::trailers)))
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
    stream: SendStream<Bytes>,
    body: B,
}

impl<B: Body<Data = Bytes> + Unpin> SentBody<B> {
    /// Creates the body of a message whose head was sent on `stream`.
    pub const fn new(stream: SendStream<Bytes>, body: B) -> Self {
        Self { stream, body }
    }

    /// Sends as much as the peer's windows permit. The body is polled only if they have room, so that a peer that does
    /// not read holds its source back. Ready at the end of the body or of the stream.
    ///
    /// # Errors
    /// If the stream has ended before the body.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        let Self { stream, body } = self;
        loop {
            stream.reserve_capacity(1);
            if stream.capacity() > 0 {
                if let Poll::Ready(reset) = stream.poll_reset(cx) {
                    return Poll::Ready(reset.and_then(|reason| Err(reason.into())));
                }
            } else {
                match ready!(stream.poll_capacity(cx)) {
                    Some(Ok(_)) => continue,
                    Some(Err(error)) => return Poll::Ready(Err(error)),
                    None => return Poll::Ready(Err(Reason::CANCEL.into())),
                }
            }
            match ready!(Pin::new(&mut *body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        let is_last = body.is_end_stream();
                        stream.send_data(data, is_last)?;
                        if is_last {
                            return Poll::Ready(Ok(()));
                        }
                    }
                    Err(frame) => {
                        // Gives back the reserved byte.
                        stream.reserve_capacity(0);
                        let trailers = frame.into_trailers().unwrap_or_default();
                        return Poll::Ready(stream.send_trailers(trailers));
                    }
                },
                Some(Err(_)) => {
                    // The message must not look complete.
                    stream.send_reset(Reason::INTERNAL_ERROR);
                    return Poll::Ready(Ok(()));
                }
                None => return Poll::Ready(stream.send_data(Bytes::new(), true)),
            }
        }
    }
}
