//! One connection of a client of the service: HTTP/2 alone, since gRPC knows nothing else.

use std::convert::Infallible;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::{sleep, timeout};
use tonic::body::Body;
use tonic::codegen::Service as _;

use super::shaking::Shaking;
use super::{Port, Services};
use crate::drain::Phase;
use crate::listener::Accepted;
use crate::listener::transport::Transport;
use crate::overload::Place;
use crate::tls::identity::Identity;

/// For a TLS handshake, and what it has to wait for others.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Calls that a connection may have under way. An Envoy has one connection per worker for all that it asks.
const MOST_STREAMS: u32 = 10_000;
/// Streams opened and reset again that may wait to be noticed; more end the connection (CVE-2023-44487). As many as there
/// may be streams: who has waited too long for all of his answers resets them all at once.
const MOST_RESETS_PENDING: usize = MOST_STREAMS as usize;
/// Whoever has said nothing for so long is asked whether it is still there: a machine may have been switched off. Pings
/// of HTTP/2 would say the same, but have every frame of every call noted.
const SILENCE: Duration = Duration::from_secs(60);
/// Bytes of a call's fields.
const MOST_FIELDS: u32 = 16 * 1024;

/// Serves a connection to its end.
pub(super) async fn serve(
    (port, shaking): (Arc<Port>, Rc<Shaking>),
    services: Services,
    accepted: Accepted,
    place: Place,
) {
    accepted.stream.set_nodelay();
    accepted.stream.keep_alive(SILENCE);
    let Some(stream) = secured(&port, &shaking, accepted.stream).await else { return };
    let services = Arc::new(services);
    let answer = service_fn(move |request| answer(Arc::clone(&services), request));
    let serving = http2::Builder::new(OnThisThread)
        .timer(TokioTimer::new())
        .max_concurrent_streams(MOST_STREAMS)
        .max_pending_accept_reset_streams(MOST_RESETS_PENDING)
        .max_header_list_size(MOST_FIELDS)
        .serve_connection(TokioIo::new(stream), answer);
    let mut serving = pin!(serving);
    let drain = port.desk.drain();
    let aged = tokio::select! {
        // Whatever a client did wrong concerns nobody else.
        _ = serving.as_mut() => return,
        () = sleep(jittered(port.settings.max_age)) => true,
        () = drain.reached(Phase::Draining) => false,
    };
    serving.as_mut().graceful_shutdown();
    // A drain ends by itself; see `run`.
    let grace = if aged { port.settings.grace } else { Duration::MAX };
    let _ = timeout(grace, serving).await;
    drop(place);
}

/// The connection with TLS, if the port has it; `None` if that failed.
async fn secured(port: &Port, shaking: &Shaking, stream: Transport) -> Option<Transport> {
    let security = port.security();
    let Some(tls) = &security.tls else { return Some(stream) };
    let shaken = Box::pin(async {
        let _place = shaking.take(tls.settings().handshakes).await;
        tls.accept(stream).await
    });
    match timeout(HANDSHAKE, shaken).await {
        Ok(Ok((stream, session))) => is_welcome(session.identity.as_ref(), &security.client_names)
            .then(|| Transport::Tls(Box::new(stream))),
        Ok(Err(failure)) => {
            tracing::debug!(why = failure.as_str(), "no TLS with a client");
            None
        }
        Err(_) => None,
    }
}

/// Whether a client has one of the names that are asked for, if any are.
fn is_welcome(client: Option<&Identity>, names: &[Box<str>]) -> bool {
    let has_one = |client: &Identity| {
        let mut given = client.hosts.iter().chain(&client.uris);
        given.any(|given| names.iter().any(|name| name.eq_ignore_ascii_case(given)))
    };
    let is_welcome = names.is_empty() || client.is_some_and(has_one);
    if !is_welcome {
        tracing::debug!(?client, "a client's certificate has none of the names that are asked for");
    }
    is_welcome
}

/// Less or more by up to a tenth, so that connections made at once do not end at once.
fn jittered(age: Duration) -> Duration {
    age.mul_f64(fastrand::f64().mul_add(0.2, 0.9))
}

/// Calls whichever service the path names; a call takes a copy of that one alone.
async fn answer(services: Arc<Services>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    match service_of(request.uri().path()) {
        "envoy.service.ratelimit.v3.RateLimitService" => services.rate_limit.clone().call(request).await,
        "envoy.service.rate_limit_quota.v3.RateLimitQuotaService" => {
            services.quota.clone().call(request).await
        }
        "grpc.health.v1.Health" => services.health.clone().call(request).await,
        _ => Ok(unimplemented()),
    }
}

/// `/SERVICE/METHOD`.
fn service_of(path: &str) -> &str {
    let path = path.strip_prefix('/').unwrap_or(path);
    path.split_once('/').map_or("", |(service, _)| service)
}

/// Trailers alone (gRPC over HTTP/2, "Responses").
fn unimplemented() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    let fields = response.headers_mut();
    fields.insert("content-type", HeaderValue::from_static("application/grpc"));
    fields.insert("grpc-status", HeaderValue::from_static("12"));
    fields.insert("grpc-message", HeaderValue::from_static("no such service"));
    response
}

/// Runs the calls of a connection on its thread.
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

    #[test]
    fn ages_differ_by_a_tenth_at_most() {
        for _ in 0..100 {
            let age = jittered(Duration::from_secs(100));
            assert!((90.0..=110.0).contains(&age.as_secs_f64()), "{age:?}");
        }
    }
}
