//! What is taken off and put on as messages pass: hop-by-hop fields, forwarding fields, the request's identity.

pub(super) mod connect;
pub(super) mod identity;
pub(super) mod overrides;

mod flags;

use std::net::IpAddr;

use http::header::{CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, TE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version, request};

use self::flags::Once;
pub(super) use self::flags::{RequestHeaderFlags, validate};
use self::overrides::RequestOverrides;
use crate::headers::{FieldLines, Headers, remove_hop_by_hop};
use crate::http1::content_length;
use crate::http1::head::lists;
use crate::identify::certificate::Certificate;
use crate::identify::client_ip::ClientAddress;
use crate::identify::forwarded;
use crate::response::rate_limit_headers::X_WEIR_OVER_LIMIT;

const X_FORWARDED_CLIENT_CERT: HeaderName = HeaderName::from_static("x-forwarded-client-cert");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_ENVOY_EXTERNAL_ADDRESS: HeaderName = HeaderName::from_static("x-envoy-external-address");
const X_ENVOY_INTERNAL: HeaderName = HeaderName::from_static("x-envoy-internal");
/// The request's identity in logs and upstream.
pub(super) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// A request that cannot be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unacceptable {
    /// Breaks the grammar or could be read in two ways.
    Malformed,
    /// A method that a proxy for one service has no business with.
    Method,
    /// A transfer coding that we cannot decode.
    Coding,
    /// More fields than may be.
    Fields,
}

/// The longest method that anybody has registered has 17 letters; longer words only fill logs.
const LONGEST_METHOD: usize = 64;

/// The target is in origin-form, in absolute-form, or `*` where that may be; the method is one that we pass on.
fn has_good_target(head: &request::Parts) -> Result<(), Unacceptable> {
    if matches!(head.method, Method::CONNECT | Method::TRACE) || head.method.as_str().len() > LONGEST_METHOD {
        return Err(Unacceptable::Method);
    }
    // RFC 9113 section 8.3.1: in HTTP/2 the path is there, and begins with a slash also in front of a query.
    let has_bare_query =
        |uri: &Uri| uri.path_and_query().is_some_and(|target| target.as_str().starts_with('?'));
    let is_good = match head.uri.scheme_str() {
        _ if head.version == Version::HTTP_2 && has_bare_query(&head.uri) => false,
        Some("http" | "https") => head.uri.path().starts_with('/') || is_asterisk(head),
        Some(_) => false,
        None if head.uri.authority().is_some() => false,
        None => head.uri.path().starts_with('/') || is_asterisk(head),
    };
    is_good.then_some(()).ok_or(Unacceptable::Malformed)
}

/// Chunks are the one coding we know, and HTTP/1.0 knows none.
fn is_chunked(head: &request::Parts, codings: Once<'_>) -> Result<(), Unacceptable> {
    match codings {
        Once::None => Ok(()),
        Once::Several => Err(Unacceptable::Malformed),
        Once::Value(coding) if !coding.as_bytes().eq_ignore_ascii_case(b"chunked") => {
            Err(Unacceptable::Coding)
        }
        Once::Value(_) if head.version == Version::HTTP_10 => Err(Unacceptable::Malformed),
        Once::Value(_) => Ok(()),
    }
}

/// What is checked while it is read over HTTP/1.1. White space around a value would be none for an upstream of HTTP/1.1:
/// one key with a space behind it would be another one to our limits and the same to the service (RFC 9113 section
/// 8.2.1 has no such values).
fn validate_fields(fields: &HeaderMap, most: u32) -> Result<(), Unacceptable> {
    if fields.len() > most as usize {
        return Err(Unacceptable::Fields);
    }
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let is_padded = |value: &HeaderValue| {
        let value = value.as_bytes();
        is_space(value.first()) || is_space(value.last())
    };
    if fields.values().any(is_padded) { Err(Unacceptable::Malformed) } else { Ok(()) }
}

fn is_asterisk(head: &request::Parts) -> bool {
    head.uri.path() == "*" && head.method == Method::OPTIONS
}

