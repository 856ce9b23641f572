//! One client's connection: HTTP/1.1 over it until either side has had enough.

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use http::HeaderValue;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use super::Worker;
use super::activity::{Activity, Overdue};
use super::headers;
use super::service;
use super::stream::Downstream;
use crate::listener::Accepted;

/// A request's head may take this much (Envoy's default); above it the answer is 431.
const LARGEST_HEAD: usize = 60 * 1024;
/// What a connection may buffer of what it reads and of what it writes.
const BUFFER: usize = 64 * 1024;
/// The answer to a head that never ended (RFC 9110 section 15.5.9).
const TIMED_OUT: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// What all requests of a connection share.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) worker: Rc<Worker>,
    pub(super) listener: usize,
    pub(super) peer: IpAddr,
    pub(super) peer_text: HeaderValue,
    pub(super) activity: Rc<Activity>,
}

/// Serves a connection to its end.
pub(super) async fn serve(worker: Rc<Worker>, listener: usize, activity: Rc<Activity>, accepted: Accepted) {
    accepted.stream.set_nodelay();
    let peer = accepted.peer.ip().to_canonical();
    let peer_text = headers::address(peer);
    let connection =
        Rc::new(Connection { worker, listener, peer, peer_text, activity: Rc::clone(&activity) });
    let counted = Counted::new(Rc::clone(&connection));
    let stream = TokioIo::new(Downstream::new(accepted.stream, Rc::clone(&activity)));
    let handler = service_fn(move |request| service::handle(&connection, request));
    let mut serving = http1::Builder::new()
        .max_header_size(LARGEST_HEAD)
        .max_buf_size(BUFFER)
        .serve_connection(stream, handler);
    let ended = poll_fn(|cx| {
        activity.wake_by(cx.waker());
        match activity.overdue() {
            // Finishes writing what is under way, then closes.
            Some(Overdue::Idle) => Pin::new(&mut serving).graceful_shutdown(),
            Some(Overdue::Head) => return Poll::Ready(Ended::HeadTimeout),
            Some(Overdue::Stalled) if !activity.is_unanswered() => return Poll::Ready(Ended::Stalled),
            // The service answers for these, and the stream for lingering.
            Some(Overdue::Stalled | Overdue::Answer | Overdue::Linger) | None => {}
        }
        Pin::new(&mut serving).poll(cx).map(Ended::Served)
    });
    match ended.await {
        Ended::Served(Ok(())) | Ended::Stalled => {}
        Ended::Served(Err(error)) => {
            if error.is_parse() || error.is_parse_too_large() {
                counted.0.worker.metrics.malformed_request();
            }
            tracing::debug!(%error, "connection ended");
        }
        Ended::HeadTimeout => {
            serving.into_parts().io.into_inner().say(TIMED_OUT);
            counted.0.worker.metrics.malformed_request();
        }
    }
}

enum Ended {
    Served(hyper::Result<()>),
    HeadTimeout,
    Stalled,
}

/// Counts a connection as long as it is open.
struct Counted(Rc<Connection>);

impl Counted {
    fn new(connection: Rc<Connection>) -> Self {
        connection.worker.metrics.downstream_connection_opened(connection.listener);
        Self(connection)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.worker.metrics.downstream_connection_closed(self.0.listener);
    }
}
