//! Tunnel: forwards bytes both ways after an upgrade, such as to WebSocket (RFC 6455), or after CONNECT.
//!
//! The request that asked for the upgrade lasts as long as the tunnel, and so do its in-flight limits.

mod accounting;

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::task::JoinHandle;

use self::accounting::TunnelAccounting;
use super::connection::DownstreamConnection;
use super::finish;
use super::request_context::{RequestContext, UpgradedRequest};
use super::stream::DownstreamIo;
use super::timeouts::{RequestTimer, TimeoutKind};
use crate::upstream::tunnel::Tunnel;

/// Prepares a tunnel after the upstream has accepted the upgrade. It starts once the response has been sent, on the
/// whole connection (HTTP/1.1) or on a stream (HTTP/2).
pub(super) fn start(mut context: Box<RequestContext>, upstream: Tunnel) {
    let connection = Rc::clone(&context.connection);
    match context.upgrade.stream.take() {
        Some(stream) => start_over_stream(&connection, stream, UpgradedRequest { upstream, context }),
        None => connection.set_upgraded(UpgradedRequest { upstream, context }),
    }
}

/// Runs a tunnel over a client's HTTP/1.1 connection, of which `read` has been read already.
pub(super) async fn run_over_connection(
    upgraded: UpgradedRequest,
    mut downstream: DownstreamIo,
    read: Bytes,
) {
    downstream.push_back(&read);
    copy_both_ways(upgraded, downstream, None).await;
}

/// Starts a tunnel over an HTTP/2 stream as soon as its response has been sent.
fn start_over_stream(connection: &DownstreamConnection, stream: OnUpgrade, upgraded: UpgradedRequest) {
    let timer = Rc::clone(&upgraded.context.timer);
    let sending = connection.start_stream_upgrade();
    drop(tokio::task::spawn_local(async move {
        match stream.await {
            Ok(stream) => {
                let ended = Rc::<Cell<bool>>::default();
                let sending = sending.take().map(|task| ResponseTask { task, is_ended: Rc::clone(&ended) });
                copy_both_ways(
                    upgraded,
                    DownstreamTunnel { io: TokioIo::new(stream), timer, is_ended: ended },
                    sending,
                )
                .await;
            }
            Err(error) => tracing::debug!(%error, "tunnel not established"),
        }
    }));
}

/// Forwards bytes both ways until both sides have ended, either fails, or nothing is transferred for the upstream's
/// idle timeout.
async fn copy_both_ways(
    upgraded: UpgradedRequest,
    downstream: impl AsyncRead + AsyncWrite + Unpin,
    mut reply: Option<ResponseTask>,
) {
    let UpgradedRequest { mut upstream, context } = upgraded;
    let timer = Rc::clone(&context.timer);
    let (mut account, mut downstream) = TunnelAccounting::start(context, downstream);
    let carried = {
        let mut copying = pin!(copy_bidirectional(&mut downstream, &mut upstream));
        poll_fn(|cx| {
            timer.register_waker(cx.waker());
            if timer.expired() == Some(TimeoutKind::StreamIdle) {
                return Poll::Ready(None);
            }
            if let Poll::Ready(copied) = copying.as_mut().poll(cx) {
                return Poll::Ready(Some(copied));
            }
            account.charge();
            match &mut reply {
                Some(reply) => {
                    reply.poll_client_reset(cx).map(|()| Some(Err(io::ErrorKind::ConnectionReset.into())))
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
    if let Some(reply) = reply.filter(|_| !matches!(carried, Some(Ok(_)))) {
        // A failed tunnel must not look complete: aborting the task resets the stream (RFC 8441 section 5).
        reply.task.abort();
    }
    finish::response_complete(account.context());
}

/// Task that sends the bytes of an HTTP/2 stream to the client. The server ends the task when its sending side is
/// dropped. The end of the task is the only sign that the client has reset the stream.
#[derive(Debug)]
struct ResponseTask {
    task: JoinHandle<()>,
    /// Weir has ended its side of the stream.
    is_ended: Rc<Cell<bool>>,
}

impl ResponseTask {
    /// Waits until the client has reset the stream.
    fn poll_client_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.is_ended.get() {
            true => Poll::Pending,
            false => Pin::new(&mut self.task).poll(cx).map(drop),
        }
    }
}

/// An HTTP/2 stream after its upgrade; records progress for the timeouts.
#[derive(Debug)]
struct DownstreamTunnel {
    io: TokioIo<Upgraded>,
    timer: Rc<RequestTimer>,
    is_ended: Rc<Cell<bool>>,
}

impl AsyncRead for DownstreamTunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        self.timer.record_progress();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for DownstreamTunnel {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write(cx, bytes))?;
        self.timer.record_progress();
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.is_ended.set(true);
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
