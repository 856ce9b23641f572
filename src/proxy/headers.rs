//! The header fields of messages that pass: checked, sanitized, and completed with those that the other side needs.

pub(super) mod connect;
pub(super) mod identity;
pub(super) mod overrides;

mod flags;
mod forwarded;
mod sanitize;
pub(super) mod validate;

use std::net::IpAddr;

use http::header::{CONNECTION, HOST, UPGRADE};
use http::{HeaderName, HeaderValue, Version, request};

pub(super) use self::flags::{Expectation, RequestHeaderFlags};
pub(super) use self::forwarded::address;
use self::overrides::RequestOverrides;
pub(super) use self::sanitize::{join_cookies, sanitize_certificate};
pub(super) use self::validate::{Unacceptable, normalise_length, validate};
use crate::headers::{FieldLines, Headers};
use crate::identify::certificate::Certificate;
use crate::identify::client_ip::ClientAddress;

const X_FORWARDED_CLIENT_CERT: HeaderName = HeaderName::from_static("x-forwarded-client-cert");
/// The request's identity in logs and upstream.
pub(super) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What TLS says of a client.
#[derive(Debug, Default)]
pub(super) struct PeerTls {
    /// The client's certificate, if it has shown one that holds.
    pub(super) certificate: Option<Certificate>,
    /// The same as a field for the upstream.
    pub(super) forwarded: Option<HeaderValue>,
}

/// What is known of the hop a request came by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hop<'a> {
    /// What TLS says of the peer, if that is spoken.
    pub(super) tls: Option<&'a PeerTls>,
    /// The other end of the connection.
    pub(super) peer: IpAddr,
    /// The same as text.
    pub(super) peer_text: &'a HeaderValue,
    /// On whose behalf it speaks.
    pub(super) client: ClientAddress,
    /// 128 random bits for the request's identity.
    pub(super) random: u128,
}

/// Turns an upstream's response into the client's.
pub(super) fn prepare_response(headers: &mut Headers) {
    headers.remove_hop_by_hop(identity::tells_who_asks);
}

/// Turns an upstream's 101 into the client's: the protocol stays, for both ends have agreed on it.
pub(super) fn prepare_switch(headers: &mut Headers) {
    let protocol = headers.map_mut().get(UPGRADE).cloned();
    prepare_response(headers);
    let headers = headers.map_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.extend(protocol.map(|protocol| (UPGRADE, protocol)));
}

/// What a request asks of the proxy, not of the upstream.
#[derive(Debug, Default)]
pub(super) struct UpgradeAndOverrides {
    /// The protocol that the client asks to switch to, if that is allowed.
    pub(super) upgrade: Option<HeaderValue>,
    /// What an internal client overrides.
    pub(super) overrides: Option<Box<RequestOverrides>>,
}

/// Turns a client's request into the upstream's: its target in origin-form, its fields sanitized, and those added that
/// say on whose behalf it comes. These go to `apart`, where that is given, unless the request has a field of the same name.
/// An upgrade is kept if it is to one of `upgrades`.
pub(super) fn prepare_request(
    head: &mut request::Parts,
    flags: RequestHeaderFlags,
    hop: &Hop<'_>,
    upgrades: &[Box<str>],
    apart: Option<&mut FieldLines>,
) -> UpgradeAndOverrides {
    if head.uri.authority().is_some() {
        sanitize::to_origin_form(head);
    }
    let headers = &mut head.headers;
    if head.version == Version::HTTP_10 && !headers.contains_key(HOST) {
        // RFC 9112 section 3.2: ours is an HTTP/1.1 request and has one, empty where nothing is known.
        headers.insert(HOST, HeaderValue::from_static(""));
    }
    let mut upgrade = None;
    if flags.of_the_hop {
        upgrade = sanitize::wanted_protocol(&head.method, head.version, headers, upgrades);
        sanitize::remove_hop_by_hop(headers);
    }
    if flags.imitations {
        identity::remove_imitations(headers);
    }
    let overrides =
        if flags.overrides { overrides::take_overrides(headers, hop.client.is_internal) } else { None };
    forwarded::set(headers, flags, hop, apart);
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
