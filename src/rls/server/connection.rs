//! One client connection of the rate limit service: HTTP/2 only, as gRPC requires.

use std::convert::Infallible;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body_util::{Empty, Full};
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::{sleep, timeout};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service as _;

use super::budget::Place;
use super::calls::{Calls, Held, Tracked};
use super::reports::{Handover, Reports};
use super::{Port, Services, Shared};
use crate::drain::Phase;
use crate::jitter::jittered;
use crate::listener::AcceptedConnection;
use crate::tls::handshake_limiter::HandshakeLimiter;
use crate::tls::identity::Identity;
use crate::transport::Transport;

/// Maximum time for a TLS handshake, including the wait for a permit.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Maximum calls in flight on a connection. An Envoy has one connection per worker for all calls, at most 1024 calls in
/// total unless its circuit breaker is configured otherwise, and opens another connection if one is full.
const MAX_STREAMS: u32 = 1024;
/// Maximum pending streams that were opened and reset; more close the connection (CVE-2023-44487). A client whose calls
/// time out resets them all at once and opens others, several times during a pause of this thread.
const MAX_RESETS_PENDING: usize = 10_000;
/// Idle time after which TCP keep-alive probes the client, which may have lost power. HTTP/2 pings would detect this,
/// too, but need bookkeeping for each frame.
const SILENCE: Duration = Duration::from_secs(60);
/// Maximum size of a call's header section, in bytes.
const MOST_FIELDS: u32 = 16 * 1024;
/// Maximum time for the calls of a connection that is displaced by another.
const DISPLACED_GRACE: Duration = Duration::from_secs(1);

/// Why a connection is closed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Aged,
    Drained,
    /// Another connection has displaced it.
    Displaced,
    /// The client does not receive a response.
    Stuck,
}

/// The services and the shared state of one connection.
struct Connection {
    services: Services,
    shared: Rc<Shared>,
    calls: Rc<Calls>,
    place: Place,
}

/// Serves a connection until it is closed.
pub(super) async fn serve(
    port: Arc<Port>,
    shared: Rc<Shared>,
    services: Services,
    accepted: AcceptedConnection,
    place: Place,
) {
    accepted.stream.set_nodelay();
    accepted.stream.set_tcp_keepalive(SILENCE);
    let stream = tokio::select! {
        stream = secured(&port, &shared.handshakes, accepted.stream) => stream,
        () = place.displaced() => return,
    };
    let Some(stream) = stream else { return };
    let calls = Calls::new(Rc::clone(&shared.load));
    let connection = Rc::new(Connection { services, shared, calls, place });
    let of_calls = Rc::clone(&connection);
    let respond = service_fn(move |request| respond(Rc::clone(&of_calls), request));
    let serving = http2::Builder::new(OnThisThread)
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(MAX_RESETS_PENDING)
        .max_header_list_size(MOST_FIELDS)
        .serve_connection(TokioIo::new(stream), respond);
    let mut serving = pin!(serving);
    let ending = tokio::select! {
        // An error on one connection affects no other.
        _ = serving.as_mut() => return,
        ending = connection.ending(&port) => ending,
    };
    let grace = match ending {
        Ending::Aged => port.settings.grace,
        // The graceful shutdown bounds this; see `run`.
        Ending::Drained => Duration::MAX,
        Ending::Displaced if connection.place.has_called() => DISPLACED_GRACE,
        Ending::Displaced | Ending::Stuck => return,
    };
    serving.as_mut().graceful_shutdown();
    tokio::select! {
        _ = timeout(grace, serving) => {}
        () = connection.calls.stuck() => {}
        // The grace period may be an hour, but must not keep out a new connection.
        () = connection.place.displaced() => {}
    }
}

impl Connection {
    async fn ending(&self, port: &Port) -> Ending {
        tokio::select! {
            // Jitter, so that connections opened together are not closed together.
            () = sleep(jittered(port.settings.max_age)) => Ending::Aged,
            () = port.desk.drain().reached(Phase::Draining) => Ending::Drained,
            () = self.place.displaced() => Ending::Displaced,
            () = self.calls.stuck() => Ending::Stuck,
        }
    }
}

/// Returns the connection, with TLS if configured; `None` if the handshake failed.
async fn secured(port: &Port, handshakes: &HandshakeLimiter, stream: Transport) -> Option<Transport> {
    let security = port.security();
    let Some(tls) = &security.tls else { return Some(stream) };
    let shaken = Box::pin(async {
        let _permit = handshakes.acquire(tls.settings().max_handshakes).await;
        tls.accept(stream).await
    });
    match timeout(HANDSHAKE, shaken).await {
        Ok(Ok((stream, session))) => {
            is_welcome(session.identity.as_ref(), &security.client_names).then(|| stream.into())
        }
        Ok(Err(failure)) => {
            tracing::debug!(why = failure.as_str(), "TLS handshake with a client failed");
            None
        }
        Err(_) => None,
    }
}

