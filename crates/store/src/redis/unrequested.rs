//! Bound of what a server sends without a call that waits for it.
//!
//! The `redis` library reads and drops such replies as fast as they arrive, which would occupy a thread.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use weir_net::transport::Transport;

/// Maximum bytes that a server sends between two calls. Replies to calls that were dropped and messages of a Sentinel are
/// far smaller.
const MAX_UNREQUESTED: usize = 64 * 1024;

/// Calls on one connection that wait for a reply.
#[derive(Clone, Debug, Default)]
pub(super) struct OutstandingCalls(Arc<CallCount>);

#[derive(Debug, Default)]
struct CallCount {
    outstanding: AtomicUsize,
    /// Whether the server has exceeded [`MAX_UNREQUESTED`].
    is_exceeded: AtomicBool,
}

/// A call that waits for a reply, until it is dropped.
#[derive(Debug)]
pub(super) struct OutstandingCall<'c>(&'c CallCount);

impl OutstandingCalls {
    /// Counts a call until the result is dropped.
    pub(super) fn start(&self) -> OutstandingCall<'_> {
        self.0.outstanding.fetch_add(1, Ordering::Relaxed);
        OutstandingCall(&self.0)
    }

    /// Returns whether the connection was closed because the server has sent too much that was not requested.
    pub(super) fn is_exceeded(&self) -> bool {
        self.0.is_exceeded.load(Ordering::Relaxed)
    }

    fn is_empty(&self) -> bool {
        self.0.outstanding.load(Ordering::Relaxed) == 0
    }
}

impl Drop for OutstandingCall<'_> {
    fn drop(&mut self) {
        self.0.outstanding.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Transport that fails when the server sends too much that was not requested.
#[derive(Debug)]
pub(super) struct BoundedTransport {
    inner: Transport,
    calls: OutstandingCalls,
    /// Bytes that have arrived since a call was outstanding.
    unrequested: usize,
}

impl BoundedTransport {
    pub(super) const fn new(inner: Transport, calls: OutstandingCalls) -> Self {
        Self { inner, calls, unrequested: 0 }
    }

    fn count(&mut self, bytes: usize) -> io::Result<()> {
        self.unrequested = if self.calls.is_empty() { self.unrequested.saturating_add(bytes) } else { 0 };
        if self.unrequested <= MAX_UNREQUESTED {
            return Ok(());
        }
        self.calls.0.is_exceeded.store(true, Ordering::Relaxed);
        Err(io::Error::new(io::ErrorKind::InvalidData, "replies that were not requested"))
    }
}

impl AsyncRead for BoundedTransport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        std::task::ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        let read = buffer.filled().len().saturating_sub(before);
        Poll::Ready(self.count(read))
    }
}

impl AsyncWrite for BoundedTransport {
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
