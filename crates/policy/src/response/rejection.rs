//! Local replies for rejected requests.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use super::cors::CorsSettings;
use super::dynamic_reply::ReplyTemplates;
use super::fallback::FallbackCacheSettings;
use super::problem::ProblemReply;
use super::rate_limit_headers::{Notation, number, whole_seconds};
use super::{LimitForm, LimitHeaderNames};
use weir_http::headers::{RawHeaders, write_field};
use weir_limiter::algorithm::CounterUsage;

/// Envoy's mark on rate limited responses, which its routers do not retry.
pub const X_ENVOY_RATELIMITED: HeaderName = HeaderName::from_static("x-envoy-ratelimited");

/// Room for headers in addition to the configured ones: five added here, the rest by the server.
const ROOM: usize = 8;
/// Number of prepared headers whose value is a number.
const NUMBERS: usize = 3;
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// The local reply of a rule's rejections (`on_limit`), compiled once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectionResponse {
    /// Status code; 429 unless configured.
    pub status: StatusCode,
    pub body: Bytes,
    /// `content-type` and the configured headers without placeholders.
    pub headers: HeaderMap,
    /// Headers and a body with placeholders, if there are some.
    pub templates: Option<Box<ReplyTemplates>>,
    /// Problem details in place of a configured body, if configured.
    pub problem: Option<Box<ProblemReply>>,
    /// Whether the connection is closed without a response.
    pub closes: bool,
    /// Which pages may read the reply, if configured.
    pub cors: Option<Box<CorsSettings>>,
    /// The reply to requests that the rule rejects before any limit: by `action: deny`, or because their key is
    /// missing. `None` for the default.
    pub denied: Option<Box<Self>>,
    /// How responses are stored to be served instead, if configured.
    pub cached_fallback: Option<FallbackCacheSettings>,
    /// Response sent instead for some methods, if configured.
    pub degraded: Option<Box<DegradedResponse>>,
}

/// A degraded response: a file sent instead of a rejection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DegradedResponse {
    pub status: StatusCode,
    /// Content of the file.
    pub body: Bytes,
    /// `content-type`, `warning` and the configured headers.
    pub headers: HeaderMap,
    /// Methods for which the file is sent. For other methods, a 2xx status would claim that the request was performed.
    pub methods: Box<[Method]>,
}

/// The response to a rejected request.
#[derive(Clone, Copy, Debug)]
pub struct RejectionReply<'a> {
    pub status: StatusCode,
    pub body: &'a Bytes,
    /// Headers, without those about limits.
    pub headers: &'a HeaderMap,
}

impl Default for RejectionResponse {
    fn default() -> Self {
        Self::plain(StatusCode::TOO_MANY_REQUESTS, "too many requests\n")
    }
}

impl RejectionResponse {
    /// Creates a response with a fixed text.
    pub fn plain(status: StatusCode, body: &'static str) -> Self {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, TEXT)]);
        Self {
            status,
            body: Bytes::from_static(body.as_bytes()),
            headers,
            templates: None,
            problem: None,
            closes: false,
            cors: None,
            denied: None,
            cached_fallback: None,
            degraded: None,
        }
    }

    /// Returns the response of `action: deny`.
    pub fn denied() -> Self {
        Self::plain(StatusCode::FORBIDDEN, "forbidden\n")
    }

    /// Returns the response to a rejected request with this method: the degraded response if it has one.
    pub fn reply_to(&self, method: Option<&Method>) -> RejectionReply<'_> {
        match method.and_then(|method| self.degraded(method)) {
            Some(DegradedResponse { status, body, headers, .. }) => {
                RejectionReply { status: *status, body, headers }
            }
            None => RejectionReply { status: self.status, body: &self.body, headers: &self.headers },
        }
    }

    /// Returns the degraded response for a request with this method, if configured.
    pub fn degraded(&self, method: &Method) -> Option<&DegradedResponse> {
        self.degraded.as_deref().filter(|degraded| degraded.methods.contains(method))
    }
}

/// Returns the headers of a rejection: those in `configured` and `retry-after`, which is at least 1 s.
pub fn limited_headers(configured: &HeaderMap, retry_after: Duration) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(configured.len() + ROOM);
    headers.insert(RETRY_AFTER, number(seconds_to_wait(retry_after)));
    headers.insert(X_ENVOY_RATELIMITED, HeaderValue::from_static("true"));
    headers.extend(configured.iter().map(|(name, value)| (name.clone(), value.clone())));
    headers
}

/// Precomputed headers of a rule's rejections. Only three numbers change; they come first, so that they can be set
/// without a lookup. During an attack this is the most frequent response.
#[derive(Clone, Debug)]
pub struct PreparedHeaders {
    headers: HeaderMap,
    /// The headers in HTTP/1.1 notation.
    raw: RawHeaders,
    /// The headers without numbers, in HTTP/1.1 notation.
    fixed: Box<[u8]>,
    /// Names of the numbers, each with the end of the line before and a separator: remaining and reset.
    names: [Box<[u8]>; 2],
}

