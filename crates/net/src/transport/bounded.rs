//! A stream from which a bounded number of bytes is read.
//!
//! Libraries skip what they do not expect, such as interim responses, as fast as it arrives. A server could so occupy a
//! thread.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much may be read.
pub trait ReadBound: Unpin {
    /// Counts bytes that were read.
    ///
    /// # Errors
    /// If these are too many: the connection then fails.
    fn count(&mut self, bytes: usize) -> io::Result<()>;
}

/// A stream whose reads are counted.
#[derive(Debug)]
pub struct BoundedStream<T, B> {
    inner: T,
    bound: B,
}

impl<T, B> BoundedStream<T, B> {
    pub const fn new(inner: T, bound: B) -> Self {
        Self { inner, bound }
    }
}

impl<T: AsyncRead + Unpin, B: ReadBound> AsyncRead for BoundedStream<T, B> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        Poll::Ready(self.bound.count(buffer.filled().len().saturating_sub(before)))
    }
}

impl<T: AsyncWrite + Unpin, B: ReadBound> AsyncWrite for BoundedStream<T, B> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
