//! TLS of listeners: certificates with keys, verification of clients, and conditions on client certificates.

use std::sync::Arc;

use super::context::CompileContext;
use super::{map_items, patterns, read_or_off};
use crate::config_path::ConfigPath;
use crate::data_files::DataFiles;
use crate::data_files::certificates::{AUTHORITIES, CERTIFICATE_CHAIN, PRIVATE_KEY};
use crate::defaults;
use crate::diagnostic::{Diagnostics, ValueError};
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
pub(super) fn compile_server(
    raw: &raw::Tls,
    at: ConfigPath<'_>,
    files: &mut DataFiles,
    report: &mut Diagnostics<'_>,
) -> Option<TlsServerSettings> {
    let mut pairs = Vec::new();
    if raw.certificate.is_some() || raw.key.is_some() {
        let (certificate, key) = (raw.certificate.as_deref(), raw.key.as_deref());
        pairs.extend(load_key_pair(certificate, key, CLIENTS, at, files, report));
    } else if raw.certificates.is_none() && !report.is_reported(at) {
        report.add_key_error(at, "no certificate, expected `certificate` and `key`, or `certificates`");
    }
    if let Some(list) = &raw.certificates {
        let read = |raw: &raw::Certificate, at: ConfigPath<'_>| {
            load_key_pair(raw.certificate.as_deref(), raw.key.as_deref(), CLIENTS, at, files, report)
        };
        pairs.extend(map_items(list, at.key("certificates"), read));
    }
    let clients = compile_client_verification(raw, at, files, report)?;
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
    at: ConfigPath<'_>,
    files: &mut DataFiles,
    report: &mut Diagnostics<'_>,
) -> Option<CertificateKeyPair> {
    match (certificate, key) {
        (Some(_), None) if !report.is_reported(at.key("key")) => {
            report.add_key_error(at, "`certificate` without its `key`")
        }
        (None, Some(_)) if !report.is_reported(at.key("certificate")) => {
            report.add_key_error(at, "`key` without its `certificate`");
        }
        _ => {}
    }
    let chain =
        certificate.and_then(|name| files.load(name, &CERTIFICATE_CHAIN, at.key("certificate"), report));
    let key_read = key.and_then(|name| files.load(name, &PRIVATE_KEY, at.key("key"), report));
    let (chain, key_read) = (chain?, key_read?);
    note_validity(&chain.info, verifier, at, files, report);
    let file = files.resolve_path(certificate?).display().to_string();
    let pair = CertificateKeyPair::new(chain, &key_read, file.into());
    report.ok_or_report(
        at.key("key"),
        pair.map_err(|mismatch| format!("{mismatch}, got {}", quoted(key.unwrap_or_default()))),
    )
}

/// Adds a note for a certificate that has expired or is not valid yet. Not a problem: verifying it is up to
/// the peer, and a restart must not fail because of it.
fn note_validity(
    info: &CertificateInfo,
    verifier: &str,
    at: ConfigPath<'_>,
    files: &DataFiles,
    report: &mut Diagnostics<'_>,
) {
    let now = files.now().as_secs();
    if info.expires < now {
        report.add_note(
            at.key("certificate"),
            format!("the certificate has expired, so {verifier} will reject it"),
        );
    } else if info.valid_from > now {
        report.add_note(
            at.key("certificate"),
            format!("the certificate is not valid yet, so {verifier} will reject it"),
        );
    }
}

fn compile_client_verification(
    raw: &raw::Tls,
    at: ConfigPath<'_>,
    files: &mut DataFiles,
    report: &mut Diagnostics<'_>,
) -> Option<ClientVerification> {
    let Some(name) = raw.client_ca.as_deref() else {
        if raw.client_auth.is_some() && !report.is_reported(at.key("client_ca")) {
            report.add_inapplicable_key(at, "client_auth", "without `client_ca`");
        }
        return Some(ClientVerification::Disabled);
    };
    let authorities: Arc<_> = files.load(name, &AUTHORITIES, at.key("client_ca"), report)?;
    let required = raw.client_auth != Some(raw::ClientAuth::Optional);
    Some(ClientVerification::Enabled {
        authorities,
        file: files.resolve_path(name).display().to_string().into(),
        required,
    })
}

/// Compiles `proxy_protocol` of a listener.
pub(super) fn compile_proxy_protocol(
    raw: Option<&OrOff<ProxyProtocol>>,
    at: ConfigPath<'_>,
    report: &mut Diagnostics<'_>,
) -> ProxyProtocol {
    let error = ValueError::new("expected one of disabled, optional, required, got true")
        .with_suggestion(Some("required"));
    *raw.and_then(|raw| read_or_off(raw, error, at, report)).unwrap_or(&ProxyProtocol::Disabled)
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
    at: ConfigPath<'_>,
    context: &CompileContext<'_>,
    report: &mut Diagnostics<'_>,
) -> Option<CertificateName> {
    require_client_certificates(at, context, report).then_some(name)
}

/// Compiles `tls` of a matcher.
pub(super) fn compile_conditions(
    raw: &raw::CertificateNames,
    at: ConfigPath<'_>,
    context: &CompileContext<'_>,
    report: &mut Diagnostics<'_>,
) -> Vec<Condition> {
    if !require_client_certificates(at, context, report) {
        return Vec::new();
    }
    if raw.spiffe.is_none() && raw.subject.is_none() && raw.dns.is_none() && !report.is_reported(at) {
        report.add_value_error(at, "empty map, expected `spiffe`, `subject` or `dns`");
    }
    let kinds = [
        (CertificateName::Spiffe, "spiffe", &raw.spiffe),
        (CertificateName::Subject, "subject", &raw.subject),
        (CertificateName::Dns, "dns", &raw.dns),
    ];
    let mut read =
        |(name, key, list): (CertificateName, &'static str, &Option<raw::OneOrMany<raw::HeaderPattern>>)| {
            let found =
                map_items(list.as_ref()?, at.key(key), |raw, at| patterns::parse_pattern(&raw.0, at, report));
            Some(Condition { attribute: Attribute::Certificate(name), patterns: found.into() })
        };
    kinds.into_iter().filter_map(&mut read).collect()
}

fn require_client_certificates(
    at: ConfigPath<'_>,
    context: &CompileContext<'_>,
    report: &mut Diagnostics<'_>,
) -> bool {
    if !context.has_client_certificates {
        report.add_key_error(at, "needs a listener with `tls.client_ca`, and there is none");
    }
    context.has_client_certificates
}
