//! A client's connection that speaks something else now, such as WebSocket (RFC 6455): bytes either way.
//!
//! The exchange that led to it lasts as long as the tunnel, and with it what its limits hold.

mod counted;

use std::cell::{Cell, RefCell};
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
use super::exchange::Exchange;
use super::stream::Downstream;
use super::timeouts::{RequestTimer, TimeoutKind};
use crate::upstream::tunnel::Tunnel;

/// A tunnel that begins when the client has its answer.
#[derive(Debug)]
pub(super) struct Switched {
    /// The far end.
    pub(super) upstream: Tunnel,
    /// The request that asked for it.
    pub(super) exchange: Box<Exchange>,
}

/// Where the task is found that sends a stream's bytes to the client, once it runs.
pub(super) type Sending = Rc<RefCell<Option<JoinHandle<()>>>>;

/// Carries bytes both ways over a client's connection, of which `read` has been read already.
pub(super) async fn take_over(switched: Switched, mut downstream: Downstream, read: Bytes) {
    downstream.unread(&read);
    carry(switched, downstream, None).await;
}

/// Carries bytes both ways over a stream of HTTP/2, as soon as its answer is out.
pub(super) fn begin(connection: &Connection, stream: OnUpgrade, switched: Switched) {
    let timer = Rc::clone(switched.exchange.timer());
    let sending = connection.leave_http();
    drop(tokio::task::spawn_local(async move {
        match stream.await {
            Ok(stream) => {
                let ended = Rc::<Cell<bool>>::default();
                let sending = sending.take().map(|task| Reply { task, ended: Rc::clone(&ended) });
                carry(switched, Stream { io: TokioIo::new(stream), timer, ended }, sending).await;
            }
            Err(error) => tracing::debug!(%error, "tunnel without a stream"),
        }
    }));
}

/// Carries bytes both ways until both sides have ended, either breaks off, or nothing has moved for the upstream's
/// idle timeout.
async fn carry(
    switched: Switched,
    downstream: impl AsyncRead + AsyncWrite + Unpin,
    mut reply: Option<Reply>,
) {
    let Switched { mut upstream, exchange } = switched;
    let timer = Rc::clone(exchange.timer());
    let (mut account, mut downstream) = Account::open(exchange, downstream);
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
    account.exchange().note_whole();
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
