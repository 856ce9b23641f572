//! gRPC: local replies in the form that gRPC clients expect, and the deadlines that clients set.
//!
//! A call that fails before it has begun gets a response that consists only of a head, which contains the trailers
//! (gRPC over HTTP/2, "Trailers-Only"). Its HTTP status code is 200, and the status of the call is in `grpc-status`.

use std::time::Duration;

use http::{HeaderMap, HeaderName, Version, request};

use super::request_context::RequestContext;
use super::timeouts::Timeout;
use weir_policy::response::grpc_reply;
use weir_policy::rules::cost::RequestEnd;
use weir_policy::rules::grpc::{CallStatus, GRPC_STATUS, GRPC_TIMEOUT, GrpcStatus, parse_timeout};

const CONNECT_TIMEOUT: HeaderName = HeaderName::from_static("connect-timeout-ms");

/// Whether a request is a gRPC call; these require HTTP/2.
pub(super) fn is_grpc_call(head: &request::Parts) -> bool {
    head.version == Version::HTTP_2 && grpc_reply::is_grpc(&head.headers)
}

/// Applies the client's deadline to a request that has waited for a slot. For a gRPC call, the response is due at the
/// deadline. For other requests, the deadline only affects what they are charged, since the upstream may observe it.
pub(super) fn apply_client_deadline(context: &mut RequestContext, headers: &HeaderMap, waited: Duration) {
    if let Some(time) = call_deadline(context, headers) {
        context.timer.await_response(Timeout::by_client(time.saturating_sub(waited)));
    }
    if context.settlement.is_some()
        && let Some(time) = deadline(headers)
    {
        context.deadline = Some(context.forwarded_at.saturating_add(time).saturating_sub(waited));
    }
}

/// Returns the time for which the client of a request waits for the response, if it is a gRPC call with a deadline.
pub(super) fn call_deadline(context: &RequestContext, headers: &HeaderMap) -> Option<Duration> {
    if context.is_grpc { call_timeout(headers) } else { None }
}

/// Returns the time for which a gRPC client waits for the response, if it sends one.
pub(super) fn call_timeout(headers: &HeaderMap) -> Option<Duration> {
    headers.get_all(GRPC_TIMEOUT).iter().filter_map(|value| parse_timeout(value.as_bytes())).min()
}

/// Returns the shortest timeout that the client sends, for gRPC or for Connect ("Connect Protocol Reference", Timeout).
/// An unreadable value counts as zero, as the upstream may read it in any way.
fn deadline(headers: &HeaderMap) -> Option<Duration> {
    let timeout_of = |name: &HeaderName, read: fn(&[u8]) -> Option<Duration>| {
        let values = headers.get_all(name).iter();
        values.map(|value| read(value.as_bytes()).unwrap_or_default()).min()
    };
    let (grpc, connect) =
        (timeout_of(&GRPC_TIMEOUT, parse_timeout), timeout_of(&CONNECT_TIMEOUT, milliseconds));
    grpc.into_iter().chain(connect).min()
}

fn milliseconds(value: &[u8]) -> Option<Duration> {
    std::str::from_utf8(value).ok()?.parse().ok().map(Duration::from_millis)
}

/// Returns what the end of a request tells about the status of a call. The status is in the headers, follows from a
/// local reply, or will come with the end of the response. `is_call`: the request is a gRPC call.
pub(super) fn call_status(is_call: bool, request_end: &RequestEnd<'_>) -> CallStatus {
    match *request_end {
        RequestEnd::Responded { headers, .. } => {
            match GrpcStatus::from_field_value(headers.get(&GRPC_STATUS)) {
                Some(status) => CallStatus::Known(status),
                None if is_call => CallStatus::Awaited,
                None => CallStatus::None,
            }
        }
        RequestEnd::Failed { status, .. } if is_call => CallStatus::Known(grpc_reply::status_of(status)),
        RequestEnd::Failed { .. } | RequestEnd::Rejected | RequestEnd::Abandoned | RequestEnd::Unanswered => {
            CallStatus::None
        }
    }
}

#[cfg(test)]
mod tests {
    use http::header::CONTENT_TYPE;

    use super::*;

    #[test]
    fn grpc_call_requires_http2_and_the_grpc_media_type() {
        let call = |version, media_type: &str| {
            let request = http::Request::post("/p.S/M").version(version).header(CONTENT_TYPE, media_type);
            is_grpc_call(&request.body(()).unwrap().into_parts().0)
        };
        assert!(call(Version::HTTP_2, "application/grpc"));
        assert!(call(Version::HTTP_2, "application/grpc+proto"));
        assert!(!call(Version::HTTP_2, "application/grpc-web"));
        assert!(!call(Version::HTTP_2, "application/json"));
        assert!(!call(Version::HTTP_11, "application/grpc"));
    }
}
