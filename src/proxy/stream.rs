//! Byte stream of a client connection: records progress for the timeouts, and closes in such a way that the last
//! response is not lost.
//!
//! Closing a socket with unread bytes sends a TCP reset, which can discard a response that the client has not read yet.
//! If a request was left unread, the connection is therefore closed for writing first. What still arrives is discarded,
//! up to a maximum of bytes and time (RFC 9112 section 9.6).

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

use super::timeouts::{ConnectionTimer, TimeoutKind};
use weir_http::http1::memory_pool;
use weir_http::http1::read_buf::{READ_SIZE, ReadSource};
use weir_http::http1::splice::{SplicePipe, SpliceTarget, Spliced};
use weir_net::transport::Transport;
use weir_upstream::coalesced_write::poll_write_coalesced;

/// Maximum bytes of an unread request body that are discarded in order to reuse the connection.
pub(super) const MAX_DISCARDED_BODY: usize = 64 * 1024;

/// Maximum bytes that are discarded before closing, in all and per read.
const MAX_LINGERED: u64 = 64 << 20;
const LINGER_READ_SIZE: usize = 16 * 1024;

/// A client's connection.
#[derive(Debug)]
pub(super) struct DownstreamIo {
    transport: Transport,
    timer: Rc<ConnectionTimer>,
    /// Bytes that were read for protocol detection, or from a parked connection, and are to be read again.
    peeked: BytesMut,
    closed_for_writing: bool,
    /// The kernel may hold what is written until the connection is closed for writing.
    holds_writes: bool,
    discarded: u64,
    /// Address of the peer, for IPv6 its network.
    peer: IpAddr,
}

impl DownstreamIo {
    pub(super) fn new(transport: Transport, timer: Rc<ConnectionTimer>, peer: IpAddr) -> Self {
        Self {
            transport,
            timer,
            peeked: BytesMut::new(),
            closed_for_writing: false,
            holds_writes: false,
            discarded: 0,
            peer,
        }
    }

    /// Whether the bytes of the connection are those of its socket.
    pub(super) fn is_plain(&self) -> bool {
        self.transport.is_plain()
    }

    /// Returns the socket of a plain connection, and the bytes that were read and are to be read again.
    ///
    /// # Errors
    /// If the connection is not plain, or has failed.
    pub(super) fn into_socket(self) -> io::Result<(OwnedFd, Vec<u8>)> {
        let (socket, left) = self.transport.into_socket()?;
        Ok((socket, [&self.peeked, &*left].concat()))
    }

    /// Reads some bytes, which are kept to be read again. Returns their number.
    pub(super) fn poll_peek(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let polled = self.poll_fill_peeked(cx);
        // A connection that waits holds no more memory than its bytes need.
        if polled.is_pending() && self.peeked.capacity() > 2 * self.peeked.len() {
            let exact = BytesMut::from(&self.peeked[..]);
            memory_pool::take_back_read(&mut std::mem::replace(&mut self.peeked, exact));
        }
        let read = ready!(polled)?;
        self.record_read(read);
        Poll::Ready(Ok(read))
    }

    fn poll_fill_peeked(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        ready!(self.transport.poll_readable(cx));
        let size = READ_SIZE.saturating_sub(self.peeked.len());
        memory_pool::reserve_for_read(&mut self.peeked, size);
        pin!(self.transport.read_buf(&mut self.peeked)).poll(cx)
    }

    /// Takes the bytes that are kept to be read again.
    pub(super) fn take_peeked(&mut self) -> BytesMut {
        std::mem::take(&mut self.peeked)
    }

    /// Puts back bytes that were read elsewhere, so that they are read again.
    pub(super) fn push_back(&mut self, bytes: &[u8]) {
        self.peeked.extend_from_slice(bytes);
    }

    /// Returns the bytes that are kept to be read again.
    pub(super) fn peeked(&self) -> &[u8] {
        &self.peeked
    }

    /// Sends a last response to a client whose request never became complete. It is lost if the socket cannot take it
    /// at once.
    pub(super) fn write_raw(&mut self, response: &[u8]) {
        let mut cx = Context::from_waker(Waker::noop());
        let _ = Pin::new(&mut self.transport).poll_write(&mut cx, response);
        let _ = Pin::new(&mut self.transport).poll_flush(&mut cx);
    }

    /// Announces that [`Self::poll_close`] follows the next write immediately, so that both cause one packet.
    pub(super) fn hold_writes(&mut self) {
        self.holds_writes |= self.transport.hold_writes();
    }

    /// Prepares for closing the socket, which is to be dropped then. For plain transports, the drop sends FIN, so a shutdown
    /// before it would be one more system call. Bytes that the kernel holds need the shutdown: a drop discards them if the
    /// client has sent something that is unread.
    pub(super) fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let is_plain = matches!(self.transport, Transport::Client(_) | Transport::Unix(_));
        let drop_suffices = is_plain && !self.holds_writes && !self.timer.start_linger(self.peer);
        match drop_suffices {
            true => Poll::Ready(Ok(())),
            false => Pin::new(self).poll_shutdown(cx),
        }
    }

    fn record_read(&self, moved: usize) {
        if moved > 0 {
            self.timer.bytes_read();
        }
    }

    fn record_written(&self, moved: usize) {
        if moved > 0 {
            self.timer.bytes_written(moved);
        }
    }

    /// Reads and discards bytes until the client closes, or the maximum of bytes or time is reached.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut scratch = [0; LINGER_READ_SIZE];
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

impl ReadSource for DownstreamIo {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.peeked.is_empty() { self.transport.poll_readable(cx) } else { Poll::Ready(()) }
    }

    fn poll_splice(&mut self, max: usize, cx: &mut Context<'_>) -> Spliced<io::Error> {
        if !self.peeked.is_empty() {
            return None;
        }
        let spliced = self.transport.poll_splice(max, cx)?;
        if let Poll::Ready(Ok(pipe)) = &spliced {
            self.record_read(pipe.held());
        }
        Some(spliced)
    }

    fn message_started(&self) {
        self.timer.head_started();
    }
}

impl SpliceTarget for DownstreamIo {
    fn takes_pipes(&self) -> bool {
        self.transport.takes_pipes()
    }

    fn poll_drain(&mut self, pipe: &mut SplicePipe, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let written = ready!(self.transport.poll_drain(pipe, cx))?;
        self.record_written(written);
        Poll::Ready(Ok(written))
    }
}

impl AsyncRead for DownstreamIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.peeked.is_empty() {
            let length = self.peeked.len().min(buffer.remaining());
            buffer.put_slice(&self.peeked[..length]);
            self.peeked.advance(length);
            if self.peeked.is_empty() {
                memory_pool::take_back_read(&mut self.take_peeked());
            }
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.transport).poll_read(cx, buffer);
        self.record_read(buffer.filled().len() - before);
        polled
    }
}

impl AsyncWrite for DownstreamIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.transport).poll_write(cx, bytes))?;
        self.record_written(written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(poll_write_coalesced(Pin::new(&mut self.transport), cx, bytes))?;
        self.record_written(written);
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
