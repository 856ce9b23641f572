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

use super::calls::{CallGuard, ConnectionCalls, TrackedBody};
use super::connection_limiter::GrpcConnectionPermit;
use super::report_reader::{ReportHandover, ReportReader};
use super::{GrpcPort, GrpcServices, GrpcWorker};
use crate::drain::DrainPhase;
use crate::jitter::jittered;
use crate::listener::AcceptedConnection;
use crate::tls::handshake_limiter::HandshakeLimiter;
use crate::tls::identity::Identity;
use crate::transport::Transport;

/// Maximum time for a TLS handshake, including the wait for a permit.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum calls in flight on a connection. An Envoy has one connection per worker for all calls, at most 1024 calls in
/// total unless its circuit breaker is configured otherwise, and opens another connection if one is full.
const MAX_CONCURRENT_STREAMS: u32 = 1024;
/// Maximum pending streams that were opened and reset; more close the connection (CVE-2023-44487). A client whose calls
/// time out resets them all at once and opens others, several times during a pause of this thread.
const MAX_PENDING_RESET_STREAMS: usize = 10_000;
/// Idle time after which TCP keep-alive probes the client, which may have lost power. HTTP/2 pings would detect this,
/// too, but need bookkeeping for each frame.
const TCP_KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Maximum size of a call's header section, in bytes.
const MAX_HEADER_LIST_SIZE: u32 = 16 * 1024;
/// Maximum time for the calls of a connection that is displaced by another.
const DISPLACED_GRACE: Duration = Duration::from_secs(1);

/// Why a connection is closed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CloseReason {
    MaxAge,
    Draining,
    /// Another connection has displaced it.
    Displaced,
    /// The client does not receive a response.
    Stuck,
}

/// The services and the shared state of one connection.
struct GrpcConnection {
    services: GrpcServices,
    worker: Rc<GrpcWorker>,
    calls: Rc<ConnectionCalls>,
    permit: GrpcConnectionPermit,
}

/// Serves a connection until it is closed.
pub(super) async fn serve(
    port: Arc<GrpcPort>,
    worker: Rc<GrpcWorker>,
    services: GrpcServices,
    accepted: AcceptedConnection,
    permit: GrpcConnectionPermit,
) {
    accepted.stream.set_nodelay();
    accepted.stream.set_tcp_keepalive(TCP_KEEPALIVE_IDLE);
    let stream = tokio::select! {
        stream = accept_tls(&port, &worker.handshake_limiter, accepted.stream) => stream,
        () = permit.displaced() => return,
    };
    let Some(stream) = stream else { return };
    let calls = ConnectionCalls::new(Rc::clone(&worker.calls));
    let connection = Rc::new(GrpcConnection { services, worker, calls, permit });
    let call_connection = Rc::clone(&connection);
    let service = service_fn(move |request| dispatch(Rc::clone(&call_connection), request));
    let serving = http2::Builder::new(LocalExecutor)
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_CONCURRENT_STREAMS)
        .max_pending_accept_reset_streams(MAX_PENDING_RESET_STREAMS)
        .max_header_list_size(MAX_HEADER_LIST_SIZE)
        .serve_connection(TokioIo::new(stream), service);
    let mut serving = pin!(serving);
    let reason = tokio::select! {
        // An error on one connection affects no other.
        _ = serving.as_mut() => return,
        reason = connection.close_reason(&port) => reason,
    };
    let grace = match reason {
        CloseReason::MaxAge => port.settings.grace,
        // The graceful shutdown bounds this; see `server::run`.
        CloseReason::Draining => Duration::MAX,
        CloseReason::Displaced if connection.permit.has_called() => DISPLACED_GRACE,
        CloseReason::Displaced | CloseReason::Stuck => return,
    };
    serving.as_mut().graceful_shutdown();
    tokio::select! {
        _ = timeout(grace, serving) => {}
        () = connection.calls.stuck() => {}
        // The grace period may be an hour, but must not keep out a new connection.
        () = connection.permit.displaced() => {}
    }
}

impl GrpcConnection {
    async fn close_reason(&self, port: &GrpcPort) -> CloseReason {
        tokio::select! {
            // Jitter, so that connections opened together are not closed together.
            () = sleep(jittered(port.settings.max_age)) => CloseReason::MaxAge,
            () = port.handler.drain().wait_for_phase(DrainPhase::Draining) => CloseReason::Draining,
            () = self.permit.displaced() => CloseReason::Displaced,
            () = self.calls.stuck() => CloseReason::Stuck,
        }
    }
}

