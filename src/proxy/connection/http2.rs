//! Serves HTTP/2 to a client (RFC 9113). Streams run concurrently.
//!
//! The requests that have arrived together are handled together, so that their responses leave in few writes. A request
//! that is decided at once needs no task; each of the others has one. Every stream has its own timer, so that a timeout
//! ends one stream and not the others. A drain sends GOAWAY twice (RFC 9113 section 6.8): at once, still allowing
//! streams that the client has already opened, and again once those must have arrived.

mod response;
mod stream;

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use bytes::Bytes;
use h2::server::{Builder, Connection};

use self::stream::start_stream;
use super::{DownstreamConnection, malformed};
use crate::proxy::stream::DownstreamIo;
use crate::proxy::timeouts::{STREAMS_IN_WINDOW, TimeoutKind};
use crate::transport::poll_requests;

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
pub(super) async fn serve(connection: Rc<DownstreamConnection>, stream: DownstreamIo) {
    connection.timer.multiplex();
    if let Err(error) = run(&connection, stream).await {
        if error.is_library() && error.is_go_away() {
            malformed::record_connection(&connection);
        }
        tracing::debug!(%error, "connection ended");
    }
}

async fn run(connection: &Rc<DownstreamConnection>, stream: DownstreamIo) -> Result<(), h2::Error> {
    let Some(mut serving) = handshake(connection, stream).await? else { return Ok(()) };
    poll_fn(|cx| {
        let timer = &connection.timer;
        timer.register_waker(cx.waker());
        match timer.expired() {
            Some(TimeoutKind::Idle) => {
                serving.graceful_shutdown();
                timer.goaway_sent();
            }
            // GOAWAY has been sent and no stream is open, but the client has not closed the connection.
            Some(TimeoutKind::Linger) => return Poll::Ready(Ok(())),
            Some(TimeoutKind::Head | TimeoutKind::Response(_) | TimeoutKind::StreamIdle) | None => {}
        }
        poll_requests(&mut serving, cx, |request, responder, cx| {
            start_stream(connection, request, responder, cx);
        })
    })
    .await
}

/// Waits for the client's preface. `None` if the connection's timeout expires before.
async fn handshake(
    connection: &DownstreamConnection,
    stream: DownstreamIo,
) -> Result<Option<Connection<DownstreamIo, Bytes>>, h2::Error> {
    let mut handshake = pin!(
        Builder::new()
            .max_concurrent_streams(connection.limits.streams)
            .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
            .max_local_error_reset_streams(Some(MAX_ERROR_RESETS))
            .max_header_list_size(connection.limits.header_size)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buffer_size(SEND_BUFFER)
            .enable_connect_protocol()
            .handshake(stream)
    );
    let timer = &connection.timer;
    poll_fn(|cx| {
        timer.register_waker(cx.waker());
        if timer.expired().is_some() {
            return Poll::Ready(Ok(None));
        }
        handshake.as_mut().poll(cx).map_ok(Some)
    })
    .await
}
