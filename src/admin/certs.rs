//! `GET /certs`: the certificates in use and the authorities that verify peers, in Envoy's format.

use serde_json::{Value, json};

use super::AdminState;
use super::query::Query;
use super::response::{self, FullResponse};
use weir_limiter::timestamp::Timestamp;
use weir_net::tls::certificate::{AltName, CertificateInfo};
use weir_net::tls::client::{self, ServerVerification};
use weir_net::tls::server::{ClientVerification, TlsServerSettings};
use weir_telemetry::rfc3339;

const DAY: u64 = 24 * 60 * 60;

/// `GET /certs`
pub(super) fn certs(state: &AdminState, _: &Query<'_>) -> FullResponse {
    let now = state.process.wall_clock().as_secs();
    let listeners = state.process.server_tls();
    let mut certificates: Vec<Value> =
        listeners.iter().flat_map(|server| listener_certificates(server.settings(), now)).collect();
    certificates.extend(
        state.process.client_tls().iter().filter_map(|client| upstream_certificates(client.settings(), now)),
    );
    response::json(&json!({ "certificates": certificates }))
}

/// Returns one entry per certificate of a listener; each repeats the authorities that verify clients.
fn listener_certificates(settings: &TlsServerSettings, now: u64) -> impl Iterator<Item = Value> {
    let authorities: Vec<Value> = match &settings.client_verification {
        ClientVerification::Disabled => Vec::new(),
        ClientVerification::Enabled { authorities, file, .. } => {
            authorities.info.iter().map(|info| certificate_json(file, info, now)).collect()
        }
    };
    settings.key_pairs.iter().map(move |pair| {
        json!({ "ca_cert": authorities, "cert_chain": [certificate_json(&pair.file, &pair.chain.info, now)] })
    })
}

/// Returns the client certificate and the authorities of an upstream; `None` if there is no client certificate and the
/// system's authorities, or none, are used.
fn upstream_certificates(settings: &client::TlsClientSettings, now: u64) -> Option<Value> {
    let authorities: Vec<Value> = match &settings.verification {
        ServerVerification::System(_) | ServerVerification::Disabled => Vec::new(),
        ServerVerification::Configured { authorities, file } => {
            authorities.info.iter().map(|info| certificate_json(file, info, now)).collect()
        }
    };
    let own = settings.key_pair.iter().map(|pair| certificate_json(&pair.file, &pair.chain.info, now));
    let own: Vec<Value> = own.collect();
    let has_any = !authorities.is_empty() || !own.is_empty();
    has_any.then(|| json!({ "ca_cert": authorities, "cert_chain": own }))
}

fn certificate_json(path: &str, info: &CertificateInfo, now: u64) -> Value {
    let names: Vec<Value> = info
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
        "serial_number": info.serial,
        "subject_alt_names": names,
        "days_until_expiration": (info.expires.saturating_sub(now) / DAY).to_string(),
        "valid_from": rfc3339(Timestamp::from_secs(info.valid_from)),
        "expiration_time": rfc3339(Timestamp::from_secs(info.expires)),
    })
}
