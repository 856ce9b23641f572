//! A client's connection that speaks something else now, such as WebSocket (RFC 6455): bytes either way.
//!
//! The request that led to it lasts as long as the tunnel, and with it what its limits hold.

mod counted;

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

use self::counted::Account;
use super::connection::Connection;
use super::finish;
use super::request_context::{RequestContext, UpgradedRequest};
use super::stream::Downstream;
use super::timeouts::{RequestTimer, TimeoutKind};
use crate::upstream::tunnel::Tunnel;

/// The upstream has agreed to the upgrade: the connection, or the stream, is a tunnel once its response is out.
pub(super) fn start(mut context: Box<RequestContext>, upstream: Tunnel) {
    let connection = Rc::clone(&context.connection);
    match context.upgrade.stream.take() {
        Some(stream) => begin(&connection, stream, UpgradedRequest { upstream, context }),
        None => connection.upgrade(UpgradedRequest { upstream, context }),
    }
}

/// Carries bytes both ways over a client's connection, of which `read` has been read already.
pub(super) async fn take_over(upgraded: UpgradedRequest, mut downstream: Downstream, read: Bytes) {
    downstream.unread(&read);
    carry(upgraded, downstream, None).await;
}

/// Carries bytes both ways over a stream of HTTP/2, as soon as its answer is out.
fn begin(connection: &Connection, stream: OnUpgrade, upgraded: UpgradedRequest) {
    let timer = Rc::clone(&upgraded.context.timer);
    let sending = connection.leave_http();
    drop(tokio::task::spawn_local(async move {
        match stream.await {
            Ok(stream) => {
                let ended = Rc::<Cell<bool>>::default();
                let sending = sending.take().map(|task| Reply { task, ended: Rc::clone(&ended) });
                carry(upgraded, Stream { io: TokioIo::new(stream), timer, ended }, sending).await;
            }
            Err(error) => tracing::debug!(%error, "tunnel without a stream"),
        }
    }));
}

/// Carries bytes both ways until both sides have ended, either breaks off, or nothing has moved for the upstream's
/// idle timeout.
async fn carry(
    upgraded: UpgradedRequest,
    downstream: impl AsyncRead + AsyncWrite + Unpin,
    mut reply: Option<Reply>,
) {
    let UpgradedRequest { mut upstream, context } = upgraded;
    let timer = Rc::clone(&context.timer);
    let (mut account, mut downstream) = Account::open(context, downstream);
    let carried = {
        let mut copying = pin!(copy_bidirectional(&mut downstream, &mut upstream));
        poll_fn(|cx| {
            timer.wake_by(cx.waker());
            if timer.expired() == Some(TimeoutKind::StreamIdle) {
                return Poll::Ready(None);
            }
            if let Poll::Ready(copied) = copying.as_mut().poll(cx) {
                return Poll::Ready(Some(copied));
            }
            match &mut reply {
                Some(reply) => reply.poll_lost(cx).map(|()| Some(Err(io::ErrorKind::ConnectionReset.into()))),
                None => Poll::Pending,
            }
        })
        .await
    };
    match &carried {
        Some(Ok(_)) => {}
        Some(Err(error)) => tracing::debug!(%error, "tunnel broke off"),
        None => tracing::debug!("tunnel stood still"),
    }
    if let Some(reply) = reply.filter(|_| !matches!(carried, Some(Ok(_)))) {
        // What broke off must not look whole: without it the stream is reset (RFC 8441 section 5).
        reply.task.abort();
    }
    finish::response_complete(account.context());
}

/// What goes to the client by a stream of HTTP/2. The server ends it where its own end is dropped, and tells a stream that the
/// client has reset from one that has ended by this alone.
#[derive(Debug)]
struct Reply {
    task: JoinHandle<()>,
    /// We have ended it.
    ended: Rc<Cell<bool>>,
}

impl Reply {
    /// Waits until the client takes no more.
    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.ended.get() {
            true => Poll::Pending,
            false => Pin::new(&mut self.task).poll(cx).map(drop),
        }
    }
}

/// A stream of HTTP/2 that is no longer one of HTTP, noting its progress.
#[derive(Debug)]
struct Stream {
    io: TokioIo<Upgraded>,
    timer: Rc<RequestTimer>,
    ended: Rc<Cell<bool>>,
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        self.timer.progress();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write(cx, bytes))?;
        self.timer.progress();
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.ended.set(true);
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
