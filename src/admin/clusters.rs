//! `GET /clusters`: the upstreams with their endpoints, health and counts, in Envoy's format.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;

use http::StatusCode;
use serde_json::{Value, json};

use super::AdminState;
use super::query::Query;
use super::response::{self, FullResponse};
use super::snapshot;
use weir_telemetry::metrics::{ClusterView, HostView, UpstreamCounts};

/// Envoy's names of the circuit breaker thresholds.
const THRESHOLD_NAMES: [&str; 4] = ["max_connections", "max_pending_requests", "max_requests", "max_retries"];

type CountsByAddress = BTreeMap<Box<str>, UpstreamCounts>;

/// `GET /clusters[?format=json]`
pub(super) fn clusters(state: &AdminState, query: &Query<'_>) -> FullResponse {
    let views = state.process.upstreams();
    let endpoint_counts = |view: &ClusterView| state.metrics.endpoint_counts(&view.name);
    if query.is_json_requested() {
        let statuses: Vec<_> = views.iter().map(|view| cluster_json(view, &endpoint_counts(view))).collect();
        return response::json(&json!({ "cluster_statuses": statuses }));
    }
    let mut text = String::new();
    for view in &views {
        write_text(view, &endpoint_counts(view), &mut text);
    }
    response::text(StatusCode::OK, text)
}

fn write_text(view: &ClusterView, counts: &CountsByAddress, text: &mut String) {
    let name = &view.name;
    let mut line = |line: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name}::{line}");
    };
    line(format!("observability_name::{name}"));
    for (threshold, max) in THRESHOLD_NAMES.iter().zip(view.limits) {
        line(format!("default_priority::{threshold}::{max}"));
    }
    line("added_via_api::false".to_owned());
    for HostView { address, hostname, health } in &view.hosts {
        for (stat, value) in endpoint_stats(counts.get(address)) {
            line(format!("{address}::{stat}::{value}"));
        }
        line(format!("{address}::hostname::{hostname}"));
        line(format!("{address}::health_flags::{health}"));
    }
}

fn cluster_json(view: &ClusterView, counts: &CountsByAddress) -> Value {
    let host = |HostView { address, hostname, health }: &HostView| {
        let numbers = endpoint_stats(counts.get(address));
        let stats = numbers.map(|(name, value)| json!({ "name": name, "value": value.to_string() }));
        let status = match *health {
            "healthy" => json!({ "eds_health_status": "HEALTHY" }),
            flags => json!({
                "failed_active_health_check": flags.contains("active_hc"),
                "failed_outlier_check": flags.contains("outlier"),
            }),
        };
        json!({
            "address": address_json(address),
            "hostname": hostname,
            "health_status": status,
            "stats": stats,
        })
    };
    let hosts: Vec<_> = view.hosts.iter().map(host).collect();
    let thresholds: serde_json::Map<_, _> =
        THRESHOLD_NAMES.iter().zip(view.limits).map(|(name, max)| ((*name).to_owned(), json!(max))).collect();
    json!({
        "name": view.name,
        "added_via_api": false,
        "weir_concurrency": view.concurrency.as_ref().map(snapshot::concurrency),
        "circuit_breakers": { "thresholds": [thresholds] },
        "host_statuses": hosts,
    })
}

/// Returns an address in the form of Envoy's JSON.
fn address_json(address: &str) -> Value {
    match (address.parse::<SocketAddr>(), address.strip_prefix("unix:")) {
        (Ok(socket), _) => {
            json!({ "socket_address": { "address": socket.ip(), "port_value": socket.port() } })
        }
        (Err(_), Some(path)) => json!({ "pipe": { "path": path } }),
        (Err(_), None) => json!({ "socket_address": { "address": address } }),
    }
}

/// Returns the counts of an endpoint under Envoy's names and in Envoy's order.
fn endpoint_stats(counts: Option<&UpstreamCounts>) -> [(&'static str, u64); 8] {
    let none = UpstreamCounts::default();
    let counts = counts.unwrap_or(&none);
    [
        ("cx_active", counts.open_connections()),
        ("cx_connect_fail", counts.connections_failed.get()),
        ("cx_total", counts.connections_opened.get().saturating_add(counts.connections_failed.get())),
        ("rq_active", counts.in_flight()),
        ("rq_error", counts.failures()),
        ("rq_success", counts.successes()),
        ("rq_timeout", counts.outcome_count("timed_out")),
        ("rq_total", counts.requests_started.get()),
    ]
}
