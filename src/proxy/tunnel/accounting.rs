//! Counts the bytes that a tunnel transfers, and charges them while it runs. A tunnel may last for days; a limit on
//! bytes that is charged at its end would limit nothing until then.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::super::finish;
use super::super::request_context::RequestContext;

/// Bytes after which a running tunnel is charged again. A charge reads the clock and locks the counters.
const CHARGE_STEP: u64 = 64 * 1024;

/// Bytes transferred so far.
#[derive(Debug, Default)]
struct ByteCounts {
    received: Cell<u64>,
    sent: Cell<u64>,
}

/// The client's side of a tunnel, with every byte counted.
#[derive(Debug)]
pub(super) struct CountingStream<S> {
    stream: S,
    counts: Rc<ByteCounts>,
}

/// The request of a tunnel. On drop, whatever the reason, it records the bytes transferred, which may have a cost.
#[derive(Debug)]
pub(super) struct TunnelAccounting {
    context: Box<RequestContext>,
    counts: Rc<ByteCounts>,
    /// Bytes in both directions at the last charge.
    charged: u64,
}

impl TunnelAccounting {
    /// Creates an account of the bytes transferred through `stream`.
    pub(super) fn start<S>(context: Box<RequestContext>, stream: S) -> (Self, CountingStream<S>) {
        let counts = Rc::<ByteCounts>::default();
        (Self { context, counts: Rc::clone(&counts), charged: 0 }, CountingStream { stream, counts })
    }

    /// Charges the bytes transferred so far, if they are enough since the last charge.
    pub(super) fn charge(&mut self) {
        let (received, sent) = (self.counts.received.get(), self.counts.sent.get());
        let transferred = received.saturating_add(sent);
        if transferred.saturating_sub(self.charged) >= CHARGE_STEP {
            self.charged = transferred;
            finish::charge_bytes(&mut self.context, received, sent);
        }
    }

    pub(super) fn context(&mut self) -> &mut RequestContext {
        &mut self.context
    }
}

impl Drop for TunnelAccounting {
    fn drop(&mut self) {
        let Self { context, counts, charged: _ } = self;
        let upload = context.upload.get_or_insert_default();
        upload.received.set(upload.received.get().saturating_add(counts.received.get()));
        context.bytes_sent = context.bytes_sent.saturating_add(counts.sent.get());
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CountingStream<S> {
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

impl<S: AsyncWrite + Unpin> AsyncWrite for CountingStream<S> {
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