impl PreparedHeaders {
    /// Prepares the headers for a rule with one limit, which `notation` describes, if clients receive the headers
    /// `names`. `None` if the configuration sets one of these headers or `date` itself.
    pub fn new(configured: &HeaderMap, notation: &Notation, names: &LimitHeaderNames) -> Option<Self> {
        let LimitHeaderNames { limit, remaining, reset, form } = names;
        let written = [&DATE, &RETRY_AFTER, &X_ENVOY_RATELIMITED, limit, remaining, reset];
        if written.iter().any(|name| configured.contains_key(*name)) {
            return None;
        }
        let mut headers = HeaderMap::with_capacity(configured.len() + ROOM);
        let zero = || HeaderValue::from_static("0");
        headers.insert(RETRY_AFTER, zero());
        headers.insert(remaining, zero());
        headers.insert(reset, zero());
        let value = match form {
            LimitForm::Draft => notation.alone().clone(),
            LimitForm::Plain => number(notation.count().into()),
        };
        headers.insert(limit, value);
        headers.insert(X_ENVOY_RATELIMITED, HeaderValue::from_static("true"));
        headers.extend(configured.iter().map(|(name, value)| (name.clone(), value.clone())));
        let (mut raw, mut fixed) = (RawHeaders::default(), Vec::new());
        for (position, (name, value)) in headers.iter().enumerate() {
            raw.push(name.as_str().as_bytes(), value.as_bytes());
            if position >= NUMBERS {
                write_field(name.as_str().as_bytes(), value.as_bytes(), &mut fixed);
            }
        }
        let names = [remaining, reset].map(|name| format!("\r\n{name}: ").into_bytes().into());
        Some(Self { headers, raw, fixed: fixed.into(), names })
    }

    pub fn fill(&self, retry_after: Duration, usage: &CounterUsage) -> HeaderMap {
        let mut headers = self.headers.clone();
        for (value, number) in headers.values_mut().zip(numbers(retry_after, usage)) {
            *value = self::number(number);
        }
        headers
    }

    /// Returns the headers of one rejection in HTTP/1.1 notation.
    pub fn raw(&self, retry_after: Duration, usage: &CounterUsage) -> RawHeaders {
        let [retry_after, remaining, reset] = numbers(retry_after, usage);
        let mut digits = itoa::Buffer::new();
        self.raw.rewritten(|out| {
            out.extend_from_slice(b"retry-after: ");
            out.extend_from_slice(digits.format(retry_after).as_bytes());
            out.extend_from_slice(&self.names[0]);
            out.extend_from_slice(digits.format(remaining).as_bytes());
            out.extend_from_slice(&self.names[1]);
            out.extend_from_slice(digits.format(reset).as_bytes());
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(&self.fixed);
        })
    }
}

/// Returns the numbers in the headers of a rejection: retry-after, remaining and reset.
fn numbers(retry_after: Duration, usage: &CounterUsage) -> [u64; NUMBERS] {
    [seconds_to_wait(retry_after), usage.remaining.into(), whole_seconds(usage.reset)]
}

/// Returns `retry-after` in seconds. RFC 9110 §10.2.3 permits 0, but clients would retry at once.
fn seconds_to_wait(retry_after: Duration) -> u64 {
    whole_seconds(retry_after).max(1)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::response::rate_limit_headers::{LimitStatus, write_envoy};
    use weir_http::headers::Headers;
    use weir_limiter::algorithm::Algorithm;
    use weir_limiter::quota::{Limit, Period, Quota, TimeUnit};

    #[test]
    fn prepared_rejection_headers_equal_those_written_individually() {
        let limit = Limit::new(NonZeroU32::new(10).unwrap(), Period::one(TimeUnit::Minute));
        let quota = Quota::new(Algorithm::Gcra, limit, None).unwrap();
        let notation = Notation::new("per-ip", &quota);
        let mut refusal = RejectionResponse::default();
        refusal.headers.insert("x-limited-by", HeaderValue::from_static("per-ip"));
        let plain = LimitHeaderNames {
            limit: HeaderName::from_static("x-limit"),
            remaining: HeaderName::from_static("x-left"),
            form: LimitForm::Plain,
            ..LimitHeaderNames::default()
        };
        for names in [LimitHeaderNames::default(), plain] {
            for (wait, remaining, reset) in [(0, 0, 0), (7, 3, 42), (3600, 12, 86_400)] {
                let (wait, reset) = (Duration::from_secs(wait), Duration::from_secs(reset));
                let usage = CounterUsage { used: 0, remaining, reset };
                let mut written = Headers::from(limited_headers(&refusal.headers, wait));
                let status = LimitStatus { notation: &notation, in_force: None, usage };
                write_envoy(&mut written, &[status], &names);
                let prepared = PreparedHeaders::new(&refusal.headers, &notation, &names).unwrap();
                assert_eq!(Headers::from(prepared.fill(wait, &usage)), written);
                let raw = Headers::from(prepared.raw(wait, &usage));
                for name in written.clone().into_map().keys() {
                    assert_eq!(raw.get(name), written.get(name), "{name}");
                }
                assert_eq!(raw, written);
            }
        }
    }

    #[test]
    fn retry_after_is_rounded_up_to_at_least_one_second() {
        assert_eq!(limited_headers(&HeaderMap::new(), Duration::ZERO)[RETRY_AFTER], "1");
        assert_eq!(limited_headers(&HeaderMap::new(), Duration::from_millis(1001))[RETRY_AFTER], "2");
    }
}
