//! One client connection of the rate limit service: HTTP/2 only, as gRPC requires.

use std::fmt::Display;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::calls::ConnectionCalls;
use super::connection_limiter::GrpcConnectionPermit;
use super::incomplete_timer::IncompleteTimer;
use super::{GrpcPort, GrpcWorker, call};
use weir_http::http2::{AcceptedOrigins, Http2Error, Http2Settings, MalformedStreams, ServerConnection};
use weir_net::drain::DrainPhase;
use weir_net::jitter::jittered;
use weir_net::listener::AcceptedConnection;
use weir_net::tls::handshake_limiter::HandshakeLimiter;
use weir_net::tls::identity::Identity;
use weir_net::tls::server::ServerHandshakeError;
use weir_net::transport::Transport;
use weir_telemetry::malformed_streams::{self, MalformedSide};
use weir_telemetry::metrics::UnservedReason;

/// Maximum time for a TLS handshake, including the wait for a permit, for the preface of HTTP/2, for the client's settings,
/// and for the header section of a call.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time for the preface once the graceful shutdown has begun. The client may have sent a call with it.
const DRAINING_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum calls in flight on a connection. An Envoy has one connection per worker for all calls, at most 1024 calls in
/// total unless its circuit breaker is configured otherwise, and opens another connection if one is full.
const MAX_STREAMS: u32 = 1024;
/// Maximum calls that are reset as soon as they are opened; more close the connection (CVE-2023-44487). A client whose calls
/// time out resets them all at once and opens others, several times during a pause of this thread.
const MAX_PREMATURE_RESETS: u32 = 10_000;
/// Idle time after which TCP keep-alive probes the client, which may have lost power. HTTP/2 pings would detect this,
/// too, but need bookkeeping for each frame.
const TCP_KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Maximum resets that are caused by errors of the client; more close the connection.
const MAX_ERROR_RESETS: u32 = 1024;
/// Flow-control windows of a call, in bytes: that of every call, which most messages fit, and the maximum while its
/// message is read.
const STREAM_WINDOW: u32 = 16 * 1024;
const MAX_STREAM_WINDOW: u32 = 1 << 20;
/// Bytes by which all windows of a connection together may exceed the former.
const SHARED_WINDOW: u32 = 4 << 20;
/// Maximum size of a call's header section, in bytes.
const MAX_HEADER_LIST_SIZE: u32 = 16 * 1024;
/// Maximum time for the calls of a connection that is displaced by another.
const DISPLACED_GRACE: Duration = Duration::from_secs(1);

/// What is wrong with a client that does not begin with the preface of HTTP/2.
const NOT_HTTP2: &str =
    "the client does not begin with HTTP/2: it may use HTTP/1.1, or TLS where this port has none";

/// Why calls beyond [`MAX_STREAMS`] are reset.
const TOO_MANY_CALLS: &str = "too many calls in flight on the connection";

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

/// The state of one connection.
pub(super) struct GrpcConnection {
    pub(super) worker: Rc<GrpcWorker>,
    pub(super) calls: Rc<ConnectionCalls>,
    pub(super) permit: GrpcConnectionPermit,
    pub(super) port: Arc<GrpcPort>,
    client: SocketAddr,
}

/// Serves a connection until it is closed.
pub(super) async fn serve(
    port: Arc<GrpcPort>,
    worker: Rc<GrpcWorker>,
    accepted: AcceptedConnection,
    permit: GrpcConnectionPermit,
) {
    accepted.stream.set_tcp_keepalive(TCP_KEEPALIVE_IDLE);
    let client = accepted.peer;
    let stream = tokio::select! {
        stream = accept_tls(&port, &worker.handshake_limiter, accepted) => stream,
        () = permit.displaced() => return,
    };
    let Some(stream) = stream else { return };
    let calls = ConnectionCalls::new(Rc::clone(&worker.calls));
    let connection = Rc::new(GrpcConnection { worker, calls, permit, port, client });
    let Some(mut serving) = connection.handshake(stream).await else { return };
    let reason = tokio::select! {
        // An error on one connection affects no other.
        () = accept_calls(&connection, &mut serving) => return,
        reason = connection.close_reason() => reason,
    };
    let grace = match reason {
        CloseReason::MaxAge => connection.port.settings.grace,
        // The graceful shutdown bounds this; see `server::run`.
        CloseReason::Draining => Duration::MAX,
        CloseReason::Displaced if connection.permit.has_called() => DISPLACED_GRACE,
        CloseReason::Displaced | CloseReason::Stuck => return,
    };
    serving.graceful_shutdown();
    tokio::select! {
        _ = timeout(grace, accept_calls(&connection, &mut serving)) => {}
        () = connection.calls.stuck() => {}
        // The grace period may be an hour, but must not keep out a new connection.
        () = connection.permit.displaced() => {}
    }
}

const SETTINGS: Http2Settings = Http2Settings {
    max_streams: MAX_STREAMS,
    max_header_list: MAX_HEADER_LIST_SIZE,
    stream_window: STREAM_WINDOW,
    max_stream_window: MAX_STREAM_WINDOW,
    shared_window: SHARED_WINDOW,
    connect_protocol: false,
    origins: AcceptedOrigins::Any,
    max_premature_resets: MAX_PREMATURE_RESETS,
    max_error_resets: MAX_ERROR_RESETS,
};

