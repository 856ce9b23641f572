//! HTTP/2 towards a client (RFC 9113): exchanges side by side, each a task of its own.
//!
//! Every stream has a timer of its own, so that a timeout ends one stream and not its neighbours.
//! A drain tells the client twice to go (RFC 9113 section 6.8): at once, with room for what is on its way, and
//! again once that must have come.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Method, Request};
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use super::{Connection, malformed};
use crate::proxy::body::Incoming;
use crate::proxy::local_reply::{self, Reply};
use crate::proxy::pipeline;
use crate::proxy::stream::Downstream;
use crate::proxy::timeouts::{RequestTimer, STREAMS_IN_WINDOW, TimeoutKind};

/// Streams opened and reset again that may wait to be noticed; more end the connection (CVE-2023-44487).
const MOST_RESETS_PENDING: usize = 20;
/// Resets that the client's errors may bring about before the connection is ended.
const MOST_ERRORS: usize = 256;
/// What a stream, and all of a connection's together, may send before we have passed it on.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = STREAMS_IN_WINDOW * STREAM_WINDOW;
/// What is kept for a stream whose client does not take it.
const SEND_BUFFER: usize = 16 * 1024;

/// Serves a connection to its end.
pub(super) async fn serve(connection: Rc<Connection>, stream: TokioIo<Downstream>) {
    let timer = Rc::clone(&connection.timer);
    timer.multiplex();
    let asked = Rc::clone(&connection);
    let handler = service_fn(move |request| {
        let (head, body) = Request::into_parts(request);
        let by_head = head.method == Method::HEAD;
        let handling = pipeline::handle(&asked, head, Incoming::Http2(body));
        async move {
            let mut reply = mended(handling.await).await;
            if by_head {
                withhold_content(&mut reply);
            }
            Ok::<_, Infallible>(reply.into_http())
        }
    });
    let mut serving = http2::Builder::new(Streams(Rc::clone(&connection)))
        .max_concurrent_streams(connection.limits.streams)
        .max_pending_accept_reset_streams(MOST_RESETS_PENDING)
        .max_local_error_reset_streams(MOST_ERRORS)
        .max_header_list_size(connection.limits.header_size)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .enable_connect_protocol()
        .serve_connection(stream, handler);
    let ended = poll_fn(|cx| {
        timer.wake_by(cx.waker());
        match timer.expired() {
            Some(TimeoutKind::Idle) => {
                Pin::new(&mut serving).graceful_shutdown();
                timer.goaway_sent();
            }
            // Told to go, and without anything under way, it stays.
            Some(TimeoutKind::Linger) => return Poll::Ready(Ok(())),
            Some(TimeoutKind::Head | TimeoutKind::Response(_) | TimeoutKind::StreamIdle) | None => {}
        }
        Pin::new(&mut serving).poll(cx)
    });
    if let Err(error) = ended.await {
        if is_clients_fault(&error) {
            malformed::record_connection(&connection);
        }
        tracing::debug!(%error, "connection ended");
    }
}

/// The response, or 502 where it has broken off already: once its head is sent, all that is left is to reset the stream.
async fn mended(mut reply: Reply) -> Reply {
    let broken = poll_fn(|cx| Poll::Ready(reply.body.look_ahead(cx))).await;
    broken.map_or(reply, local_reply::broken_off)
}

/// A response to HEAD has no content (RFC 9110 section 9.3.2), which hyper leaves to us.
fn withhold_content(reply: &mut Reply) {
    if let Some(length) = reply.body.withhold() {
        reply.headers.map_mut().entry(CONTENT_LENGTH).or_insert(HeaderValue::from(length));
    }
}

/// Whether a connection ended because the client broke the protocol.
fn is_clients_fault(error: &hyper::Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(|cause| cause.is_library() && cause.is_go_away())
}

/// Runs the streams of a connection on this thread.
#[derive(Clone)]
struct Streams(Rc<Connection>);

impl<F: Future<Output = ()> + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        match self.0.newest_stream.take() {
            Some(timer) => drop(tokio::task::spawn_local(serve_stream(timer, stream))),
            // What becomes of a stream after its answer's head: a tunnel's way to the client.
            None => {
                let sending = tokio::task::spawn_local(stream);
                if let Some(leaving) = self.0.leaving.take() {
                    leaving.replace(Some(sending));
                }
            }
        }
    }
}

/// Serves a stream to its end. Dropped before that, it is reset.
async fn serve_stream(timer: Rc<RequestTimer>, stream: impl Future<Output = ()>) {
    let mut stream = pin!(stream);
    poll_fn(|cx| {
        timer.wake_by(cx.waker());
        match timer.expired() {
            Some(TimeoutKind::StreamIdle) if !timer.awaits_response() => Poll::Ready(()),
            _ => stream.as_mut().poll(cx),
        }
    })
    .await;
}
