//! HTTP/1.1 towards a client (RFC 9112): one exchange after the other.
//!
//! A connection is one future that reads a head, has it answered, and writes the answer; nothing stands between them and
//! nothing is passed through a channel. Only a request's body may be in somebody else's hands meanwhile (see [`wire`]).

mod answer;
#[cfg(any(test, fuzzing))]
pub(in crate::proxy) mod fuzzing;
mod head;
mod wire;

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use tokio::io::AsyncWrite as _;

use self::answer::Course;
use self::head::{Asked, Head, Reader};
pub(in crate::proxy) use self::wire::Arriving;
use self::wire::{Broken, Wire, Writing};
use super::{Connection, rejected};
use crate::headers::Response;
use crate::http1::malformed::Malformed;
use crate::http1::outbox::Outbox;
use crate::http1::sending::{Failure, Sending};
use crate::proxy::answers::{self, Reply};
use crate::proxy::body::{Incoming, ResponseBody};
use crate::proxy::exchange::Flag;
use crate::proxy::service;
use crate::proxy::stream::Downstream;
use crate::proxy::timeouts::TimeoutKind;
use crate::proxy::tunnel;

/// A map with room for more fields is not kept for the next request.
const MOST_KEPT_FIELDS: usize = 64;

/// The answer to a head that never ended (RFC 9110 section 15.5.9).
const TIMED_OUT: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// Serves a connection to its end.
pub(super) async fn serve(connection: Rc<Connection>, stream: Downstream) {
    let wire = Line(Rc::new(RefCell::new(Wire::new(stream))));
    let ended = see_through(&connection, &wire.0).await;
    // Taken in any case: it knows the connection that holds it.
    let switched = connection.switched.take();
    match ended {
        Ended::Served(Ok(())) => {
            if let (Some(switched), Some((stream, read))) = (switched, wire.cut()) {
                // A tunnel is rare and its future large.
                Box::pin(tunnel::take_over(switched, stream, read)).await;
            }
        }
        Ended::Stalled => {}
        Ended::Served(Err(error)) => tracing::debug!(%error, "connection ended"),
        Ended::HeadTimeout => {
            if let Some((mut stream, read)) = wire.cut() {
                time_out(&connection, &mut stream, &read);
            }
        }
    }
}

/// A connection that ends with whoever serves it, though a request's body is still in other hands: those would keep a socket
/// that nobody counts and nobody times.
struct Line(Rc<RefCell<Wire>>);

impl Line {
    /// Takes the connection from whoever has it; what has been read of what comes next.
    fn cut(&self) -> Option<(Downstream, Bytes)> {
        // Nobody holds it across a turn.
        self.0.try_borrow_mut().ok()?.cut()
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        drop(self.cut());
    }
}

/// Says good-bye to a client whose request's head does not come to its end, of which so much has been `read`.
pub(super) fn time_out(connection: &Connection, stream: &mut Downstream, read: &[u8]) {
    stream.say(TIMED_OUT);
    let read = if read.is_empty() { stream.opening() } else { read };
    rejected::note(connection, StatusCode::REQUEST_TIMEOUT, Flag::IdleTimeout, read);
}

enum Ended {
    Served(Result<(), Broken>),
    HeadTimeout,
    Stalled,
}

