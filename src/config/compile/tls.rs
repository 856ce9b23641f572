//! TLS of listeners: certificates with keys, verification of clients, and conditions on client certificates.

use std::sync::Arc;

use super::scope::Scope;
use super::{each, on, patterns};
use crate::config::at::At;
use crate::config::defaults;
use crate::config::files::Files;
use crate::config::files::certificates::{AUTHORITIES, CHAIN, KEY};
use crate::config::problem::{Fault, Report, quoted};
use crate::config::raw::{self, OrOff};
use crate::identify::certificate::CertificateName;
use crate::listener::ProxyProtocol;
use crate::rules::attribute::Attribute;
use crate::rules::matcher::Condition;
use crate::tls::certificate::CertificateInfo;
use crate::tls::key_pair::CertificateKeyPair;
use crate::tls::server::{ClientVerification, TlsServerSettings};

/// The peers that may reject a listener's certificate, for messages.
const CLIENTS: &str = "clients";

/// Compiles the section `tls` of a listener at `at`.
pub(super) fn server(
    raw: &raw::Tls,
    at: At<'_>,
    files: &mut Files,
    report: &mut Report<'_>,
) -> Option<TlsServerSettings> {
    let mut pairs = Vec::new();
    if raw.certificate.is_some() || raw.key.is_some() {
        let named = (raw.certificate.as_deref(), raw.key.as_deref());
        pairs.extend(pair(named, CLIENTS, at, files, report));
    } else if raw.certificates.is_none() && !report.is_faulty(at) {
        report.key(at, "no certificate, expected `certificate` and `key`, or `certificates`");
    }
    if let Some(list) = &raw.certificates {
        let read = |raw: &raw::Certificate, at: At<'_>| {
            pair((raw.certificate.as_deref(), raw.key.as_deref()), CLIENTS, at, files, report)
        };
        pairs.extend(each(list, at.key("certificates"), read));
    }
    let clients = clients(raw, at, files, report)?;
    let handshakes = raw.handshakes.unwrap_or(defaults::HANDSHAKES);
    (!pairs.is_empty()).then_some(TlsServerSettings {
        key_pairs: pairs,
        client_verification: clients,
        max_handshakes: handshakes,
    })
}

/// Loads a certificate and its key; `refusing` names the peers that may reject the certificate, for messages.
pub(super) fn pair(
    (certificate, key): (Option<&str>, Option<&str>),
    refusing: &str,
    at: At<'_>,
    files: &mut Files,
    report: &mut Report<'_>,
) -> Option<CertificateKeyPair> {
    match (certificate, key) {
        (Some(_), None) if !report.is_faulty(at.key("key")) => {
            report.key(at, "`certificate` without its `key`")
        }
        (None, Some(_)) if !report.is_faulty(at.key("certificate")) => {
            report.key(at, "`key` without its `certificate`");
        }
        _ => {}
    }
    let chain = certificate.and_then(|name| files.load(name, &CHAIN, at.key("certificate"), report));
    let key_read = key.and_then(|name| files.load(name, &KEY, at.key("key"), report));
    let (chain, key_read) = (chain?, key_read?);
    note_times(&chain.info, refusing, at, files, report);
    let file = files.path(certificate?).display().to_string();
    let pair = CertificateKeyPair::new(chain, &key_read, file.into());
    report.take(
        at.key("key"),
        pair.map_err(|mismatch| format!("{mismatch}, got {}", quoted(key.unwrap_or_default()))),
    )
}

/// Adds a note for a certificate that has expired or is not valid yet. Not a problem: verifying it is up to
/// the peer, and a restart must not fail because of it.
fn note_times(facts: &CertificateInfo, refusing: &str, at: At<'_>, files: &Files, report: &mut Report<'_>) {
    let now = files.now().as_secs();
    if facts.expires < now {
        report.note(
            at.key("certificate"),
            format!("the certificate has expired, so {refusing} will reject it"),
        );
    } else if facts.valid_from > now {
        report.note(
            at.key("certificate"),
            format!("the certificate is not valid yet, so {refusing} will reject it"),
        );
    }
}

fn clients(
    raw: &raw::Tls,
    at: At<'_>,
    files: &mut Files,
    report: &mut Report<'_>,
) -> Option<ClientVerification> {
    let Some(name) = raw.client_ca.as_deref() else {
        if raw.client_auth.is_some() && !report.is_faulty(at.key("client_ca")) {
            report.key(at.key("client_auth"), "`client_auth` has no meaning without `client_ca`");
        }
        return Some(ClientVerification::Disabled);
    };
    let authorities: Arc<_> = files.load(name, &AUTHORITIES, at.key("client_ca"), report)?;
    let required = raw.client_auth != Some(raw::ClientAuth::Optional);
    Some(ClientVerification::Enabled {
        authorities,
        file: files.path(name).display().to_string().into(),
        required,
    })
}

/// Compiles `proxy_protocol` of a listener.
pub(super) fn proxy_protocol(
    raw: Option<&OrOff<ProxyProtocol>>,
    at: At<'_>,
    report: &mut Report<'_>,
) -> ProxyProtocol {
    let fault = Fault::new("expected one of disabled, optional, required, got true").meant(Some("required"));
    *raw.and_then(|raw| on(raw, fault, at, report)).unwrap_or(&ProxyProtocol::Disabled)
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
pub(super) fn name(
    name: CertificateName,
    at: At<'_>,
    scope: &Scope<'_>,
    report: &mut Report<'_>,
) -> Option<CertificateName> {
    is_known(at, scope, report).then_some(name)
}

/// Compiles `tls` of a matcher.
pub(super) fn conditions(
    raw: &raw::CertificateNames,
    at: At<'_>,
    scope: &Scope<'_>,
    report: &mut Report<'_>,
) -> Vec<Condition> {
    if !is_known(at, scope, report) {
        return Vec::new();
    }
    if raw.spiffe.is_none() && raw.subject.is_none() && raw.dns.is_none() && !report.is_faulty(at) {
        report.value(at, "empty map, expected `spiffe`, `subject` or `dns`");
    }
    let kinds = [
        (CertificateName::Spiffe, "spiffe", &raw.spiffe),
        (CertificateName::Subject, "subject", &raw.subject),
        (CertificateName::Dns, "dns", &raw.dns),
    ];
    let mut read =
        |(name, key, list): (CertificateName, &'static str, &Option<raw::OneOrMany<raw::HeaderPattern>>)| {
            let found = each(list.as_ref()?, at.key(key), |raw, at| patterns::parse(&raw.0, at, report));
            Some(Condition { attribute: Attribute::Certificate(name), patterns: found.into() })
        };
    kinds.into_iter().filter_map(&mut read).collect()
}

fn is_known(at: At<'_>, scope: &Scope<'_>, report: &mut Report<'_>) -> bool {
    if !scope.has_certificates {
        report.key(at, "needs a listener with `tls.client_ca`, and there is none");
    }
    scope.has_certificates
}