/// Returns the connection, with TLS if configured; `None` if the handshake failed.
async fn accept_tls(
    port: &GrpcPort,
    handshake_limiter: &HandshakeLimiter,
    stream: Transport,
) -> Option<Transport> {
    let security = port.security();
    let Some(tls) = &security.tls else { return Some(stream) };
    let handshake = Box::pin(async {
        let _permit = handshake_limiter.acquire(tls.settings().max_handshakes).await;
        tls.accept(stream).await
    });
    match timeout(HANDSHAKE_TIMEOUT, handshake).await {
        Ok(Ok((stream, session))) => {
            is_client_allowed(session.identity.as_ref(), &security.client_names).then(|| stream.into())
        }
        Ok(Err(failure)) => {
            tracing::debug!(why = failure.as_str(), "TLS handshake with a client failed");
            None
        }
        Err(_) => None,
    }
}

/// Returns whether a client has one of the required names, if there are any.
fn is_client_allowed(client: Option<&Identity>, names: &[Box<str>]) -> bool {
    let has_one = |client: &Identity| {
        let mut given = client.hosts.iter().chain(&client.uris);
        given.any(|given| names.iter().any(|name| name.eq_ignore_ascii_case(given)))
    };
    let is_allowed = names.is_empty() || client.is_some_and(has_one);
    if !is_allowed {
        tracing::debug!(?client, "client rejected: its certificate has none of `client_names`");
    }
    is_allowed
}

/// Calls the service in the path, within the bounds of the worker.
async fn dispatch(
    connection: Rc<GrpcConnection>,
    request: Request<Incoming>,
) -> Result<Response<TrackedBody>, Infallible> {
    let result = match (service_name(request.uri().path()), request.uri().path()) {
        ("envoy.service.rate_limit_quota.v3.RateLimitQuotaService", _) => {
            connection.stream_quota(request).await
        }
        (_, "/grpc.health.v1.Health/Watch") => connection.watch_health(request).await,
        _ => connection.call_unary(request).await,
    };
    let (response, guard) = result.unwrap_or_else(|status| (status.into_http(), CallGuard::default()));
    Ok(response.map(|body| TrackedBody { body, _guard: guard }))
}

type CallResult = Result<(Response<Body>, CallGuard), Status>;

impl GrpcConnection {
    /// Clones only the service that the call needs.
    async fn call_unary(&self, request: Request<Incoming>) -> CallResult {
        let request = self.read_request(request).await?;
        let call = self.calls.start_call()?;
        let response = match service_name(request.uri().path()) {
            "envoy.service.ratelimit.v3.RateLimitService" => {
                self.services.rate_limit.clone().call(request).await
            }
            "grpc.health.v1.Health" => self.services.health.clone().call(request).await,
            _ => Ok(unimplemented_response()),
        };
        response.map(|response| (response, call.into())).map_err(|never| match never {})
    }

    async fn watch_health(&self, request: Request<Incoming>) -> CallResult {
        let request = self.read_request(request).await?;
        let stream = self.calls.start_stream()?;
        let response = self.services.health.clone().call(request).await;
        response.map(|response| (response, stream.into())).map_err(|never| match never {})
    }

    async fn stream_quota(&self, request: Request<Incoming>) -> CallResult {
        let stream = self.calls.start_stream()?;
        let (incomplete, activity) = (&self.services.incomplete_bytes, self.permit.activity());
        let (mut head, body) = request.into_parts();
        let reports = ReportReader::new(body, Arc::clone(incomplete), activity.clone());
        head.extensions.insert(ReportHandover::new(reports));
        let request = Request::from_parts(head, Empty::<Bytes>::new());
        let response = self.services.quota.clone().call(request).await;
        response.map(|response| (response, stream.into())).map_err(|never| match never {})
    }

    /// Returns the request with its complete message.
    async fn read_request(&self, request: Request<Incoming>) -> Result<Request<Full<Bytes>>, Status> {
        let (head, body) = request.into_parts();
        let message = self.worker.message_reader.read_message(body).await?;
        self.permit.activity().record_call();
        Ok(Request::from_parts(head, Full::new(message)))
    }
}

/// Returns the service of a path `/SERVICE/METHOD`.
fn service_name(path: &str) -> &str {
    let path = path.strip_prefix('/').unwrap_or(path);
    path.split_once('/').map_or("", |(service, _)| service)
}

/// Returns a response with trailers only (gRPC over HTTP/2, "Responses").
fn unimplemented_response() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    let fields = response.headers_mut();
    fields.insert("content-type", HeaderValue::from_static("application/grpc"));
    fields.insert("grpc-status", HeaderValue::from_static("12"));
    fields.insert("grpc-message", HeaderValue::from_static("no such service"));
    response
}

/// Executor that runs the calls of a connection on its thread.
#[derive(Clone, Copy, Debug)]
struct LocalExecutor;

impl<F: Future<Output = ()> + 'static> Executor<F> for LocalExecutor {
    fn execute(&self, call: F) {
        drop(tokio::task::spawn_local(call));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_name_is_the_path_without_the_method() {
        assert_eq!(service_name("/grpc.health.v1.Health/Check"), "grpc.health.v1.Health");
        assert_eq!(service_name("/"), "");
        assert_eq!(service_name("nothing"), "");
    }
}
