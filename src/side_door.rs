//! Small ports of HTTP/1.1 beside the main road: for operators, probes and programs that ask now and then.
//!
//! What comes by here is trusted no more than what comes by the road: there are only so many connections, each has so
//! long for a request and so long in all, and what goes wrong with one is nobody else's concern. One without a request
//! makes room for a new one. A door stands open to the very end of the process.

mod seats;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};

use self::seats::{Claim, Seats, Stage, Watched};
use crate::drain::{Drain, Phase};

/// An answer, complete.
pub type Reply = Response<Full<Bytes>>;

/// A reply with a body of this type.
pub fn reply(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Full::new(body.into()));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}

/// Connections at a time; beyond that one of them makes room. A scraper and a few probes need a handful.
const MOST_CONNECTIONS: usize = 256;

/// Until a request's head is complete, and how long a connection may stay without one.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a request's body may take to come.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long one connection serves before it is closed after the request at hand, and how long that request
/// then has: a client that never reads its answer holds a place no longer.
const CONNECTION_AGE: Duration = Duration::from_secs(60);
const LAST_REQUEST: Duration = Duration::from_secs(10);

/// The end of the process does not wait longer than this for an answer to leave.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

/// Room for a request's head.
const HEAD_BYTES: usize = 16 * 1024;

/// Accepting fails for lack of descriptors or memory, which does not pass in an instant.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers what comes to `listener` by `answer` until the drain has reached its last phase. `answer` takes time only
/// for a request's body; it must bound what it reads of that.
pub async fn serve<A, F>(listener: TcpListener, drain: Arc<Drain>, answer: A)
where
    A: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Reply> + Send + 'static,
{
    let mut seats = Seats::default();
    let mut connections = JoinSet::new();
    let ended = drain.reached(Phase::Ended);
    tokio::pin!(ended);
    loop {
        tokio::select! {
            biased;
            () = &mut ended => break,
            Some(_) = connections.join_next() => {}
            stream = accept(&listener) => {
                let claim = Claim::default();
                let has_made_room = seats.make_room(MOST_CONNECTIONS);
                let serving = connection(stream, claim.clone(), Arc::clone(&drain), answer.clone());
                seats.seat(connections.spawn(serving), claim);
                if has_made_room {
                    // It ends on its own turn, and whoever was accepted before gets to be served.
                    yield_now().await;
                }
            }
        }
    }
    drop(listener);
    let _ = timeout(LAST_ANSWERS, async { while connections.join_next().await.is_some() {} }).await;
}

/// The next connection. Safe to cancel: nothing is accepted and lost.
async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept at a side door");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection<A, F>(stream: TcpStream, claim: Claim, drain: Arc<Drain>, answer: A)
where
    A: Fn(Request<Incoming>) -> F,
    F: Future<Output = Reply>,
{
    let stream = TokioIo::new(Watched::new(stream, claim.clone()));
    let service = service_fn(|request| {
        claim.is(Stage::Asking);
        let reply = timeout(BODY_TIMEOUT, answer(request));
        let claim = claim.clone();
        async move {
            let reply = reply.await.unwrap_or_else(|_| timed_out());
            claim.is(Stage::Answering);
            Ok::<_, Infallible>(reply)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(stream, service);
    tokio::pin!(connection);
    tokio::select! {
        // Whatever a client did wrong concerns nobody else.
        _ = connection.as_mut() => return,
        () = sleep(CONNECTION_AGE) => {}
        () = drain.reached(Phase::Ended) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(LAST_REQUEST, connection).await;
}

/// The answer to a request whose body did not come to its end.
fn timed_out() -> Reply {
    let mut reply = Response::new(Full::new(Bytes::new()));
    *reply.status_mut() = StatusCode::REQUEST_TIMEOUT;
    reply
}
