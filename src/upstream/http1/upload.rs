//! A request's body on its way to the upstream.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, request};
use hyper::body::Body;
use tokio::io::AsyncWrite;

use super::encode::{self, Coding, LAST_CHUNK};
use super::outbox::Outbox;

/// A request as far as it is still to be sent.
#[derive(Debug)]
pub(in crate::upstream) struct Upload<B> {
    outbox: Outbox,
    /// `None` once it is all in the outbox; one that is empty stays.
    body: Option<B>,
    /// There is more of it.
    is_open: bool,
    /// Nothing of it has been read.
    untouched: bool,
    coding: Coding,
    /// It may be sent twice.
    repeatable: bool,
    /// Its body broke off: whatever could still be sent would look like a whole one.
    broken: bool,
}

/// Why a request cannot be sent to its end.
#[derive(Debug)]
pub(in crate::upstream) enum Failure {
    /// The upstream takes no more of it.
    Connection(io::Error),
    /// The body broke off, or was not of the length that was promised.
    Body(io::Error),
}

impl<B> Upload<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    /// A request of which nothing is out yet; its bytes are put into `buffer`.
    pub(in crate::upstream) fn new(parts: &request::Parts, body: B, buffer: Vec<u8>) -> Self {
        let mut outbox = Outbox::new(buffer);
        let coding = encode::head(parts, &body, outbox.end());
        let empty = body.is_end_stream();
        let repeatable = empty && parts.method.is_idempotent();
        Self { outbox, body: Some(body), is_open: !empty, untouched: true, coding, repeatable, broken: false }
    }

    /// Sends as much as can be sent now; ready when all of it is.
    pub(super) fn poll(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        loop {
            let filled = self.poll_fill(cx).map_err(|error| {
                self.broken = true;
                Failure::Body(error)
            })?;
            ready!(self.outbox.poll_write(stream, cx)).map_err(Failure::Connection)?;
            match filled {
                Poll::Ready(()) if !self.is_open => return Poll::Ready(Ok(())),
                Poll::Ready(()) => {}
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Moves the body into the outbox until that is full or the body has ended.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(body) = self.body.as_mut().filter(|_| self.is_open && self.outbox.has_room()) {
            self.untouched = false;
            let ended = match ready!(Pin::new(&mut *body).poll_frame(cx)) {
                None => true,
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        let ended = body.is_end_stream();
                        self.push(data)?;
                        ended
                    }
                    Err(frame) => {
                        self.end(frame.trailers_ref())?;
                        return Poll::Ready(Ok(()));
                    }
                },
            };
            if ended {
                self.end(None)?;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn push(&mut self, data: Bytes) -> io::Result<()> {
        match &mut self.coding {
            _ if data.is_empty() => {}
            Coding::Octets(left) => {
                *left = left.checked_sub(data.len() as u64).ok_or(io::ErrorKind::InvalidData)?;
                self.outbox.push(data);
            }
            Coding::Chunked(_) => {
                encode::chunk_size(&data, self.outbox.end());
                self.outbox.push(data);
                self.outbox.end().extend_from_slice(b"\r\n");
            }
        }
        Ok(())
    }
}

impl<B> Upload<B> {
    /// The body has ended: what ends it goes out.
    fn end(&mut self, trailers: Option<&HeaderMap>) -> io::Result<()> {
        (self.body, self.is_open) = (None, false);
        match (&self.coding, trailers) {
            (Coding::Octets(0), _) => {}
            (Coding::Octets(_), _) => return Err(io::ErrorKind::UnexpectedEof.into()),
            (Coding::Chunked(announced), Some(fields)) => {
                encode::trailers(fields, announced, self.outbox.end());
            }
            (Coding::Chunked(_), None) => self.outbox.end().extend_from_slice(LAST_CHUNK),
        }
        Ok(())
    }

    /// Whether all of it is out.
    pub(in crate::upstream) fn is_over(&self) -> bool {
        !self.is_open && self.outbox.is_out()
    }

    /// Nobody takes it any more.
    pub(super) fn abandon(&mut self) {
        (self.body, self.is_open) = (None, false);
        self.outbox = Outbox::default();
    }

    /// Whether the request may be sent again after its connection failed without an answer: RFC 9110 section
    /// 9.2.2, the upstream could not tell two of these from one; or it has seen nothing of it. A body
    /// that has gone out is not kept.
    pub(in crate::upstream) fn may_repeat(&self) -> bool {
        !self.broken && (self.repeatable || !self.outbox.has_begun())
    }

    /// All is to be sent once more, where it [may](Self::may_repeat) be.
    pub(in crate::upstream) fn repeat(&mut self) {
        self.outbox.rewind();
    }

    /// The body, where nothing of it has been read.
    pub(in crate::upstream) fn into_body(self) -> Option<B> {
        self.body.filter(|_| self.untouched)
    }

    /// The memory it was sent from.
    pub(in crate::upstream) fn into_buffer(self) -> Vec<u8> {
        self.outbox.into_buffer()
    }
}

#[cfg(test)]
mod tests;
