//! Sends the response to a request, and decides whether another request follows.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use super::{DownstreamConn, pass_interims};
use crate::proxy::body::ResponseBody;
use crate::proxy::connection::DownstreamConnection;
use crate::proxy::local_reply::{DownstreamResponse, response_broken_off};
use weir_http::http1::encoder::Encoder;
use weir_http::http1::memory_pool;
use weir_http::http1::server::conn::{ConnWriter, ConnectionError};
use weir_http::http1::server::request_head::RequestInfo;
use weir_http::http1::server::response_head::{self, WrittenHead};
use weir_http::http1::write_buf::WriteBuf;
use weir_http::unsent::UnsentBytes;
use weir_net::overload::LoadShed;

/// A response, as far as it is still to be sent.
pub(super) struct OutgoingResponse {
    info: RequestInfo,
    /// Another request may follow.
    keep_alive: bool,
    progress: SendProgress,
    /// What it counts in the budget of the process.
    unsent: UnsentBytes,
}

/// How much of a response has been sent.
#[expect(clippy::large_enum_variant, reason = "it is boxed with its response")]
enum SendProgress {
    /// A part of it, with the error if no more can be sent.
    Part(Encoder<ResponseBody>, Option<Box<ConnectionError>>),
    Whole,
}

/// What follows a response that has been sent as far as the client takes it at once.
pub(super) enum AfterResponse {
    /// The next request is read.
    NextRequest,
    /// The connection is closed.
    Close,
    /// The rest is sent by [`OutgoingResponse::finish`].
    // Boxed: the future of each connection would have room for it.
    Finish(Box<OutgoingResponse>),
}

/// A response whose head is written to the buffer of its encoder.
struct EncodedResponse {
    encoder: Encoder<ResponseBody>,
    /// Another request may follow.
    keep_alive: bool,
}

/// Sends as much of a response as the client takes at once.
pub(super) fn respond(
    connection: &DownstreamConnection,
    conn: &RefCell<DownstreamConn>,
    info: RequestInfo,
    reply: DownstreamResponse,
    cx: &mut Context<'_>,
) -> AfterResponse {
    if reply.body.is_withheld() {
        return AfterResponse::Close;
    }
    let is_tunnel = info.is_connect || connection.is_upgraded();
    let keep_alive = match send_at_once(connection, conn, info, reply, is_tunnel, cx) {
        Ok(keep_alive) => keep_alive,
        Err(unsent) => return AfterResponse::Finish(unsent),
    };
    match if is_tunnel { Poll::Pending } else { conn.borrow_mut().poll_body_end(cx) } {
        Poll::Ready(true) if keep_alive => AfterResponse::NextRequest,
        Poll::Ready(_) => AfterResponse::Close,
        Poll::Pending => {
            let progress = SendProgress::Whole;
            let unsent = UnsentBytes::default();
            AfterResponse::Finish(Box::new(OutgoingResponse { info, keep_alive, progress, unsent }))
        }
    }
}

/// Sends a response if the client takes all of it at once, and returns whether another request may follow. Otherwise returns
/// what is left of it.
// Apart from `respond`, so that the encoder is dropped where it is, before the rest of the request is looked at: its body may
// hold the request. `drop` would move it first, and it is large.
#[inline]
fn send_at_once(
    connection: &DownstreamConnection,
    conn: &RefCell<DownstreamConn>,
    info: RequestInfo,
    reply: DownstreamResponse,
    is_tunnel: bool,
    cx: &mut Context<'_>,
) -> Result<bool, Box<OutgoingResponse>> {
    let mut encoded = start(connection, conn, info, reply);
    let keep_alive = encoded.keep_alive;
    let broken = match poll_send(conn, &mut encoded.encoder, !keep_alive && !is_tunnel, cx) {
        Poll::Ready(Ok(())) => return Ok(keep_alive),
        Poll::Ready(Err(broken)) => Some(Box::new(broken)),
        Poll::Pending if !UnsentBytes::has_room(encoded.encoder.unsent_bytes()) => {
            connection.worker.metrics.record_load_shed(LoadShed::Unsent);
            Some(Box::new(io::Error::from(io::ErrorKind::ConnectionAborted).into()))
        }
        Poll::Pending => None,
    };
    let mut unsent = UnsentBytes::default();
    unsent.record(encoded.encoder.unsent_bytes());
    let progress = SendProgress::Part(encoded.encoder, broken);
    Err(Box::new(OutgoingResponse { info, keep_alive, progress, unsent }))
}

