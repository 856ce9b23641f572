//! Byte streams of connections, downstream and upstream.
//!
//! An enum rather than a trait object, so that plain TCP costs only a comparison.

mod bounded;
mod client_tcp;
mod http2_body;
mod http2_stream;
mod prefixed;
mod socket_io;
mod tls;

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, ToSocketAddrs, UnixStream};
use tokio_rustls::{client, server};
use weir_http::http1::read_buf::ReadSource;
use weir_http::http1::splice::{SplicePipe, SpliceTarget, Spliced};

pub use self::bounded::{BoundedStream, ReadBound};
pub use self::client_tcp::ClientTcp;
pub use self::http2_body::{Http2Body, SentBody};
pub use self::http2_stream::Http2Stream;
use self::prefixed::PrefixedTransport;
use self::tls::TlsTransport;

/// A connection over any transport.
#[derive(Debug)]
pub enum Transport {
    /// TCP, to an upstream.
    Tcp(TcpStream),
    /// TCP, from a client.
    Client(ClientTcp),
    /// A Unix socket.
    Unix(UnixStream),
    /// TLS over another transport.
    Tls(Box<TlsTransport>),
    /// A transport from which more was read than its preamble; those bytes are read again first.
    Prefixed(Box<PrefixedTransport>),
}

impl Transport {
    /// Opens a TCP connection with `TCP_NODELAY`, so that small writes do not wait for acknowledgements of earlier
    /// ones.
    ///
    /// # Errors
    /// The error of the system.
    pub async fn connect_tcp(address: impl ToSocketAddrs) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }

    /// Connects to a Unix socket.
    ///
    /// # Errors
    /// The error of the system.
    pub async fn connect_unix(path: &Path) -> io::Result<Self> {
        UnixStream::connect(path).await.map(Self::Unix)
    }

    /// Returns a transport that reads `prefix` first, then `inner`.
    pub fn with_prefix(prefix: Vec<u8>, inner: Self) -> Self {
        if prefix.is_empty() {
            inner
        } else {
            Self::Prefixed(Box::new(PrefixedTransport { prefix, position: 0, inner }))
        }
    }

    /// Whether the bytes of the connection are those of its socket.
    pub fn is_plain(&self) -> bool {
        match self {
            Self::Client(_) | Self::Tcp(_) | Self::Unix(_) => true,
            Self::Prefixed(stream) => stream.inner.is_plain(),
            Self::Tls(_) => false,
        }
    }

    /// Returns the socket of a plain connection, which is no longer registered with the runtime, and the bytes that have to be
    /// read before it.
    ///
    /// # Errors
    /// If the connection is not plain, or has failed.
    pub fn into_socket(self) -> io::Result<(OwnedFd, Vec<u8>)> {
        let socket = match self {
            Self::Client(stream) => stream.into_std()?.into(),
            Self::Tcp(stream) => stream.into_std()?.into(),
            Self::Unix(stream) => stream.into_std()?.into(),
            Self::Prefixed(stream) => {
                let PrefixedTransport { mut prefix, position, inner } = *stream;
                let (socket, after) = inner.into_socket()?;
                prefix.drain(..position);
                prefix.extend(after);
                return Ok((socket, prefix));
            }
            Self::Tls(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok((socket, Vec::new()))
    }

    /// Ready when there may be something to read, as far as is known without trying.
    pub fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx).map(drop),
            Self::Client(stream) => stream.poll_readable(cx),
            Self::Prefixed(stream) if stream.prefix.is_empty() => stream.inner.poll_readable(cx),
            Self::Unix(_) | Self::Tls(_) | Self::Prefixed(_) => Poll::Ready(()),
        }
    }

    /// Whether an upstream has sent nothing, not even the end of the stream, as far as the runtime knows. Makes a system
    /// call only if the runtime reports the socket as readable. If it returns `false`, a byte may have been consumed.
    /// Always `false` for a client.
    pub fn has_no_input(&mut self) -> bool {
        let read = match self {
            Self::Tcp(stream) => stream.try_read(&mut [0]),
            Self::Client(_) => return false,
            Self::Unix(stream) => stream.try_read(&mut [0]),
            Self::Tls(stream) => return stream.has_no_input(),
            Self::Prefixed(stream) => return stream.prefix.is_empty() && stream.inner.has_no_input(),
        };
        read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// As [`Transport::has_no_input`], but queries the system, which may have received bytes that the runtime
    /// has not yet reported. Consumes nothing.
    pub fn peek_has_no_input(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        let peeked = match self {
            Self::Tcp(stream) => SockRef::from(stream).peek(&mut byte),
            Self::Client(_) => return false,
            Self::Unix(stream) => SockRef::from(stream).peek(&mut byte),
            Self::Tls(stream) => return stream.inner().peek_has_no_input(),
            Self::Prefixed(stream) => return stream.prefix.is_empty() && stream.inner.peek_has_no_input(),
        };
        peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Lets the kernel hold what is written from now on, until the stream is shut down or a segment is full (`MSG_MORE`,
    /// `send(2)`). Then the last bytes and the end of the stream are one segment, which saves both sides a packet. The
    /// shutdown must follow immediately: without it, the kernel sends the bytes after 200 ms.
    ///
    /// Returns whether the transport can do that.
    pub fn hold_writes(&mut self) -> bool {
        match self {
            Self::Client(stream) => stream.hold_writes(),
            Self::Tls(stream) => stream.inner_mut().hold_writes(),
            Self::Prefixed(stream) => stream.inner.hold_writes(),
            Self::Tcp(_) | Self::Unix(_) => false,
        }
    }

    /// Enables TCP keep-alive probes: after `silence` without traffic, three probes, each `silence / 3` apart. This
    /// costs nothing on connections with traffic.
    pub fn set_tcp_keepalive(&self, silence: Duration) {
        let socket = match self {
            Self::Tcp(stream) => Some(stream.as_fd()),
            Self::Client(stream) => stream.as_fd().ok(),
            Self::Tls(stream) => return stream.inner().set_tcp_keepalive(silence),
            Self::Unix(_) | Self::Prefixed(_) => None,
        };
        if let Some(socket) = socket {
            let keepalive = TcpKeepalive::new().with_time(silence).with_interval(silence / 3).with_retries(3);
            // If this fails, a client that has disconnected is only noticed when the connection reaches its
            // maximum age.
            let _ = SockRef::from(&socket).set_tcp_keepalive(&keepalive);
        }
    }
}

impl From<server::TlsStream<Self>> for Transport {
    fn from(stream: server::TlsStream<Self>) -> Self {
        Self::Tls(Box::new(TlsTransport(stream.into())))
    }
}

impl From<client::TlsStream<Self>> for Transport {
    fn from(stream: client::TlsStream<Self>) -> Self {
        Self::Tls(Box::new(TlsTransport(stream.into())))
    }
}

impl ReadSource for Transport {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        Self::poll_readable(self, cx)
    }

    fn poll_splice(&mut self, max: usize, cx: &mut Context<'_>) -> Spliced<io::Error> {
        match self {
            Self::Tcp(stream) => socket_io::poll_splice(stream, max, cx),
            Self::Client(stream) => stream.poll_splice(max, cx),
            Self::Unix(stream) => socket_io::poll_splice(stream, max, cx),
            Self::Prefixed(stream) if stream.prefix.is_empty() => stream.inner.poll_splice(max, cx),
            Self::Tls(_) | Self::Prefixed(_) => None,
        }
    }
}

impl SpliceTarget for Transport {
    fn takes_pipes(&self) -> bool {
        self.is_plain()
    }

    fn poll_drain(&mut self, pipe: &mut SplicePipe, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(stream) => socket_io::poll_drain(stream, pipe, cx),
            Self::Client(stream) => stream.poll_drain(pipe, cx),
            Self::Unix(stream) => socket_io::poll_drain(stream, pipe, cx),
            Self::Prefixed(stream) => stream.inner.poll_drain(pipe, cx),
            Self::Tls(_) => Poll::Ready(Err(io::ErrorKind::Unsupported.into())),
        }
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Client(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(&mut stream.0).poll_read(cx, buffer),
            Self::Prefixed(stream) => stream.poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => socket_io::poll_write(stream, cx, bytes),
            Self::Client(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => socket_io::poll_write(stream, cx, bytes),
            Self::Tls(stream) => Pin::new(&mut stream.0).poll_write(cx, bytes),
            Self::Prefixed(stream) => Pin::new(&mut stream.inner).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Self::Client(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Self::Tls(stream) => Pin::new(&mut stream.0).poll_write_vectored(cx, parts),
            Self::Prefixed(stream) => Pin::new(&mut stream.inner).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Client(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.0.is_write_vectored(),
            Self::Prefixed(stream) => stream.inner.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Client(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(&mut stream.0).poll_flush(cx),
            Self::Prefixed(stream) => Pin::new(&mut stream.inner).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Client(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(&mut stream.0).poll_shutdown(cx),
            Self::Prefixed(stream) => Pin::new(&mut stream.inner).poll_shutdown(cx),
        }
    }
}
