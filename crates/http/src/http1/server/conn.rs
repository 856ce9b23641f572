//! A client's connection.
//!
//! Shared by the connection's task and the reader of the request body, which may be in another task on the same thread.
//! Exactly one of them reads at a time: the body's reader until the body has ended, then the connection's task. Only
//! the connection's task writes responses; the body's reader writes `100 Continue`.

mod incoming_body;
mod writer;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use hyper::body::Frame;
use tokio::io::AsyncWrite;

pub use self::incoming_body::IncomingBody;
pub use self::writer::ConnWriter;
use super::read_ahead::{MAX_PERMITTED_READ_AHEAD, MAX_READ_AHEAD, ReadAheadPermit};
use super::request_head::{RequestHead, RequestHeadDecoder};
use crate::http1::decoder::{BodyDecoder, Piece};
use crate::http1::encoder::EncodeError;
use crate::http1::malformed::MalformedMessage;
use crate::http1::read_buf::{ReadBuf, ReadSource};
use crate::http1::splice::Spliced;

/// Response that makes a client send the body that it has held back (RFC 9110 section 15.2.1).
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A connection, and what is still to be read of the current request.
#[derive(Debug)]
pub struct ServerConn<S> {
    /// `None` once the connection has ended.
    stream: Option<S>,
    read_buf: ReadBuf,
    decoder: BodyDecoder,
    /// The client waits for [`CONTINUE`], and the body has not been read yet.
    expects_continue: bool,
    /// Interim responses that are still to be written; `interim_needs_flush` if written ones are not flushed yet.
    interim_buf: BytesMut,
    interim_needs_flush: bool,
    /// The rest of the body will not be read.
    body_discarded: bool,
    /// The body failed, so no request can follow it.
    broken: bool,
    /// No further request will be waited for.
    closing: bool,
    /// Permit for the bytes that were read ahead.
    read_ahead: Option<ReadAheadPermit>,
    /// Task that waits for the end of the body.
    body_end_waker: Option<Waker>,
    /// Task that waits for more of the body.
    body_waker: Option<Waker>,
}

/// Error that ends a connection early.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The client sent a malformed message.
    #[error(transparent)]
    Malformed(#[from] MalformedMessage),
    /// The connection failed, or the client closed it during a request.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<EncodeError> for ConnectionError {
    fn from(failure: EncodeError) -> Self {
        let (EncodeError::Connection(error) | EncodeError::Body(error)) = failure;
        Self::Io(error)
    }
}

impl<S: ReadSource + AsyncWrite> ServerConn<S> {
    /// Wraps a stream from which only `read` has been read.
    pub fn new(stream: S, read: BytesMut) -> Self {
        Self {
            stream: Some(stream),
            read_buf: ReadBuf::from(read),
            decoder: BodyDecoder::Length(0),
            expects_continue: false,
            interim_buf: BytesMut::new(),
            interim_needs_flush: false,
            body_discarded: false,
            broken: false,
            closing: false,
            read_ahead: None,
            body_end_waker: None,
            body_waker: None,
        }
    }

    /// Takes the stream, with the bytes that have been read but not decoded. For all other users the connection has
    /// ended.
    pub fn take_stream(&mut self) -> Option<(S, Bytes)> {
        let stream = self.stream.take()?;
        if let Some(reading) = self.body_waker.take() {
            reading.wake();
        }
        let unread = match self.read_buf.is_empty() {
            // Splitting would share the memory of the buffer, which is left to other connections.
            true => Bytes::new(),
            false => self.read_buf.bytes.split().freeze(),
        };
        Some((stream, unread))
    }

    /// Returns the stream, unless the connection has ended.
    pub fn stream_mut(&mut self) -> Option<&mut S> {
        self.stream.as_mut()
    }

    /// Returns the bytes that have been read but not decoded.
    pub fn unread_bytes(&self) -> &[u8] {
        &self.read_buf.bytes
    }

    /// Stops waiting for further requests; one that has already arrived is the last.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// Whether no further request follows.
    pub fn is_closing(&self) -> bool {
        self.closing || self.broken
    }

    /// Whether all of the request has been read.
    pub fn has_whole_request(&self) -> bool {
        self.decoder.is_complete()
    }

