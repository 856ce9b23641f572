//! Body of a request or response as received over HTTP/2.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use hyper::body::{Body, Frame, SizeHint};

/// A body that is not read completely. The sender's window grows by what is read.
#[derive(Debug)]
pub struct Http2Body {
    stream: RecvStream,
    /// Remaining bytes, if there is a `content-length`; `h2` checks that it is right.
    left: Option<u64>,
    data_ended: bool,
}

impl Http2Body {
    /// Creates the body after a head with these headers.
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
