//! Removes what a request must not carry any further: what HTTP/2 does to fields, fields of the hop, and claims that only
//! this proxy may make.

use http::header::{CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, TE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version, request};

use super::flags::RequestHeaderFlags;
use super::{X_FORWARDED_CLIENT_CERT, identity};
use crate::headers;
use crate::http1::head::lists;
use crate::response::rate_limit_headers::X_WEIR_OVER_LIMIT;

const X_ENVOY_INTERNAL: HeaderName = HeaderName::from_static("x-envoy-internal");

/// Undoes what HTTP/2 does to fields for the sake of compression: a Cookie field may come in pieces, and is whole
/// for everybody else (RFC 9113 section 8.2.3).
pub(in crate::proxy) fn join_cookies(head: &mut request::Parts) {
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

/// Removes what a request says of a client's certificate, unless its peer is `believed`. This comes before the rules, which
/// may count by any header.
pub(in crate::proxy) fn sanitize_certificate(
    headers: &mut HeaderMap,
    flags: RequestHeaderFlags,
    believed: impl FnOnce() -> bool,
) {
    if flags.client_cert && !believed() {
        headers.remove(X_FORWARDED_CLIENT_CERT);
    }
}

/// Removes the fields of the hop, and those that only this proxy may set.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let wants_trailers = headers.get(TE).is_some_and(|te| lists(te.as_bytes(), "trailers"));
    headers::remove_hop_by_hop(headers, identity::tells_who_asks);
    // The proxy sends `100 Continue` itself.
    headers.remove(EXPECT);
    headers.remove(X_ENVOY_INTERNAL);
    headers.remove(X_WEIR_OVER_LIMIT);
    if wants_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
    }
}

/// The protocol that a client asks for, if it is one of `upgrades`. Others, `h2c` above all, would carry requests past the
/// rules.
pub(super) fn wanted_protocol(
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

/// RFC 9112 section 3.2.2: the absolute target wins over Host, which is replaced.
pub(super) fn to_origin_form(head: &mut request::Parts) {
    let host = head.uri.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    if let Some(host) = host {
        head.headers.insert(HOST, host);
    }
    let mut parts = http::uri::Parts::default();
    parts.path_and_query = head.uri.path_and_query().cloned();
    head.uri = Uri::from_parts(parts).unwrap_or_default();
}
