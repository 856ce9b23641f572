//! HTTP/1.1 towards a client (RFC 9112): one exchange after the other.
//!
//! A connection is one future that reads a head, has it answered, and writes the answer; nothing stands between them and
//! nothing is passed through a channel. Only a request's body may be in somebody else's hands meanwhile (see [`server::conn`]).

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use tokio::io::AsyncWrite as _;

use super::{Connection, malformed};
use crate::headers::{Response, remove_hop_by_hop};
use crate::http1::encoder::{Encoder, Failure};
use crate::http1::malformed::Malformed;
use crate::http1::server;
use crate::http1::server::conn::{Broken, ConnWriter};
use crate::http1::server::request_head::{Asked, Head, Limits, Reader};
use crate::http1::server::response_head::{self, Course};
use crate::http1::write_buf::WriteBuf;
use crate::proxy::body::{Incoming, ResponseBody};
use crate::proxy::headers::identity::tells_who_asks;
use crate::proxy::local_reply::{self, Reply};
use crate::proxy::pipeline;
use crate::proxy::request_context::ResponseFlag;
use crate::proxy::stream::Downstream;
use crate::proxy::timeouts::TimeoutKind;
use crate::proxy::tunnel;

/// A client's connection.
type Conn = server::conn::Conn<Downstream>;
/// A request's body as it is read from it.
pub(in crate::proxy) type IncomingBody = server::conn::IncomingBody<Downstream>;

/// A map with room for more fields is not kept for the next request.
const MOST_KEPT_FIELDS: usize = 64;

/// The answer to a head that never ended (RFC 9110 section 15.5.9).
const TIMED_OUT: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// Serves a connection to its end.
pub(super) async fn serve(connection: Rc<Connection>, stream: Downstream) {
    let conn = OwnedConn(Rc::new(RefCell::new(Conn::new(stream))));
    let ended = run(&connection, &conn.0).await;
    // Taken in any case: it knows the connection that holds it.
    let upgraded = connection.upgraded.take();
    match ended {
        Ended::Served(Ok(())) => {
            if let (Some(upgraded), Some((stream, read))) = (upgraded, conn.cut()) {
                // A tunnel is rare and its future large.
                Box::pin(tunnel::take_over(upgraded, stream, read)).await;
            }
        }
        Ended::Stalled => {}
        Ended::Served(Err(error)) => tracing::debug!(%error, "connection ended"),
        Ended::HeadTimeout => {
            if let Some((mut stream, read)) = conn.cut() {
                time_out(&connection, &mut stream, &read);
            }
        }
    }
}

/// A connection that ends with whoever serves it, though a request's body is still in other hands: those would keep a socket
/// that nobody counts and nobody times.
struct OwnedConn(Rc<RefCell<Conn>>);

impl OwnedConn {
    /// Takes the connection from whoever has it; what has been read of what comes next.
    fn cut(&self) -> Option<(Downstream, Bytes)> {
        // Nobody holds it across a turn.
        self.0.try_borrow_mut().ok()?.cut()
    }
}

impl Drop for OwnedConn {
    fn drop(&mut self) {
        drop(self.cut());
    }
}

/// Says good-bye to a client whose request's head does not come to its end, of which so much has been `read`.
pub(super) fn time_out(connection: &Connection, stream: &mut Downstream, read: &[u8]) {
    stream.write_raw(TIMED_OUT);
    let read = if read.is_empty() { stream.opening() } else { read };
    malformed::record_request(connection, StatusCode::REQUEST_TIMEOUT, ResponseFlag::IdleTimeout, read);
}

enum Ended {
    Served(Result<(), Broken>),
    HeadTimeout,
    Stalled,
}

/// Serves a connection until it ends by itself or something takes too long.
async fn run(connection: &Rc<Connection>, conn: &Rc<RefCell<Conn>>) -> Ended {
    let timer = &connection.timer;
    let mut serving = pin!(run_loop(connection, conn));
    poll_fn(|cx| {
        timer.wake_by(cx.waker());
        match timer.expired() {
            Some(TimeoutKind::Idle) => conn.borrow_mut().close(),
            Some(TimeoutKind::Head) => return Poll::Ready(Ended::HeadTimeout),
            Some(TimeoutKind::StreamIdle) if !timer.awaits_response() => return Poll::Ready(Ended::Stalled),
            // The service answers for these, and the stream for lingering.
            Some(TimeoutKind::StreamIdle | TimeoutKind::Response(_) | TimeoutKind::Linger) | None => {}
        }
        serving.as_mut().poll(cx).map(Ended::Served)
    })
    .await
}

