//! Sending a request to an upstream.

use std::task::{Context, Poll};

use http::request;

use super::request_head;
use crate::headers::FieldLines;
use crate::http1::encoder::{EncodeError, Encoder};
use crate::http1::head::ReceivedHead;
use crate::http1::splice::SpliceTarget;
use crate::http1::write_buf::WriteBuf;
use crate::message_body::MessageBody;

/// A request, as far as it is still to be sent.
#[derive(Debug)]
pub struct Http1Upload<B> {
    encoder: Encoder<B>,
    /// Whether the request may be sent twice: it is idempotent and has no body.
    repeatable: bool,
    /// The body failed. A request sent without the rest of it would look complete.
    broken: bool,
}

impl<B> Http1Upload<B>
where
    B: MessageBody,
{
    /// Creates an upload of which nothing has been sent.
    pub fn new(parts: &request::Parts, received: &ReceivedHead, added_headers: &FieldLines, body: B) -> Self {
        let mut write_buf = WriteBuf::default();
        let coding = request_head::write(parts, received, added_headers, &body, write_buf.buffer_mut());
        let repeatable = body.is_end_stream() && parts.method.is_idempotent();
        Self { encoder: Encoder::new(write_buf, coding, body), repeatable, broken: false }
    }

    /// Sends as much as the connection takes; ready when everything has been sent.
    pub fn poll(
        &mut self,
        stream: &mut impl SpliceTarget,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), EncodeError>> {
        let polled = self.encoder.poll(stream, cx);
        self.broken |= matches!(polled, Poll::Ready(Err(EncodeError::Body(_))));
        polled
    }
}

impl<B> Http1Upload<B> {
    /// Whether everything has been sent.
    pub fn is_complete(&self) -> bool {
        self.encoder.is_complete()
    }

    /// Returns the number of bytes sent.
    pub fn bytes_written(&self) -> u64 {
        self.encoder.bytes_written()
    }

    /// Drops what is still to be sent.
    pub fn abandon(&mut self) {
        self.encoder.abandon();
    }

    /// Whether the request may be sent again, however much of it the upstream has received.
    pub fn is_repeatable(&self) -> bool {
        self.repeatable
    }

    /// Whether the request may be sent again after its connection failed without a response. It may if it is idempotent
    /// (RFC 9110 section 9.2.2) and has no body, or if none of it was sent. A body that has been sent is not kept.
    pub fn may_retry(&self) -> bool {
        !self.broken && (self.repeatable || self.encoder.bytes_written() == 0)
    }

    /// Starts again from the first byte; only allowed if [`Self::may_retry`] returns true.
    pub fn rewind(&mut self) {
        self.encoder.rewind();
    }

    /// Returns the body if none of it has been read.
    pub fn into_body(self) -> Option<B> {
        self.encoder.into_body()
    }
}

#[cfg(test)]
mod tests;
