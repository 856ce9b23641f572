//! TLS to upstreams and other servers: trusted authorities, client certificate and expected server name.

use std::sync::Arc;

use rustls::pki_types::ServerName;

use super::tls::load_key_pair;
use crate::at::At;
use crate::data_files::DataFiles;
use crate::data_files::certificates::AUTHORITIES;
use crate::diagnostic::ValueError;
use crate::parse::UpstreamUrl;
use crate::quoting::quoted;
use crate::raw;
use weir_net::tls::client::{ServerVerification, TlsClientSettings};
use weir_net::tls::pem::Authorities;

/// Server name that stands for the host of each request.
const FROM_HOST: &str = "from_host";

/// Whether the server name is the host of each request.
pub(super) fn is_name_from_host(raw: &raw::UpstreamTls) -> bool {
    raw.server_name.as_deref() == Some(FROM_HOST)
}

/// Compiles the TLS settings of the map at `at` for a server, which is given at `address`. `None` for plaintext, or if there
/// is a problem.
pub(super) fn compile_client(
    raw: Option<&raw::UpstreamTls>,
    host: Option<&str>,
    is_secure: bool,
    at: At<'_>,
    address: At<'_>,
    files: &mut DataFiles,
) -> Option<TlsClientSettings> {
    let peer = TlsPeer { hosts: host.into_iter().collect(), is_secure, ..UPSTREAM_PEER };
    compile_settings(raw, &peer, at, address, files)
}

/// As [`compile_client`], for an upstream of requests at `urls`, whose hosts may be the server names.
pub(super) fn compile_upstream(
    raw: Option<&raw::UpstreamTls>,
    urls: &[UpstreamUrl],
    at: At<'_>,
    address: At<'_>,
    files: &mut DataFiles,
) -> Option<TlsClientSettings> {
    let is_secure = urls.first()?.is_secure;
    if urls.iter().any(|place| place.is_secure != is_secure) {
        let error = ValueError::new("some addresses with `https://` and some without, expected all or none");
        address.error(error.with_hint("use two upstreams with different `match`"));
        return None;
    }
    let hosts = urls.iter().filter_map(|place| place.address.host());
    let peer = TlsPeer { hosts: hosts.collect(), is_secure, has_requests: true, ..UPSTREAM_PEER };
    compile_settings(raw, &peer, at, address, files)
}

/// The server that a connection is made to.
pub(super) struct TlsPeer<'a> {
    /// Hosts, each of which the certificate must be valid for, unless another name is configured.
    pub(super) hosts: Vec<&'a str>,
    /// Whether connections use TLS.
    pub(super) is_secure: bool,
    /// Whether it is an upstream of requests, whose hosts may be the server names.
    pub(super) has_requests: bool,
    /// Hint on how addresses with TLS are written.
    pub(super) tls_hint: &'static str,
    /// Name of the server in messages.
    pub(super) name: &'static str,
    /// Consequence of not verifying the certificate, for the note.
    pub(super) risk: &'static str,
}

const UPSTREAM_PEER: TlsPeer<'_> = TlsPeer {
    hosts: Vec::new(),
    is_secure: false,
    has_requests: false,
    tls_hint: "write `https://host:port` for TLS",
    name: "the upstream",
    risk: "any server that answers the connection is accepted as the upstream and receives its requests",
};

