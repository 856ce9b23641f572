//! A client's connection, noting its progress, and closed so that the last answer is not lost.
//!
//! Closing a socket with unread bytes in it sends a reset, which can destroy an answer that the client has not
//! read yet. So where a request was left unread, the connection is closed for writing first and what still
//! comes is thrown away, up to a bound in bytes and in time (RFC 9112 section 9.6).

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::timeouts::{ConnectionTimer, TimeoutKind};
use crate::http1::read_buf::Source;
use crate::transport::Transport;
use crate::upstream::stream::poll_write_together;

/// How much of an unread request is thrown away so that the connection can be used again.
pub(super) const MOST_DISCARDED: usize = 64 * 1024;

/// How much is thrown away before closing, and at once.
const MAX_LINGERED: u64 = 64 << 20;
const LINGER_PIECE: usize = 16 * 1024;

/// How much is read at once to see what a client speaks: most first requests, so that no read is wasted.
const LONGEST_OPENING: usize = 2048;

/// A client's connection.
#[derive(Debug)]
pub(super) struct Downstream {
    transport: Transport,
    timer: Rc<ConnectionTimer>,
    /// Read to see what the client speaks, for whoever reads next.
    opening: Vec<u8>,
    closed_for_writing: bool,
    discarded: u64,
    /// Who has connected, an IPv6 client by its network.
    peer: IpAddr,
}

impl Downstream {
    pub(super) fn new(transport: Transport, timer: Rc<ConnectionTimer>, peer: IpAddr) -> Self {
        Self { transport, timer, opening: Vec::new(), closed_for_writing: false, discarded: 0, peer }
    }

    /// Reads some of a connection's first bytes, which are read again by whoever serves it; how many.
    pub(super) fn poll_opening(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut scratch = [0; LONGEST_OPENING];
        let mut buffer = ReadBuf::new(&mut scratch);
        ready!(Pin::new(&mut self.transport).poll_read(cx, &mut buffer))?;
        self.opening.extend_from_slice(buffer.filled());
        self.note_read(buffer.filled().len());
        Poll::Ready(Ok(buffer.filled().len()))
    }

    /// What has been read by another is to be read again.
    pub(super) fn unread(&mut self, bytes: &[u8]) {
        self.opening.extend_from_slice(bytes);
    }

    /// What has been read of it.
    pub(super) fn opening(&self) -> &[u8] {
        &self.opening
    }

    /// A last word to a client whose request never became whole; lost if the socket cannot take it now.
    pub(super) fn write_raw(&mut self, answer: &[u8]) {
        let mut cx = Context::from_waker(Waker::noop());
        let _ = Pin::new(&mut self.transport).poll_write(&mut cx, answer);
        let _ = Pin::new(&mut self.transport).poll_flush(&mut cx);
    }

    fn note_read(&self, moved: usize) {
        if moved > 0 {
            self.timer.bytes_read();
        }
    }

    fn note_written(&self, moved: usize) {
        if moved > 0 {
            self.timer.bytes_written(moved);
        }
    }

    /// Reads and throws away until the client closes, the bound is reached, or time is up.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut scratch = [0; LINGER_PIECE];
        while self.discarded < MAX_LINGERED && self.timer.expired() != Some(TimeoutKind::Linger) {
            let mut buffer = ReadBuf::new(&mut scratch);
            match ready!(Pin::new(&mut self.transport).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {
                    self.discarded += buffer.filled().len() as u64;
                    self.timer.discarded();
                }
                _ => break,
            }
        }
        Poll::Ready(())
    }
}

impl Source for Downstream {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.opening.is_empty() { self.transport.poll_readable(cx) } else { Poll::Ready(()) }
    }

    fn message_started(&self) {
        self.timer.head_started();
    }
}

impl AsyncRead for Downstream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.opening.is_empty() {
            let length = self.opening.len().min(buffer.remaining());
            buffer.put_slice(&self.opening[..length]);
            self.opening.drain(..length);
            if self.opening.is_empty() {
                self.opening = Vec::new();
            }
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.transport).poll_read(cx, buffer);
        self.note_read(buffer.filled().len() - before);
        polled
    }
}

impl AsyncWrite for Downstream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.transport).poll_write(cx, bytes))?;
        self.note_written(written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(poll_write_together(Pin::new(&mut self.transport), cx, bytes))?;
        self.note_written(written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.transport).poll_flush(cx))?;
        self.timer.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.closed_for_writing {
            ready!(Pin::new(&mut self.transport).poll_shutdown(cx))?;
            self.closed_for_writing = true;
        }
        if self.timer.start_linger(self.peer) {
            ready!(self.poll_discard(cx));
        }
        Poll::Ready(Ok(()))
    }
}