/// Serves a connection until it ends by itself or something takes too long.
async fn see_through(connection: &Rc<Connection>, wire: &Rc<RefCell<Wire>>) -> Ended {
    let timer = &connection.timer;
    let mut serving = pin!(converse(connection, wire));
    poll_fn(|cx| {
        timer.wake_by(cx.waker());
        match timer.expired() {
            Some(TimeoutKind::Idle) => wire.borrow_mut().close(),
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
async fn converse(connection: &Rc<Connection>, wire: &Rc<RefCell<Wire>>) -> Result<(), Broken> {
    let mut reader = Reader::new(connection.limits);
    let mut buffer = Vec::new();
    loop {
        let read = poll_fn(|cx| wire.borrow_mut().poll_head(&mut reader, cx)).await;
        match read {
            Ok(_) => {}
            Err(Broken::Malformed(malformed)) => return refuse(connection, wire, malformed).await,
            Err(broken) => return Err(broken),
        }
        let Some(Head { parts, length, expects, asked }) = reader.take() else { break };
        let body = if length.is_over() {
            Incoming::None
        } else {
            wire.borrow_mut().expect(length, expects);
            Incoming::Http1(Arriving::new(wire))
        };
        connection.interims.begin(asked.is_1_1);
        let mut handling = service::handle(connection, (parts, body));
        let reply = poll_fn(|cx| match Pin::new(&mut handling).poll(cx) {
            Poll::Ready(reply) => Poll::Ready(Ok(reply)),
            Poll::Pending => wait(connection, wire, cx).map(Err),
        });
        let reply = reply.await?;
        // It is large, and its answer may take long.
        drop(handling);
        let (mut sending, spare, mut keeps) = begin(connection, wire, asked, reply, buffer);
        reader.reuse(spare);
        if let Err(broken) = send(wire, &mut sending).await {
            // Rare, and its future is large.
            (sending, keeps) = Box::pin(replace(connection, wire, asked, (sending, broken))).await?;
        }
        buffer = sending.into_buffer();
        if connection.has_switched() {
            return Ok(());
        }
        let is_whole = poll_fn(|cx| wire.borrow_mut().poll_rest(cx)).await;
        if !is_whole || !keeps {
            break;
        }
    }
    shut_down(wire).await
}

/// What there is to do before the final response is here: interim ones are passed on, and the client is watched.
fn wait(connection: &Connection, wire: &RefCell<Wire>, cx: &mut Context<'_>) -> Poll<Broken> {
    let mut wire = wire.borrow_mut();
    pass_interims(connection, &mut wire);
    if !wire.interim().is_empty()
        && let Err(error) = wire.send_interim(cx)
    {
        return Poll::Ready(error.into());
    }
    wire.poll_gone(cx)
}

/// Puts what an upstream has sent in advance before anything else that is written.
fn pass_interims(connection: &Connection, wire: &mut Wire) {
    if !connection.interims.is_empty() {
        connection.interims.take().into_iter().for_each(|interim| answer::interim(interim, wire.interim()));
    }
}

/// Sends a response to its end.
async fn send(wire: &RefCell<Wire>, sending: &mut Sending<ResponseBody>) -> Result<(), Broken> {
    poll_fn(|cx| {
        // In an expression of its own: what is sent may read the request meanwhile.
        let before = wire.borrow_mut().poll_before_answer(cx);
        let polled = match before {
            Poll::Ready(Ok(())) => sending.poll(&mut Writing(wire), cx).map_err(Broken::from),
            before => before.map_err(Broken::from),
        };
        match polled {
            Poll::Ready(sent) => Poll::Ready(sent),
            Poll::Pending => wire.borrow_mut().poll_gone(cx).map(Err),
        }
    })
    .await
}

/// Sends 502 in place of a response that was `broken` off before any of it was written: an empty close would leave the
/// client without a status.
async fn replace(
    connection: &Connection,
    wire: &RefCell<Wire>,
    asked: Asked,
    (sending, broken): (Sending<ResponseBody>, Broken),
) -> Result<(Sending<ResponseBody>, bool), Broken> {
    let Some((body, buffer)) = sending.into_unsent() else { return Err(broken) };
    let Some(exchange) = body.into_broken() else { return Err(broken) };
    let reply = answers::broken_off(exchange);
    let (mut sending, _, keeps) = begin(connection, wire, asked, reply, buffer);
    send(wire, &mut sending).await?;
    Ok((sending, keeps))
}

/// Writes an answer's head; gives what is to be sent then, an empty map, and whether another request may follow.
fn begin(
    connection: &Connection,
    wire: &RefCell<Wire>,
    mut asked: Asked,
    Response { status, mut headers, mut body }: Reply,
    buffer: Vec<u8>,
) -> (Sending<ResponseBody>, HeaderMap, bool) {
    let mut outbox = Outbox::new(buffer);
    let mut wire = wire.borrow_mut();
    pass_interims(connection, &mut wire);
    wire.begin_answer();
    asked.keeps &= !wire.is_closing();
    drop(wire);
    let Course { coding, has_body, keeps } =
        answer::head(asked, (status, &mut headers), &body, &connection.worker.date, outbox.end());
    if !has_body {
        body.leave_out();
    }
    let mut sending = Sending::new(outbox, coding, body);
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
async fn refuse(connection: &Connection, wire: &RefCell<Wire>, malformed: Malformed) -> Result<(), Broken> {
    let status = answer::status_of(malformed);
    rejected::note(connection, status, Flag::DownstreamProtocol, wire.borrow().unread());
    let mut outbox = Outbox::default();
    answer::malformed(status, &connection.worker.date, outbox.end());
    poll_fn(|cx| outbox.poll_write(&mut Writing(wire), cx)).await?;
    shut_down(wire).await?;
    Err(malformed.into())
}

async fn shut_down(wire: &RefCell<Wire>) -> Result<(), Broken> {
    poll_fn(|cx| Pin::new(&mut Writing(wire)).poll_shutdown(cx)).await?;
    Ok(())
}

impl From<Failure> for Broken {
    fn from(failure: Failure) -> Self {
        let (Failure::Connection(error) | Failure::Body(error)) = failure;
        Self::Connection(error)
    }
}