/// Compiles the TLS settings for `peer`; `at` and `address` are as in [`compile_client`].
pub(super) fn compile_settings(
    raw: Option<&raw::UpstreamTls>,
    peer: &TlsPeer<'_>,
    at: At<'_>,
    address: At<'_>,
    files: &mut DataFiles,
) -> Option<TlsClientSettings> {
    let tls_at = at.key("tls");
    let Some(raw) = raw else {
        check_host_names(peer, address);
        let verification = peer.is_secure.then(|| system_authorities(address)).flatten()?;
        return Some(TlsClientSettings { verification, key_pair: None, name: None });
    };
    if !peer.is_secure {
        let condition = ValueError::new("for a plaintext address").with_hint(peer.tls_hint);
        at.inapplicable_key("tls", condition);
        return None;
    }
    let verification = compile_verification(raw, peer, tls_at, files);
    let pair = (raw.certificate.is_some() || raw.key.is_some())
        .then(|| load_key_pair(raw.certificate.as_deref(), raw.key.as_deref(), peer.name, tls_at, files));
    let name = match &raw.server_name {
        Some(_) if is_name_from_host(raw) && peer.has_requests => Some(None),
        Some(_) if is_name_from_host(raw) => {
            let error = ValueError::new("`from_host` is possible for `upstream` and `upstreams` only");
            tls_at.key("server_name").error(error.with_hint("write the name in the certificate"));
            None
        }
        Some(name) => tls_at.key("server_name").ok(parse_server_name(name)).map(Some),
        None => Some(None).filter(|_| check_host_names(peer, address)),
    };
    Some(TlsClientSettings {
        verification: verification?,
        key_pair: pair.map_or(Some(None), |pair| pair.map(Some))?,
        name: name?,
    })
}

fn compile_verification(
    raw: &raw::UpstreamTls,
    peer: &TlsPeer<'_>,
    at: At<'_>,
    files: &mut DataFiles,
) -> Option<ServerVerification> {
    match (raw.verify, raw.ca.as_deref()) {
        (Some(raw::Verify::Switch(false)), _) => {
            let error = ValueError::new("expected `true` or `insecure`, got false");
            at.key("verify").error(error.with_hint("`verify: insecure` disables verification"));
            None
        }
        (Some(raw::Verify::Disabled(raw::NotVerified::Insecure)), Some(_)) => {
            at.inapplicable_key("ca", "with `verify: insecure`");
            None
        }
        (Some(raw::Verify::Disabled(raw::NotVerified::Insecure)), None) => {
            at.key("verify").note(peer.risk);
            Some(ServerVerification::Disabled)
        }
        (Some(raw::Verify::Switch(true)) | None, Some(name)) => load_authorities(name, at.key("ca"), files),
        (Some(raw::Verify::Switch(true)) | None, None) if at.key("ca").is_reported() => None,
        (Some(raw::Verify::Switch(true)) | None, None) => system_authorities(at),
    }
}

/// Loads the certificate authorities in the file `name`.
pub(super) fn load_authorities(name: &str, at: At<'_>, files: &mut DataFiles) -> Option<ServerVerification> {
    let authorities = at.load(files, name, &AUTHORITIES)?;
    let file = files.resolve_path(name).display().to_string().into();
    Some(ServerVerification::Configured { authorities, file })
}

fn system_authorities(at: At<'_>) -> Option<ServerVerification> {
    let authorities = Authorities::from_system();
    if authorities.is_none() {
        let error = ValueError::new("this system has no trusted certificate authorities");
        at.error(error.with_hint("set `tls.ca` to a file of certificates"));
    }
    authorities.map(|authorities| ServerVerification::System(Arc::new(authorities)))
}

/// Whether a certificate can be valid for each host; reports one for which it cannot.
fn check_host_names(peer: &TlsPeer<'_>, address: At<'_>) -> bool {
    let hosts = peer.hosts.iter().filter(|_| peer.is_secure);
    let invalid = hosts.copied().find(|host| ServerName::try_from(*host).is_err());
    if let Some(host) = invalid {
        let error =
            ValueError::new(format!("no certificate can be valid for this host, got {}", quoted(host)));
        address.error(error.with_hint("set `tls.server_name` to the name in the certificate"));
    }
    invalid.is_none()
}

fn parse_server_name(name: &str) -> Result<ServerName<'static>, ValueError> {
    ServerName::try_from(name.to_owned())
        .map_err(|_| ValueError::new(format!("expected a host name or an IP address, got {}", quoted(name))))
}
