//! `GET /clusters`: the upstreams, where they are, and how each place does, in Envoy's words.

use std::collections::BTreeMap;
use std::fmt::Write;

use http::StatusCode;
use serde_json::{Value, json};

use super::State;
use super::reply::{self, Reply};
use super::router::Query;
use super::status::wants_json;
use crate::telemetry::metrics::{ClusterView, HostView, UpstreamTotals};

type Counted = BTreeMap<Box<str>, UpstreamTotals>;

/// `GET /clusters[?format=json]`
pub(super) fn clusters(state: &State, query: &Query<'_>) -> Reply {
    let views = (state.upstreams)();
    let counted = |view: &ClusterView| state.metrics.endpoints(&view.name);
    if wants_json(query) {
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
    line("added_via_api::false".to_owned());
    for HostView { address, hostname } in &view.hosts {
        for (number, value) in numbers(counted.get(address)) {
            line(format!("{address}::{number}::{value}"));
        }
        line(format!("{address}::hostname::{hostname}"));
    }
}

fn as_json(view: &ClusterView, counted: &Counted) -> Value {
    let host = |HostView { address, hostname }: &HostView| {
        let numbers = numbers(counted.get(address));
        let stats = numbers.map(|(name, value)| json!({ "name": name, "value": value.to_string() }));
        json!({ "address": address, "hostname": hostname, "stats": stats })
    };
    let hosts: Vec<_> = view.hosts.iter().map(host).collect();
    json!({ "name": view.name, "added_via_api": false, "host_statuses": hosts })
}

/// Envoy's numbers of a host, in its order.
fn numbers(counted: Option<&UpstreamTotals>) -> [(&'static str, u64); 8] {
    let counted = counted.cloned().unwrap_or_default();
    [
        ("cx_active", counted.connections()),
        ("cx_connect_fail", counted.failed),
        ("cx_total", counted.opened.saturating_add(counted.failed)),
        ("rq_active", counted.in_flight()),
        ("rq_error", counted.failures()),
        ("rq_success", counted.successes()),
        ("rq_timeout", counted.ended_as("timed_out")),
        ("rq_total", counted.started),
    ]
}