/// One exchange after the other, until either side has had enough.
async fn run_loop(connection: &Rc<Connection>, conn: &Rc<RefCell<Conn>>) -> Result<(), Broken> {
    let mut reader =
        Reader::new(Limits { size: connection.limits.header_size, fields: connection.limits.headers });
    let mut buffer = Vec::new();
    loop {
        let read = poll_fn(|cx| conn.borrow_mut().poll_head(&mut reader, cx)).await;
        match read {
            Ok(_) => {}
            Err(Broken::Malformed(malformed)) => {
                return write_error_and_close(connection, conn, malformed).await;
            }
            Err(broken) => return Err(broken),
        }
        let Some(Head { parts, length, expects, asked }) = reader.take() else { break };
        let body = if length.is_over() {
            Incoming::None
        } else {
            conn.borrow_mut().expect(length, expects);
            Incoming::Http1(IncomingBody::new(conn))
        };
        connection.interims.begin(asked.is_1_1);
        let mut handling = pipeline::handle(connection, parts, body);
        let reply = poll_fn(|cx| match Pin::new(&mut handling).poll(cx) {
            Poll::Ready(reply) => Poll::Ready(Ok(reply)),
            Poll::Pending => wait(connection, conn, cx).map(Err),
        });
        let reply = reply.await?;
        // It is large, and its answer may take long.
        drop(handling);
        let (mut sending, spare, mut keeps) = begin(connection, conn, asked, reply, buffer);
        reader.reuse(spare);
        if let Err(broken) = send(conn, &mut sending).await {
            // Rare, and its future is large.
            (sending, keeps) = Box::pin(replace(connection, conn, asked, sending, broken)).await?;
        }
        buffer = sending.into_buffer();
        if connection.is_upgraded() {
            return Ok(());
        }
        let is_whole = poll_fn(|cx| conn.borrow_mut().poll_rest(cx)).await;
        if !is_whole || !keeps {
            break;
        }
    }
    shut_down(conn).await
}

/// What there is to do before the final response is here: interim ones are passed on, and the client is watched.
fn wait(connection: &Connection, conn: &RefCell<Conn>, cx: &mut Context<'_>) -> Poll<Broken> {
    let mut conn = conn.borrow_mut();
    pass_interims(connection, &mut conn);
    if !conn.interim().is_empty()
        && let Err(error) = conn.send_interim(cx)
    {
        return Poll::Ready(error.into());
    }
    conn.poll_gone(cx)
}

/// Puts what an upstream has sent in advance before anything else that is written.
fn pass_interims(connection: &Connection, conn: &mut Conn) {
    if !connection.interims.is_empty() {
        for mut interim in connection.interims.take() {
            remove_hop_by_hop(&mut interim.headers, tells_who_asks);
            response_head::interim(&interim, conn.interim());
        }
    }
}

/// Sends a response to its end.
async fn send(conn: &RefCell<Conn>, sending: &mut Encoder<ResponseBody>) -> Result<(), Broken> {
    poll_fn(|cx| {
        // In an expression of its own: what is sent may read the request meanwhile.
        let before = conn.borrow_mut().poll_before_answer(cx);
        let polled = match before {
            Poll::Ready(Ok(())) => sending.poll(&mut ConnWriter(conn), cx).map_err(Broken::from),
            before => before.map_err(Broken::from),
        };
        match polled {
            Poll::Ready(sent) => Poll::Ready(sent),
            Poll::Pending => conn.borrow_mut().poll_gone(cx).map(Err),
        }
    })
    .await
}

/// Sends 502 in place of a response that was `broken` off before any of it was written: an empty close would leave the
/// client without a status.
async fn replace(
    connection: &Connection,
    conn: &RefCell<Conn>,
    asked: Asked,
    sending: Encoder<ResponseBody>,
    broken: Broken,
) -> Result<(Encoder<ResponseBody>, bool), Broken> {
    let Some((body, buffer)) = sending.into_unsent() else { return Err(broken) };
    let Some(context) = body.into_broken() else { return Err(broken) };
    let reply = local_reply::broken_off(context);
    let (mut sending, _, keeps) = begin(connection, conn, asked, reply, buffer);
    send(conn, &mut sending).await?;
    Ok((sending, keeps))
}

/// Writes an answer's head; gives what is to be sent then, an empty map, and whether another request may follow.
fn begin(
    connection: &Connection,
    conn: &RefCell<Conn>,
    mut asked: Asked,
    Response { status, mut headers, mut body }: Reply,
    buffer: Vec<u8>,
) -> (Encoder<ResponseBody>, HeaderMap, bool) {
    let mut write_buf = WriteBuf::new(buffer);
    let mut conn = conn.borrow_mut();
    pass_interims(connection, &mut conn);
    conn.begin_answer();
    asked.keeps &= !conn.is_closing();
    drop(conn);
    let write_date = |out: &mut Vec<u8>| connection.worker.date.write(out);
    let Course { coding, has_body, keeps } =
        response_head::write(asked, status, &mut headers, &body, write_date, write_buf.end());
    if !has_body {
        body.leave_out();
    }
    let mut sending = Encoder::new(write_buf, coding, body);
    if !has_body {
        sending.without_body();
    }
    let mut spare = headers.into_spare();
    if spare.capacity() > MOST_KEPT_FIELDS {
        spare = HeaderMap::new();
    }
    (sending, spare, keeps)
}

/// Answers what is no request, and closes.
async fn write_error_and_close(
    connection: &Connection,
    conn: &RefCell<Conn>,
    malformed: Malformed,
) -> Result<(), Broken> {
    let status = response_head::status_of(malformed);
    malformed::record_request(connection, status, ResponseFlag::DownstreamProtocol, conn.borrow().unread());
    let mut write_buf = WriteBuf::default();
    response_head::malformed(status, |out| connection.worker.date.write(out), write_buf.end());
    poll_fn(|cx| write_buf.poll_write(&mut ConnWriter(conn), cx)).await?;
    shut_down(conn).await?;
    Err(malformed.into())
}

async fn shut_down(conn: &RefCell<Conn>) -> Result<(), Broken> {
    poll_fn(|cx| Pin::new(&mut ConnWriter(conn)).poll_shutdown(cx)).await?;
    Ok(())
}

impl From<Failure> for Broken {
    fn from(failure: Failure) -> Self {
        let (Failure::Connection(error) | Failure::Body(error)) = failure;
        Self::Connection(error)
    }
}
