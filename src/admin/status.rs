//! What the process is and how it does.

use http::StatusCode;
use serde_json::{Value, json};

use super::query::Query;
use super::reply::{self, Reply};
use super::scrape::server_state;
use super::{ReloadView, State};
use crate::listener::Address;
use crate::telemetry::metrics::{ServerState, VERSION};
use crate::telemetry::rfc3339;

/// `GET /ready`
pub(super) fn ready(state: &State, _: &Query<'_>) -> Reply {
    match server_state(state) {
        ServerState::Live => reply::text(StatusCode::OK, "LIVE\n"),
        ServerState::Draining => reply::text(StatusCode::SERVICE_UNAVAILABLE, "DRAINING\n"),
    }
}

/// `GET /server_info`
pub(super) fn server_info(state: &State, _: &Query<'_>) -> Reply {
    let uptime = format!("{}s", state.process.now().since(state.started).as_secs());
    let reload = state.process.reload();
    reply::json(&json!({
        "version": VERSION,
        "state": match server_state(state) {
            ServerState::Live => "LIVE",
            ServerState::Draining => "DRAINING",
        },
        "uptime_current_epoch": uptime,
        "uptime_all_epochs": uptime,
        "hot_restart_version": "disabled",
        "command_line_options": {
            "concurrency": state.workers,
            "config_path": reload.file,
            "mode": "Serve",
        },
        "node": { "user_agent_name": "weir" },
        "started": rfc3339(state.started),
        "workers": state.workers,
        "config": config(&reload),
    }))
}

/// The latest reading of the configuration: a rejected one is what an operator looks for here.
pub(super) fn config(reload: &ReloadView) -> Value {
    json!({
        "file": reload.file,
        "generation": reload.generation,
        "last_reload": {
            "outcome": reload.outcome,
            "at": reload.at.map(rfc3339),
            "problems": reload.problems,
            "warnings": reload.warnings,
            "needs_restart": reload.needs_restart,
        },
    })
}

/// `GET /listeners[?format=json]`
pub(super) fn listeners(state: &State, query: &Query<'_>) -> Reply {
    if query.wants_json() {
        let statuses: Vec<_> = state
            .listeners
            .iter()
            .map(|listener| {
                let address = match &listener.address {
                    Address::Tcp(address) => {
                        let socket = json!({ "address": address.ip(), "port_value": address.port() });
                        json!({ "socket_address": socket })
                    }
                    Address::Unix(path) => json!({ "pipe": { "path": path } }),
                };
                json!({ "name": listener.name, "local_address": address })
            })
            .collect();
        return reply::json(&json!({ "listener_statuses": statuses }));
    }
    let lines = state.listeners.iter().map(|listener| format!("{}::{}\n", listener.name, listener.place()));
    reply::text(StatusCode::OK, lines.collect::<String>())
}