/// In HTTP/2 `:authority` takes the place of Host, and neither may say anything else than the other (RFC 9113
/// section 8.3.1). In HTTP/1.1 there is exactly one, and it must be a host; HTTP/1.0 may have none (RFC 9112 section
/// 3.2). An authority in the target takes its place (section 3.2.2), so it must be one too: without userinfo, which no
/// request over HTTP has (RFC 9110 section 4.2.4).
fn names_one_host(head: &request::Parts, hosts: Once<'_>) -> bool {
    if let Some(authority) = head.uri.authority() {
        let authority = authority.as_str().as_bytes();
        if !is_host(authority) {
            return false;
        }
        if head.version == Version::HTTP_2 {
            let same = |host: &HeaderValue| host.as_bytes().eq_ignore_ascii_case(authority);
            return head.headers.get_all(HOST).iter().all(same);
        }
    }
    match hosts {
        Once::None => head.version == Version::HTTP_10,
        Once::Value(host) => is_host(host.as_bytes()),
        Once::Several => false,
    }
}

/// A name or address and perhaps a port (RFC 9110 section 7.2); the port may be empty, the name may not.
pub(super) fn is_host(host: &[u8]) -> bool {
    let (inside, rest) = match host.strip_prefix(b"[") {
        Some(literal) => {
            let (inside, rest) = split_host(literal, |byte| byte == b':' || is_of_host(byte));
            let Some(rest) = rest.strip_prefix(b"]") else { return false };
            (inside, rest)
        }
        None => split_host(host, is_of_host),
    };
    let is_port = |port: &[u8]| port.len() <= 5 && port.iter().all(u8::is_ascii_digit);
    !inside.is_empty() && (rest.is_empty() || rest.strip_prefix(b":").is_some_and(is_port))
}

/// The bytes at the beginning that may stand there, and the rest.
fn split_host(host: &[u8], may_stand: impl Fn(u8) -> bool) -> (&[u8], &[u8]) {
    host.split_at(host.iter().position(|byte| !may_stand(*byte)).unwrap_or(host.len()))
}

fn is_of_host(byte: u8) -> bool {
    OF_HOST[usize::from(byte)]
}

/// Looked up, since every request has a host.
static OF_HOST: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0u8;
    while byte < 128 {
        table[byte as usize] =
            byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'%' | b'~');
        byte += 1;
    }
    table
};

/// Whether the client waits for `100 Continue` before it sends its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expectation {
    /// It does.
    Continue,
    /// It sends right away.
    None,
}

impl Expectation {
    /// What the fields of a request say.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        if headers.contains_key(EXPECT) { Self::Continue } else { Self::None }
    }
}

/// Undoes what HTTP/2 does to fields for the sake of compression: a Cookie field may come in pieces, and is whole
/// for everybody else (RFC 9113 section 8.2.3).
pub(super) fn join_cookies(head: &mut request::Parts) {
    if head.version != Version::HTTP_2 {
        return;
    }
    let headers = &mut head.headers;
    let mut pieces = headers.get_all(COOKIE).iter();
    let Some(first) = pieces.next() else { return };
    let mut whole = first.as_bytes().to_vec();
    let mut rest = pieces.peekable();
    if rest.peek().is_none() {
        return;
    }
    for piece in rest {
        whole.extend_from_slice(b"; ");
        whole.extend_from_slice(piece.as_bytes());
    }
    if let Ok(whole) = HeaderValue::from_bytes(&whole) {
        headers.insert(COOKIE, whole);
    }
}

/// Leaves a request of HTTP/2 one length in our own digits; over HTTP/1.1 that is seen to as the head is decoded. Whether
/// the content has that length is for the `h2` crate to see (RFC 9113 section 8.1.1).
pub(super) fn settle_length(head: &mut request::Parts) -> Result<(), Unacceptable> {
    if head.version != Version::HTTP_2 {
        return Ok(());
    }
    content_length::normalise(&mut head.headers).map(drop).map_err(|_| Unacceptable::Malformed)
}

/// Takes off what a request says of a client's certificate, unless its peer is `believed`. Before rules look at it, since
/// they may count by any header.
pub(super) fn sanitize_certificate(
    headers: &mut HeaderMap,
    flags: RequestHeaderFlags,
    believed: impl FnOnce() -> bool,
) {
    if flags.client_cert && !believed() {
        headers.remove(X_FORWARDED_CLIENT_CERT);
    }
}

