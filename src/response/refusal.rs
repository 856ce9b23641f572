//! The answer to a refused request.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use super::fallback::Keeping;
use super::rate_limit_headers::{
    Notation, X_RATELIMIT_LIMIT, X_RATELIMIT_REMAINING, X_RATELIMIT_RESET, number, whole_seconds,
};
use crate::headers::{RawHeaders, write_field};
use crate::limiter::algorithm::Usage;

/// Envoy's mark on answers that a rate limit gave; its routers do not retry them.
pub const X_ENVOY_RATELIMITED: HeaderName = HeaderName::from_static("x-envoy-ratelimited");

/// Headers that a refusal gets beside its own: five here, the rest by the server.
const ROOM: usize = 8;
/// So many of those prepared are numbers.
const NUMBERS: usize = 3;
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
    /// Whether good answers are kept, to be given in its place.
    pub keeping: Option<Keeping>,
    /// What is sent in its place to requests with some methods, if anything is.
    pub degraded: Option<Box<Degraded>>,
}

/// A degraded response: a file in place of a rejection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Degraded {
    /// The status.
    pub status: StatusCode,
    /// The file.
    pub body: Bytes,
    /// `content-type`, `warning` and the configured headers.
    pub headers: HeaderMap,
    /// The methods for which it stands in. For any other one, 2xx would say that something was done.
    pub methods: Box<[Method]>,
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
        Self { status, body: Bytes::from_static(body.as_bytes()), headers, keeping: None, degraded: None }
    }

    /// What `action: deny` answers.
    pub fn denied() -> Self {
        Self::plain(StatusCode::FORBIDDEN, "forbidden\n")
    }

    /// What is sent in its place to a request with this method.
    pub fn degraded(&self, method: &Method) -> Option<&Degraded> {
        self.degraded.as_deref().filter(|degraded| degraded.methods.contains(method))
    }
}

/// The headers of a response to a request that a limit rejects, with those that are configured: wait this long, at least
/// a second.
pub fn limited_headers(configured: &HeaderMap, retry_after: Duration) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(configured.len() + ROOM);
    headers.insert(RETRY_AFTER, number(seconds_to_wait(retry_after)));
    headers.insert(X_ENVOY_RATELIMITED, HeaderValue::from_static("true"));
    headers.extend(configured.iter().map(|(name, value)| (name.clone(), value.clone())));
    headers
}

/// The headers of a rule's refusals, ready but for three numbers: those come first, so that filling them in
/// needs no look-up. Under attack this is the answer that is given most.
#[derive(Clone, Debug)]
pub struct Prepared {
    headers: HeaderMap,
    /// The same as HTTP/1.1 writes them.
    raw: RawHeaders,
    /// All but the numbers.
    fixed: Box<[u8]>,
}

impl Prepared {
    /// For a rule with the one limit that `notation` writes, whose clients see `x-ratelimit-*`. `None` where the configuration
    /// has headers that are written otherwise: ours, and those of every answer.
    pub fn new(configured: &HeaderMap, notation: &Notation) -> Option<Self> {
        let written = [
            DATE,
            RETRY_AFTER,
            X_ENVOY_RATELIMITED,
            X_RATELIMIT_LIMIT,
            X_RATELIMIT_REMAINING,
            X_RATELIMIT_RESET,
        ];
        if written.iter().any(|name| configured.contains_key(name)) {
            return None;
        }
        let mut headers = HeaderMap::with_capacity(configured.len() + ROOM);
        let zero = || HeaderValue::from_static("0");
        headers.insert(RETRY_AFTER, zero());
        headers.insert(X_RATELIMIT_REMAINING, zero());
        headers.insert(X_RATELIMIT_RESET, zero());
        headers.insert(X_RATELIMIT_LIMIT, notation.alone().clone());
        headers.insert(X_ENVOY_RATELIMITED, HeaderValue::from_static("true"));
        headers.extend(configured.iter().map(|(name, value)| (name.clone(), value.clone())));
        let (mut raw, mut fixed) = (RawHeaders::default(), Vec::new());
        for (position, (name, value)) in headers.iter().enumerate() {
            raw.push(name.as_str().as_bytes(), value.as_bytes());
            if position >= NUMBERS {
                write_field(name.as_str().as_bytes(), value.as_bytes(), &mut fixed);
            }
        }
        Some(Self { headers, raw, fixed: fixed.into() })
    }

