//! Degraded responses: stored responses sent instead of a rejection, and which responses may be stored for this.
//!
//! A stored response must not reveal anything about the client for which it was made, and must not depend on input of
//! other clients. So the rules are those of a shared cache (RFC 9111 §3), and stricter. Every request header that the
//! upstream may have used is part of the key, and headers that may identify the client prevent sharing. Design note 012
//! gives the reasons.

pub mod cache_key;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AGE, CACHE_CONTROL, CONTENT_TYPE, SET_COOKIE, VARY, WARNING};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use self::cache_key::CacheHeaderRules;
use weir_limiter::timestamp::Timestamp;

/// `Warning` of a stored response (RFC 7234 §5.5.1).
pub const STALE: HeaderValue = HeaderValue::from_static("110 - \"Response is Stale\"");
/// `Warning` of a response that replaces the upstream's (RFC 7234 §5.5.7).
pub const DEGRADED: HeaderValue = HeaderValue::from_static("199 - \"Degraded Response\"");

/// Approximate memory of a stored response in addition to its body and header text, in bytes.
const OVERHEAD: usize = 256;

/// How responses are stored for the rejections of a rule (`on_limit.fallback.cached`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FallbackCacheSettings {
    /// Maximum size of all stored responses of the rule together, in bytes.
    pub budget: u64,
    /// Maximum size of one response, in bytes.
    pub max_size: u64,
    /// Maximum time since a response was received; older ones are not sent.
    pub max_age: Duration,
    /// Request headers that do not affect responses.
    pub ignored: Arc<[HeaderName]>,
}

/// A stored response.
#[derive(Debug)]
pub struct CachedResponse {
    headers: HeaderMap,
    body: Bytes,
    received_at: Timestamp,
    /// Value of `Age` on receipt, in seconds.
    age: u64,
    /// Age in seconds from which the response must not be sent, if its `Cache-Control` gives one.
    lifetime: Option<u64>,
    /// Whether the response is marked as suitable for all clients.
    is_public: bool,
    /// The request headers named by `Vary`.
    vary: Box<[HeaderName]>,
}

impl CachedResponse {
    /// Creates an entry, without its body, for a response received at `at`. `None` if the response must not be shared,
    /// whatever the request was.
    pub fn new(status: StatusCode, headers: &HeaderMap, at: Timestamp) -> Option<Self> {
        if status != StatusCode::OK || headers.contains_key(SET_COOKIE) {
            return None;
        }
        let control = CacheControl::from_headers(headers);
        if control.forbids {
            return None;
        }
        let age = headers.get(AGE).and_then(|age| age.to_str().ok()?.trim().parse().ok()).unwrap_or(0);
        Some(Self {
            vary: vary(headers)?,
            headers: headers.clone(),
            body: Bytes::new(),
            received_at: at,
            age,
            lifetime: control.lifetime(),
            is_public: control.is_for_everybody,
        })
    }

    /// Returns whether the response may be stored. If `is_personal`, the request may identify its client, and a
    /// response that is not public is not stored. All headers of `Vary` must be part of the key.
    pub fn may_be_stored(&self, is_personal: bool, headers: &CacheHeaderRules) -> bool {
        (self.is_public || !is_personal)
            && self.vary.iter().all(|name| headers.is_in_every_key(name.as_str()))
    }

    /// Adds the complete body.
    pub fn with_body(self, body: Bytes) -> Self {
        Self { body, ..self }
    }

    /// Returns the headers as they were received.
    pub const fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Returns the time since the response was received.
    pub fn time_in_cache(&self, now: Timestamp) -> Duration {
        now.since(self.received_at)
    }

    /// Returns whether the response may still be sent.
    pub fn is_usable(&self, now: Timestamp, max_age: Duration) -> bool {
        // RFC 9111 §4.2: a response is fresh while its lifetime exceeds its age.
        let is_young = |lifetime| self.age_at(now) < lifetime;
        self.time_in_cache(now) <= max_age && self.lifetime.is_none_or(is_young)
    }

    /// Adds the stored headers, `Age` and a `Warning` to the headers of a rejection.
    pub fn extend(&self, headers: &mut HeaderMap, now: Timestamp) {
        headers.remove(CONTENT_TYPE);
        // Other headers of the rejection take precedence, because the stored ones belong to another request.
        let own = self.headers.iter().filter(|(name, _)| !headers.contains_key(*name));
        let own: Vec<_> = own.map(|(name, value)| (name.clone(), value.clone())).collect();
        for (name, value) in own {
            headers.append(name, value);
        }
        headers.insert(AGE, HeaderValue::from(self.age_at(now)));
        headers.insert(WARNING, STALE);
    }

    /// Returns the approximate size in memory, in bytes.
    pub fn size(&self) -> usize {
        let headers = self.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 64);
        OVERHEAD + self.body.len() + headers.sum::<usize>()
    }

    fn age_at(&self, now: Timestamp) -> u64 {
        self.age.saturating_add(self.time_in_cache(now).as_secs())
    }
}

/// The directives of `Cache-Control` that matter here (RFC 9111 §5.2.2).
#[derive(Debug, Default)]
struct CacheControl {
    forbids: bool,
    is_for_everybody: bool,
    must_be_fresh: bool,
    max_age: Option<u64>,
    shared_max_age: Option<u64>,
}

impl CacheControl {
    fn from_headers(headers: &HeaderMap) -> Self {
        let mut control = Self::default();
        let lines = headers.get_all(CACHE_CONTROL).iter();
        for directive in lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')) {
            let directive = String::from_utf8_lossy(directive).trim().to_ascii_lowercase();
            let (name, value) = directive.split_once('=').unwrap_or((&directive, ""));
            let seconds = || value.trim_matches('"').parse().unwrap_or(0);
            match name {
                "no-store" | "no-cache" | "private" => control.forbids = true,
                "public" => control.is_for_everybody = true,
                "must-revalidate" | "proxy-revalidate" => control.must_be_fresh = true,
                "max-age" => control.max_age = Some(seconds()),
                "s-maxage" => {
                    control.is_for_everybody = true;
                    control.must_be_fresh = true;
                    control.shared_max_age = Some(seconds());
                }
                _ => {}
            }
        }
        control
    }

    /// Returns the lifetime in seconds of a response that must not be sent when stale (RFC 9111 §4.2.4).
    fn lifetime(&self) -> Option<u64> {
        self.must_be_fresh.then(|| self.shared_max_age.or(self.max_age).unwrap_or(0))
    }
}

/// Returns the request headers named by `Vary`; `None` if a member is not a header name, as in `Vary: *`.
fn vary(headers: &HeaderMap) -> Option<Box<[HeaderName]>> {
    let mut names = Vec::new();
    for line in headers.get_all(VARY) {
        for name in line.to_str().ok()?.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            names.push(HeaderName::from_bytes(name.as_bytes()).ok().filter(|name| name != "*")?);
        }
    }
    Some(names.into())
}

#[cfg(test)]
mod tests;