/// Starts the calls that arrive, until the connection ends.
async fn accept_calls(connection: &Rc<GrpcConnection>, serving: &mut ServerConnection<Transport>) {
    let mut incomplete = IncompleteTimer::default();
    let ended = poll_fn(|cx| {
        let polled = serving
            .poll_requests(cx, |request, responder, cx| call::start(connection, request, responder, cx));
        if let Some(streams) = serving.take_malformed() {
            connection.record_malformed(&streams);
        }
        match serving.take_refused() {
            0 => {}
            calls => connection.record_unserved(UnservedReason::Reset, calls.into(), &TOO_MANY_CALLS),
        }
        if polled.is_pending() && incomplete.poll(serving.incomplete(), HANDSHAKE_TIMEOUT, cx).is_ready() {
            connection.record_unserved(UnservedReason::Protocol, 1, &"a header section took too long");
            serving.close_incomplete(cx);
            return Poll::Ready(Ok(()));
        }
        polled
    })
    .await;
    // An error ends this connection only.
    if let Err(error @ Http2Error::Violation(_)) = ended {
        connection.record_unserved(UnservedReason::Protocol, 1, &error);
    }
}

impl GrpcConnection {
    /// Waits for the client's preface. `None` if the connection is to be closed.
    async fn handshake(&self, stream: Transport) -> Option<ServerConnection<Transport>> {
        let mut serving = ServerConnection::new(stream, SETTINGS);
        let shaken = tokio::select! {
            shaken = timeout(HANDSHAKE_TIMEOUT, poll_fn(|cx| serving.poll_handshake(cx))) => Some(shaken),
            () = self.port.handler.drain().wait_for_phase(DrainPhase::Draining) => None,
            () = self.permit.displaced() => return None,
        };
        let shaken = match shaken {
            Some(shaken) => shaken,
            None => tokio::select! {
                shaken = timeout(DRAINING_HANDSHAKE_TIMEOUT, poll_fn(|cx| serving.poll_handshake(cx))) => shaken,
                () = self.permit.displaced() => return None,
            },
        };
        match shaken {
            Ok(Ok(())) => Some(serving),
            Ok(Err(Http2Error::Violation(_))) => {
                self.record_unserved(UnservedReason::Protocol, 1, &NOT_HTTP2);
                None
            }
            // A probe that only connects, or a client that has sent nothing.
            Ok(Err(_)) | Err(_) => None,
        }
    }

    /// Counts and logs calls of this connection that are not served.
    pub(super) fn record_unserved(&self, reason: UnservedReason, calls: u64, detail: &dyn Display) {
        self.port.handler.record_unserved(reason, calls, Some(self.client), detail);
    }

    fn record_malformed(&self, streams: &MalformedStreams) {
        malformed_streams::record(MalformedSide::Rls, self.client.ip().to_canonical(), streams);
        for (what, calls) in streams.counts() {
            let detail = format_args!("the call violates HTTP/2 (RFC 9113): {}", what.as_str());
            self.record_unserved(UnservedReason::Reset, calls.into(), &detail);
        }
    }

    async fn close_reason(&self) -> CloseReason {
        let port = &self.port;
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
    accepted: AcceptedConnection,
) -> Option<Transport> {
    let AcceptedConnection { stream, peer } = accepted;
    let security = port.security();
    let Some(tls) = &security.tls else { return Some(stream) };
    let handshake = Box::pin(async {
        let _permit = handshake_limiter.acquire(tls.settings().max_handshakes).await;
        tls.accept(stream).await
    });
    match timeout(HANDSHAKE_TIMEOUT, handshake).await {
        Ok(Ok((stream, session))) => {
            let identity = session.identity.as_ref();
            if is_client_allowed(identity, &security.client_names) {
                return Some(stream.into());
            }
            let detail = format!("the client's certificate has none of `client_names`: {identity:?}");
            port.handler.record_unserved(UnservedReason::ClientName, 1, Some(peer), &detail);
            None
        }
        // A probe that only connects.
        Ok(Err(ServerHandshakeError::Closed)) => None,
        Ok(Err(failure)) => {
            let detail = format!("TLS handshake failed: {}", failure.as_str());
            port.handler.record_unserved(UnservedReason::Handshake, 1, Some(peer), &detail);
            None
        }
        Err(_) => {
            let detail = "TLS handshake failed: timed out";
            port.handler.record_unserved(UnservedReason::Handshake, 1, Some(peer), &detail);
            None
        }
    }
}

/// Returns whether a client has one of the required names, if there are any.
fn is_client_allowed(client: Option<&Identity>, names: &[Box<str>]) -> bool {
    let has_one = |client: &Identity| {
        let mut given = client.hosts.iter().chain(&client.uris);
        given.any(|given| names.iter().any(|name| name.eq_ignore_ascii_case(given)))
    };
    names.is_empty() || client.is_some_and(has_one)
}
