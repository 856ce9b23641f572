//! The certificates that are shown to clients and upstreams and those by which theirs are judged, as Envoy prints them.

use serde_json::{Value, json};

use super::State;
use super::query::Query;
use super::reply::{self, Reply};
use crate::limiter::timestamp::Timestamp;
use crate::telemetry::rfc3339;
use crate::tls::certificate::{AltName, Facts};
use crate::tls::client::{self, Trust};
use crate::tls::server::{Clients, Settings};

const DAY: u64 = 24 * 60 * 60;

/// `GET /certs`
pub(super) fn certs(state: &State, _: &Query<'_>) -> Reply {
    let now = state.process.wall_clock().as_secs();
    let secured = state.process.server_tls();
    let mut certificates: Vec<Value> =
        secured.iter().flat_map(|server| shown(server.settings(), now)).collect();
    certificates
        .extend(state.process.client_tls().iter().filter_map(|client| presented(client.settings(), now)));
    reply::json(&json!({ "certificates": certificates }))
}

/// A pair in each entry; authorities stand in all of them, since they judge the clients of any.
fn shown(settings: &Settings, now: u64) -> impl Iterator<Item = Value> {
    let authorities: Vec<Value> = match &settings.clients {
        Clients::Anybody => Vec::new(),
        Clients::Verified { authorities, file, .. } => {
            authorities.facts.iter().map(|facts| certificate(file, facts, now)).collect()
        }
    };
    settings.pairs.iter().map(move |pair| {
        json!({ "ca_cert": authorities, "cert_chain": [certificate(&pair.file, &pair.chain.facts, now)] })
    })
}

/// What an upstream is shown and judged by; nothing where that is only what the system believes.
fn presented(settings: &client::Settings, now: u64) -> Option<Value> {
    let authorities: Vec<Value> = match &settings.trust {
        Trust::System(_) | Trust::Anybody => Vec::new(),
        Trust::Named { authorities, file } => {
            authorities.facts.iter().map(|facts| certificate(file, facts, now)).collect()
        }
    };
    let own = settings.pair.iter().map(|pair| certificate(&pair.file, &pair.chain.facts, now));
    let own: Vec<Value> = own.collect();
    let is_any = !authorities.is_empty() || !own.is_empty();
    is_any.then(|| json!({ "ca_cert": authorities, "cert_chain": own }))
}

fn certificate(path: &str, facts: &Facts, now: u64) -> Value {
    let names: Vec<Value> = facts
        .names
        .iter()
        .map(|name| match name {
            AltName::Dns(host) => json!({ "dns": host }),
            AltName::Uri(uri) => json!({ "uri": uri }),
            AltName::Ip(address) => json!({ "ip_address": address }),
            AltName::Email(address) => json!({ "email": address }),
        })
        .collect();
    json!({
        "path": path,
        "serial_number": facts.serial,
        "subject_alt_names": names,
        "days_until_expiration": (facts.expires.saturating_sub(now) / DAY).to_string(),
        "valid_from": rfc3339(Timestamp::from_secs(facts.valid_from)),
        "expiration_time": rfc3339(Timestamp::from_secs(facts.expires)),
    })
}
