//! Responses of the admin interface, with the headers that all of them have.

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, StatusCode};

use weir_net::http_server;
pub use weir_net::http_server::FullResponse;

const TEXT: &str = "text/plain; charset=UTF-8";
const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=UTF-8";
const EVENT_STREAM: &str = "text/event-stream";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Response of a command that succeeded.
pub(super) fn ok() -> FullResponse {
    text(StatusCode::OK, "OK\n")
}

pub(super) fn text(status: StatusCode, body: impl Into<Bytes>) -> FullResponse {
    build_response(status, TEXT, body.into())
}

pub(super) fn json(value: &serde_json::Value) -> FullResponse {
    // JSON values built here always serialise.
    let mut body = serde_json::to_vec_pretty(value).unwrap_or_default();
    body.push(b'\n');
    build_response(StatusCode::OK, JSON, body.into())
}

/// Head of a stream of events, without its body.
pub(super) fn event_stream() -> FullResponse {
    build_response(StatusCode::OK, EVENT_STREAM, Bytes::new())
}

pub(super) fn html(body: Bytes) -> FullResponse {
    build_response(StatusCode::OK, HTML, body)
}

pub(super) fn prometheus(body: String) -> FullResponse {
    build_response(StatusCode::OK, PROMETHEUS, body.into())
}

/// `405`, with the permitted methods in `Allow`.
pub(super) fn not_allowed(allow: &'static str, body: String) -> FullResponse {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, body);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    response
}

fn build_response(status: StatusCode, content_type: &'static str, body: Bytes) -> FullResponse {
    let mut response = http_server::response(status, content_type, body);
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, max-age=0"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
