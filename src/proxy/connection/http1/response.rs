//! Sends the response to a request, and decides whether another request follows.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Context, Poll};

use super::{DownstreamConn, pass_interims};
use crate::http1::encoder::Encoder;
use crate::http1::memory_pool;
use crate::http1::server::conn::{ConnWriter, ConnectionError};
use crate::http1::server::request_head::RequestInfo;
use crate::http1::server::response_head::{self, WrittenHead};
use crate::http1::write_buf::WriteBuf;
use crate::proxy::body::ResponseBody;
use crate::proxy::connection::DownstreamConnection;
use crate::proxy::local_reply::{self, DownstreamResponse};

/// A response, as far as it is still to be sent.
pub(super) struct OutgoingResponse {
    /// The request, and whether another one may follow the response.
    info: RequestInfo,
    progress: SendProgress,
}

/// How much of a response has been sent.
#[expect(clippy::large_enum_variant, reason = "few responses are not sent at once")]
enum SendProgress {
    /// A part of it, with the error if no more can be sent.
    Part(Encoder<ResponseBody>, Option<ConnectionError>),
    /// All of it.
    Whole,
}

/// What follows a response that has been sent as far as the client takes it at once.
pub(super) enum AfterResponse {
    /// The next request is read.
    NextRequest,
    /// The connection is closed.
    Close,
    /// The rest is sent by [`OutgoingResponse::finish`]. Boxed, because it is large and few responses need it: the future of
    /// the connection has room for it otherwise.
    Finish(Box<OutgoingResponse>),
}

/// Sends as much of a response as the client takes at once.
pub(super) fn respond(
    connection: &DownstreamConnection,
    conn: &RefCell<DownstreamConn>,
    mut info: RequestInfo,
    reply: DownstreamResponse,
    cx: &mut Context<'_>,
) -> AfterResponse {
    let is_tunnel = info.is_connect || connection.is_upgraded();
    if let Err(progress) = send_at_once(connection, conn, &mut info, reply, is_tunnel, cx) {
        return AfterResponse::Finish(Box::new(OutgoingResponse { info, progress }));
    }
    match if is_tunnel { Poll::Pending } else { conn.borrow_mut().poll_body_end(cx) } {
        Poll::Ready(true) if info.keep_alive => AfterResponse::NextRequest,
        Poll::Ready(_) => AfterResponse::Close,
        Poll::Pending => {
            AfterResponse::Finish(Box::new(OutgoingResponse { info, progress: SendProgress::Whole }))
        }
    }
}

/// Sends a whole response. Otherwise returns what is left of it.
// Apart from `respond`, so that the encoder is dropped where it is, before the rest of the request is looked at: its body may
// hold the request. `drop` would move it first, and it is large.
#[inline]
#[expect(clippy::result_large_err, reason = "few responses are not sent at once")]
fn send_at_once(
    connection: &DownstreamConnection,
    conn: &RefCell<DownstreamConn>,
    info: &mut RequestInfo,
    reply: DownstreamResponse,
    is_tunnel: bool,
    cx: &mut Context<'_>,
) -> Result<(), SendProgress> {
    let mut encoder = start(connection, conn, info, reply);
    let broken = match poll_send(conn, &mut encoder, !info.keep_alive && !is_tunnel, cx) {
        Poll::Ready(Ok(())) => return Ok(()),
        Poll::Ready(Err(broken)) => Some(broken),
        Poll::Pending => None,
    };
    Err(SendProgress::Part(encoder, broken))
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
        if let SendProgress::Part(encoder, broken) = &mut self.progress {
            let sent = match broken.take() {
                Some(broken) => Err(broken),
                None => send(conn, encoder).await,
            };
            if let Err(broken) = sent {
                // Boxed because it is rare and its future large.
                Box::pin(self.replace(connection, conn, broken)).await?;
            }
            // The body of the response ends here: it may hold the request, whose end is awaited next.
            self.progress = SendProgress::Whole;
        }
        if connection.is_upgraded() {
            return Ok(false);
        }
        if self.info.is_connect {
            // What the client has sent for the tunnel is unread.
            connection.timer.must_linger();
        }
        let is_read = poll_fn(|cx| conn.borrow_mut().poll_body_end(cx)).await;
        Ok(is_read && self.info.keep_alive)
    }

    /// Sends 502 in place of a response that failed before any of it was written. Closing the connection instead would
    /// leave the client without a status code.
    async fn replace(
        &mut self,
        connection: &DownstreamConnection,
        conn: &RefCell<DownstreamConn>,
        broken: ConnectionError,
    ) -> Result<(), ConnectionError> {
        let SendProgress::Part(encoder, _) = std::mem::replace(&mut self.progress, SendProgress::Whole)
        else {
            return Err(broken);
        };
        let Some(body) = encoder.into_unsent() else { return Err(broken) };
        let Some(context) = body.into_broken_context() else { return Err(broken) };
        let reply = local_reply::response_broken_off(context);
        let mut encoder = start(connection, conn, &mut self.info, reply);
        send(conn, &mut encoder).await
    }
}

/// Sends a response to its end.
async fn send(
    conn: &RefCell<DownstreamConn>,
    encoder: &mut Encoder<ResponseBody>,
) -> Result<(), ConnectionError> {
    poll_fn(|cx| poll_send(conn, encoder, false, cx)).await
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

/// Writes the head of a response, and sets in `info` whether another request may follow. Returns the encoder for the rest.
fn start(
    connection: &DownstreamConnection,
    conn: &RefCell<DownstreamConn>,
    info: &mut RequestInfo,
    mut reply: DownstreamResponse,
) -> Encoder<ResponseBody> {
    let mut write_buf = WriteBuf::default();
    let mut conn = conn.borrow_mut();
    pass_interims(connection, &mut conn);
    conn.start_response();
    info.keep_alive &= !conn.is_closing();
    drop(conn);
    let write_date = |out: &mut Vec<u8>| connection.worker.date.write(out);
    let (headers, out) = (&mut reply.headers, write_buf.buffer_mut());
    let written = response_head::write(*info, reply.status, headers, &reply.body, write_date, out);
    let WrittenHead { framing, has_body, keep_alive } = written;
    info.keep_alive = keep_alive;
    memory_pool::take_back_headers(headers.take_spare());
    if !has_body {
        reply.body.omit();
    }
    let mut encoder = Encoder::new(write_buf, framing, reply.body);
    if !has_body {
        encoder.discard_body();
    }
    encoder
}
