//! What a connection runs over.

pub(super) mod tls;

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use self::tls::TlsTransport;
use crate::http1::inbox::Source;

/// A stream of bytes to an endpoint.
#[derive(Debug)]
pub(super) enum Transport {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsTransport>),
}

impl Transport {
    /// Whether nothing has come, not even the end, as far as we have been told. Asks the system only if there is
    /// something to be read.
    pub(super) fn is_quiet(&mut self) -> bool {
        let read = match self {
            Self::Tcp(stream) => stream.try_read(&mut [0]),
            Self::Unix(stream) => stream.try_read(&mut [0]),
            Self::Tls(stream) => return stream.is_quiet(),
        };
        read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// The same as far as the system knows, which we may not have been told yet.
    pub(super) fn is_quiet_by_now(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        let peeked = match self {
            Self::Tcp(stream) => SockRef::from(stream).peek(&mut byte),
            Self::Unix(stream) => SockRef::from(stream).peek(&mut byte),
            Self::Tls(stream) => return stream.inner().is_quiet_by_now(),
        };
        peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Two halves that are used independently, on one thread.
    pub(super) fn split(self) -> (Half, Half) {
        let shared = Rc::new(RefCell::new(self));
        (Half(Rc::clone(&shared)), Half(shared))
    }
}

impl Source for Transport {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx).map(drop),
            Self::Unix(_) | Self::Tls(_) => Poll::Ready(()),
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
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write(cx, bytes),
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
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write_vectored(cx, parts),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
        }
    }
}

/// One of two halves of a [`Transport`]. Each is borrowed only while it is polled.
#[derive(Debug)]
pub(super) struct Half(Rc<RefCell<Transport>>);

impl Half {
    /// The whole again, if `other` is the other half.
    pub(super) fn reunite(self, other: Self) -> Option<Transport> {
        drop(other);
        Rc::into_inner(self.0).map(RefCell::into_inner)
    }
}

impl Source for Half {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.borrow().poll_readable(cx)
    }
}

impl AsyncRead for Half {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Half {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_write_vectored(cx, parts)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_shutdown(cx)
    }
}