/// Adds fields beside those that are there, as long as there is room.
pub(super) fn append(headers: &mut HeaderMap, more: &HeaderMap) {
    for (name, value) in more {
        let _ = headers.try_append(name, value.clone());
    }
}

/// What a request asks of us, and not of the upstream.
#[derive(Debug, Default)]
pub(super) struct UpgradeAndOverrides {
    /// The protocol the client would rather speak, if it is one that we pass on.
    pub(super) upgrade: Option<HeaderValue>,
    /// What somebody inside asks for.
    pub(super) overrides: Option<Box<RequestOverrides>>,
}

/// Turns a client's request into ours: its target in origin-form, its fields without those of the hop. It may go over
/// to one of `upgrades`. What it gets from us is put among its fields, or where they are given, to `apart` as far as no field
/// of the same name is there. Answers what the client asks of us.
pub(super) fn prepare_request(
    head: &mut request::Parts,
    flags: RequestHeaderFlags,
    hop: &Hop<'_>,
    upgrades: &[Box<str>],
    apart: Option<&mut FieldLines>,
) -> UpgradeAndOverrides {
    if head.uri.authority().is_some() {
        to_origin_form(head);
    }
    let headers = &mut head.headers;
    if head.version == Version::HTTP_10 && !headers.contains_key(HOST) {
        // RFC 9112 section 3.2: ours is an HTTP/1.1 request and has one, empty where nothing is known.
        headers.insert(HOST, HeaderValue::from_static(""));
    }
    let mut upgrade = None;
    if flags.of_the_hop {
        upgrade = wanted_protocol(&head.method, head.version, headers, upgrades);
        let wants_trailers = headers.get(TE).is_some_and(|te| lists(te.as_bytes(), "trailers"));
        remove_hop_by_hop(headers, identity::tells_who_asks);
        // The client has been, or will be, told to continue by us.
        headers.remove(EXPECT);
        headers.remove(X_ENVOY_INTERNAL);
        headers.remove(X_WEIR_OVER_LIMIT);
        if wants_trailers {
            headers.insert(TE, HeaderValue::from_static("trailers"));
            headers.insert(CONNECTION, HeaderValue::from_static("te"));
        }
    }
    if flags.imitations {
        identity::remove_imitations(headers);
    }
    let overrides =
        if flags.overrides { overrides::take_overrides(headers, hop.client.is_internal) } else { None };
    forward(headers, flags, hop, apart);
    if let Some(upgrade) = &upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, upgrade.clone());
    }
    head.version = Version::HTTP_11;
    head.extensions.clear();
    UpgradeAndOverrides { upgrade, overrides }
}

/// Says on whose behalf a request comes.
fn forward(
    headers: &mut HeaderMap,
    flags: RequestHeaderFlags,
    hop: &Hop<'_>,
    mut apart: Option<&mut FieldLines>,
) {
    let mut set = |headers: &mut HeaderMap, is_given: bool, name: HeaderName, value: &[u8]| match &mut apart {
        Some(raw) if !is_given => raw.push(name.as_str().as_bytes(), value),
        _ => {
            // Built from what is valid; cannot fail.
            let value = HeaderValue::from_bytes(value).unwrap_or_else(|_| HeaderValue::from_static(""));
            headers.insert(name, value);
        }
    };
    let peer = hop.peer_text.as_bytes();
    if flags.forwarded_for {
        let forwarded_for = forwarded::appended(headers, hop.peer);
        headers.insert(forwarded::X_FORWARDED_FOR, forwarded_for);
    } else {
        set(headers, false, forwarded::X_FORWARDED_FOR, peer);
    }
    let trusts = hop.client.peer_is_trusted;
    if !(trusts && flags.forwarded_proto && headers.contains_key(X_FORWARDED_PROTO)) {
        let scheme: &[u8] = if hop.tls.is_some() { b"https" } else { b"http" };
        set(headers, flags.forwarded_proto, X_FORWARDED_PROTO, scheme);
    }
    if let Some(certificate) = hop.tls.and_then(|tls| tls.forwarded.as_ref()) {
        headers.insert(X_FORWARDED_CLIENT_CERT, certificate.clone());
    }
    if !(trusts && flags.request_id && headers.contains_key(X_REQUEST_ID)) {
        set(headers, flags.request_id, X_REQUEST_ID, &request_id(hop.random));
    }
    if hop.client.ip == hop.peer {
        set(headers, flags.external, X_ENVOY_EXTERNAL_ADDRESS, peer);
    } else {
        set(headers, flags.external, X_ENVOY_EXTERNAL_ADDRESS, address(hop.client.ip).as_bytes());
    }
}