    /// The headers of one refusal.
    pub fn fill(&self, retry_after: Duration, usage: &Usage) -> HeaderMap {
        let mut headers = self.headers.clone();
        for (value, number) in headers.values_mut().zip(numbers(retry_after, usage)) {
            *value = self::number(number);
        }
        headers
    }

    /// The same as HTTP/1.1 writes them.
    pub fn raw(&self, retry_after: Duration, usage: &Usage) -> RawHeaders {
        let [retry_after, remaining, reset] = numbers(retry_after, usage);
        let mut digits = itoa::Buffer::new();
        self.raw.rewritten(|out| {
            out.extend_from_slice(b"retry-after: ");
            out.extend_from_slice(digits.format(retry_after).as_bytes());
            out.extend_from_slice(b"\r\nx-ratelimit-remaining: ");
            out.extend_from_slice(digits.format(remaining).as_bytes());
            out.extend_from_slice(b"\r\nx-ratelimit-reset: ");
            out.extend_from_slice(digits.format(reset).as_bytes());
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(&self.fixed);
        })
    }
}

/// Those of a refusal's headers that are numbers: how long to wait, what is left, and when the limit is whole again.
fn numbers(retry_after: Duration, usage: &Usage) -> [u64; NUMBERS] {
    [seconds_to_wait(retry_after), usage.remaining.into(), whole_seconds(usage.reset)]
}

/// RFC 9110 section 10.2.3 allows zero; a client that is told so comes back at once.
fn seconds_to_wait(retry_after: Duration) -> u64 {
    whole_seconds(retry_after).max(1)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::headers::Headers;
    use crate::limiter::algorithm::Algorithm;
    use crate::limiter::quota::{Limit, Period, Quota, Unit};
    use crate::response::rate_limit_headers::{Standing, write_envoy};

    #[test]
    fn prepared_headers_are_those_that_would_be_written() {
        let limit = Limit::new(NonZeroU32::new(10).unwrap(), Period::one(Unit::Minute));
        let quota = Quota::new(Algorithm::Gcra, limit, None).unwrap();
        let notation = Notation::new("per-ip", &quota);
        let mut refusal = Refusal::default();
        refusal.headers.insert("x-limited-by", HeaderValue::from_static("per-ip"));
        for (wait, remaining, reset) in [(0, 0, 0), (7, 3, 42), (3600, 12, 86_400)] {
            let (wait, reset) = (Duration::from_secs(wait), Duration::from_secs(reset));
            let usage = Usage { used: 0, remaining, reset };
            let mut written = Headers::from(limited_headers(&refusal.headers, wait));
            write_envoy(&mut written, &[Standing { notation: &notation, grown: None, usage }]);
            let prepared = Prepared::new(&refusal.headers, &notation).unwrap();
            assert_eq!(Headers::from(prepared.fill(wait, &usage)), written);
            let raw = Headers::from(prepared.raw(wait, &usage));
            for name in written.clone().into_map().keys() {
                assert_eq!(raw.get(name), written.get(name), "{name}");
            }
            assert_eq!(raw, written);
        }
    }

    #[test]
    fn nobody_is_told_to_wait_no_time() {
        assert_eq!(limited_headers(&HeaderMap::new(), Duration::ZERO)[RETRY_AFTER], "1");
        assert_eq!(limited_headers(&HeaderMap::new(), Duration::from_millis(1001))[RETRY_AFTER], "2");
    }
}
