//! An upgraded HTTP/2 stream: bytes in both directions.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::into_io;
use super::pool::StreamPermit;

/// Maximum size of one write, in bytes.
const MAX_SEND_SIZE: usize = 64 * 1024;

/// An upgraded stream. Dropping it before both directions have ended resets it.
#[derive(Debug)]
pub(in crate::upstream) struct Http2Tunnel {
    received: RecvStream,
    sending: SendStream<Bytes>,
    /// Received data that was not read yet.
    read: Bytes,
    _permit: StreamPermit,
}

impl Http2Tunnel {
    /// Creates a stream from both directions of the one that `permit` allows.
    pub(super) fn new(received: RecvStream, sending: SendStream<Bytes>, permit: StreamPermit) -> Self {
        Self { received, sending, read: Bytes::new(), _permit: permit }
    }
}

impl AsyncRead for Http2Tunnel {
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
        // The data was passed on, so the peer may send the same amount again.
        let _ = self.received.flow_control().release_capacity(part.len());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Http2Tunnel {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.sending.reserve_capacity(bytes.len().min(MAX_SEND_SIZE));
        let mut room = self.sending.capacity();
        while room == 0 {
            room = match ready!(self.sending.poll_capacity(cx)) {
                Some(Ok(room)) => room,
                Some(Err(error)) => return Poll::Ready(Err(into_io(error))),
                // The peer accepts no more data.
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            };
        }
        let part = Bytes::copy_from_slice(&bytes[..room.min(bytes.len())]);
        let written = part.len();
        self.sending.send_data(part, false).map_err(into_io)?;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The connection's task does the writing.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Fails only if the stream is already closed.
        let _ = self.sending.send_data(Bytes::new(), true);
        Poll::Ready(Ok(()))
    }
}
