//! Serves HTTP/1.1 to a client (RFC 9112), one request after the other.
//!
//! A connection is one future that reads a head, runs the request pipeline and writes the response, without channels in
//! between. Only a request's body may be read by another task meanwhile (see [`server::conn`]).

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use super::{DownstreamConnection, malformed};
use crate::headers::{Response, remove_hop_by_hop};
use crate::http1::encoder::{EncodeError, Encoder};
use crate::http1::malformed::MalformedMessage;
use crate::http1::server;
use crate::http1::server::conn::{ConnWriter, ConnectionError};
use crate::http1::server::request_head::{HeadLimits, RequestHead, RequestHeadDecoder, RequestInfo};
use crate::http1::server::response_head::{self, WrittenHead};
use crate::http1::write_buf::WriteBuf;
use crate::proxy::body::{DownstreamBody, ResponseBody};
use crate::proxy::headers::identity::is_identity_header;
use crate::proxy::local_reply::{self, DownstreamResponse};
use crate::proxy::pipeline;
use crate::proxy::request_context::ResponseFlag;
use crate::proxy::stream::DownstreamIo;
use crate::proxy::timeouts::TimeoutKind;
use crate::proxy::tunnel;

/// A client's connection.
type DownstreamConn = server::conn::ServerConn<DownstreamIo>;
/// Body of a request, read from its connection.
pub(in crate::proxy) type Http1Body = server::conn::IncomingBody<DownstreamIo>;

/// Maximum capacity of a header map that is kept for the next request.
const MAX_RETAINED_FIELDS: usize = 64;

/// Response to a request whose head timed out (RFC 9110 section 15.5.9).
const REQUEST_TIMEOUT_RESPONSE: &[u8] =
    b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// Serves a connection until it ends, or has had no request for a while. Returns its stream in the second case.
pub(super) async fn serve(
    connection: &Rc<DownstreamConnection>,
    mut stream: DownstreamIo,
) -> Option<DownstreamIo> {
    let read = stream.take_peeked();
    let conn = OwnedConn(Rc::new(RefCell::new(DownstreamConn::new(stream, read))));
    let ended = run(connection, &conn.0).await;
    // Taken in any case: it refers to the connection that holds it, and the cycle would leak both.
    let upgraded = connection.upgraded.take();
    match ended {
        ConnectionEnd::Served(Ok(LoopEnd::Quiet)) => {
            let (mut stream, read) = conn.take_stream()?;
            stream.push_back(&read);
            return Some(stream);
        }
        ConnectionEnd::Served(Ok(LoopEnd::Closed)) => {
            if let (Some(upgraded), Some((stream, read))) = (upgraded, conn.take_stream()) {
                // Boxed because a tunnel is rare and its future large.
                Box::pin(tunnel::run_over_connection(upgraded, stream, read)).await;
            }
        }
        ConnectionEnd::Stalled => {}
        ConnectionEnd::Served(Err(error)) => tracing::debug!(%error, "connection ended"),
        ConnectionEnd::HeadTimeout => {
            if let Some((mut stream, read)) = conn.take_stream() {
                send_request_timeout(connection, &mut stream, &read);
            }
        }
    }
    None
}

/// Owner of a connection, which closes it on drop even if a request's body is still held elsewhere. Otherwise a socket
/// would stay open that is neither counted nor timed.
struct OwnedConn(Rc<RefCell<DownstreamConn>>);

impl OwnedConn {
    /// Takes the stream, with the bytes that have been read but not decoded.
    fn take_stream(&self) -> Option<(DownstreamIo, Bytes)> {
        // No borrow is held across an await point.
        self.0.try_borrow_mut().ok()?.take_stream()
    }
}

impl Drop for OwnedConn {
    fn drop(&mut self) {
        drop(self.take_stream());
    }
}

/// Sends 408 to a client whose request head has timed out. `read` is what was read of that head.
pub(super) fn send_request_timeout(
    connection: &DownstreamConnection,
    stream: &mut DownstreamIo,
    read: &[u8],
) {
    stream.write_raw(REQUEST_TIMEOUT_RESPONSE);
    let read = if read.is_empty() { stream.peeked() } else { read };
    malformed::record_request(connection, StatusCode::REQUEST_TIMEOUT, ResponseFlag::IdleTimeout, read);
}

enum ConnectionEnd {
    Served(Result<LoopEnd, ConnectionError>),
    HeadTimeout,
    Stalled,
}

/// Why no further request is served.
enum LoopEnd {
    /// The connection is closed, or leaves HTTP.
    Closed,
    /// There has been no request for a while.
    Quiet,
}

