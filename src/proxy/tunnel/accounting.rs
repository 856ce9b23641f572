//! Counts the bytes that a tunnel transfers, and charges them while it runs. A tunnel may last for days; a limit on
//! bytes that is charged at its end would limit nothing until then.
//!
//! If the rule delays requests, the tunnel stops at its limit: it neither reads from the client nor writes to it until there
//! is room. So the senders on both sides are slowed down by flow control.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::super::finish;
use super::super::request_context::RequestContext;
use weir_limits::TunnelRoom;

/// Bytes after which a running tunnel is charged again. A charge reads the clock and locks the counters.
const CHARGE_STEP: u64 = 64 * 1024;

/// Bytes after which a tunnel is charged that a limit may slow down. A read of 8 KiB may exceed it.
const SLOWED_STEP: u64 = 16 * 1024;
/// Time after which a stopped tunnel looks for room again; units may come back earlier than expected.
const MAX_STOP: Duration = Duration::from_secs(1);
/// Resolution of timers.
const MIN_STOP: Duration = Duration::from_millis(1);

/// Bytes transferred so far.
#[derive(Debug, Default)]
struct ByteCounts {
    received: Cell<u64>,
    sent: Cell<u64>,
    /// Number of bytes, of both directions, at which the tunnel stops; `None` if no limit slows it.
    stop_at: Cell<Option<u64>>,
    /// Whether the tunnel has reached that number.
    is_stopped: Cell<bool>,
    /// Whether there are bytes for the client meanwhile. Those from the client are not read, and so not known.
    has_demand: Cell<bool>,
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
    /// Until when the tunnel is stopped at its limit.
    stop: Option<Pin<Box<Sleep>>>,
}

impl TunnelAccounting {
    /// Creates an account of the bytes transferred through `stream`.
    pub(super) fn start<S>(context: Box<RequestContext>, stream: S) -> (Self, CountingStream<S>) {
        let counts = Rc::<ByteCounts>::default();
        counts.stop_at.set(finish::slows_tunnel(&context).then_some(SLOWED_STEP));
        let account = Self { context, counts: Rc::clone(&counts), charged: 0, stop: None };
        (account, CountingStream { stream, counts })
    }

    /// Charges the bytes transferred so far, if they are enough since the last charge.
    fn charge(&mut self) {
        let transferred = self.counts.transferred();
        if transferred.saturating_sub(self.charged) >= CHARGE_STEP || self.counts.is_stopped.get() {
            self.charged = transferred;
            finish::charge_bytes(&mut self.context, self.counts.received.get(), self.counts.sent.get());
        }
    }

    /// Copies bytes by polling `copying`, as far as the limits have room for them.
    ///
    /// # Errors
    /// That of `copying`, or that a limit has no room in time.
    pub(super) fn poll_copy<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut copying: Pin<&mut impl Future<Output = io::Result<T>>>,
    ) -> Poll<io::Result<T>> {
        loop {
            let room = self.poll_room(cx);
            let had_demand = self.counts.has_demand.get();
            if room == Poll::Ready(false) {
                return Poll::Ready(Err(io::ErrorKind::QuotaExceeded.into()));
            }
            // Even if it is stopped: the upstream may end it, or have bytes for the client.
            if let Poll::Ready(copied) = copying.as_mut().poll(cx) {
                return Poll::Ready(copied);
            }
            if room.is_pending() {
                if had_demand || !self.counts.has_demand.get() {
                    return Poll::Pending;
                }
                self.stop = None;
                continue;
            }
            self.charge();
            if !self.counts.is_stopped.get() {
                return Poll::Pending;
            }
        }
    }

    /// Waits until the limits have room for more bytes, which have been charged so far. `false` if that takes longer than
    /// a rule delays anything, and there are bytes for the client.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        while self.counts.is_stopped.get() {
            if let Some(stop) = &mut self.stop {
                ready!(stop.as_mut().poll(cx));
            }
            match finish::tunnel_room(&self.context) {
                TunnelRoom::TooLate if self.counts.has_demand.get() => return Poll::Ready(false),
                TunnelRoom::TooLate => self.stop_for(MAX_STOP),
                TunnelRoom::After(wait) => self.stop_for(wait),
                TunnelRoom::Available => {
                    self.stop = None;
                    self.counts.stop_at.set(Some(self.counts.transferred().saturating_add(SLOWED_STEP)));
                    self.counts.is_stopped.set(false);
                    self.counts.has_demand.set(false);
                }
            }
        }
        Poll::Ready(true)
    }

    fn stop_for(&mut self, wait: Duration) {
        self.stop = Some(Box::pin(tokio::time::sleep(wait.clamp(MIN_STOP, MAX_STOP))));
    }

    pub(super) fn context(&mut self) -> &mut RequestContext {
        &mut self.context
    }
}

impl Drop for TunnelAccounting {
    fn drop(&mut self) {
        let Self { context, counts, charged: _, stop: _ } = self;
        let upload = context.upload.get_or_insert_default();
        upload.received.set(upload.received.get().saturating_add(counts.received.get()));
        context.bytes_sent = context.bytes_sent.saturating_add(counts.sent.get());
    }
}

impl ByteCounts {
    fn transferred(&self) -> u64 {
        self.received.get().saturating_add(self.sent.get())
    }

    /// Stops the tunnel if it has reached the number of bytes after which it needs room for more. Its task polls it again.
    fn stop_if_reached(&self) -> bool {
        let is_reached = self.stop_at.get().is_some_and(|stop_at| self.transferred() >= stop_at);
        if is_reached {
            self.is_stopped.set(true);
        }
        is_reached
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CountingStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.counts.stop_if_reached() {
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        add(&self.counts.received, buffer.filled().len().saturating_sub(before));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountingStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if !bytes.is_empty() && self.counts.stop_if_reached() {
            self.counts.has_demand.set(true);
            return Poll::Pending;
        }
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

fn add(count: &Cell<u64>, bytes: usize) {
    count.set(count.get().saturating_add(bytes as u64));
}