/// The protocol that a client asks for, if it is one of `upgrades`. Others, and `h2c` before all, would carry requests
/// past us that nobody has looked at.
fn wanted_protocol(
    method: &Method,
    version: Version,
    headers: &HeaderMap,
    upgrades: &[Box<str>],
) -> Option<HeaderValue> {
    let mut protocols = headers.get_all(UPGRADE).iter();
    let (protocol, others) = (protocols.next()?, protocols.next());
    let is = |name: &str| protocol.as_bytes().eq_ignore_ascii_case(name.as_bytes());
    let asks = headers.get_all(CONNECTION).iter().any(|value| lists(value.as_bytes(), "upgrade"));
    let has_body = headers.get(CONTENT_LENGTH).is_some_and(|length| length != "0")
        || headers.contains_key(TRANSFER_ENCODING);
    // RFC 6455 section 4.1; the clients of other protocols also come with POST.
    let is_fit = *method == Method::GET || !is("websocket");
    let fits = version != Version::HTTP_10 && is_fit && asks && !has_body && others.is_none();
    (fits && upgrades.iter().any(|name| is(name))).then(|| protocol.clone())
}

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

/// RFC 9112 section 3.2.2: the absolute target wins over Host, which is replaced.
fn to_origin_form(head: &mut request::Parts) {
    let host = head.uri.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    if let Some(host) = host {
        head.headers.insert(HOST, host);
    }
    let mut parts = http::uri::Parts::default();
    parts.path_and_query = head.uri.path_and_query().cloned();
    head.uri = Uri::from_parts(parts).unwrap_or_default();
}

/// Turns an upstream's answer into ours.
pub(super) fn prepare_response(headers: &mut Headers) {
    headers.remove_hop_by_hop(identity::tells_who_asks);
}

/// Turns an upstream's 101 into ours: the protocol stays, for it is agreed between the two ends.
pub(super) fn prepare_switch(headers: &mut Headers) {
    let protocol = headers.map_mut().get(UPGRADE).cloned();
    prepare_response(headers);
    let headers = headers.map_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.extend(protocol.map(|protocol| (UPGRADE, protocol)));
}

/// An address as a field's value.
pub(super) fn address(ip: IpAddr) -> HeaderValue {
    let mut text = Vec::with_capacity(40);
    forwarded::write_ip(&mut text, ip);
    HeaderValue::from_bytes(&text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// Both digits of each octet.
static HEXADECIMAL: [[u8; 2]; 256] = {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut table = [[0; 2]; 256];
    let mut octet = 0;
    while octet < 256 {
        table[octet] = [DIGITS[octet >> 4], DIGITS[octet & 15]];
        octet += 1;
    }
    table
};

/// A UUID of version 4 (RFC 9562 section 5.4) from random bits.
fn request_id(random: u128) -> [u8; 36] {
    /// Where the digits of each octet stand: the dashes are before the octets 4, 6, 8 and 10.
    const PLACES: [usize; 16] = [0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34];
    let mut octets = random.to_be_bytes();
    octets[6] = octets[6] & 0x0f | 0x40;
    octets[8] = octets[8] & 0x3f | 0x80;
    let mut text = [b'-'; 36];
    for (place, octet) in PLACES.into_iter().zip(octets) {
        text[place..place + 2].copy_from_slice(&HEXADECIMAL[usize::from(octet)]);
    }
    text
}

#[cfg(test)]
mod tests;
