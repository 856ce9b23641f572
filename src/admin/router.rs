//! Listener and routing of the admin interface, with the checks of method, `Host` and `Origin`.

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use http::header::ORIGIN;
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use tokio::net::TcpListener;

use super::query::Query;
use super::reply::{self, FullResponse};
use super::{State, Surface, act, certs, clusters, config_dump, hosts, limits, stats, status};
use crate::http_server;
use crate::telemetry::metrics::VERSION;

/// Whether an endpoint reads or changes the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Read only: GET and HEAD.
    Tells,
    /// Command: POST.
    Acts,
}

/// One path of the admin interface.
pub(super) struct Endpoint {
    pub(super) path: &'static str,
    pub(super) effect: Effect,
    help: &'static str,
    run: fn(&State, &Query<'_>) -> FullResponse,
}

const fn tells(
    path: &'static str,
    run: fn(&State, &Query<'_>) -> FullResponse,
    help: &'static str,
) -> Endpoint {
    Endpoint { path, effect: Effect::Tells, help, run }
}

const fn acts(
    path: &'static str,
    run: fn(&State, &Query<'_>) -> FullResponse,
    help: &'static str,
) -> Endpoint {
    Endpoint { path, effect: Effect::Acts, help, run }
}

/// All endpoints, in the order of the listing.
pub(super) static ENDPOINTS: [Endpoint; 17] = [
    tells("/", index, "this page"),
    tells("/certs", certs::certs, "certificates in use"),
    tells("/clusters", clusters::clusters, "upstreams, endpoints and their statistics; ?format=json"),
    tells("/config_dump", config_dump::dump, "the configuration in force, without secrets"),
    acts("/drain_listeners", act::drain_listeners, "drain the listeners; ?graceful only fails readiness"),
    acts("/healthcheck/fail", act::healthcheck_fail, "make /ready fail, without affecting traffic"),
    acts("/healthcheck/ok", act::healthcheck_ok, "undo /healthcheck/fail"),
    tells("/help", help, "this list as text"),
    tells("/limits", limits::limits, "rules, their counters and decisions"),
    tells("/listeners", status::listeners, "listeners and their addresses; ?format=json"),
    acts("/logging", act::logging, "log levels; ?level=debug for all, ?paths=weir::proxy:debug,... for some"),
    tells("/metrics", stats::metrics, "metrics for Prometheus"),
    acts("/quitquitquit", act::quit, "shut down gracefully, as on SIGTERM"),
    tells("/ready", status::ready, "200 LIVE, or 503 DRAINING"),
    tells("/server_info", status::server_info, "version, state, and the last configuration reload"),
    tells(
        "/stats",
        stats::stats,
        "statistics under Envoy's names; ?filter=REGEX&usedonly&format=json|prometheus",
    ),
    tells("/stats/prometheus", stats::prometheus, "metrics for Prometheus under Envoy's names"),
];

/// Paths of [`Surface::Probes`].
const PROBES: [&str; 2] = ["/ready", "/metrics"];

/// Response body for a request whose host is not accepted.
const UNKNOWN_HOST: &str = "Host not allowed: not an IP address, not localhost, not listed in admin.hosts \
     (protection against DNS rebinding). Use an IP address, or add the name to admin.hosts.\n";

/// Serves `surface` on `listener` until the last phase of the graceful shutdown. It runs apart from the workers, so
/// that heavy traffic or a stuck worker does not block operators and probes.
pub async fn serve(listener: TcpListener, state: Arc<State>, surface: Surface) {
    let drain = Arc::clone(&state.drain);
    let answer = move |request: Request<Incoming>| std::future::ready(answer(&request, &state, surface));
    http_server::serve(listener, drain, answer).await;
}

/// Catches a panic of one endpoint, so that the others continue to work.
fn answer(request: &Request<Incoming>, state: &State, surface: Surface) -> FullResponse {
    catch_unwind(AssertUnwindSafe(|| handle(request, state, surface))).unwrap_or_else(|_| {
        tracing::error!(path = request.uri().path(), "an admin endpoint panicked");
        reply::text(StatusCode::INTERNAL_SERVER_ERROR, "internal error\n")
    })
}

/// Returns the response to a request. Request bodies are never read: as in Envoy, parameters are in the query.
pub fn handle<B>(request: &Request<B>, state: &State, surface: Surface) -> FullResponse {
    let path = request.uri().path();
    let Some(endpoint) = ENDPOINTS.iter().find(|endpoint| endpoint.path == path) else {
        return not_found(surface);
    };
    let (method, reads) = (request.method(), [Method::GET, Method::HEAD].contains(request.method()));
    if surface == Surface::Probes && !(PROBES.contains(&path) && reads) {
        return not_found(surface);
    }
    // Probes and scrapers use any host name, and these paths reveal nothing confidential.
    if !PROBES.contains(&path) && !hosts::are_known(request, &state.hosts) {
        return reply::text(StatusCode::FORBIDDEN, UNKNOWN_HOST);
    }
    match endpoint.effect {
        Effect::Tells if !reads => {
            reply::not_allowed("GET, HEAD", format!("Method {method} not allowed, GET required."))
        }
        Effect::Acts if method != Method::POST => {
            reply::not_allowed("POST", format!("Method {method} not allowed, POST required."))
        }
        // Only browsers send `Origin`, and a web page must not be able to control this process.
        Effect::Acts if request.headers().contains_key(ORIGIN) => {
            reply::text(StatusCode::FORBIDDEN, "requests with an Origin header (browsers) are rejected\n")
        }
        Effect::Tells | Effect::Acts => (endpoint.run)(state, &Query(request.uri().query().unwrap_or(""))),
    }
}

fn not_found(surface: Surface) -> FullResponse {
    let body = match surface {
        Surface::Full => format!("invalid path. {}", listing()),
        Surface::Probes => "not found\n".to_owned(),
    };
    reply::text(StatusCode::NOT_FOUND, body)
}

/// `GET /help`
fn help(_: &State, _: &Query<'_>) -> FullResponse {
    reply::text(StatusCode::OK, listing())
}

/// Returns the list of all endpoints as text.
fn listing() -> String {
    let mut text = "admin commands are:\n".to_owned();
    for endpoint in &ENDPOINTS {
        // Writing to a string cannot fail.
        let _ = match endpoint.effect {
            Effect::Tells => writeln!(text, "  {}: {}", endpoint.path, endpoint.help),
            Effect::Acts => writeln!(text, "  {} (POST): {}", endpoint.path, endpoint.help),
        };
    }
    text
}

/// `GET /`: without buttons for commands, because POST requests from browsers are rejected.
fn index(_: &State, _: &Query<'_>) -> FullResponse {
    let mut rows = String::new();
    for endpoint in &ENDPOINTS {
        let path = match endpoint.effect {
            Effect::Tells => format!("<a href=\"{0}\">{0}</a>", endpoint.path),
            Effect::Acts => format!("POST {}", endpoint.path),
        };
        let _ = writeln!(rows, "<tr><td><code>{path}</code></td><td>{}</td></tr>", endpoint.help);
    }
    reply::html(format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>Weir</title>\n\
         <style>body{{font:15px/1.5 system-ui,sans-serif;margin:2em}}td{{padding:.1em 1.5em .1em 0}}</style>\n\
         <h1>Weir {VERSION}</h1>\n<table>\n{rows}</table>\n</html>\n"
    ))
}
