//! A request's body on its way to the upstream.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, Method, request};
use hyper::body::Body;
use tokio::io::AsyncWrite;

use super::connection::Connection;
use super::encode::{self, Coding, LAST_CHUNK};
use super::outbox::Outbox;

/// What of a request is still to be sent, beside what is in the outbox.
#[derive(Debug)]
pub(in crate::upstream) struct Upload<B> {
    /// `None` once it is all in the outbox.
    body: Option<B>,
    coding: Coding,
    /// It may be sent twice.
    repeatable: bool,
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
    /// Puts a request's head into the outbox.
    pub(in crate::upstream) fn begin(parts: &request::Parts, body: B, outbox: &mut Outbox) -> Self {
        let coding = encode::head(parts, &body, outbox.begin());
        let empty = body.is_end_stream();
        Self { body: (!empty).then_some(body), coding, repeatable: empty && is_idempotent(&parts.method) }
    }

    /// Sends as much as can be sent now; ready when all of it is.
    pub(super) fn poll(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin),
        outbox: &mut Outbox,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        loop {
            let filled = self.poll_fill(outbox, cx).map_err(Failure::Body)?;
            ready!(outbox.poll_write(stream, cx)).map_err(Failure::Connection)?;
            match filled {
                Poll::Ready(()) if self.body.is_none() => return Poll::Ready(Ok(())),
                Poll::Ready(()) => {}
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Moves the body into the outbox until that is full or the body has ended.
    fn poll_fill(&mut self, outbox: &mut Outbox, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(body) = self.body.as_mut().filter(|_| outbox.has_room()) {
            let ended = match ready!(Pin::new(&mut *body).poll_frame(cx)) {
                None => true,
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        let ended = body.is_end_stream();
                        self.push(data, outbox)?;
                        ended
                    }
                    Err(frame) => {
                        self.end(frame.trailers_ref(), outbox)?;
                        return Poll::Ready(Ok(()));
                    }
                },
            };
            if ended {
                self.end(None, outbox)?;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn push(&mut self, data: Bytes, outbox: &mut Outbox) -> io::Result<()> {
        match &mut self.coding {
            _ if data.is_empty() => {}
            Coding::Octets(left) => {
                *left = left.checked_sub(data.len() as u64).ok_or(io::ErrorKind::InvalidData)?;
                outbox.push(data);
            }
            Coding::Chunked(_) => {
                encode::chunk_size(&data, outbox.end());
                outbox.push(data);
                outbox.end().extend_from_slice(b"\r\n");
            }
        }
        Ok(())
    }
}

impl<B> Upload<B> {
    /// The body has ended: what ends it goes out.
    fn end(&mut self, trailers: Option<&HeaderMap>, outbox: &mut Outbox) -> io::Result<()> {
        self.body = None;
        match (&self.coding, trailers) {
            (Coding::Octets(0), _) => {}
            (Coding::Octets(_), _) => return Err(io::ErrorKind::UnexpectedEof.into()),
            (Coding::Chunked(announced), Some(fields)) => {
                encode::trailers(fields, announced, outbox.end());
            }
            (Coding::Chunked(_), None) => outbox.end().extend_from_slice(LAST_CHUNK),
        }
        Ok(())
    }

    /// Whether all of it is in the outbox.
    pub(in crate::upstream) fn is_over(&self) -> bool {
        self.body.is_none()
    }

    /// Nobody takes it any more.
    pub(super) fn abandon(&mut self) {
        self.body = None;
    }

    /// Whether the request may be sent again after its connection failed without an answer: RFC 9110 section
    /// 9.2.2, the upstream could not tell two of these from one; or it has seen nothing of it. A body
    /// that has gone out is not kept.
    pub(in crate::upstream) fn may_repeat(&self, connection: &Connection) -> bool {
        self.repeatable || !connection.outbox.has_begun()
    }
}

fn is_idempotent(method: &Method) -> bool {
    matches!(
        *method,
        Method::GET | Method::HEAD | Method::OPTIONS | Method::PUT | Method::DELETE | Method::TRACE
    )
}

#[cfg(test)]
mod tests;
