//! Listener and routing of the admin interface, with the checks of method, `Host` and `Origin`.

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use tokio::net::TcpListener;

use super::authorization::AdminRejection;
use super::query::Query;
use super::response::{self, FullResponse};
use super::{
    AdminState, Surface, actions, audit, authorization, certs, clusters, config_dump, deferred, events,
    explain, host_check, limits, overrides, page, stats, status, suggestions, top,
};
use weir_net::http_server::{self, PeerAddress};

/// Whether an endpoint reads or changes the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndpointEffect {
    /// Read only: GET and HEAD.
    ReadOnly,
    /// Command: POST.
    Command,
}

/// One path of the admin interface.
pub(super) struct AdminEndpoint {
    pub(super) path: &'static str,
    pub(super) effect: EndpointEffect,
    help: &'static str,
    handler: fn(&AdminState, &Query<'_>) -> FullResponse,
}

const fn read_only(
    path: &'static str,
    handler: fn(&AdminState, &Query<'_>) -> FullResponse,
    help: &'static str,
) -> AdminEndpoint {
    AdminEndpoint { path, effect: EndpointEffect::ReadOnly, help, handler }
}

const fn command(
    path: &'static str,
    handler: fn(&AdminState, &Query<'_>) -> FullResponse,
    help: &'static str,
) -> AdminEndpoint {
    AdminEndpoint { path, effect: EndpointEffect::Command, help, handler }
}

/// All endpoints, in the order of the listing.
pub(super) static ENDPOINTS: [AdminEndpoint; 28] = [
    read_only("/", page::page, "live page; this list for a client that prefers text"),
    read_only("/certs", certs::certs, "certificates in use"),
    read_only("/clusters", clusters::clusters, "upstreams, endpoints and their statistics; ?format=json"),
    read_only("/config_dump", config_dump::dump, "the configuration in force, without secrets"),
    read_only("/deferred", deferred::list, "deferred calls of each rule, and the newest dead letters"),
    command(
        "/deferred/requeue",
        deferred::requeue,
        "send dead letters again; ?rule, entry (default: the oldest 1000)",
    ),
    command(
        "/drain_listeners",
        actions::drain_listeners,
        "drain the listeners; ?graceful only fails readiness",
    ),
    read_only(
        "/events",
        events::events,
        "server-sent events with a snapshot every second; ?once for one as JSON",
    ),
    read_only(
        "/explain",
        explain::explain,
        "what would happen to a request, and why; ?method, path, host, client_ip, listener, header.NAME, format=text",
    ),
    command("/healthcheck/fail", actions::healthcheck_fail, "make /ready fail, without affecting traffic"),
    command("/healthcheck/ok", actions::healthcheck_ok, "undo /healthcheck/fail"),
    read_only("/help", help, "this list as text"),
    read_only("/limits", limits::limits, "rules, their counters and decisions"),
    command("/limits/ban", overrides::ban, "reject one key of a rule; ?rule, key or fingerprint, for"),
    command(
        "/limits/boost",
        overrides::boost,
        "raise the limit of one key of a rule; ?rule, key or fingerprint, factor or limit, for",
    ),
    read_only("/limits/overrides", overrides::list, "boosts and bans in force"),
    command(
        "/limits/reset",
        overrides::reset,
        "free the counters of one key; ?rule, key or fingerprint, or of documents: ?domain, descriptor.KEY, or name and fingerprint",
    ),
    read_only(
        "/limits/suggestions",
        suggestions::suggestions,
        "limits from this instance's own traffic, as a dry run with reasons; ?lower",
    ),
    read_only(
        "/limits/top",
        top::top,
        "heaviest keys of each rule, and of each limit of documents; ?rule=NAME, or ?domain=DOMAIN&name=NAME, n=20",
    ),
    command("/limits/unban", overrides::unban, "end the ban of one key of a rule; ?rule, key or fingerprint"),
    read_only("/listeners", status::listeners, "listeners and their addresses; ?format=json"),
    command(
        "/logging",
        actions::logging,
        "log levels; ?level=debug for all, ?paths=weir::proxy:debug,... for some",
    ),
    read_only("/metrics", stats::metrics, "metrics for Prometheus"),
    command("/quitquitquit", actions::quit, "shut down gracefully, as on SIGTERM"),
    read_only("/ready", status::ready, "200 LIVE, or 503 DRAINING or OVERLOADED"),
    read_only("/server_info", status::server_info, "version, state, and the last configuration reload"),
    read_only(
        "/stats",
        stats::stats,
        "statistics under Envoy's names; ?filter=REGEX&usedonly&format=json|prometheus",
    ),
    read_only("/stats/prometheus", stats::prometheus, "metrics for Prometheus under Envoy's names"),
];

/// Paths that need no token: the page, which has no data and asks for the token, and the list of endpoints.
const PATHS_WITHOUT_TOKEN: [&str; 2] = ["/", "/help"];

/// Paths of [`Surface::Probes`].
const PROBE_PATHS: [&str; 2] = ["/ready", "/metrics"];

/// Serves `surface` on `listener` until the last phase of the graceful shutdown. It runs apart from the workers, so
/// that heavy traffic or a stuck worker does not block operators and probes.
pub async fn serve(listener: TcpListener, state: Arc<AdminState>, surface: Surface) {
    let drain = Arc::clone(&state.drain);
    let service = move |request: Request<Incoming>| {
        let response = handle_catching_panics(&request, &state, surface);
        std::future::ready(events::with_stream(response, &state))
    };
    http_server::serve(listener, drain, service).await;
}

/// Catches a panic of one endpoint, so that the others continue to work.
fn handle_catching_panics(request: &Request<Incoming>, state: &AdminState, surface: Surface) -> FullResponse {
    catch_unwind(AssertUnwindSafe(|| handle(request, state, surface))).unwrap_or_else(|_| {
        tracing::error!(path = request.uri().path(), "an admin endpoint panicked");
        response::text(StatusCode::INTERNAL_SERVER_ERROR, "internal error\n")
    })
}

/// Returns the response to a request. Request bodies are never read: as in Envoy, parameters are in the query.
pub fn handle<B>(request: &Request<B>, state: &AdminState, surface: Surface) -> FullResponse {
    let path = request.uri().path();
    let Some(endpoint) = ENDPOINTS.iter().find(|endpoint| endpoint.path == path) else {
        return not_found(surface);
    };
    let (method, is_read) = (request.method(), [Method::GET, Method::HEAD].contains(request.method()));
    if surface == Surface::Probes && !(PROBE_PATHS.contains(&path) && is_read) {
        return not_found(surface);
    }
    let peer = request.extensions().get::<PeerAddress>().map(|peer| peer.0);
    let query = Query { text: request.uri().query().unwrap_or(""), path: endpoint.path, peer };
    let reject = |reason: AdminRejection| {
        audit::record_rejection(state, &query, method.as_str(), reason);
        reason.response_to(request)
    };
    if let Err(reason) = check_access(request, state, surface) {
        return reject(reason);
    }
    if path == "/events"
        && let Some(rejected) = events::check_site(request)
    {
        return rejected;
    }
    match endpoint.effect {
        EndpointEffect::ReadOnly if !is_read => {
            response::not_allowed("GET, HEAD", format!("Method {method} not allowed, GET required."))
        }
        EndpointEffect::Command if method != Method::POST => {
            response::not_allowed("POST", format!("Method {method} not allowed, POST required."))
        }
        EndpointEffect::ReadOnly if path == "/" && page::prefers_text(request.headers()) => {
            response::text(StatusCode::OK, endpoint_list())
        }
        EndpointEffect::ReadOnly => (endpoint.handler)(state, &query),
        EndpointEffect::Command => match authorization::check_command(request, state, peer) {
            Ok(()) => (endpoint.handler)(state, &query),
            Err(reason) => reject(reason),
        },
    }
}

/// Checks the host and the token of a request.
fn check_access<B>(request: &Request<B>, state: &AdminState, surface: Surface) -> Result<(), AdminRejection> {
    let path = request.uri().path();
    // Probes and scrapers use any host name, and these paths reveal nothing confidential.
    if !PROBE_PATHS.contains(&path)
        && !host_check::are_hosts_allowed(request, &state.access.allowed_hosts.load())
    {
        return Err(AdminRejection::Host);
    }
    match surface {
        Surface::Full if PATHS_WITHOUT_TOKEN.contains(&path) => Ok(()),
        Surface::Full => authorization::check_token(request, state.access.token.load().as_deref()),
        Surface::Probes => Ok(()),
    }
}

fn not_found(surface: Surface) -> FullResponse {
    let body = match surface {
        Surface::Full => format!("invalid path. {}", endpoint_list()),
        Surface::Probes => "not found\n".to_owned(),
    };
    response::text(StatusCode::NOT_FOUND, body)
}

/// `GET /help`
fn help(_: &AdminState, _: &Query<'_>) -> FullResponse {
    response::text(StatusCode::OK, endpoint_list())
}

fn endpoint_list() -> String {
    let mut text = "admin commands are:\n".to_owned();
    for endpoint in &ENDPOINTS {
        // Writing to a string cannot fail.
        let _ = match endpoint.effect {
            EndpointEffect::ReadOnly => writeln!(text, "  {}: {}", endpoint.path, endpoint.help),
            EndpointEffect::Command => writeln!(text, "  {} (POST): {}", endpoint.path, endpoint.help),
        };
    }
    text
}
