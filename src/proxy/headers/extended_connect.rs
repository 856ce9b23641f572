//! Upgrades over HTTP/2 (RFC 8441): an extended CONNECT is converted into the equivalent HTTP/1.1 GET with `Upgrade`.
//!
//! An HTTP/2 client cannot send the headers that are inserted here, so later stages can rely on their origin.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{CONNECTION, CONTENT_LENGTH, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use http::{HeaderValue, Method, request};

use super::prepare_response;
use weir_http::headers::Headers;
use weir_http::http2::Protocol;

/// The protocol that requires a key in the request and in the response (RFC 6455 section 4.1).
const WEBSOCKET: &str = "websocket";

/// Converts an extended CONNECT into a GET that asks for an upgrade; returns whether it was one. A CONNECT without a
/// protocol is left unchanged. `random` creates the key that WebSocket requires in HTTP/1.1.
pub(in crate::proxy) fn convert_request(head: &mut request::Parts, random: impl FnOnce() -> u128) -> bool {
    if head.method != Method::CONNECT {
        return false;
    }
    let Some(protocol) = head.extensions.remove::<Protocol>() else { return false };
    let Ok(value) = HeaderValue::from_str(protocol.as_str()) else { return false };
    head.method = Method::GET;
    let headers = &mut head.headers;
    headers.remove(CONTENT_LENGTH);
    if protocol.as_str().eq_ignore_ascii_case(WEBSOCKET)
        && let Ok(key) = HeaderValue::try_from(STANDARD.encode(random().to_be_bytes()))
    {
        headers.insert(SEC_WEBSOCKET_KEY, key);
    }
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, value);
    true
}

/// Changes the headers of an upstream's 101 into those of the 200 for an extended CONNECT.
pub(in crate::proxy) fn convert_response(headers: &mut Headers) {
    prepare_response(headers);
    let headers = headers.map_mut();
    // This responds to a key that the client has not sent.
    headers.remove(SEC_WEBSOCKET_ACCEPT);
    headers.remove(CONTENT_LENGTH);
}
