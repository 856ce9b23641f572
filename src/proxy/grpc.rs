//! gRPC calls: refusals in the form that its clients read, and the deadlines they set.
//!
//! A call that fails before it has begun is answered by a head alone, whose fields are the trailers (gRPC over
//! HTTP/2, "Trailers-Only"): the status of HTTP is 200, that of the call in `grpc-status`.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version, request};

use super::request_context::RequestContext;
use super::timeouts::Timeout;
use crate::rules::grpc::{CallStatus, GRPC_STATUS, GrpcStatus};
use crate::rules::tariff::Ending;

const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const CONNECT_TIMEOUT: HeaderName = HeaderName::from_static("connect-timeout-ms");
const MEDIA_TYPE: &[u8] = b"application/grpc";
/// How much of a refusal's text a status message takes.
const LONGEST_MESSAGE: usize = 1024;

/// Whether a request calls a procedure by gRPC, which there is over HTTP/2 only.
pub(super) fn is_call(head: &request::Parts) -> bool {
    if head.version != Version::HTTP_2 {
        return false;
    }
    let media_type =
        head.headers.get(CONTENT_TYPE).and_then(|value| value.as_bytes().strip_prefix(MEDIA_TYPE));
    // `application/grpc-web` is another protocol.
    media_type.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
}

/// Applies the client's deadline: a gRPC call waits for its response no longer than its client does. Of other requests the
/// deadline only matters for what they are charged, since the upstream may heed it.
pub(super) fn apply_client_deadline(context: &mut RequestContext, headers: &HeaderMap) {
    if context.is_grpc
        && let Some(time) = call_timeout(headers)
    {
        context.timer.await_response(Timeout::by_client(time));
    }
    if context.settlement.is_some()
        && let Some(time) = deadline(headers)
    {
        context.deadline = Some(context.forwarded.saturating_add(time));
    }
}

/// How long a gRPC client waits for the response, as far as it says so.
fn call_timeout(headers: &HeaderMap) -> Option<Duration> {
    headers.get_all(GRPC_TIMEOUT).iter().filter_map(|value| timeout(value.as_bytes())).min()
}

/// The shortest time that the client gives the upstream, by gRPC or by Connect ("Connect Protocol Reference", Timeout). What
/// we cannot read may be any time to others.
fn deadline(headers: &HeaderMap) -> Option<Duration> {
    let told = |name: &HeaderName, read: fn(&[u8]) -> Option<Duration>| {
        let values = headers.get_all(name).iter();
        values.map(|value| read(value.as_bytes()).unwrap_or_default()).min()
    };
    let (grpc, connect) = (told(&GRPC_TIMEOUT, timeout), told(&CONNECT_TIMEOUT, milliseconds));
    grpc.into_iter().chain(connect).min()
}

fn milliseconds(value: &[u8]) -> Option<Duration> {
    std::str::from_utf8(value).ok()?.parse().ok().map(Duration::from_millis)
}

/// `TimeoutValue TimeoutUnit`: up to eight digits and one of `H M S m u n`.
pub(super) fn timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let count: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(count * 3600),
        b'M' => Duration::from_secs(count * 60),
        b'S' => Duration::from_secs(count),
        b'm' => Duration::from_millis(count),
        b'u' => Duration::from_micros(count),
        b'n' => Duration::from_nanos(count),
        _ => return None,
    })
}

/// Makes `headers` those of a response without a body ("Trailers-Only") that says what HTTP would say as `status` and
/// `text`.
pub(super) fn write_trailers_only(status: StatusCode, text: &Bytes, headers: &mut HeaderMap) {
    headers.remove(CONTENT_LENGTH);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(GRPC_STATUS, HeaderValue::from_static(code(status).as_str()));
    if let Some(message) = message(text) {
        headers.insert(GRPC_MESSAGE, message);
    }
}

/// The nearest status of a call. What a limit refuses is exhausted (as Envoy's `rate_limited_as_resource_exhausted`
/// has it), so that clients do not try again at once; the others are those of the gRPC project's own mapping.
const fn code(status: StatusCode) -> GrpcStatus {
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

/// How much a request's end says about the status of a call, which the request `is_call` or not: its header has it, or
/// we gave it in place of the upstream, or the end of the response will tell.
pub(super) fn call_status(is_call: bool, ending: &Ending<'_>) -> CallStatus {
    match *ending {
        Ending::Answered { headers, .. } => match GrpcStatus::of_field(headers.get(&GRPC_STATUS)) {
            Some(status) => CallStatus::Known(status),
            None if is_call => CallStatus::Awaited,
            None => CallStatus::None,
        },
        Ending::Failed { status, .. } if is_call => CallStatus::Known(code(status)),
        Ending::Failed { .. } | Ending::Refused | Ending::Abandoned => CallStatus::None,
    }
}

/// Text as a `grpc-message`: percent-encoded but for what is printable (gRPC over HTTP/2, "Status-Message").
fn message(text: &Bytes) -> Option<HeaderValue> {
    let text = text.trim_ascii();
    let text = &text[..text.len().min(LONGEST_MESSAGE)];
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
    fn timeouts_have_one_unit_and_few_digits() {
        let read = |text: &str| timeout(text.as_bytes());
        assert_eq!(read("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(read("100m"), Some(Duration::from_millis(100)));
        assert_eq!(read("99999999u"), Some(Duration::from_micros(99_999_999)));
        assert_eq!(read("7n"), Some(Duration::from_nanos(7)));
        for wrong in ["", "S", "1", "1s", "-1S", "1.5S", "999999999S", "1 S"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn messages_are_printable_whatever_they_say() {
        let text = Bytes::from_static("100 % zu schnell, Grüße\n".as_bytes());
        assert_eq!(message(&text).unwrap(), "100 %25 zu schnell, Gr%C3%BC%C3%9Fe");
        assert_eq!(message(&Bytes::from_static(b" \n")), None);
    }

    #[test]
    fn a_refusal_by_a_limit_is_an_exhausted_resource() {
        assert_eq!(code(StatusCode::TOO_MANY_REQUESTS).as_str(), "8");
        assert_eq!(code(StatusCode::SERVICE_UNAVAILABLE).as_str(), "14");
    }

    #[test]
    fn only_calls_are_calls() {
        let call = |version, media_type: &str| {
            let request = http::Request::post("/p.S/M").version(version).header(CONTENT_TYPE, media_type);
            is_call(&request.body(()).unwrap().into_parts().0)
        };
        assert!(call(Version::HTTP_2, "application/grpc"));
        assert!(call(Version::HTTP_2, "application/grpc+proto"));
        assert!(!call(Version::HTTP_2, "application/grpc-web"));
        assert!(!call(Version::HTTP_2, "application/json"));
        assert!(!call(Version::HTTP_11, "application/grpc"));
    }
}
