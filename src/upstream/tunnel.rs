//! A connection to the upstream, or a stream of one, that speaks something else now, such as WebSocket (RFC 6455).

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::http1::connection::Connection;
use super::http2::stream::Stream;
use super::in_flight::InFlight;

/// The way to the upstream, and what has been read of it behind the answer. Dropped, it is closed or reset.
#[derive(Debug)]
pub struct Tunnel {
    way: Way,
    _held: Option<InFlight>,
}

/// What bytes go by.
#[derive(Debug)]
pub(super) enum Way {
    Connection(Box<Connection>),
    Stream(Box<Stream>),
}

impl From<Box<Connection>> for Way {
    fn from(connection: Box<Connection>) -> Self {
        Self::Connection(connection)
    }
}

impl From<Stream> for Way {
    fn from(stream: Stream) -> Self {
        Self::Stream(Box::new(stream))
    }
}

impl Tunnel {
    pub(super) fn new(way: Way, held: Option<InFlight>) -> Self {
        Self { way, _held: held }
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.way {
            Way::Connection(connection) => {
                let read = connection.conn.take(buffer.remaining() as u64);
                if !read.is_empty() {
                    buffer.put_slice(&read);
                    return Poll::Ready(Ok(()));
                }
                Pin::new(&mut connection.conn.stream).poll_read(cx, buffer)
            }
            Way::Stream(stream) => Pin::new(&mut **stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.way {
            Way::Connection(connection) => Pin::new(&mut connection.conn.stream).poll_write(cx, bytes),
            Way::Stream(stream) => Pin::new(&mut **stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.way {
            Way::Connection(connection) => {
                Pin::new(&mut connection.conn.stream).poll_write_vectored(cx, parts)
            }
            Way::Stream(stream) => Pin::new(&mut **stream).poll_write_vectored(cx, parts),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.way {
            Way::Connection(connection) => Pin::new(&mut connection.conn.stream).poll_flush(cx),
            Way::Stream(stream) => Pin::new(&mut **stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.way {
            Way::Connection(connection) => Pin::new(&mut connection.conn.stream).poll_shutdown(cx),
            Way::Stream(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
        }
    }
}
