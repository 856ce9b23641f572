//! Headers of forwarded messages: validated, sanitized, and completed with those that the recipient needs.

pub(super) mod extended_connect;
pub(super) mod identity;
pub(super) mod overrides;

pub(super) mod rewrite;

mod flags;
mod forwarded;
mod sanitize;
mod validate;

use std::net::IpAddr;

use http::header::{CONNECTION, HOST, UPGRADE, VIA};
use http::{HeaderName, HeaderValue, Version, request};

pub(super) use self::flags::{Expectation, RequestHeaderFlags};
pub(super) use self::forwarded::{address_value, request_details};
pub(super) use self::identity::{remove_client_headers, remove_lookalikes};
use self::overrides::RequestOverrides;
pub(super) use self::sanitize::{
    decrement_max_forwards, join_cookies, prepare_for_store, sanitize_certificate, upgrade_protocol,
};
pub(super) use self::validate::{InvalidRequest, normalise_length, validate};
use weir_http::headers::{FieldLines, Headers};
use weir_net::tls::AlpnProtocol;
use weir_policy::identify::certificate::ClientCertificate;
use weir_policy::identify::client_ip::ClientAddress;

const X_FORWARDED_CLIENT_CERT: HeaderName = HeaderName::from_static("x-forwarded-client-cert");
/// Identifies the request in logs and for the upstream.
pub(super) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What TLS states about a client.
#[derive(Debug, Default)]
pub(super) struct PeerTls {
    /// The client's verified certificate, if it has presented one.
    pub(super) certificate: Option<ClientCertificate>,
    /// The same as a header for the upstream.
    pub(super) forwarded: Option<HeaderValue>,
    /// Application protocol that was negotiated (ALPN); `None` if the client has offered none.
    pub(super) protocol: Option<AlpnProtocol>,
}

/// Properties of the connection over which a request arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hop<'a> {
    /// What TLS states about the peer; `None` without TLS.
    pub(super) tls: Option<&'a PeerTls>,
    /// Address of the peer.
    pub(super) peer: IpAddr,
    /// Address of the peer as text.
    pub(super) peer_text: &'a HeaderValue,
    /// The client on whose behalf the peer sends the request.
    pub(super) client: ClientAddress,
    /// 128 random bits for the request ID.
    pub(super) random: u128,
    /// Value of `Via` for the upstream.
    pub(super) via: Option<&'a HeaderValue>,
    /// Whether the upstream learns nothing about the client.
    pub(super) hides_client: bool,
}

/// Name of this hop for requests that arrive in some version of HTTP.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HopName<'a> {
    pub(super) via: Option<&'a HeaderValue>,
    /// Whether it is a proxy that the client has chosen, and not the gateway of a service.
    pub(super) is_proxy: bool,
}

/// Changes the headers of an upstream's response into those for the client.
pub(super) fn prepare_response(headers: &mut Headers) {
    headers.remove_hop_by_hop(identity::is_identity_header);
}

/// Changes the headers of an upstream's 426 into those for the client: it must list the protocols that are required (RFC
/// 9110 section 15.5.22). HTTP/2 has no `Upgrade` (RFC 9113 section 8.2.2).
pub(super) fn prepare_upgrade_required(headers: &mut Headers, is_stream: bool) {
    if is_stream || !headers.contains(&UPGRADE) {
        return prepare_response(headers);
    }
    prepare_upgrade_response(headers);
}

/// Changes the headers of an upstream's 101 into those for the client. The protocol is kept, because both sides have
/// agreed on it.
pub(super) fn prepare_upgrade_response(headers: &mut Headers) {
    let protocol = headers.map_mut().get(UPGRADE).cloned();
    prepare_response(headers);
    let headers = headers.map_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.extend(protocol.map(|protocol| (UPGRADE, protocol)));
}

/// What a request asks of the proxy rather than of the upstream.
#[derive(Debug, Default)]
pub(super) struct UpgradeAndOverrides {
    /// The protocol to which the client asks to switch, if that is allowed.
    pub(super) upgrade: Option<HeaderValue>,
    /// Overrides set by an internal client.
    pub(super) overrides: Option<Box<RequestOverrides>>,
}

/// Changes a client's request into one for the upstream. The target becomes origin-form, headers are sanitized, and
/// those about the client are added. They are added to `field_lines` if that is given and the request has no
/// header of the same name. An upgrade is kept if it is to one of `upgrades`.
pub(super) fn prepare_request(
    head: &mut request::Parts,
    flags: RequestHeaderFlags,
    hop: &Hop<'_>,
    upgrades: &[Box<str>],
    mut field_lines: Option<&mut FieldLines>,
) -> UpgradeAndOverrides {
    if head.uri.authority().is_some() {
        sanitize::to_origin_form(head);
    }
    let headers = &mut head.headers;
    if head.version == Version::HTTP_10 && !headers.contains_key(HOST) {
        // RFC 9112 section 3.2: the forwarded request is HTTP/1.1 and must have a `Host`, which is empty if the host is
        // unknown.
        headers.insert(HOST, HeaderValue::from_static(""));
    }
    let mut upgrade = None;
    if flags.hop_by_hop {
        upgrade = upgrade_protocol(&head.method, head.version, headers, upgrades);
        sanitize::remove_hop_by_hop(headers);
    }
    let overrides =
        if flags.overrides { overrides::take_overrides(headers, hop.client.is_internal) } else { None };
    match (hop.via, field_lines.as_deref_mut().filter(|_| !flags.via)) {
        (Some(via), Some(lines)) => lines.push(VIA.as_str().as_bytes(), via.as_bytes()),
        (Some(via), None) => drop(headers.append(VIA, via.clone())),
        (None, _) => {}
    }
    if !hop.hides_client {
        forwarded::set_forwarded_headers(headers, flags, hop, field_lines);
    }
    if let Some(upgrade) = &upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, upgrade.clone());
    }
    head.version = Version::HTTP_11;
    head.extensions.clear();
    UpgradeAndOverrides { upgrade, overrides }
}

#[cfg(test)]
mod tests;
