//! TLS of listeners: certificates with keys, verification of clients, and conditions on client certificates.

use std::sync::Arc;

use super::context::CompileContext;
use super::{map_items, patterns};
use crate::at::At;
use crate::data_files::DataFiles;
use crate::data_files::certificates::{AUTHORITIES, CERTIFICATE_CHAIN, PRIVATE_KEY};
use crate::defaults;
use crate::diagnostic::ValueError;
use crate::quoting::quoted;
use crate::raw::{self, OrOff};
use weir_net::listener::ProxyProtocol;
use weir_net::tls::certificate::CertificateInfo;
use weir_net::tls::key_pair::CertificateKeyPair;
use weir_net::tls::server::{ClientVerification, TlsServerSettings};
use weir_policy::identify::certificate::CertificateName;
use weir_policy::rules::attribute::Attribute;
use weir_policy::rules::matcher::Condition;

/// The peers that may reject a listener's certificate, for messages.
const CLIENTS: &str = "clients";

/// Compiles the section `tls` of a listener at `at`.
pub(super) fn compile_server(raw: &raw::Tls, at: At<'_>, files: &mut DataFiles) -> Option<TlsServerSettings> {
    let mut pairs = Vec::new();
    if raw.certificate.is_some() || raw.key.is_some() {
        let (certificate, key) = (raw.certificate.as_deref(), raw.key.as_deref());
        pairs.extend(load_key_pair(certificate, key, CLIENTS, at, files));
    } else if raw.certificates.is_none() && !at.is_reported() {
        at.key_error("no certificate, expected `certificate` and `key`, or `certificates`");
    }
    if let Some(list) = &raw.certificates {
        let read = |raw: &raw::Certificate, at: At<'_>| {
            load_key_pair(raw.certificate.as_deref(), raw.key.as_deref(), CLIENTS, at, files)
        };
        pairs.extend(map_items(list, at.key("certificates"), read));
    }
    let clients = compile_client_verification(raw, at, files)?;
    let handshakes = raw.handshakes.unwrap_or(defaults::MAX_HANDSHAKES);
    (!pairs.is_empty()).then_some(TlsServerSettings {
        key_pairs: pairs,
        client_verification: clients,
        max_handshakes: handshakes,
    })
}

/// Loads a certificate and its key; `verifier` names the peers that may reject the certificate, for messages.
pub(super) fn load_key_pair(
    certificate: Option<&str>,
    key: Option<&str>,
    verifier: &str,
    at: At<'_>,
    files: &mut DataFiles,
) -> Option<CertificateKeyPair> {
    match (certificate, key) {
        (Some(_), None) if !at.key("key").is_reported() => at.key_error("`certificate` without its `key`"),
        (None, Some(_)) if !at.key("certificate").is_reported() => {
            at.key_error("`key` without its `certificate`");
        }
        _ => {}
    }
    let chain = certificate.and_then(|name| at.key("certificate").load(files, name, &CERTIFICATE_CHAIN));
    let key_read = key.and_then(|name| at.key("key").load(files, name, &PRIVATE_KEY));
    let (chain, key_read) = (chain?, key_read?);
    note_validity(&chain.info, verifier, at, files);
    let file = files.resolve_path(certificate?).display().to_string();
    let pair = CertificateKeyPair::new(chain, &key_read, file.into());
    at.key("key").ok(pair.map_err(|mismatch| format!("{mismatch}, got {}", quoted(key.unwrap_or_default()))))
}

/// Adds a note for a certificate that has expired or is not valid yet. Not a problem: verifying it is up to
/// the peer, and a restart must not fail because of it.
fn note_validity(info: &CertificateInfo, verifier: &str, at: At<'_>, files: &DataFiles) {
    let now = files.now().as_secs();
    if info.expires < now {
        at.key("certificate").note(format!("the certificate has expired, so {verifier} will reject it"));
    } else if info.valid_from > now {
        at.key("certificate").note(format!("the certificate is not valid yet, so {verifier} will reject it"));
    }
}

fn compile_client_verification(
    raw: &raw::Tls,
    at: At<'_>,
    files: &mut DataFiles,
) -> Option<ClientVerification> {
    let Some(name) = raw.client_ca.as_deref() else {
        if raw.client_auth.is_some() && !at.key("client_ca").is_reported() {
            at.inapplicable_key("client_auth", "without `client_ca`");
        }
        return Some(ClientVerification::Disabled);
    };
    let authorities: Arc<_> = at.key("client_ca").load(files, name, &AUTHORITIES)?;
    let required = raw.client_auth != Some(raw::ClientAuth::Optional);
    Some(ClientVerification::Enabled {
        authorities,
        file: files.resolve_path(name).display().to_string().into(),
        required,
    })
}

/// Compiles `proxy_protocol` of a listener.
pub(super) fn compile_proxy_protocol(raw: Option<&OrOff<ProxyProtocol>>, at: At<'_>) -> ProxyProtocol {
    let error = ValueError::new("expected one of disabled, optional, required, got true")
        .with_suggestion(Some("required"));
    *raw.and_then(|raw| at.unless_off(raw, error)).unwrap_or(&ProxyProtocol::Disabled)
}

/// Whether any listener verifies client certificates.
pub(super) fn verifies_clients(root: &raw::Root) -> bool {
    root.listeners.as_ref().is_some_and(|listeners| {
        listeners.items().any(|(_, listener)| match listener {
            raw::Listener::Address(_) => false,
            raw::Listener::Map(map) => map.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some()),
        })
    })
}

/// Compiles the certificate name of a key part.
pub(super) fn compile_name(
    name: CertificateName,
    at: At<'_>,
    context: &CompileContext<'_>,
) -> Option<CertificateName> {
    require_client_certificates(at, context).then_some(name)
}

/// Compiles `tls` of a matcher.
pub(super) fn compile_conditions(
    raw: &raw::CertificateNames,
    at: At<'_>,
    context: &CompileContext<'_>,
) -> Vec<Condition> {
    if !require_client_certificates(at, context) {
        return Vec::new();
    }
    if raw.spiffe.is_none() && raw.subject.is_none() && raw.dns.is_none() && !at.is_reported() {
        at.error("empty map, expected `spiffe`, `subject` or `dns`");
    }
    let kinds = [
        (CertificateName::Spiffe, "spiffe", &raw.spiffe),
        (CertificateName::Subject, "subject", &raw.subject),
        (CertificateName::Dns, "dns", &raw.dns),
    ];
    let mut read =
        |(name, key, list): (CertificateName, &'static str, &Option<raw::OneOrMany<raw::HeaderPattern>>)| {
            let found = map_items(list.as_ref()?, at.key(key), |raw, at| patterns::parse_pattern(&raw.0, at));
            Some(Condition { attribute: Attribute::Certificate(name), patterns: found.into() })
        };
    kinds.into_iter().filter_map(&mut read).collect()
}

fn require_client_certificates(at: At<'_>, context: &CompileContext<'_>) -> bool {
    if !context.has_client_certificates {
        at.key_error("needs a listener with `tls.client_ca`, and there is none");
    }
    context.has_client_certificates
}
