//! Local replies to gRPC calls: a response of headers only, which contains the trailers (gRPC over HTTP/2,
//! "Trailers-Only"). Its HTTP status code is 200, and the status of the call is in `grpc-status`.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::rules::grpc::{GRPC_STATUS, GrpcStatus};

const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const MEDIA_TYPE: &[u8] = b"application/grpc";
/// Maximum bytes of a local reply's text in `grpc-message`.
const MAX_MESSAGE_LENGTH: usize = 1024;

/// Whether a request over HTTP/2 with these headers is a gRPC call.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.as_bytes().strip_prefix(MEDIA_TYPE));
    // `application/grpc-web` is a different protocol.
    media_type.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
}

/// Changes `headers` into those of a response without a body ("Trailers-Only") with the meaning of `status` and `text`.
pub fn write_trailers_only(status: StatusCode, text: &Bytes, headers: &mut HeaderMap) {
    headers.remove(CONTENT_LENGTH);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(GRPC_STATUS, HeaderValue::from_static(status_of(status).as_str()));
    if let Some(message) = grpc_message(text) {
        headers.insert(GRPC_MESSAGE, message);
    }
}

/// Returns the gRPC status that corresponds to an HTTP status code. 429 becomes `RESOURCE_EXHAUSTED` (as Envoy's
/// `rate_limited_as_resource_exhausted`), so that clients do not retry at once. The others follow the mapping of the
/// gRPC project.
pub const fn status_of(status: StatusCode) -> GrpcStatus {
    match status.as_u16() {
        400 | 405 | 431 | 501 => GrpcStatus::INTERNAL,
        401 => GrpcStatus::UNAUTHENTICATED,
        403 => GrpcStatus::PERMISSION_DENIED,
        404 => GrpcStatus::UNIMPLEMENTED,
        408 | 504 => GrpcStatus::DEADLINE_EXCEEDED,
        429 => GrpcStatus::RESOURCE_EXHAUSTED,
        502 | 503 => GrpcStatus::UNAVAILABLE,
        _ => GrpcStatus::UNKNOWN,
    }
}

/// Encodes text as `grpc-message`: percent-encoded except for printable ASCII (gRPC over HTTP/2, "Status-Message").
fn grpc_message(text: &Bytes) -> Option<HeaderValue> {
    let text = text.trim_ascii();
    let text = &text[..text.len().min(MAX_MESSAGE_LENGTH)];
    if text.is_empty() {
        return None;
    }
    let mut encoded = String::with_capacity(text.len());
    for byte in text {
        match byte {
            b' '..=b'$' | b'&'..=b'~' => encoded.push(char::from(*byte)),
            _ => {
                encoded.push('%');
                encoded.extend(hex(*byte));
            }
        }
    }
    HeaderValue::try_from(encoded).ok()
}

fn hex(byte: u8) -> [char; 2] {
    let digit = |nibble: u8| char::from_digit(nibble.into(), 16).unwrap_or('0').to_ascii_uppercase();
    [digit(byte >> 4), digit(byte & 15)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_message_is_percent_encoded() {
        let text = Bytes::from_static("100 % zu schnell, Grüße\n".as_bytes());
        assert_eq!(grpc_message(&text).unwrap(), "100 %25 zu schnell, Gr%C3%BC%C3%9Fe");
        assert_eq!(grpc_message(&Bytes::from_static(b" \n")), None);
    }

    #[test]
    fn status_429_maps_to_resource_exhausted_and_503_to_unavailable() {
        assert_eq!(status_of(StatusCode::TOO_MANY_REQUESTS).as_str(), "8");
        assert_eq!(status_of(StatusCode::SERVICE_UNAVAILABLE).as_str(), "14");
    }
}
