//! How much went through a tunnel, however it ends.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::super::exchange::Exchange;

/// Octets so far.
#[derive(Debug, Default)]
struct Counts {
    received: Cell<u64>,
    sent: Cell<u64>,
}

/// A client's side of which every octet is counted.
#[derive(Debug)]
pub(super) struct Counted<S> {
    stream: S,
    counts: Rc<Counts>,
}

/// The exchange of a tunnel: whatever ends it, the last octet or a drain that waits no longer, what went through is noted,
/// for it may have its price.
#[derive(Debug)]
pub(super) struct Account {
    exchange: Box<Exchange>,
    counts: Rc<Counts>,
}

impl Account {
    /// An account of what goes through `stream`.
    pub(super) fn open<S>(exchange: Box<Exchange>, stream: S) -> (Self, Counted<S>) {
        let counts = Rc::<Counts>::default();
        (Self { exchange, counts: Rc::clone(&counts) }, Counted { stream, counts })
    }

    pub(super) fn exchange(&mut self) -> &mut Exchange {
        &mut self.exchange
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.exchange.note_tunnelled(self.counts.received.get(), self.counts.sent.get());
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        add(&self.counts.received, buffer.filled().len().saturating_sub(before));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        add(&self.counts.sent, written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

fn add(count: &Cell<u64>, octets: usize) {
    count.set(count.get().saturating_add(octets as u64));
}
