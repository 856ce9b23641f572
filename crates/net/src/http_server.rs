//! Small HTTP/1.1 server for auxiliary ports, such as the admin interface: operators, probes and low request rates.
//!
//! Its clients are trusted no more than those of the proxy. The number of connections, the time per request and the age
//! of a connection are bounded, and an error on one connection affects no other. At the maximum, a connection without a
//! request makes room for a new one. The port stays open until the process ends.

mod connection_slots;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};

use self::connection_slots::{ConnectionSlots, SharedStage, Stage, TrackedStream};
use crate::drain::{DrainManager, DrainPhase};

/// Address from which a request came, among its extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress(pub SocketAddr);

/// A complete response.
pub type FullResponse = Response<Full<Bytes>>;

/// Creates a response with a body of the given content type.
pub fn response(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> FullResponse {
    let mut reply = Response::new(Full::new(body.into()));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}

/// Maximum concurrent connections; above that, an old one is closed for each new one. A scraper and a few probes need a
/// handful.
const MAX_CONNECTIONS: usize = 256;

/// Maximum time for the header section of a request, and for which a connection may stay open without a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time for a request's handler, which is mostly spent reading the request body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval at which a connection's age is checked, and whether a client still reads its stream.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Age at which a connection is closed after its current request, and the time that this request may then take. So a
/// client that never reads its response cannot hold a connection for longer.
///
/// A response without a known end, such as a stream of events, may take longer. Its connection is closed once its client
/// has not read for the interval of a check.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(60);
const LAST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for the first request of a connection, once another process serves the listener.
const FIRST_REQUEST_GRACE: Duration = Duration::from_millis(200);

/// Maximum time for which the end of the process waits for the last responses.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum size of the read buffer, and so of a request's header section.
const MAX_HEAD_SIZE: usize = 16 * 1024;

/// Pause after an accept failed for lack of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `listener` with `handler` until the drain has reached its last phase, or another process serves it. `handler` may only wait for
/// the request's body, and must bound how much of it it reads.
pub async fn serve<A, F, B>(listener: TcpListener, drain: Arc<DrainManager>, handler: A)
where
    A: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error = Infallible> + From<Full<Bytes>> + Send + 'static,
{
    let mut slots = ConnectionSlots::default();
    let mut connections = JoinSet::new();
    let ended = drain.wait_for_phase(DrainPhase::Terminated);
    let left = drain.wait_for_replacement();
    tokio::pin!(ended, left);
    let rest = loop {
        tokio::select! {
            biased;
            () = &mut ended => break SHUTDOWN_TIMEOUT,
            () = &mut left => break LAST_REQUEST_TIMEOUT,
            Some(_) = connections.join_next() => {}
            accepted = accept(&listener) => {
                let stage = SharedStage::default();
                let has_made_room = slots.evict_if_full(MAX_CONNECTIONS);
                let serving = serve_connection(accepted, stage.clone(), Arc::clone(&drain), handler.clone());
                slots.add(connections.spawn(serving), stage);
                if has_made_room {
                    // Yields, so that the aborted task ends and the connections accepted earlier are served.
                    yield_now().await;
                }
            }
        }
    };
    drop(listener);
    let _ = timeout(rest, async { while connections.join_next().await.is_some() {} }).await;
}

/// Accepts the next connection. Safe to cancel: no accepted connection is lost.
async fn accept(listener: &TcpListener) -> (TcpStream, PeerAddress) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => return (stream, PeerAddress(peer)),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "cannot accept an HTTP connection, retrying after a pause"
                );
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_connection<A, F, B>(
    accepted: (TcpStream, PeerAddress),
    stage: SharedStage,
    drain: Arc<DrainManager>,
    handler: A,
) where
    A: Fn(Request<Incoming>) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes, Error = Infallible> + From<Full<Bytes>> + 'static,
{
    let (stream, peer) = accepted;
    let progress = stage.clone();
    let stream = TokioIo::new(TrackedStream::new(stream, stage.clone()));
    let service = service_fn(|mut request: Request<Incoming>| {
        stage.set(Stage::HandlingRequest);
        request.extensions_mut().insert(peer);
        let reply = timeout(BODY_TIMEOUT, handler(request));
        let (stage, drain) = (stage.clone(), &drain);
        async move {
            let mut reply = reply.await.unwrap_or_else(|_| timed_out().map(B::from));
            if drain.is_replaced() {
                reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            let has_known_end = reply.body().size_hint().exact().is_some();
            stage.set(if has_known_end { Stage::SendingResponse } else { Stage::Streaming });
            Ok::<_, Infallible>(reply)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_SIZE)
        .serve_connection(stream, service);
    tokio::pin!(connection);
    let (mut age, mut last_progress) = (Duration::ZERO, progress.writes());
    loop {
        tokio::select! {
            biased;
            // An error of this client is of no interest to others.
            _ = connection.as_mut() => return,
            () = drain.wait_for_replacement() => {
                if progress.writes() == 0 {
                    // Its first request may be on the way.
                    let _ = timeout(FIRST_REQUEST_GRACE, connection.as_mut()).await;
                }
                break;
            }
            () = drain.wait_for_phase(DrainPhase::Terminated) => break,
            () = sleep(CHECK_INTERVAL) => age += CHECK_INTERVAL,
        }
        if progress.is_streaming() {
            if progress.is_stalled_since(last_progress) {
                return;
            }
            last_progress = progress.writes();
        } else if age >= MAX_CONNECTION_AGE {
            break;
        }
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(LAST_REQUEST_TIMEOUT, connection).await;
}

/// The response to a request that was not handled in time.
fn timed_out() -> FullResponse {
    let mut reply = Response::new(Full::new(Bytes::new()));
    *reply.status_mut() = StatusCode::REQUEST_TIMEOUT;
    reply
}
