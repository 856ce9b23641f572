//! What the bytes of a connection come through, a client's or an endpoint's.
//!
//! A closed set, so that the plain case costs a comparison and no more.

mod rewound;
mod tls;

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, ToSocketAddrs, UnixStream};
use tokio_rustls::{client, server};

use self::rewound::Rewound;
use self::tls::Tls;

/// A connection, whatever carries it.
#[derive(Debug)]
pub enum Transport {
    /// Over the network.
    Tcp(TcpStream),
    /// From a process of this machine.
    Unix(UnixStream),
    /// Encrypted, over another.
    Tls(Box<Tls>),
    /// Another of which more was read than belonged to its preamble.
    Rewound(Box<Rewound>),
}

impl Transport {
    /// A connection over the network, on which small writes do not wait for acknowledgements of earlier ones.
    ///
    /// # Errors
    /// Whatever the system says about it.
    pub async fn connect_tcp(address: impl ToSocketAddrs) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }

    /// A connection to a socket in the file system.
    ///
    /// # Errors
    /// Whatever the system says about it.
    pub async fn connect_unix(path: &Path) -> io::Result<Self> {
        UnixStream::connect(path).await.map(Self::Unix)
    }

    /// `rest`, with `again` before it.
    pub fn rewound(again: Vec<u8>, rest: Self) -> Self {
        if again.is_empty() { rest } else { Self::Rewound(Box::new(Rewound { again, read: 0, rest })) }
    }

    /// Ready when the client has sent something, if only the end; without taking it.
    pub fn poll_begun(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            // Asked itself: the runtime takes a new connection for readable until it has tried.
            Self::Tcp(stream) => stream.poll_peek(cx, &mut ReadBuf::new(&mut [0])).map(drop),
            Self::Rewound(stream) if stream.again.is_empty() => stream.rest.poll_begun(cx),
            // Nobody far away can be at the other end, or it has begun long ago.
            Self::Unix(_) | Self::Tls(_) | Self::Rewound(_) => Poll::Ready(()),
        }
    }

    /// Ready when there may be something to be read, as far as that can be told without trying.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx).map(drop),
            Self::Unix(_) | Self::Tls(_) | Self::Rewound(_) => Poll::Ready(()),
        }
    }

    /// Whether nothing has come, not even the end, as far as we have been told. Asks the system only if there is
    /// something to be read.
    pub fn is_quiet(&mut self) -> bool {
        let read = match self {
            Self::Tcp(stream) => stream.try_read(&mut [0]),
            Self::Unix(stream) => stream.try_read(&mut [0]),
            Self::Tls(stream) => return stream.is_quiet(),
            Self::Rewound(stream) => return stream.again.is_empty() && stream.rest.is_quiet(),
        };
        read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// The same as far as the system knows, which we may not have been told yet.
    pub fn is_quiet_by_now(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        let peeked = match self {
            Self::Tcp(stream) => SockRef::from(stream).peek(&mut byte),
            Self::Unix(stream) => SockRef::from(stream).peek(&mut byte),
            Self::Tls(stream) => return stream.inner().is_quiet_by_now(),
            Self::Rewound(stream) => return stream.again.is_empty() && stream.rest.is_quiet_by_now(),
        };
        peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Has small answers not wait for the client's acknowledgement of earlier ones.
    pub fn set_nodelay(&self) {
        if let Self::Tcp(stream) = self {
            // Slower is all that a connection gets where this fails.
            let _ = stream.set_nodelay(true);
        }
    }

    /// Has the system ask a client that has said nothing for so long whether it is still there, three times a third of
    /// that apart. That costs the bytes that do come through nothing.
    pub fn keep_alive(&self, silence: Duration) {
        if let Self::Tcp(stream) = self {
            let asking = TcpKeepalive::new().with_time(silence).with_interval(silence / 3).with_retries(3);
            // A client that is gone is then noticed when the connection is too old.
            let _ = SockRef::from(stream).set_tcp_keepalive(&asking);
        }
    }
}

impl From<server::TlsStream<Self>> for Transport {
    fn from(stream: server::TlsStream<Self>) -> Self {
        Self::Tls(Box::new(Tls(stream.into())))
    }
}

impl From<client::TlsStream<Self>> for Transport {
    fn from(stream: client::TlsStream<Self>) -> Self {
        Self::Tls(Box::new(Tls(stream.into())))
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
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(&mut stream.0).poll_read(cx, buffer),
            Self::Rewound(stream) => stream.poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(&mut stream.0).poll_write(cx, bytes),
            Self::Rewound(stream) => Pin::new(&mut stream.rest).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Self::Tls(stream) => Pin::new(&mut stream.0).poll_write_vectored(cx, parts),
            Self::Rewound(stream) => Pin::new(&mut stream.rest).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.0.is_write_vectored(),
            Self::Rewound(stream) => stream.rest.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(&mut stream.0).poll_flush(cx),
            Self::Rewound(stream) => Pin::new(&mut stream.rest).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(&mut stream.0).poll_shutdown(cx),
            Self::Rewound(stream) => Pin::new(&mut stream.rest).poll_shutdown(cx),
        }
    }
}
