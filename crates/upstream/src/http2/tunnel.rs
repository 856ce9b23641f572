//! An upgraded HTTP/2 stream: bytes in both directions.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::pool::StreamPermit;
use weir_http::http2::{ReceiveStream, SendStream};
use weir_net::transport::Http2Stream;

/// An upgraded stream. Dropping it before both directions have ended resets it.
#[derive(Debug)]
pub(crate) struct Http2Tunnel {
    stream: Http2Stream,
    _permit: StreamPermit,
}

impl Http2Tunnel {
    /// Creates a stream from both directions of the one that `permit` allows.
    pub(super) const fn new(received: ReceiveStream, sending: SendStream, permit: StreamPermit) -> Self {
        Self { stream: Http2Stream::new(received, sending), _permit: permit }
    }
}

impl AsyncRead for Http2Tunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Http2Tunnel {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
