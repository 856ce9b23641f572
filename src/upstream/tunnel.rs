//! A connection to the upstream that speaks something else now, such as WebSocket (RFC 6455).

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::endpoint::UnderWay;
use super::http1::connection::Connection;

/// The connection, and what has been read of it behind the answer. Dropped, it is closed.
#[derive(Debug)]
pub struct Tunnel {
    connection: Box<Connection>,
    _held: Option<UnderWay>,
}

impl Tunnel {
    pub(super) fn new(connection: Box<Connection>, held: Option<UnderWay>) -> Self {
        Self { connection, _held: held }
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = self.connection.take(buffer.remaining() as u64);
        if !read.is_empty() {
            buffer.put_slice(&read);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.connection.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection.stream).poll_write_vectored(cx, parts)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection.stream).poll_shutdown(cx)
    }
}
