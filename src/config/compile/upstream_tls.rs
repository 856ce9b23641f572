//! TLS to upstreams and other servers: trusted authorities, client certificate and expected server name.

use std::sync::Arc;

use rustls::pki_types::ServerName;

use super::tls::pair;
use crate::config::at::At;
use crate::config::files::Files;
use crate::config::files::certificates::AUTHORITIES;
use crate::config::parse::UpstreamPlace;
use crate::config::problem::{Fault, Report, quoted};
use crate::config::raw;
use crate::tls::client::{ServerVerification, TlsClientSettings};
use crate::tls::pem::Authorities;
use crate::upstream::UpstreamAddress;

/// Compiles the TLS settings of the map at `at` for `places`, which are given at `address`. `None` for
/// plaintext, or if there is a problem.
pub(super) fn client(
    raw: Option<&raw::UpstreamTls>,
    places: &[UpstreamPlace],
    (at, address): (At<'_>, At<'_>),
    files: &mut Files,
    report: &mut Report<'_>,
) -> Option<TlsClientSettings> {
    let is_secure = places.first()?.is_secure;
    if places.iter().any(|place| place.is_secure != is_secure) {
        let fault = Fault::new("some addresses with `https://` and some without, expected all or none");
        report.value(address, fault.hint("use two upstreams with different `match`"));
        return None;
    }
    let hosts = places.iter().filter_map(|place| match &place.address {
        UpstreamAddress::Tcp { host, .. } => Some(&**host),
        UpstreamAddress::Unix(_) | UpstreamAddress::Echo => None,
    });
    let peer = Peer { hosts: hosts.collect(), is_secure, ..UPSTREAM };
    settings(raw, &peer, (at, address), files, report)
}

/// The server that a connection is made to.
pub(super) struct Peer<'a> {
    /// Hosts, each of which the certificate must be valid for, unless another name is configured.
    pub(super) hosts: Vec<&'a str>,
    /// Whether connections use TLS.
    pub(super) is_secure: bool,
    /// Hint on how addresses with TLS are written.
    pub(super) written: &'static str,
    /// Name of the server in messages.
    pub(super) called: &'static str,
    /// Consequence of not verifying the certificate, for the note.
    pub(super) risk: &'static str,
}

const UPSTREAM: Peer<'_> = Peer {
    hosts: Vec::new(),
    is_secure: false,
    written: "write `https://host:port` for TLS",
    called: "the upstream",
    risk: "any server that answers the connection is accepted as the upstream and receives its requests",
};

/// Compiles the TLS settings for `peer`; `at` and `address` are as in [`client`].
pub(super) fn settings(
    raw: Option<&raw::UpstreamTls>,
    peer: &Peer<'_>,
    (at, address): (At<'_>, At<'_>),
    files: &mut Files,
    report: &mut Report<'_>,
) -> Option<TlsClientSettings> {
    let own = at.key("tls");
    let Some(raw) = raw else {
        names(peer, address, report);
        let trust = peer.is_secure.then(|| system(address, report)).flatten()?;
        return Some(TlsClientSettings { verification: trust, key_pair: None, name: None });
    };
    if !peer.is_secure {
        report.key(own, Fault::new("`tls` has no meaning for a plaintext address").hint(peer.written));
        return None;
    }
    let trust = trust(raw, peer, own, files, report);
    let pair = (raw.certificate.is_some() || raw.key.is_some())
        .then(|| pair((raw.certificate.as_deref(), raw.key.as_deref()), peer.called, own, files, report));
    let name = match &raw.server_name {
        Some(name) => report.take(own.key("server_name"), server_name(name)).map(Some),
        None => Some(None).filter(|_| names(peer, address, report)),
    };
    Some(TlsClientSettings {
        verification: trust?,
        key_pair: pair.map_or(Some(None), |pair| pair.map(Some))?,
        name: name?,
    })
}

fn trust(
    raw: &raw::UpstreamTls,
    peer: &Peer<'_>,
    at: At<'_>,
    files: &mut Files,
    report: &mut Report<'_>,
) -> Option<ServerVerification> {
    match (raw.verify, raw.ca.as_deref()) {
        (Some(raw::Verify::Switch(false)), _) => {
            let fault = Fault::new("expected `true` or `insecure`, got false");
            report.value(at.key("verify"), fault.hint("`verify: insecure` disables verification"));
            None
        }
        (Some(raw::Verify::Not(raw::NotVerified::Insecure)), Some(_)) => {
            report.key(at.key("ca"), "`ca` has no meaning with `verify: insecure`");
            None
        }
        (Some(raw::Verify::Not(raw::NotVerified::Insecure)), None) => {
            report.note(at.key("verify"), peer.risk);
            Some(ServerVerification::Disabled)
        }
        (Some(raw::Verify::Switch(true)) | None, Some(name)) => {
            let authorities = files.load(name, &AUTHORITIES, at.key("ca"), report)?;
            Some(ServerVerification::Configured {
                authorities,
                file: files.path(name).display().to_string().into(),
            })
        }
        (Some(raw::Verify::Switch(true)) | None, None) if report.is_faulty(at.key("ca")) => None,
        (Some(raw::Verify::Switch(true)) | None, None) => system(at, report),
    }
}

fn system(at: At<'_>, report: &mut Report<'_>) -> Option<ServerVerification> {
    let authorities = Authorities::from_system();
    if authorities.is_none() {
        let fault = Fault::new("this system has no trusted certificate authorities");
        report.value(at, fault.hint("set `tls.ca` to a file of certificates"));
    }
    authorities.map(|authorities| ServerVerification::System(Arc::new(authorities)))
}

/// Whether a certificate can be valid for each host; reports one for which it cannot.
fn names(peer: &Peer<'_>, address: At<'_>, report: &mut Report<'_>) -> bool {
    let hosts = peer.hosts.iter().filter(|_| peer.is_secure);
    let alien = hosts.copied().find(|host| ServerName::try_from(*host).is_err());
    if let Some(host) = alien {
        let fault = Fault::new(format!("no certificate can be valid for this host, got {}", quoted(host)));
        report.value(address, fault.hint("set `tls.server_name` to the name in the certificate"));
    }
    alien.is_none()
}

fn server_name(name: &str) -> Result<ServerName<'static>, Fault> {
    ServerName::try_from(name.to_owned())
        .map_err(|_| Fault::new(format!("expected a host name or an IP address, got {}", quoted(name))))
}
