//! Status endpoints: readiness, server information and listeners.

use http::StatusCode;
use serde_json::{Value, json};

use super::AdminState;
use super::query::Query;
use super::response::{self, FullResponse};
use weir_config::reload::ReloadStatus;
use weir_net::listener::ListenAddress;
use weir_telemetry::metrics::VERSION;
use weir_telemetry::rfc3339;

/// `GET /ready`
pub(super) fn ready(state: &AdminState, _: &Query<'_>) -> FullResponse {
    match state.drain.is_ready() {
        // Every request is shed, so that another instance should have it.
        true if state.overload.is_memory_short() => {
            response::text(StatusCode::SERVICE_UNAVAILABLE, "OVERLOADED\n")
        }
        true => response::text(StatusCode::OK, "LIVE\n"),
        false => response::text(StatusCode::SERVICE_UNAVAILABLE, "DRAINING\n"),
    }
}

/// `GET /server_info`
pub(super) fn server_info(state: &AdminState, _: &Query<'_>) -> FullResponse {
    let uptime = format!("{}s", state.process.now().since(state.start_time).as_secs());
    let configuration = state.process.configuration();
    response::json(&json!({
        "version": VERSION,
        "state": if state.drain.is_ready() { "LIVE" } else { "DRAINING" },
        "uptime_current_epoch": uptime,
        "uptime_all_epochs": uptime,
        "hot_restart_version": "disabled",
        "command_line_options": {
            "concurrency": state.workers,
            "config_path": configuration.file.display().to_string(),
            "mode": "Serve",
        },
        "node": { "user_agent_name": "weir" },
        "started": rfc3339(state.start_time),
        "workers": state.workers,
        "config": config_status(&configuration),
    }))
}

/// Returns the configuration's status, including the problems of a rejected reload.
pub(super) fn config_status(configuration: &ReloadStatus) -> Value {
    let last = configuration.last_attempt.as_ref();
    let fetched = configuration.document.as_ref().map(|document| {
        json!({ "url": &*document.url, "etag": document.validators.etag, "last_modified": document.validators.last_modified })
    });
    json!({
        "file": configuration.file.display().to_string(),
        "fetched": fetched,
        "generation": configuration.generation,
        "last_reload": {
            "outcome": last.map_or("started", |last| last.outcome.as_str()),
            "at": last.map(|last| rfc3339(last.time)),
            "problems": last.map_or(&[][..], |last| &last.problems),
            "warnings": last.map_or(&[][..], |last| &last.warnings),
        },
    })
}

/// `GET /listeners[?format=json]`
pub(super) fn listeners(state: &AdminState, query: &Query<'_>) -> FullResponse {
    if query.is_json_requested() {
        let statuses: Vec<_> = state
            .listeners
            .load()
            .iter()
            .map(|listener| {
                let address = match &listener.address {
                    ListenAddress::Tcp(address) => {
                        let socket = json!({ "address": address.ip(), "port_value": address.port() });
                        json!({ "socket_address": socket })
                    }
                    ListenAddress::Unix(path) => json!({ "pipe": { "path": path } }),
                };
                json!({ "name": listener.name, "local_address": address })
            })
            .collect();
        return response::json(&json!({ "listener_statuses": statuses }));
    }
    let listeners = state.listeners.load();
    let lines = listeners.iter().map(|listener| format!("{}::{}\n", listener.name, listener.envoy_address()));
    response::text(StatusCode::OK, lines.collect::<String>())
}
