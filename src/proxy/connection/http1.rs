//! Serves HTTP/1.1 to a client (RFC 9112), one request after the other.
//!
//! A connection is one future that reads a head, runs the request pipeline and writes the response, without channels in
//! between. Only a request's body may be read by another task meanwhile (see [`server::conn`]).

mod response;

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::StatusCode;

use self::response::{AfterResponse, OutgoingResponse, respond};
use super::{DownstreamConnection, malformed};
use crate::proxy::body::DownstreamBody;
use crate::proxy::headers::identity::is_identity_header;
use crate::proxy::local_reply::DownstreamResponse;
use crate::proxy::pipeline;
use crate::proxy::request_context::ResponseFlag;
use crate::proxy::response_future::RequestOutcome;
use crate::proxy::stream::DownstreamIo;
use crate::proxy::timeouts::TimeoutKind;
use crate::proxy::tunnel;
use crate::proxy::unanswered;
use weir_http::headers::remove_hop_by_hop;
use weir_http::http1::decoder::BodyDecoder;
use weir_http::http1::malformed::MalformedMessage;
use weir_http::http1::server;
use weir_http::http1::server::conn::{ConnWriter, ConnectionError};
use weir_http::http1::server::request_head::{HeadLimits, RequestHead, RequestHeadDecoder, RequestInfo};
use weir_http::http1::server::response_head;
use weir_http::http1::write_buf::WriteBuf;

/// A client's connection.
type DownstreamConn = server::conn::ServerConn<DownstreamIo>;
/// Body of a request, read from its connection.
pub(in crate::proxy) type Http1Body = server::conn::IncomingBody<DownstreamIo>;

/// Serves a connection until it ends, or has had no request for a while. Returns its stream in the second case.
// Not an async function: its future would have room for `stream` as long as it exists.
pub(super) fn serve(
    connection: &Rc<DownstreamConnection>,
    mut stream: DownstreamIo,
) -> impl Future<Output = Option<DownstreamIo>> {
    let read = stream.take_peeked();
    serve_owned(connection, OwnedConn(Rc::new(RefCell::new(DownstreamConn::new(stream, read)))))
}