/// Serves a connection until it ends by itself or a timeout expires.
async fn run(connection: &Rc<DownstreamConnection>, conn: &Rc<RefCell<DownstreamConn>>) -> ConnectionEnd {
    let timer = &connection.timer;
    let mut serving = pin!(run_loop(connection, conn));
    poll_fn(|cx| {
        timer.register_waker(cx.waker());
        match timer.expired() {
            Some(TimeoutKind::Idle) => conn.borrow_mut().close(),
            Some(TimeoutKind::Head) => return Poll::Ready(ConnectionEnd::HeadTimeout),
            Some(TimeoutKind::StreamIdle) if !timer.awaits_response() => {
                return Poll::Ready(ConnectionEnd::Stalled);
            }
            // The pipeline handles response timeouts, and the stream handles lingering.
            Some(TimeoutKind::StreamIdle | TimeoutKind::Response(_) | TimeoutKind::Linger) | None => {}
        }
        serving.as_mut().poll(cx).map(ConnectionEnd::Served)
    })
    .await
}

/// Serves one request after the other until the connection is to be closed, or there are no more for a while.
async fn run_loop(
    connection: &Rc<DownstreamConnection>,
    conn: &Rc<RefCell<DownstreamConn>>,
) -> Result<LoopEnd, ConnectionError> {
    let mut reader = RequestHeadDecoder::new(HeadLimits {
        size: connection.limits.header_size,
        fields: connection.limits.headers,
    });
    let mut buffer = Vec::new();
    loop {
        let read = poll_fn(|cx| match conn.borrow_mut().poll_head(&mut reader, cx) {
            Poll::Pending if connection.timer.is_quiet() => Poll::Ready(None),
            read => read.map(Some),
        });
        match read.await {
            Some(Ok(_)) => {}
            Some(Err(ConnectionError::Malformed(malformed))) => {
                return Err(write_error_and_close(connection, conn, malformed).await);
            }
            Some(Err(broken)) => return Err(broken),
            None => return Ok(LoopEnd::Quiet),
        }
        let Some(RequestHead { parts, decoder: length, expects_continue: expects, info }) =
            reader.take_head()
        else {
            break;
        };
        let body = if length.is_complete() {
            DownstreamBody::None
        } else {
            conn.borrow_mut().start_body(length, expects);
            DownstreamBody::Http1(Http1Body::new(conn))
        };
        connection.interims.start_request(info.is_http11);
        let mut handling = pipeline::handle(connection, parts, body);
        let reply = poll_fn(|cx| match Pin::new(&mut handling).poll(cx) {
            Poll::Ready(reply) => Poll::Ready(Ok(reply)),
            Poll::Pending => poll_while_handling(connection, conn, cx).map(Err),
        });
        let reply = reply.await?;
        // Dropped early: it is large, and sending the response may take long.
        drop(handling);
        let (mut sending, spare, mut keeps) = start_response(connection, conn, info, reply, buffer);
        reader.reuse(spare);
        if let Err(broken) = send_response(conn, &mut sending).await {
            // Boxed because it is rare and its future large.
            (sending, keeps) =
                Box::pin(replace_broken_response(connection, conn, info, sending, broken)).await?;
        }
        buffer = sending.into_buffer();
        if connection.is_upgraded() {
            return Ok(LoopEnd::Closed);
        }
        if info.is_connect {
            // What the client has sent for the tunnel is unread.
            connection.timer.must_linger();
        }
        let is_whole = poll_fn(|cx| conn.borrow_mut().poll_body_end(cx)).await;
        if !is_whole || !keeps {
            break;
        }
    }
    close(conn).await?;
    Ok(LoopEnd::Closed)
}

/// Work to be done until the final response is ready: forwards interim responses, and detects a client that has closed
/// the connection.
fn poll_while_handling(
    connection: &DownstreamConnection,
    conn: &RefCell<DownstreamConn>,
    cx: &mut Context<'_>,
) -> Poll<ConnectionError> {
    let mut conn = conn.borrow_mut();
    pass_interims(connection, &mut conn);
    if !conn.interim_buf().is_empty()
        && let Err(error) = conn.send_interim(cx)
    {
        return Poll::Ready(error.into());
    }
    match connection.timer.holds_request() {
        true => conn.poll_closed_while_held(cx),
        false => conn.poll_client_closed(cx),
    }
}

