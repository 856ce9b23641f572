//! `GET /clusters`: the upstreams with their endpoints, health and counts, in Envoy's format.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;

use http::StatusCode;
use serde_json::{Value, json};

use super::State;
use super::query::Query;
use super::reply::{self, FullResponse};
use crate::telemetry::metrics::{ClusterView, HostView, UpstreamCounts};

/// Envoy's names of the circuit breaker thresholds.
const LIMITS: [&str; 4] = ["max_connections", "max_pending_requests", "max_requests", "max_retries"];

type Counted = BTreeMap<Box<str>, UpstreamCounts>;

/// `GET /clusters[?format=json]`
pub(super) fn clusters(state: &State, query: &Query<'_>) -> FullResponse {
    let views = state.process.upstreams();
    let counted = |view: &ClusterView| state.metrics.endpoints(&view.name);
    if query.wants_json() {
        let statuses: Vec<_> = views.iter().map(|view| as_json(view, &counted(view))).collect();
        return reply::json(&json!({ "cluster_statuses": statuses }));
    }
    let mut text = String::new();
    for view in &views {
        as_text(view, &counted(view), &mut text);
    }
    reply::text(StatusCode::OK, text)
}

fn as_text(view: &ClusterView, counted: &Counted, text: &mut String) {
    let name = &view.name;
    let mut line = |line: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name}::{line}");
    };
    line(format!("observability_name::{name}"));
    for (number, most) in LIMITS.iter().zip(view.limits) {
        line(format!("default_priority::{number}::{most}"));
    }
    line("added_via_api::false".to_owned());
    for HostView { address, hostname, health } in &view.hosts {
        for (number, value) in numbers(counted.get(address)) {
            line(format!("{address}::{number}::{value}"));
        }
        line(format!("{address}::hostname::{hostname}"));
        line(format!("{address}::health_flags::{health}"));
    }
}

fn as_json(view: &ClusterView, counted: &Counted) -> Value {
    let host = |HostView { address, hostname, health }: &HostView| {
        let numbers = numbers(counted.get(address));
        let stats = numbers.map(|(name, value)| json!({ "name": name, "value": value.to_string() }));
        let status = match *health {
            "healthy" => json!({ "eds_health_status": "HEALTHY" }),
            flags => json!({
                "failed_active_health_check": flags.contains("active_hc"),
                "failed_outlier_check": flags.contains("outlier"),
            }),
        };
        json!({
            "address": socket_of(address),
            "hostname": hostname,
            "health_status": status,
            "stats": stats,
        })
    };
    let hosts: Vec<_> = view.hosts.iter().map(host).collect();
    let thresholds: serde_json::Map<_, _> =
        LIMITS.iter().zip(view.limits).map(|(name, most)| ((*name).to_owned(), json!(most))).collect();
    json!({
        "name": view.name,
        "added_via_api": false,
        "circuit_breakers": { "thresholds": [thresholds] },
        "host_statuses": hosts,
    })
}

/// Returns an address in the form of Envoy's JSON.
fn socket_of(address: &str) -> Value {
    match (address.parse::<SocketAddr>(), address.strip_prefix("unix:")) {
        (Ok(socket), _) => {
            json!({ "socket_address": { "address": socket.ip(), "port_value": socket.port() } })
        }
        (Err(_), Some(path)) => json!({ "pipe": { "path": path } }),
        (Err(_), None) => json!({ "socket_address": { "address": address } }),
    }
}

/// Returns the counts of an endpoint under Envoy's names and in Envoy's order.
fn numbers(counted: Option<&UpstreamCounts>) -> [(&'static str, u64); 8] {
    let none = UpstreamCounts::default();
    let counted = counted.unwrap_or(&none);
    [
        ("cx_active", counted.connections()),
        ("cx_connect_fail", counted.failed.get()),
        ("cx_total", counted.opened.get().saturating_add(counted.failed.get())),
        ("rq_active", counted.in_flight()),
        ("rq_error", counted.failures()),
        ("rq_success", counted.successes()),
        ("rq_timeout", counted.ended_as("timed_out")),
        ("rq_total", counted.started.get()),
    ]
}
