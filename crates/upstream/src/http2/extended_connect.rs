//! Upgrades over HTTP/2 (RFC 8441). Where HTTP/1.1 uses `upgrade` and 101, HTTP/2 uses extended CONNECT and a 2xx
//! response. This module converts between the two forms, so that callers only use that of HTTP/1.1.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{CONNECTION, CONTENT_LENGTH, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use http::{HeaderValue, Method, Request, StatusCode, response};

use weir_http::http2::Protocol;

/// Appended to a key to compute `sec-websocket-accept` (RFC 6455 section 1.3).
const WEBSOCKET_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The upgrade requested by a request that became an extended CONNECT.
#[derive(Debug)]
pub(crate) struct ExtendedConnect {
    protocol: HeaderValue,
    /// `sec-websocket-key` of the client, for the HTTP/1.1 response; HTTP/2 has none (RFC 8441 section 5).
    key: Option<HeaderValue>,
}

impl ExtendedConnect {
    /// Converts a request with `upgrade` to an extended CONNECT; `None` for a request without.
    pub(super) fn from_upgrade<B>(request: &mut Request<B>) -> Option<Self> {
        let protocol = request.headers_mut().remove(UPGRADE)?;
        let name = Protocol::from(protocol.to_str().ok()?);
        let key = request.headers_mut().remove(SEC_WEBSOCKET_KEY);
        *request.method_mut() = Method::CONNECT;
        request.extensions_mut().insert(name);
        Some(Self { protocol, key })
    }

    /// Converts a 2xx response to the 101 of HTTP/1.1; returns whether it was one.
    pub(super) fn convert_response(self, head: &mut response::Parts) -> bool {
        if !head.status.is_success() {
            return false;
        }
        head.status = StatusCode::SWITCHING_PROTOCOLS;
        let headers = &mut head.headers;
        headers.remove(CONTENT_LENGTH);
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, self.protocol);
        headers.extend(self.key.and_then(|key| Some((SEC_WEBSOCKET_ACCEPT, accepted(&key)?))));
        true
    }
}

/// Computes `sec-websocket-accept` for a key (RFC 6455 section 4.2.2).
fn accepted(key: &HeaderValue) -> Option<HeaderValue> {
    let joined = [key.as_bytes(), WEBSOCKET_GUID].concat();
    HeaderValue::try_from(STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &joined))).ok()
}

#[cfg(test)]
mod tests {
    use http::Response;

    use super::*;

    fn websocket_request(key: &str) -> (Request<()>, ExtendedConnect) {
        let request = Request::get("http://a.test/chat").header("upgrade", "websocket");
        let mut request = request.header("sec-websocket-key", key).body(()).unwrap();
        let switch = ExtendedConnect::from_upgrade(&mut request).unwrap();
        (request, switch)
    }

    fn converted_response(switch: ExtendedConnect, status: u16) -> (bool, response::Parts) {
        let response = Response::builder().status(status).header("content-length", "0").body(()).unwrap();
        let mut head = response.into_parts().0;
        (switch.convert_response(&mut head), head)
    }

    #[test]
    fn upgrade_becomes_extended_connect_without_its_key() {
        let (request, _) = websocket_request("x");
        assert_eq!(request.method(), Method::CONNECT);
        assert_eq!(request.extensions().get::<Protocol>().unwrap().as_str(), "websocket");
        assert!(request.headers().is_empty());
        assert!(ExtendedConnect::from_upgrade(&mut Request::new(())).is_none());
    }

    #[test]
    fn successful_extended_connect_becomes_101_with_accept_key() {
        // Example of RFC 6455 section 1.3.
        let (is_switch, head) = converted_response(websocket_request("dGhlIHNhbXBsZSBub25jZQ==").1, 200);
        assert!(is_switch && head.status == StatusCode::SWITCHING_PROTOCOLS);
        assert_eq!(head.headers["upgrade"], "websocket");
        assert_eq!(head.headers["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert!(!head.headers.contains_key("content-length"));
    }

    #[test]
    fn failed_extended_connect_is_forwarded_unchanged() {
        let (is_switch, head) = converted_response(websocket_request("x").1, 403);
        assert!(!is_switch && head.status == StatusCode::FORBIDDEN);
        assert!(!head.headers.contains_key("upgrade") && head.headers.contains_key("content-length"));
    }
}