/// Returns whether a client has one of the required names, if there are any.
fn is_welcome(client: Option<&Identity>, names: &[Box<str>]) -> bool {
    let has_one = |client: &Identity| {
        let mut given = client.hosts.iter().chain(&client.uris);
        given.any(|given| names.iter().any(|name| name.eq_ignore_ascii_case(given)))
    };
    let is_welcome = names.is_empty() || client.is_some_and(has_one);
    if !is_welcome {
        tracing::debug!(?client, "client rejected: its certificate has none of `client_names`");
    }
    is_welcome
}

/// Calls the service in the path, within the bounds of the worker.
async fn respond(
    connection: Rc<Connection>,
    request: Request<Incoming>,
) -> Result<Response<Tracked>, Infallible> {
    let responded = match (service_of(request.uri().path()), request.uri().path()) {
        ("envoy.service.rate_limit_quota.v3.RateLimitQuotaService", _) => connection.quota(request).await,
        (_, "/grpc.health.v1.Health/Watch") => connection.watch(request).await,
        _ => connection.unary(request).await,
    };
    let (response, held) = responded.unwrap_or_else(|status| (status.into_http(), Held::default()));
    Ok(response.map(|body| Tracked { body, _held: held }))
}

type Responded = Result<(Response<Body>, Held), Status>;

impl Connection {
    /// Clones only the service that the call needs.
    async fn unary(&self, request: Request<Incoming>) -> Responded {
        let request = self.received(request).await?;
        let call = self.calls.begin()?;
        let response = match service_of(request.uri().path()) {
            "envoy.service.ratelimit.v3.RateLimitService" => {
                self.services.rate_limit.clone().call(request).await
            }
            "grpc.health.v1.Health" => self.services.health.clone().call(request).await,
            _ => Ok(unimplemented()),
        };
        response.map(|response| (response, call.into())).map_err(|never| match never {})
    }

    async fn watch(&self, request: Request<Incoming>) -> Responded {
        let request = self.received(request).await?;
        let stream = self.calls.open()?;
        let response = self.services.health.clone().call(request).await;
        response.map(|response| (response, stream.into())).map_err(|never| match never {})
    }

    async fn quota(&self, request: Request<Incoming>) -> Responded {
        let stream = self.calls.open()?;
        let (incomplete, activity) = (&self.services.incomplete, self.place.activity());
        let (mut head, body) = request.into_parts();
        let reports = Reports::new(body, Arc::clone(incomplete), activity.clone());
        head.extensions.insert(Handover::of(reports));
        let request = Request::from_parts(head, Empty::<Bytes>::new());
        let response = self.services.quota.clone().call(request).await;
        response.map(|response| (response, stream.into())).map_err(|never| match never {})
    }

    /// Returns the request with its complete message.
    async fn received(&self, request: Request<Incoming>) -> Result<Request<Full<Bytes>>, Status> {
        let (head, body) = request.into_parts();
        let message = self.shared.receiving.message(body).await?;
        self.place.activity().called();
        Ok(Request::from_parts(head, Full::new(message)))
    }
}

/// Returns the service of a path `/SERVICE/METHOD`.
fn service_of(path: &str) -> &str {
    let path = path.strip_prefix('/').unwrap_or(path);
    path.split_once('/').map_or("", |(service, _)| service)
}

/// Returns a response with trailers only (gRPC over HTTP/2, "Responses").
fn unimplemented() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    let fields = response.headers_mut();
    fields.insert("content-type", HeaderValue::from_static("application/grpc"));
    fields.insert("grpc-status", HeaderValue::from_static("12"));
    fields.insert("grpc-message", HeaderValue::from_static("no such service"));
    response
}

/// Executor that runs the calls of a connection on its thread.
#[derive(Clone, Copy, Debug)]
struct OnThisThread;

impl<F: Future<Output = ()> + 'static> Executor<F> for OnThisThread {
    fn execute(&self, call: F) {
        drop(tokio::task::spawn_local(call));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_all_but_the_method() {
        assert_eq!(service_of("/grpc.health.v1.Health/Check"), "grpc.health.v1.Health");
        assert_eq!(service_of("/"), "");
        assert_eq!(service_of("nothing"), "");
    }
}
