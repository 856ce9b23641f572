//! The answer to a refused request.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::rate_limit_headers::{number, whole_seconds};

/// Envoy's mark on answers that a rate limit gave; its routers do not retry them.
pub const X_ENVOY_RATELIMITED: HeaderName = HeaderName::from_static("x-envoy-ratelimited");

/// Headers that a refusal gets beside its own: five here, the rest by the server.
const ROOM: usize = 8;
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// What a rule answers when it refuses (`on_limit`), compiled once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status; 429 unless configured.
    pub status: StatusCode,
    /// The body and its type.
    pub body: Bytes,
    /// `content-type` and the configured headers, with `{rule}` filled in.
    pub headers: HeaderMap,
}

impl Default for Refusal {
    fn default() -> Self {
        Self::plain(StatusCode::TOO_MANY_REQUESTS, "too many requests\n")
    }
}

impl Refusal {
    /// An answer with a fixed text.
    pub fn plain(status: StatusCode, body: &'static str) -> Self {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, TEXT)]);
        Self { status, body: Bytes::from_static(body.as_bytes()), headers }
    }

    /// What `action: deny` answers.
    pub fn denied() -> Self {
        Self::plain(StatusCode::FORBIDDEN, "forbidden\n")
    }

    /// The headers of a refusal by a limit: wait this long, at least a second.
    pub fn limited_headers(&self, retry_after: Duration) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(self.headers.len() + ROOM);
        headers.extend(self.headers.iter().map(|(name, value)| (name.clone(), value.clone())));
        headers.insert(RETRY_AFTER, number(whole_seconds(retry_after).max(1)));
        headers.insert(X_ENVOY_RATELIMITED, HeaderValue::from_static("true"));
        headers
    }
}
