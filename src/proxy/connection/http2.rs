//! Serves HTTP/2 to a client (RFC 9113). Streams run concurrently, each in a task of its own.
//!
//! Every stream has its own timer, so that a timeout ends one stream and not the others. A drain sends GOAWAY twice
//! (RFC 9113 section 6.8): at once, still allowing streams that the client has already opened, and again once those
//! must have arrived.

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

use super::{DownstreamConnection, malformed};
use crate::proxy::body::DownstreamBody;
use crate::proxy::local_reply::{self, DownstreamResponse};
use crate::proxy::pipeline;
use crate::proxy::stream::DownstreamIo;
use crate::proxy::timeouts::{RequestTimer, STREAMS_IN_WINDOW, TimeoutKind};

/// Maximum streams that were opened and reset before being accepted; more end the connection (CVE-2023-44487).
const MAX_PENDING_RESETS: usize = 20;
/// Maximum resets that are caused by errors of the client; more end the connection.
const MAX_ERROR_RESETS: usize = 256;
/// Flow-control windows of a stream and of a connection: maximum bytes that a client may send before they have been
/// forwarded.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = STREAMS_IN_WINDOW * STREAM_WINDOW;
/// Maximum bytes buffered for a stream whose client does not read.
const SEND_BUFFER: usize = 16 * 1024;

/// Serves a connection to its end.
pub(super) async fn serve(connection: Rc<DownstreamConnection>, stream: TokioIo<DownstreamIo>) {
    let timer = Rc::clone(&connection.timer);
    timer.multiplex();
    let asked = Rc::clone(&connection);
    let handler = service_fn(move |request| {
        let (head, body) = Request::into_parts(request);
        let by_head = head.method == Method::HEAD;
        let handling = pipeline::handle(&asked, head, DownstreamBody::Http2(body));
        async move {
            let mut reply = replace_if_broken(handling.await).await;
            if by_head {
                withhold_content(&mut reply);
            }
            Ok::<_, Infallible>(reply.into_http())
        }
    });
    let mut serving = http2::Builder::new(StreamExecutor(Rc::clone(&connection)))
        .max_concurrent_streams(connection.limits.streams)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(MAX_ERROR_RESETS)
        .max_header_list_size(connection.limits.header_size)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .enable_connect_protocol()
        .serve_connection(stream, handler);
    let ended = poll_fn(|cx| {
        timer.register_waker(cx.waker());
        match timer.expired() {
            Some(TimeoutKind::Idle) => {
                Pin::new(&mut serving).graceful_shutdown();
                timer.goaway_sent();
            }
            // GOAWAY has been sent and no stream is open, but the client has not closed the connection.
            Some(TimeoutKind::Linger) => return Poll::Ready(Ok(())),
            Some(TimeoutKind::Head | TimeoutKind::Response(_) | TimeoutKind::StreamIdle) | None => {}
        }
        Pin::new(&mut serving).poll(cx)
    });
    if let Err(error) = ended.await {
        if is_client_error(&error) {
            malformed::record_connection(&connection);
        }
        tracing::debug!(%error, "connection ended");
    }
}

/// Returns the response, or 502 if it has already failed. Once its head is sent, the only remaining option is to reset
/// the stream.
async fn replace_if_broken(mut reply: DownstreamResponse) -> DownstreamResponse {
    let broken = poll_fn(|cx| Poll::Ready(reply.body.prefetch(cx))).await;
    broken.map_or(reply, local_reply::response_broken_off)
}

/// Removes the content of a response to HEAD (RFC 9110 section 9.3.2), which hyper would send.
fn withhold_content(reply: &mut DownstreamResponse) {
    if let Some(length) = reply.body.withhold() {
        reply.headers.map_mut().entry(CONTENT_LENGTH).or_insert(HeaderValue::from(length));
    }
}

/// Whether the connection ended because the client violated the protocol.
fn is_client_error(error: &hyper::Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(|cause| cause.is_library() && cause.is_go_away())
}

/// Executor that runs the streams of a connection on this thread.
#[derive(Clone)]
struct StreamExecutor(Rc<DownstreamConnection>);

impl<F: Future<Output = ()> + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        match self.0.newest_stream.take() {
            Some(timer) => drop(tokio::task::spawn_local(serve_stream(timer, stream))),
            // Task that sends the bytes of a tunnel to the client, after the head of the response.
            None => {
                let sending = tokio::task::spawn_local(stream);
                if let Some(leaving) = self.0.pending_send_task.take() {
                    leaving.replace(Some(sending));
                }
            }
        }
    }
}

/// Serves a stream to its end. Dropping the future resets the stream.
async fn serve_stream(timer: Rc<RequestTimer>, stream: impl Future<Output = ()>) {
    let mut stream = pin!(stream);
    poll_fn(|cx| {
        timer.register_waker(cx.waker());
        match timer.expired() {
            Some(TimeoutKind::StreamIdle) if !timer.awaits_response() => Poll::Ready(()),
            _ => stream.as_mut().poll(cx),
        }
    })
    .await;
}
