//! `GET /config_dump`: the configuration in force, as written (with secrets redacted) and as compiled.

use serde_json::{Value, json};

use super::query::Query;
use super::response::{self, FullResponse};
use super::{AdminState, limits, status};
use weir_config::redact;

/// `GET /config_dump`: an array of configurations, as in Envoy.
pub(super) fn dump(state: &AdminState, _: &Query<'_>) -> FullResponse {
    let (policy, configuration) = (state.process.policy(), state.process.configuration());
    let rules: Vec<Value> = policy.rules.rules().iter().map(|rule| limits::summary(rule).into()).collect();
    let listeners: Vec<Value> = state
        .listeners
        .load()
        .iter()
        .map(|listener| json!({ "name": listener.name, "address": listener.envoy_address() }))
        .collect();
    let upstreams: Vec<_> = state
        .process
        .upstreams()
        .iter()
        .map(|view| {
            let addresses: Vec<_> = view.hosts.iter().map(|host| &host.address).collect();
            json!({ "name": view.name, "addresses": addresses })
        })
        .collect();
    let fetched = configuration.document.as_ref().map(|document| {
        json!({ "@type": "weir.v1.Fetched", "url": &*document.url, "yaml": redact(&document.text) })
    });
    let file = json!({
        "@type": "weir.v1.File",
        "status": status::config_status(&configuration),
        "yaml": redact(&configuration.text),
    });
    let compiled = json!({
        "@type": "weir.v1.Compiled",
        "generation": policy.generation,
        "workers": state.workers,
        "listeners": listeners,
        "upstreams": upstreams,
        "max_keys": state.limiter.max_keys(),
        "rules": rules,
    });
    let configs: Vec<_> = [file].into_iter().chain(fetched).chain([compiled]).collect();
    response::json(&json!({ "configs": configs }))
}