impl OutgoingResponse {
    /// Sends the rest. Returns whether another request may follow.
    ///
    /// # Errors
    /// If the connection fails, or the response cannot be completed.
    pub(super) async fn finish(
        &mut self,
        connection: &DownstreamConnection,
        conn: &RefCell<DownstreamConn>,
    ) -> Result<bool, ConnectionError> {
        let Self { info, keep_alive, progress, unsent } = self;
        if let SendProgress::Part(encoder, broken) = progress {
            let sent = match broken.take() {
                Some(broken) => Err(*broken),
                None => send(conn, encoder, unsent).await,
            };
            unsent.record(0);
            if let Err(broken) = sent {
                // Boxed because it is rare and its future large.
                *keep_alive = Box::pin(replace(connection, conn, *info, encoder, broken)).await?;
            }
            // The body of the response ends here: it may hold the request, whose end is awaited next.
            *progress = SendProgress::Whole;
        }
        if connection.is_upgraded() {
            return Ok(false);
        }
        if info.is_connect {
            // What the client has sent for the tunnel is unread.
            connection.timer.must_linger();
        }
        let is_read = poll_fn(|cx| conn.borrow_mut().poll_body_end(cx)).await;
        Ok(is_read && *keep_alive)
    }
}

/// Sends a response to its end.
async fn send(
    conn: &RefCell<DownstreamConn>,
    encoder: &mut Encoder<ResponseBody>,
    unsent: &mut UnsentBytes,
) -> Result<(), ConnectionError> {
    poll_fn(|cx| {
        let polled = poll_send(conn, encoder, false, cx);
        unsent.record(encoder.unsent_bytes());
        polled
    })
    .await
}

/// Sends as much of a response as the client takes. `close_follows` states that the connection is closed immediately after
/// it, unless the request is still being read.
fn poll_send(
    conn: &RefCell<DownstreamConn>,
    encoder: &mut Encoder<ResponseBody>,
    close_follows: bool,
    cx: &mut Context<'_>,
) -> Poll<Result<(), ConnectionError>> {
    // A separate statement, so that the borrow ends here: the body of the response may read the request when it is
    // polled.
    let before = conn.borrow_mut().poll_before_response(cx);
    let polled = match before {
        Poll::Ready(Ok(())) => {
            let before_end = || {
                if close_follows {
                    hold_last_write(conn);
                }
            };
            encoder.poll_announcing_end(&mut ConnWriter(conn), before_end, cx).map_err(ConnectionError::from)
        }
        before => before.map_err(ConnectionError::from),
    };
    match polled {
        Poll::Ready(sent) => Poll::Ready(sent),
        Poll::Pending => conn.borrow_mut().poll_client_closed(cx).map(Err),
    }
}

/// Lets the last bytes of a response leave together with the end of the connection.
fn hold_last_write(conn: &RefCell<DownstreamConn>) {
    let mut conn = conn.borrow_mut();
    if conn.has_whole_request()
        && let Some(stream) = conn.stream_mut()
    {
        stream.hold_writes();
    }
}

/// Sends 502 in place of a response that failed before any of it was written. Closing the connection instead would
/// leave the client without a status code. Returns whether another request may follow.
async fn replace(
    connection: &DownstreamConnection,
    conn: &RefCell<DownstreamConn>,
    info: RequestInfo,
    encoder: &mut Encoder<ResponseBody>,
    broken: ConnectionError,
) -> Result<bool, ConnectionError> {
    let Some(body) = encoder.take_unsent() else { return Err(broken) };
    let Some(context) = body.into_broken_context() else { return Err(broken) };
    let EncodedResponse { encoder: replacement, keep_alive } =
        start(connection, conn, info, response_broken_off(context));
    *encoder = replacement;
    send(conn, encoder, &mut UnsentBytes::default()).await?;
    Ok(keep_alive)
}

/// Starts a response: writes its head.
fn start(
    connection: &DownstreamConnection,
    conn: &RefCell<DownstreamConn>,
    mut info: RequestInfo,
    mut reply: DownstreamResponse,
) -> EncodedResponse {
    let mut write_buf = WriteBuf::default();
    let mut conn = conn.borrow_mut();
    pass_interims(connection, &mut conn);
    conn.start_response();
    info.keep_alive &= !conn.is_closing();
    drop(conn);
    let write_date = |out: &mut Vec<u8>| connection.worker.date.write(out);
    let (headers, out) = (&mut reply.headers, write_buf.buffer_mut());
    let written = response_head::write(info, reply.status, headers, &reply.body, write_date, out);
    let WrittenHead { framing, has_body, keep_alive } = written;
    memory_pool::take_back_headers(headers.take_spare());
    if !has_body {
        reply.body.omit();
    }
    let mut encoded = EncodedResponse { encoder: Encoder::new(write_buf, framing, reply.body), keep_alive };
    if !has_body {
        encoded.encoder.discard_body();
    }
    encoded
}
