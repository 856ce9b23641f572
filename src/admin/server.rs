//! The socket of the admin port: an HTTP/1.1 server of its own, so that a flood of traffic or a stuck worker
//! leaves operators and probes an entrance.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::reply::{self, Reply};
use super::{State, Surface, handle};
use crate::drain::Phase;

/// Connections at a time; more wait to be accepted. A scraper and a few probes need a handful.
const MOST_CONNECTIONS: usize = 256;

/// Until a request's head is complete, and how long a connection may stay without one: what frees the places
/// that idle clients hold.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// How long one connection serves before it is closed after the request at hand, and how long that request
/// then has: a client that never reads its answer holds a place no longer.
const CONNECTION_AGE: Duration = Duration::from_secs(60);
const LAST_REQUEST: Duration = Duration::from_secs(10);

/// The end of the process does not wait longer than this for an answer to leave.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

/// Room for a request's head; there are no bodies.
const HEAD_BYTES: usize = 16 * 1024;

/// Accepting fails for lack of descriptors or memory, which does not pass in an instant.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `surface` on `listener` until the drain has reached its last phase.
pub async fn serve(listener: TcpListener, state: Arc<State>, surface: Surface) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut connections = JoinSet::new();
    let ended = state.drain.reached(Phase::Ended);
    tokio::pin!(ended);
    loop {
        tokio::select! {
            biased;
            () = &mut ended => break,
            Some(_) = connections.join_next() => {}
            (stream, place) = accept(&listener, &places) => {
                connections.spawn(connection(stream, place, Arc::clone(&state), surface));
            }
        }
    }
    drop(listener);
    let _ = timeout(LAST_ANSWERS, async { while connections.join_next().await.is_some() {} }).await;
}

/// The next connection, once there is a place for it. Safe to cancel: nothing is accepted and lost.
async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> (TcpStream, OwnedSemaphorePermit) {
    loop {
        let place = Arc::clone(places).acquire_owned().await;
        match (place, listener.accept().await) {
            (Ok(place), Ok((stream, _))) => return (stream, place),
            (_, Err(error)) => {
                tracing::warn!(%error, "cannot accept on the admin port");
                sleep(ACCEPT_PAUSE).await;
            }
            // Nobody closes the semaphore.
            (Err(_), Ok(_)) => {}
        }
    }
}

async fn connection(stream: TcpStream, place: OwnedSemaphorePermit, state: Arc<State>, surface: Surface) {
    let answered = Arc::clone(&state);
    let service = service_fn(move |request: Request<Incoming>| {
        let reply = answer(&request, &answered, surface);
        async move { Ok::<_, Infallible>(reply) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        // Whatever a client did wrong concerns nobody else.
        _ = connection.as_mut() => return,
        () = sleep(CONNECTION_AGE) => {}
        () = state.drain.reached(Phase::Ended) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(LAST_REQUEST, connection).await;
    drop(place);
}

/// A mistake in one endpoint must not take the entrance away from the others.
fn answer(request: &Request<Incoming>, state: &State, surface: Surface) -> Reply {
    catch_unwind(AssertUnwindSafe(|| handle(request, state, surface))).unwrap_or_else(|_| {
        tracing::error!(path = request.uri().path(), "an admin endpoint panicked");
        reply::text(StatusCode::INTERNAL_SERVER_ERROR, "internal error\n")
    })
}