async fn serve_owned(connection: &Rc<DownstreamConnection>, conn: OwnedConn) -> Option<DownstreamIo> {
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
    let mut response = Vec::new();
    let status = StatusCode::REQUEST_TIMEOUT;
    response_head::write_error(status, |out| connection.worker.date.write(out), &mut response);
    stream.write_raw(&response);
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
    /// There has been no request for a while, or the next one is not to be handled here.
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

/// Why a connection cannot go on without waiting for anything but its next request.
enum ConnectionStep<F> {
    /// No request follows, so the connection is closed.
    Close,
    /// There has been no request for a while, or the next one is not to be handled here.
    Quiet,
    /// The response to a request has to be awaited.
    Awaits(F, RequestInfo),
    /// A response has not been sent completely, or the rest of its request has to be awaited.
    Responding(Box<OutgoingResponse>),
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
    loop {
        let response = match poll_fn(|cx| poll_requests(connection, conn, &mut reader, cx)).await {
            Ok(ConnectionStep::Awaits(mut handling, info)) => {
                let response = poll_fn(|cx| match Pin::new(&mut handling).poll(cx) {
                    Poll::Ready(reply) => Poll::Ready(Ok(respond(connection, conn, info, reply, cx))),
                    Poll::Pending => poll_while_handling(connection, conn, cx).map(Err),
                });
                // The future of the request ends here: it is large, and sending the rest of the response may take long.
                match response.await {
                    Ok(response) => response,
                    Err(broken) => {
                        unanswered::settle_later(connection, None, handling);
                        return Err(broken);
                    }
                }
            }
            Ok(ConnectionStep::Responding(response)) => AfterResponse::Finish(response),
            Ok(ConnectionStep::Close) => break,
            Ok(ConnectionStep::Quiet) => return Ok(LoopEnd::Quiet),
            Err(ConnectionError::Malformed(malformed)) => {
                return Err(Box::pin(write_error_and_close(connection, conn, malformed)).await);
            }
            Err(broken) => return Err(broken),
        };
        match response {
            AfterResponse::NextRequest => {}
            AfterResponse::Close => break,
            AfterResponse::Finish(mut response) => {
                // Boxed because few responses need it: the future of each connection would have room for it.
                let is_last = !Box::pin(response.finish(connection, conn)).await?;
                if connection.is_upgraded() {
                    return Ok(LoopEnd::Closed);
                }
                if is_last {
                    break;
                }
            }
        }
    }
    close(conn).await?;
    Ok(LoopEnd::Closed)
}

/// Serves requests while their responses are available at once and are sent at once.
///
/// Such a request leaves nothing in the future of its connection. With many connections, that memory is not in the
/// processor's cache.
fn poll_requests(
    connection: &Rc<DownstreamConnection>,
    conn: &Rc<RefCell<DownstreamConn>>,
    reader: &mut RequestHeadDecoder,
    cx: &mut Context<'_>,
) -> Poll<Result<ConnectionStep<impl Future<Output = DownstreamResponse> + Unpin + use<>>, ConnectionError>> {
    let mut head = None;
    loop {
        if connection.is_held_back() {
            return Poll::Ready(Ok(ConnectionStep::Quiet));
        }
        match conn.borrow_mut().poll_head(reader, &mut head, cx)? {
            Poll::Ready(()) => {}
            Poll::Pending if connection.timer.is_quiet() => return Poll::Ready(Ok(ConnectionStep::Quiet)),
            Poll::Pending => return Poll::Pending,
        }
        let Some(RequestHead { parts, decoder: length, expects_continue, info, received }) = &mut head else {
            return Poll::Ready(Ok(ConnectionStep::Close));
        };
        // RFC 9112 section 9.3: an HTTP/1.0 client may not know that `Keep-Alive` concerns its connection to the proxy.
        info.keep_alive &= info.is_http11 || !connection.is_forward_proxy();
        let info = *info;
        let body = if length.is_complete() {
            DownstreamBody::None
        } else {
            let length = std::mem::replace(length, BodyDecoder::Length(0));
            conn.borrow_mut().start_body(length, *expects_continue);
            DownstreamBody::Http1(Http1Body::new(conn))
        };
        connection.interims.start_request(info.is_http11);
        let outcome = pipeline::handle(connection, parts, body, std::mem::take(received));
        // The target and values of headers are slices of the read buffer, which is released with the response.
        head = None;
        match outcome {
            RequestOutcome::Pending(handling) => {
                return Poll::Ready(Ok(ConnectionStep::Awaits(handling, info)));
            }
            RequestOutcome::Response(reply) => match respond(connection, conn, info, reply, cx) {
                AfterResponse::NextRequest => {}
                AfterResponse::Close => return Poll::Ready(Ok(ConnectionStep::Close)),
                AfterResponse::Finish(response) => {
                    return Poll::Ready(Ok(ConnectionStep::Responding(response)));
                }
            },
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::timeouts::{ConnectionTimer, RequestTimer};

    /// Returns the size of the future that a function returns.
    fn future_size<A, B, F>(_: impl FnOnce(A, B) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn state_of_an_active_connection_is_small() {
        let size = future_size(serve);
        assert!(size <= 320, "{size} bytes");
    }

    /// Returns the size class of a block in jemalloc, which has four for each doubling.
    fn size_class(bytes: usize) -> usize {
        bytes.next_multiple_of((bytes.next_power_of_two() / 8).max(16))
    }

    /// Blocks of one size class are in the same pages. What an active connection releases would leave gaps there.
    #[test]
    fn idle_connections_share_no_size_class_with_active_ones() {
        const COUNTS: usize = 2 * size_of::<usize>();
        const TASK: usize = 384;
        const REGISTRATION_OF_SOCKET: usize = 256;
        let kept = [
            size_class(size_of::<DownstreamConnection>() + COUNTS),
            size_class(size_of::<ConnectionTimer>() + COUNTS),
            size_class(size_of::<RequestTimer>() + COUNTS),
            TASK,
            REGISTRATION_OF_SOCKET,
        ];
        let released = [
            size_class(future_size(serve)),
            size_class(size_of::<RefCell<DownstreamConn>>() + COUNTS),
            size_class(size_of::<OutgoingResponse>()),
        ];
        assert!(released.iter().all(|class| !kept.contains(class)), "kept: {kept:?}, released: {released:?}");
    }
}
