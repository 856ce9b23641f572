//! An HTTP/2 stream as a stream of bytes, after an upgrade by extended CONNECT (RFC 8441).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use weir_http::http2::{Reason, ReceiveStream, SendStream};

/// Maximum size of one write, in bytes.
const MAX_SEND_SIZE: usize = 64 * 1024;

/// Both directions of an HTTP/2 stream. Dropping it before both have ended resets the stream.
#[derive(Debug)]
pub struct Http2Stream {
    received: ReceiveStream,
    sending: SendStream,
    /// Received data that was not read yet.
    read: Bytes,
}

impl Http2Stream {
    /// Creates a stream from its directions.
    pub const fn new(received: ReceiveStream, sending: SendStream) -> Self {
        Self { received, sending, read: Bytes::new() }
    }

    /// Ready when the peer has reset the stream, or its connection has ended.
    pub fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.sending.poll_reset(cx).map(drop)
    }

    pub fn reset(&mut self) {
        self.sending.send_reset(Reason::CANCEL);
    }
}

impl AsyncRead for Http2Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.read.is_empty() {
            match ready!(self.received.poll_data(cx)) {
                Some(Ok(data)) => self.read = data,
                Some(Err(error)) => return Poll::Ready(Err(error.into())),
                None => return Poll::Ready(Ok(())),
            }
        }
        let most = self.read.len().min(buffer.remaining());
        let part = self.read.split_to(most);
        buffer.put_slice(&part);
        // The data was passed on, so the peer may send the same amount again.
        self.received.release(part.len());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Http2Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let room = ready!(self.sending.poll_capacity(|| bytes.len(), cx))?;
        let mut part = Bytes::copy_from_slice(&bytes[..room.min(bytes.len()).min(MAX_SEND_SIZE)]);
        let written = part.len();
        ready!(self.sending.poll_send(&mut part, false, cx))?;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The connection's task does the writing.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Fails only if the stream is already closed.
        let _ = self.sending.send_end();
        Poll::Ready(Ok(()))
    }
}
