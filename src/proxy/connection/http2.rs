//! Serves HTTP/2 to a client (RFC 9113). Streams run concurrently.
//!
//! The requests that have arrived together are handled together, so that their responses leave in few writes. A request
//! that is decided at once needs no task; each of the others has one. Every stream has its own timer, so that a timeout
//! ends one stream and not the others. A drain sends GOAWAY twice (RFC 9113 section 6.8): at once, still allowing
//! streams that the client has already opened, and again once those must have arrived.

mod response;
mod stream;

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;

use self::stream::start_stream;
use super::{DownstreamConnection, malformed};
use crate::proxy::request_context::ResponseFlag;
use crate::proxy::stream::DownstreamIo;
use crate::proxy::timeouts::TimeoutKind;
use weir_http::http2::{AcceptedOrigins, Http2Error, Http2Settings, ServerConnection};
use weir_telemetry::malformed_streams::{self, MalformedSide};

/// Maximum streams that are reset as soon as they are opened; more end the connection (CVE-2023-44487).
const MAX_PREMATURE_RESETS: u32 = 20;
/// Maximum resets that are caused by errors of the client; more end the connection (CVE-2025-8671).
const MAX_ERROR_RESETS: u32 = 256;
/// Flow-control windows of a stream, in bytes that a client may send before they have been forwarded: that of every
/// stream, and the maximum while its upload is forwarded.
const STREAM_WINDOW: u32 = 16 * 1024;
const MAX_STREAM_WINDOW: u32 = 256 * 1024;
/// Bytes by which all windows of a connection together may exceed the former.
const SHARED_WINDOW: u32 = 1024 * 1024;

/// Serves a connection to its end.
pub(super) async fn serve(connection: Rc<DownstreamConnection>, stream: DownstreamIo) {
    connection.timer.multiplex();
    match run(&connection, stream).await {
        Ok(()) => {}
        Err(ConnectionFailure::Incomplete) => {
            malformed::record_connection(&connection, ResponseFlag::IdleTimeout);
            tracing::debug!(peer = %connection.peer, "connection ended: a header section took too long");
        }
        Err(ConnectionFailure::Ended(error)) => {
            if matches!(error, Http2Error::Violation(_)) {
                malformed::record_connection(&connection, ResponseFlag::DownstreamProtocol);
            }
            tracing::debug!(%error, "connection ended");
        }
    }
}

/// Why a connection has failed.
enum ConnectionFailure {
    /// A header section, or another frame, was incomplete for longer than the timeout of a header section.
    Incomplete,
    Ended(Http2Error),
}

async fn run(connection: &Rc<DownstreamConnection>, stream: DownstreamIo) -> Result<(), ConnectionFailure> {
    let mut serving = new_connection(connection, stream);
    handshake(connection, &mut serving).await?;
    let replacement = &connection.worker.shared.replacement;
    let mut ending = None;
    poll_fn(|cx| {
        let timer = &connection.timer;
        timer.register_waker(cx.waker());
        match timer.expired() {
            Some(TimeoutKind::Head) => {
                serving.close_incomplete(cx);
                return Poll::Ready(Err(ConnectionFailure::Incomplete));
            }
            Some(TimeoutKind::Idle) => {
                serving.graceful_shutdown();
                timer.goaway_sent();
            }
            // GOAWAY has been sent and no stream is open, but the client has not closed the connection.
            Some(TimeoutKind::Linger) => return Poll::Ready(Ok(())),
            Some(TimeoutKind::Response(_) | TimeoutKind::StreamIdle) | None => {}
        }
        if replacement.has_begun() {
            if connection.is_held_back() {
                serving.refuse_streams();
            } else if ending.is_none() && !serving.has_last_stream() {
                serving.graceful_shutdown();
                ending = Some(replacement.connection_ends());
            }
            timer.goaway_sent();
        }
        let polled = serving.poll_requests(cx, |request, responder, cx| {
            start_stream(connection, request, responder, cx);
        });
        if let Some(streams) = serving.take_malformed() {
            malformed_streams::record(MalformedSide::Client, connection.peer, &streams);
        }
        if connection.close_after_streams.take() {
            serving.refuse_streams();
            timer.goaway_sent();
        }
        timer.receiving(serving.incomplete());
        if ending.is_some() && serving.has_last_stream() {
            ending = None;
        }
        polled.map_err(ConnectionFailure::Ended)
    })
    .await
}

fn new_connection(connection: &DownstreamConnection, stream: DownstreamIo) -> ServerConnection<DownstreamIo> {
    let settings = Http2Settings {
        max_streams: connection.limits.streams,
        max_header_list: connection.limits.header_size,
        stream_window: STREAM_WINDOW,
        max_stream_window: MAX_STREAM_WINDOW,
        shared_window: SHARED_WINDOW,
        connect_protocol: true,
        origins: AcceptedOrigins::Uri,
        max_premature_resets: MAX_PREMATURE_RESETS,
        max_error_resets: MAX_ERROR_RESETS,
    };
    ServerConnection::new(stream, settings)
}

/// Waits for the client's preface.
async fn handshake(
    connection: &DownstreamConnection,
    serving: &mut ServerConnection<DownstreamIo>,
) -> Result<(), ConnectionFailure> {
    let timer = &connection.timer;
    poll_fn(|cx| {
        timer.register_waker(cx.waker());
        match timer.expired() {
            Some(TimeoutKind::Head) => {
                serving.close_incomplete(cx);
                return Poll::Ready(Err(ConnectionFailure::Incomplete));
            }
            Some(_) => {
                let drained = Http2Error::Io(io::ErrorKind::TimedOut);
                return Poll::Ready(Err(ConnectionFailure::Ended(drained)));
            }
            None => {}
        }
        serving.poll_handshake(cx).map_err(ConnectionFailure::Ended)
    })
    .await
}
