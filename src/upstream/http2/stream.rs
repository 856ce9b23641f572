//! A stream of HTTP/2 that is no longer one of HTTP: bytes either way.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::into_io;
use super::pool::StreamPermit;

/// What is handed to the connection at once.
const LARGEST_PIECE: usize = 64 * 1024;

/// A stream. Dropped before both sides have ended, it is reset.
#[derive(Debug)]
pub(in crate::upstream) struct Stream {
    received: RecvStream,
    sending: SendStream<Bytes>,
    /// Received and not read yet.
    read: Bytes,
    _permit: StreamPermit,
}

impl Stream {
    /// The two ways of a stream that `permit` allows.
    pub(super) fn new(received: RecvStream, sending: SendStream<Bytes>, permit: StreamPermit) -> Self {
        Self { received, sending, read: Bytes::new(), _permit: permit }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.read.is_empty() {
            match ready!(self.received.poll_data(cx)) {
                Some(Ok(data)) => self.read = data,
                Some(Err(error)) => return Poll::Ready(Err(into_io(error))),
                None => return Poll::Ready(Ok(())),
            }
        }
        let most = self.read.len().min(buffer.remaining());
        let part = self.read.split_to(most);
        buffer.put_slice(&part);
        // Passed on: there is room for as much again.
        let _ = self.received.flow_control().release_capacity(part.len());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.sending.reserve_capacity(bytes.len().min(LARGEST_PIECE));
        let mut room = self.sending.capacity();
        while room == 0 {
            room = match ready!(self.sending.poll_capacity(cx)) {
                Some(Ok(room)) => room,
                Some(Err(error)) => return Poll::Ready(Err(into_io(error))),
                // The other side takes no more.
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            };
        }
        let part = Bytes::copy_from_slice(&bytes[..room.min(bytes.len())]);
        let written = part.len();
        self.sending.send_data(part, false).map_err(into_io)?;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The connection's task writes what it has.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // One that is closed already needs no end.
        let _ = self.sending.send_data(Bytes::new(), true);
        Poll::Ready(Ok(()))
    }
}
