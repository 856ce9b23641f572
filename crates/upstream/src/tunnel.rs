//! An upgraded connection or stream to the upstream, such as WebSocket (RFC 6455).

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::http1::connection::Http1Connection;
use super::http2::tunnel::Http2Tunnel;
use super::in_flight::InFlightRequest;

/// An upgraded connection, with the bytes read after the response. Dropping it closes the connection or resets the
/// stream.
#[derive(Debug)]
pub struct Tunnel {
    transport: TunnelTransport,
    _in_flight: Option<InFlightRequest>,
}

#[derive(Debug)]
pub(super) enum TunnelTransport {
    Connection(Box<Http1Connection>),
    Stream(Box<Http2Tunnel>),
}

impl From<Box<Http1Connection>> for TunnelTransport {
    fn from(connection: Box<Http1Connection>) -> Self {
        Self::Connection(connection)
    }
}

impl From<Http2Tunnel> for TunnelTransport {
    fn from(stream: Http2Tunnel) -> Self {
        Self::Stream(Box::new(stream))
    }
}

impl Tunnel {
    pub(super) fn new(way: TunnelTransport, held: Option<InFlightRequest>) -> Self {
        Self { transport: way, _in_flight: held }
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.transport {
            TunnelTransport::Connection(connection) => {
                let read = connection.conn.take_buffered(buffer.remaining() as u64);
                if !read.is_empty() {
                    buffer.put_slice(&read);
                    return Poll::Ready(Ok(()));
                }
                Pin::new(&mut connection.conn.stream).poll_read(cx, buffer)
            }
            TunnelTransport::Stream(stream) => Pin::new(&mut **stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.transport {
            TunnelTransport::Connection(connection) => {
                Pin::new(&mut connection.conn.stream).poll_write(cx, bytes)
            }
            TunnelTransport::Stream(stream) => Pin::new(&mut **stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.transport {
            TunnelTransport::Connection(connection) => {
                Pin::new(&mut connection.conn.stream).poll_write_vectored(cx, parts)
            }
            TunnelTransport::Stream(stream) => Pin::new(&mut **stream).poll_write_vectored(cx, parts),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            TunnelTransport::Connection(connection) => Pin::new(&mut connection.conn.stream).poll_flush(cx),
            TunnelTransport::Stream(stream) => Pin::new(&mut **stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            TunnelTransport::Connection(connection) => {
                Pin::new(&mut connection.conn.stream).poll_shutdown(cx)
            }
            TunnelTransport::Stream(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
        }
    }
}