/// Queues interim responses of the upstream before anything else that is written.
fn pass_interims(connection: &DownstreamConnection, conn: &mut DownstreamConn) {
    if !connection.interims.is_empty() {
        for mut interim in connection.interims.take_all() {
            remove_hop_by_hop(&mut interim.headers, is_identity_header);
            response_head::write_interim(&interim, conn.interim_buf());
        }
    }
}

/// Sends a response to its end.
async fn send_response(
    conn: &RefCell<DownstreamConn>,
    sending: &mut Encoder<ResponseBody>,
) -> Result<(), ConnectionError> {
    poll_fn(|cx| {
        // A separate statement, so that the borrow ends here: the body of the response may read the request when it is
        // polled.
        let before = conn.borrow_mut().poll_before_response(cx);
        let polled = match before {
            Poll::Ready(Ok(())) => sending.poll(&mut ConnWriter(conn), cx).map_err(ConnectionError::from),
            before => before.map_err(ConnectionError::from),
        };
        match polled {
            Poll::Ready(sent) => Poll::Ready(sent),
            Poll::Pending => conn.borrow_mut().poll_client_closed(cx).map(Err),
        }
    })
    .await
}

/// Sends 502 in place of a response that failed before any of it was written. Closing the connection instead would
/// leave the client without a status code.
async fn replace_broken_response(
    connection: &DownstreamConnection,
    conn: &RefCell<DownstreamConn>,
    info: RequestInfo,
    sending: Encoder<ResponseBody>,
    broken: ConnectionError,
) -> Result<(Encoder<ResponseBody>, bool), ConnectionError> {
    let Some((body, buffer)) = sending.into_unsent() else { return Err(broken) };
    let Some(context) = body.into_broken_context() else { return Err(broken) };
    let reply = local_reply::response_broken_off(context);
    let (mut sending, _, keeps) = start_response(connection, conn, info, reply, buffer);
    send_response(conn, &mut sending).await?;
    Ok((sending, keeps))
}

/// Writes the head of a response. Returns the encoder for the rest, an empty map for reuse, and whether another request
/// may follow.
fn start_response(
    connection: &DownstreamConnection,
    conn: &RefCell<DownstreamConn>,
    mut info: RequestInfo,
    Response { status, mut headers, mut body }: DownstreamResponse,
    buffer: Vec<u8>,
) -> (Encoder<ResponseBody>, HeaderMap, bool) {
    let mut write_buf = WriteBuf::new(buffer);
    let mut conn = conn.borrow_mut();
    pass_interims(connection, &mut conn);
    conn.start_response();
    info.keep_alive &= !conn.is_closing();
    drop(conn);
    let write_date = |out: &mut Vec<u8>| connection.worker.date.write(out);
    let WrittenHead { framing: coding, has_body, keep_alive: keeps } =
        response_head::write(info, status, &mut headers, &body, write_date, write_buf.buffer_mut());
    if !has_body {
        body.omit();
    }
    let mut sending = Encoder::new(write_buf, coding, body);
    if !has_body {
        sending.discard_body();
    }
    let mut spare = headers.into_spare();
    if spare.capacity() > MAX_RETAINED_FIELDS {
        spare = HeaderMap::new();
    }
    (sending, spare, keeps)
}

/// Sends an error response to a malformed request, and closes the connection. Returns why it ended.
async fn write_error_and_close(
    connection: &DownstreamConnection,
    conn: &RefCell<DownstreamConn>,
    malformed: MalformedMessage,
) -> ConnectionError {
    let status = response_head::error_status(malformed);
    malformed::record_request(
        connection,
        status,
        ResponseFlag::DownstreamProtocol,
        conn.borrow().unread_bytes(),
    );
    let mut write_buf = WriteBuf::default();
    response_head::write_error(status, |out| connection.worker.date.write(out), write_buf.buffer_mut());
    if let Err(error) = poll_fn(|cx| write_buf.poll_write(&mut ConnWriter(conn), cx)).await {
        return error.into();
    }
    match close(conn).await {
        Ok(()) => malformed.into(),
        Err(error) => error,
    }
}

/// Prepares for closing the socket after the last response.
async fn close(conn: &RefCell<DownstreamConn>) -> Result<(), ConnectionError> {
    poll_fn(|cx| conn.borrow_mut().stream_mut().map_or(Poll::Ready(Ok(())), |stream| stream.poll_close(cx)))
        .await?;
    Ok(())
}

impl From<EncodeError> for ConnectionError {
    fn from(failure: EncodeError) -> Self {
        let (EncodeError::Connection(error) | EncodeError::Body(error)) = failure;
        Self::Io(error)
    }
}
