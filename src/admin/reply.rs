//! Answers, with the headers that all of them carry.

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, StatusCode};

use crate::side_door;
pub use crate::side_door::Reply;

const TEXT: &str = "text/plain; charset=UTF-8";
const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=UTF-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What the acting endpoints answer when they have acted.
pub(super) fn ok() -> Reply {
    text(StatusCode::OK, "OK\n")
}

pub(super) fn text(status: StatusCode, body: impl Into<Bytes>) -> Reply {
    reply(status, TEXT, body.into())
}

pub(super) fn json(value: &serde_json::Value) -> Reply {
    // Values of our own making always serialise.
    let mut body = serde_json::to_vec_pretty(value).unwrap_or_default();
    body.push(b'\n');
    reply(StatusCode::OK, JSON, body.into())
}

pub(super) fn html(body: String) -> Reply {
    reply(StatusCode::OK, HTML, body.into())
}

pub(super) fn prometheus(body: String) -> Reply {
    reply(StatusCode::OK, PROMETHEUS, body.into())
}

/// `405`, naming the methods that are.
pub(super) fn not_allowed(allow: &'static str, body: String) -> Reply {
    let mut reply = text(StatusCode::METHOD_NOT_ALLOWED, body);
    reply.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    reply
}

fn reply(status: StatusCode, content_type: &'static str, body: Bytes) -> Reply {
    let mut reply = side_door::reply(status, content_type, body);
    let headers = reply.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, max-age=0"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    reply
}
