//! A request on its way to the upstream.

use std::task::{Context, Poll};

use bytes::Bytes;
use http::request;
use hyper::body::Body;
use tokio::io::AsyncWrite;

use super::request_head;
use crate::headers::FieldLines;
use crate::http1::encoder::{Encoder, Failure};
use crate::http1::write_buf::WriteBuf;

/// A request as far as it is still to be sent.
#[derive(Debug)]
pub struct Upload<B> {
    sending: Encoder<B>,
    /// It may be sent twice.
    repeatable: bool,
    /// Its body broke off: whatever could still be sent would look like a whole one.
    broken: bool,
}

impl<B> Upload<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    /// A request of which nothing is out yet; its bytes are put into `buffer`.
    pub fn new(parts: &request::Parts, ours: &FieldLines, body: B, buffer: Vec<u8>) -> Self {
        let mut write_buf = WriteBuf::new(buffer);
        let coding = request_head::write(parts, ours, &body, write_buf.end());
        let repeatable = body.is_end_stream() && parts.method.is_idempotent();
        Self { sending: Encoder::new(write_buf, coding, body), repeatable, broken: false }
    }

    /// Sends as much as can be sent now; ready when all of it is.
    pub fn poll(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        let polled = self.sending.poll(stream, cx);
        self.broken |= matches!(polled, Poll::Ready(Err(Failure::Body(_))));
        polled
    }
}

impl<B> Upload<B> {
    /// Whether all of it is out.
    pub fn is_over(&self) -> bool {
        self.sending.is_over()
    }

    /// How many bytes of it are out.
    pub fn out(&self) -> u64 {
        self.sending.out()
    }

    /// Nobody takes it any more.
    pub fn abandon(&mut self) {
        self.sending.abandon();
    }

    /// Whether it may be sent again whatever the upstream has seen of it.
    pub fn is_repeatable(&self) -> bool {
        self.repeatable
    }

    /// Whether the request may be sent again after its connection failed without an answer: RFC 9110 section
    /// 9.2.2, the upstream could not tell two of these from one; or it has seen nothing of it. A body
    /// that has gone out is not kept.
    pub fn may_repeat(&self) -> bool {
        !self.broken && (self.repeatable || self.sending.out() == 0)
    }

    /// All is to be sent once more, where it [may](Self::may_repeat) be.
    pub fn repeat(&mut self) {
        self.sending.rewind();
    }

    /// The body, where nothing of it has been read.
    pub fn into_body(self) -> Option<B> {
        self.sending.into_body()
    }

    /// The memory it was sent from.
    pub fn into_buffer(self) -> Vec<u8> {
        self.sending.into_buffer()
    }
}

#[cfg(test)]
mod tests;
