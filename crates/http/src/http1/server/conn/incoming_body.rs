//! Body of a request, as far as its connection has received it.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::io::AsyncWrite;

use super::ServerConn;
use crate::http1::malformed::MalformedMessage;
use crate::http1::read_buf::ReadSource;
use crate::http1::splice::Spliced;

/// Body of a request, read on demand. If it is dropped before its end, the rest is not read, and the connection is
/// closed after the response unless that rest has already arrived.
#[derive(Debug)]
pub struct IncomingBody<S: ReadSource + AsyncWrite>(BodyState<S>);

#[derive(Debug)]
enum BodyState<S> {
    Open(Rc<RefCell<ServerConn<S>>>),
    /// The connection may have gone on to the next request.
    Complete,
    /// The body failed.
    Broken,
}

impl<S: ReadSource + AsyncWrite> IncomingBody<S> {
    /// Creates the body that is read from `conn` next.
    pub fn new(conn: &Rc<RefCell<ServerConn<S>>>) -> Self {
        Self(BodyState::Open(Rc::clone(conn)))
    }

    /// Polls for the next frame.
    ///
    /// # Errors
    /// If the connection fails or ends before the body does, or the chunked coding is malformed. All further calls fail
    /// as well.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let conn = match &self.0 {
            BodyState::Open(conn) => conn,
            BodyState::Complete => return Poll::Ready(None),
            BodyState::Broken => return Poll::Ready(Some(Err(MalformedMessage::Truncated.into()))),
        };
        let polled = ready!(conn.borrow_mut().poll_body(cx));
        self.end_if_over(polled.as_ref().is_ok_and(Option::is_none), polled.is_err());
        Poll::Ready(polled.transpose())
    }

    /// Moves at most `max` of the next bytes into a pipe, as [`MessageBody::poll_splice`](crate::message_body::MessageBody).
    pub fn poll_splice(&mut self, max: usize, cx: &mut Context<'_>) -> Spliced<io::Error> {
        let BodyState::Open(conn) = &self.0 else { return None };
        let spliced = conn.borrow_mut().poll_splice_body(max, cx)?;
        if let Poll::Ready(spliced) = &spliced {
            self.end_if_over(false, spliced.is_err());
        }
        Some(spliced)
    }

    /// Ends the body if it has failed, or all of it has been read.
    fn end_if_over(&mut self, has_ended: bool, has_failed: bool) {
        let BodyState::Open(conn) = &self.0 else { return };
        let is_complete = {
            let mut conn = conn.borrow_mut();
            conn.broken |= has_failed;
            has_ended || conn.decoder.is_complete()
        };
        if has_failed {
            self.end(BodyState::Broken);
        } else if is_complete {
            self.end(BodyState::Complete);
        }
    }

    /// Whether the body has ended as declared.
    pub fn is_complete(&self) -> bool {
        matches!(self.0, BodyState::Complete)
    }

    /// Returns the bytes left, if known.
    pub fn size_hint(&self) -> SizeHint {
        let left = match &self.0 {
            BodyState::Open(conn) => conn.borrow().decoder.left(),
            BodyState::Complete => Some(0),
            BodyState::Broken => None,
        };
        left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }

    fn end(&mut self, state: BodyState<S>) {
        if let BodyState::Open(conn) = std::mem::replace(&mut self.0, state) {
            conn.borrow_mut().discard_body();
        }
    }
}

impl<S: ReadSource + AsyncWrite> Drop for IncomingBody<S> {
    fn drop(&mut self) {
        self.end(BodyState::Complete);
    }
}