    /// Reads the head of the next request into `head` with `reader`. `head` must be `None`, and stays so if the connection
    /// ends without one.
    pub fn poll_head(
        &mut self,
        reader: &mut RequestHeadDecoder,
        head: &mut Option<RequestHead>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), ConnectionError>> {
        loop {
            skip_empty_lines(&mut self.read_buf.bytes);
            let nothing = matches!(&*self.read_buf.bytes, b"" | b"\r");
            let Some(stream) = &mut self.stream else { return Poll::Ready(Ok(())) };
            if !nothing {
                stream.message_started();
                reader.decode(&mut self.read_buf.bytes, head)?;
                if head.is_some() {
                    return Poll::Ready(Ok(()));
                }
            }
            match self.read_buf.poll_read(stream, cx) {
                Poll::Ready(Ok(1..)) => {}
                Poll::Ready(Ok(0)) if nothing => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(0)) => {
                    return Poll::Ready(Err(io::Error::from(MalformedMessage::Truncated).into()));
                }
                Poll::Ready(Err(_)) if nothing => return Poll::Ready(Ok(())),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                Poll::Pending if nothing && self.closing => return Poll::Ready(Ok(())),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Starts the body of a request. `expects` means that the client waits for `100 Continue`.
    pub fn start_body(&mut self, length: BodyDecoder, expects: bool) {
        if let Some(bytes) = length.left() {
            self.read_buf.expect_body(bytes.saturating_sub(self.read_buf.bytes.len() as u64));
        }
        self.decoder = length;
        self.expects_continue = expects;
        (self.body_discarded, self.broken) = (false, false);
    }

    /// Called when the response begins: `100 Continue` is no longer sent.
    pub fn start_response(&mut self) {
        self.expects_continue = false;
    }

    /// Returns the buffer for interim responses, which are written before anything else.
    pub fn interim_buf(&mut self) -> &mut BytesMut {
        &mut self.interim_buf
    }

    /// Writes the remaining interim responses before the final one. They are flushed together with it, because a socket
    /// wakes only one writer.
    pub fn poll_before_response(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.interim_needs_flush = false;
        if self.interim_buf.is_empty() {
            return Poll::Ready(Ok(()));
        }
        self.poll_write_interim(cx)
    }

    /// Writes interim responses while the final one is awaited; what the connection does not take is written later.
    pub fn send_interim(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.poll_flush_interim(cx) {
            Poll::Ready(written) => written,
            Poll::Pending => Ok(()),
        }
    }

    /// Ready when the client has closed the connection. If the client sends its next request early, those bytes are
    /// kept and no more are read.
    pub fn poll_client_closed(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionError> {
        if !self.decoder.is_complete() {
            // Also if the body failed: a client that has stopped sending may still read.
            self.wake_at_body_end(cx);
            return Poll::Pending;
        }
        if !self.read_buf.is_empty() {
            return Poll::Pending;
        }
        let Some(stream) = &mut self.stream else {
            return Poll::Ready(io::Error::from(MalformedMessage::Truncated).into());
        };
        match ready!(self.read_buf.poll_read(stream, cx)) {
            Ok(1..) => Poll::Pending,
            Ok(0) => Poll::Ready(io::Error::from(MalformedMessage::Truncated).into()),
            Err(error) => Poll::Ready(error.into()),
        }
    }

    /// As [`Self::poll_client_closed`], while a request is held and nothing reads its body. At most [`MAX_READ_AHEAD`]
    /// bytes of the body are read, or more with a permit; if the client sends more, a closed connection is noticed only
    /// later.
    pub fn poll_closed_while_held(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionError> {
        while !self.decoder.is_complete() {
            if self.read_buf.bytes.len() >= MAX_READ_AHEAD && self.read_ahead.is_none() {
                self.read_ahead = ReadAheadPermit::acquire();
            }
            let max = if self.read_ahead.is_some() { MAX_PERMITTED_READ_AHEAD } else { MAX_READ_AHEAD };
            let Some(stream) = self.stream.as_mut().filter(|_| self.read_buf.bytes.len() < max) else {
                break;
            };
            match ready!(self.read_buf.poll_read_up_to(max, stream, cx)) {
                Ok(1..) => {}
                Ok(0) => return Poll::Ready(io::Error::from(MalformedMessage::Truncated).into()),
                Err(error) => return Poll::Ready(error.into()),
            }
        }
        self.poll_client_closed(cx)
    }

    /// Handles the rest of the request after its response. Ready with `true` when it has been read, and with `false` if
    /// it will not be.
    pub fn poll_body_end(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        if self.broken {
            return Poll::Ready(false);
        }
        if !self.decoder.is_complete() {
            if !self.body_discarded {
                self.wake_at_body_end(cx);
                return Poll::Pending;
            }
            if !self.skip(cx) {
                return Poll::Ready(false);
            }
        }
        self.read_buf.release();
        Poll::Ready(true)
    }

    /// Registers the connection's task to be woken at the end of the body.
    fn wake_at_body_end(&mut self, cx: &Context<'_>) {
        if !self.body_end_waker.as_ref().is_some_and(|waiting| waiting.will_wake(cx.waker())) {
            self.body_end_waker = Some(cx.waker().clone());
        }
    }

    /// Discards the rest of the body. Returns whether all of it had arrived.
    fn skip(&mut self, cx: &mut Context<'_>) -> bool {
        for is_first in [true, false] {
            loop {
                match self.decoder.decode(&mut self.read_buf.bytes) {
                    Ok(Piece::Data(_)) => {}
                    Ok(Piece::NeedMore) => break,
                    Ok(Piece::End | Piece::Trailers(_)) => return true,
                    Err(_) => return false,
                }
            }
            let Some(stream) = self.stream.as_mut().filter(|_| is_first) else { return false };
            if !matches!(self.read_buf.poll_read(stream, cx), Poll::Ready(Ok(1..))) {
                return false;
            }
        }
        false
    }

    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Frame<Bytes>>>> {
        self.read_ahead = None;
        loop {
            match self.decoder.decode(&mut self.read_buf.bytes)? {
                Piece::Data(data) => return Poll::Ready(Ok(Some(Frame::data(data)))),
                Piece::Trailers(fields) => return Poll::Ready(Ok(Some(Frame::trailers(fields)))),
                Piece::End => return Poll::Ready(Ok(None)),
                Piece::NeedMore => {}
            }
            if std::mem::take(&mut self.expects_continue) {
                self.interim_buf.extend_from_slice(CONTINUE);
            }
            // What is not written now is written at the next poll of the body, or before the response.
            if let Poll::Ready(written) = self.poll_flush_interim(cx) {
                written?;
            }
            let Some(stream) = &mut self.stream else {
                return Poll::Ready(Err(MalformedMessage::Truncated.into()));
            };
            let Poll::Ready(read) = self.read_buf.poll_read(stream, cx) else {
                self.body_waker = Some(cx.waker().clone());
                return Poll::Pending;
            };
            if read? == 0 {
                return Poll::Ready(Err(MalformedMessage::Truncated.into()));
            }
        }
    }

    /// Moves the next part of the body into a pipe, unless a part of it has been read already or the client waits for a
    /// response of 100.
    fn poll_splice_body(&mut self, max: usize, cx: &mut Context<'_>) -> Spliced<io::Error> {
        if !self.read_buf.is_empty() || !self.interim_buf.is_empty() || self.expects_continue {
            return None;
        }
        let spliced = self.stream.as_mut()?.poll_splice(self.decoder.at_most_left(max)?, cx)?;
        let taken = spliced.map(|spliced| self.decoder.take_spliced(spliced));
        self.read_buf.bypass(self.decoder.left().unwrap_or_default());
        if taken.is_pending() {
            self.body_waker = Some(cx.waker().clone());
        }
        Some(taken)
    }

    fn poll_flush_interim(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_write_interim(cx))?;
        if let Some(stream) = self.stream.as_mut().filter(|_| self.interim_needs_flush) {
            ready!(Pin::new(stream).poll_flush(cx))?;
            self.interim_needs_flush = false;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_interim(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(Ok(())) };
        while !self.interim_buf.is_empty() {
            let written = ready!(Pin::new(&mut *stream).poll_write(cx, &self.interim_buf))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.interim_buf.advance(written);
            self.interim_needs_flush = true;
        }
        Poll::Ready(Ok(()))
    }

    /// Records that the body has been read, or will not be.
    fn discard_body(&mut self) {
        self.body_discarded = true;
        self.read_ahead = None;
        self.body_waker = None;
        if let Some(waiting) = self.body_end_waker.take() {
            waiting.wake();
        }
    }
}

/// Skips empty lines before a head (RFC 9112 section 2.2). A CR alone is kept, as it may be the start of one.
fn skip_empty_lines(read: &mut BytesMut) {
    loop {
        match &**read {
            [b'\n', ..] => read.advance(1),
            [b'\r', b'\n', ..] => read.advance(2),
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests;
