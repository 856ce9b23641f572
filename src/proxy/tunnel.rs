//! Tunnel: forwards bytes both ways after an upgrade, such as to WebSocket (RFC 6455), or after CONNECT.
//!
//! The request for the upgrade lasts as long as the tunnel, and so do its in-flight limits.

mod accounting;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};

use self::accounting::TunnelAccounting;
use super::finish;
use super::request_context::{RequestContext, UpgradedRequest};
use super::stream::DownstreamIo;
use super::streams::LimitedStream;
use super::timeouts::{RequestTimer, TimeoutKind};
use weir_http::messages::Framing;
use weir_net::transport::Http2Stream;
use weir_upstream::tunnel::Tunnel;

/// Prepares a tunnel after the upstream has accepted the upgrade. It starts once the response has been sent, on the
/// whole connection (HTTP/1.1) or on a stream (HTTP/2).
pub(super) fn start(context: Box<RequestContext>, upstream: Tunnel) {
    let connection = Rc::clone(&context.connection);
    connection.set_upgraded(UpgradedRequest { upstream, context });
}

/// Runs a tunnel over a client's HTTP/1.1 connection, of which `read` has been read already.
pub(super) async fn run_over_connection(
    upgraded: Box<UpgradedRequest>,
    mut downstream: DownstreamIo,
    read: Bytes,
) {
    downstream.push_back(&read);
    copy_both_ways(upgraded, downstream, None).await;
}

/// Runs a tunnel over a client's HTTP/2 stream.
pub(super) async fn run_over_stream(upgraded: Box<UpgradedRequest>, stream: Http2Stream) {
    let timer = Rc::clone(&upgraded.context.timer);
    let stream = SharedStream { stream: Rc::new(RefCell::new(stream)), is_ended: Rc::default() };
    let downstream = DownstreamTunnel { stream: stream.clone(), timer };
    copy_both_ways(upgraded, downstream, Some(stream)).await;
}

/// Forwards bytes both ways until both sides have ended, either fails, or nothing is transferred for the upstream's
/// idle timeout.
async fn copy_both_ways(
    mut upgraded: Box<UpgradedRequest>,
    downstream: impl AsyncRead + AsyncWrite + Unpin,
    stream: Option<SharedStream>,
) {
    let timer = Rc::clone(&upgraded.context.timer);
    // A tunnel may be open for days, and its limits keep what they need of the configuration.
    let streams = upgraded.context.streams.take();
    let framing = upgraded.context.upgrade.is_websocket().then_some(Framing::WebSocket);
    let downstream = LimitedStream::new(downstream, streams.as_deref(), framing);
    let (mut account, mut downstream) = TunnelAccounting::start(upgraded.context, downstream);
    let carried = {
        let mut copying = pin!(copy_bidirectional(&mut downstream, &mut upgraded.upstream));
        poll_fn(|cx| {
            timer.register_waker(cx.waker());
            if timer.expired() == Some(TimeoutKind::StreamIdle) {
                return Poll::Ready(None);
            }
            if let Poll::Ready(copied) = account.poll_copy(cx, copying.as_mut()) {
                return Poll::Ready(Some(copied));
            }
            match &stream {
                Some(stream) => {
                    stream.poll_client_reset(cx).map(|()| Some(Err(io::ErrorKind::ConnectionReset.into())))
                }
                None => Poll::Pending,
            }
        })
        .await
    };
    match &carried {
        Some(Ok(_)) => {}
        Some(Err(error)) => tracing::debug!(%error, "tunnel aborted"),
        None => tracing::debug!("tunnel idle timeout"),
    }
    if let Some(stream) = stream.filter(|_| !matches!(carried, Some(Ok(_)))) {
        // A failed tunnel must not look complete (RFC 8441 section 5).
        stream.stream.borrow_mut().reset();
    }
    finish::response_complete(account.context());
}

/// A client's HTTP/2 stream, shared because a reset by the client is only noticed if it is awaited: a tunnel that has
/// nothing to send and no more to receive would not use the stream.
#[derive(Clone, Debug)]
struct SharedStream {
    stream: Rc<RefCell<Http2Stream>>,
    /// Weir has ended its side of the stream.
    is_ended: Rc<Cell<bool>>,
}

impl SharedStream {
    /// Waits until the client has reset the stream.
    fn poll_client_reset(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self.is_ended.get() {
            true => Poll::Pending,
            false => self.stream.borrow_mut().poll_reset(cx),
        }
    }
}

/// An HTTP/2 stream after its upgrade; records progress for the timeouts.
#[derive(Debug)]
struct DownstreamTunnel {
    stream: SharedStream,
    timer: Rc<RequestTimer>,
}

impl AsyncRead for DownstreamTunnel {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut *self.stream.stream.borrow_mut()).poll_read(cx, buffer))?;
        self.timer.record_progress();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for DownstreamTunnel {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut *self.stream.stream.borrow_mut()).poll_write(cx, bytes))?;
        self.timer.record_progress();
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream.stream.borrow_mut()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.is_ended.set(true);
        Pin::new(&mut *self.stream.stream.borrow_mut()).poll_shutdown(cx)
    }
}
