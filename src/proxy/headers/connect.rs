//! Another protocol over a stream of HTTP/2 (RFC 8441): an extended CONNECT is, for everybody after us, the GET with
//! `upgrade` that it would be in HTTP/1.1.
//!
//! In HTTP/2 no client can send the fields that are put in here, so whoever finds them knows where they come from.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{CONNECTION, CONTENT_LENGTH, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use http::{HeaderValue, Method, request};
use hyper::ext::Protocol;
use hyper::upgrade::OnUpgrade;

use super::prepare_response;
use crate::headers::Headers;

/// The protocol that a key and its answer go with (RFC 6455 section 4.1).
const WEBSOCKET: &str = "websocket";

/// Turns an extended CONNECT into a GET that asks for an upgrade; answers where the stream is to be had later. A CONNECT
/// without a protocol stays what it is. `random` makes the key that a WebSocket needs in HTTP/1.1.
pub(in crate::proxy) fn take(head: &mut request::Parts, random: impl FnOnce() -> u128) -> Option<OnUpgrade> {
    if head.method != Method::CONNECT {
        return None;
    }
    let protocol = head.extensions.remove::<Protocol>()?;
    let stream = head.extensions.remove::<OnUpgrade>()?;
    let value = HeaderValue::from_str(protocol.as_str()).ok()?;
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
    Some(stream)
}

/// Turns an upstream's 101 into the fields of the 200 that it is for an extended CONNECT.
pub(in crate::proxy) fn prepare_answer(headers: &mut Headers) {
    prepare_response(headers);
    let headers = headers.map_mut();
    // The answer to a key that this client has not given.
    headers.remove(SEC_WEBSOCKET_ACCEPT);
    headers.remove(CONTENT_LENGTH);
}
