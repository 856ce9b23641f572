//! Removes what must not be forwarded: hop-by-hop headers and headers that only this proxy may set. Also joins cookie
//! headers that HTTP/2 has split.

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, MAX_FORWARDS, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version, request};

use super::flags::RequestHeaderFlags;
use super::{X_FORWARDED_CLIENT_CERT, identity};
use weir_http::headers;
use weir_http::http1::head::{has_token, list_elements, parse_number};
use weir_policy::response::rate_limit_headers::{X_WEIR_CHARGED, X_WEIR_OVER_LIMIT};

const X_ENVOY_INTERNAL: HeaderName = HeaderName::from_static("x-envoy-internal");

/// Joins the `Cookie` headers of an HTTP/2 request, which may be split for better compression, into one (RFC 9113
/// section 8.2.3). Empty ones are left out: a value that ends with a separator would end with a space, which is
/// malformed in HTTP/2 (section 8.2.1).
pub(in crate::proxy) fn join_cookies(head: &mut request::Parts) {
    if head.version != Version::HTTP_2 {
        return;
    }
    let headers = &mut head.headers;
    if headers.get_all(COOKIE).iter().nth(1).is_none() {
        return;
    }
    let mut whole = Vec::new();
    for piece in headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).filter(|piece| !piece.is_empty()) {
        if !whole.is_empty() {
            whole.extend_from_slice(b"; ");
        }
        whole.extend_from_slice(piece);
    }
    if let Ok(whole) = HeaderValue::from_bytes(&whole) {
        headers.insert(COOKIE, whole);
    }
}

/// Removes `X-Forwarded-Client-Cert` unless its peer is `believed`. Called before the rules, which may use any header
/// as a key.
pub(in crate::proxy) fn sanitize_certificate(
    headers: &mut HeaderMap,
    flags: RequestHeaderFlags,
    believed: impl FnOnce() -> bool,
) {
    if flags.client_cert && !believed() {
        headers.remove(X_FORWARDED_CLIENT_CERT);
    }
}

/// Removes hop-by-hop headers, and those that only this proxy may set.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let wants_trailers = headers.get_all(TE).iter().any(|te| has_token(te.as_bytes(), "trailers"));
    headers::remove_hop_by_hop(headers, identity::is_identity_header);
    // The proxy sends `100 Continue` itself.
    headers.remove(EXPECT);
    headers.remove(X_ENVOY_INTERNAL);
    headers.remove(X_WEIR_OVER_LIMIT);
    headers.remove(X_WEIR_CHARGED);
    if wants_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
    }
}

/// Returns the first protocol that a client offers and that is one of `upgrades`. Others, above all `h2c`, could carry
/// requests that bypass the rules.
pub(in crate::proxy) fn upgrade_protocol(
    method: &Method,
    version: Version,
    headers: &HeaderMap,
    upgrades: &[Box<str>],
) -> Option<HeaderValue> {
    let mut offered = headers.get_all(UPGRADE).iter().flat_map(|value| list_elements(value.as_bytes()));
    let protocol = offered
        .find(|protocol| upgrades.iter().any(|name| protocol.eq_ignore_ascii_case(name.as_bytes())))?;
    let is_websocket = protocol.eq_ignore_ascii_case(b"websocket");
    let asks = headers.get_all(CONNECTION).iter().any(|value| has_token(value.as_bytes(), "upgrade"));
    let has_body = headers.get(CONTENT_LENGTH).is_some_and(|length| length != "0")
        || headers.contains_key(TRANSFER_ENCODING);
    // WebSocket requires GET (RFC 6455 section 4.1); other protocols also use POST.
    let is_fit = *method == Method::GET || !is_websocket;
    let fits = version != Version::HTTP_10 && is_fit && asks && !has_body;
    HeaderValue::from_bytes(protocol).ok().filter(|_| fits)
}

/// Changes a request into the form in which it is stored, to be sent later as an HTTP/1.1 request: the target in
/// origin-form unless that is to be kept, one `Host`, and no hop-by-hop headers.
pub(in crate::proxy) fn prepare_for_store(head: &mut request::Parts, keeps_target: bool) {
    if head.uri.authority().is_some() {
        let target = head.uri.clone();
        to_origin_form(head);
        if keeps_target {
            head.uri = target;
        }
    }
    remove_hop_by_hop(&mut head.headers);
    for name in [CONNECTION, TE] {
        head.headers.remove(name);
    }
    head.headers.entry(HOST).or_insert(HeaderValue::from_static(""));
}

/// Changes an absolute target into origin-form. Its authority replaces `Host` (RFC 9112 section 3.2.2), and an empty path
/// becomes a slash, also before a query (section 3.2.1).
pub(super) fn to_origin_form(head: &mut request::Parts) {
    let host = head.uri.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    if let Some(host) = host {
        head.headers.insert(HOST, host);
    }
    let mut parts = http::uri::Parts::default();
    parts.path_and_query = head.uri.path_and_query().and_then(|target| match target.as_str() {
        query if query.starts_with('?') => PathAndQuery::try_from(format!("/{query}")).ok(),
        _ => Some(target.clone()),
    });
    head.uri = Uri::from_parts(parts).unwrap_or_default();
}

/// Decrements `Max-Forwards` of an OPTIONS request (RFC 9110 section 7.6.2). Returns whether it is 0: this hop responds
/// then. A value that is not a number has no meaning and is left.
pub(in crate::proxy) fn decrement_max_forwards(headers: &mut HeaderMap, flags: RequestHeaderFlags) -> bool {
    if !flags.max_forwards {
        return false;
    }
    let value = headers.get(MAX_FORWARDS).map_or(&[][..], HeaderValue::as_bytes);
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return false;
    }
    // A number beyond 64 bits is the largest one that this hop supports.
    let hops = parse_number(value).unwrap_or(u64::MAX);
    if let Some(left) = hops.checked_sub(1) {
        headers.insert(MAX_FORWARDS, HeaderValue::from(left));
    }
    hops == 0
}
