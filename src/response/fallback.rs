//! Degraded responses: what a rejected request may get in place of a rejection, and which responses may be stored for it.
//!
//! A stored response must say nothing about the client that it was made for, and must not depend on anything that
//! another client may have written. So the rules are those of a shared cache (RFC 9111 section 3), and stricter: every
//! request header that the upstream may have used is part of the key, and headers that may say who the client is prevent
//! storing. Design note 012 has the reasons.

pub mod cache_key;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AGE, CACHE_CONTROL, CONTENT_TYPE, SET_COOKIE, VARY, WARNING};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use self::cache_key::Headers;
use crate::limiter::timestamp::Timestamp;

/// Marks an answer that is not what the upstream would say now (RFC 7234 section 5.5.1).
pub const STALE: HeaderValue = HeaderValue::from_static("110 - \"Response is Stale\"");
/// Marks an answer that stands in for the upstream's (RFC 7234 section 5.5.7).
pub const DEGRADED: HeaderValue = HeaderValue::from_static("199 - \"Degraded Response\"");

/// About what an answer takes beside its body and the text of its headers, in bytes.
const OVERHEAD: usize = 256;

/// How good answers are kept for a rule's refusals (`on_limit.fallback.cached`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keeping {
    /// For all of them together, in bytes.
    pub budget: u64,
    /// For one of them, in bytes.
    pub largest: u64,
    /// Older ones are not given to anybody.
    pub max_age: Duration,
    /// Request headers on which no response depends.
    pub ignored: Arc<[HeaderName]>,
}

/// An answer that was good, kept whole.
#[derive(Debug)]
pub struct Kept {
    headers: HeaderMap,
    body: Bytes,
    at: Timestamp,
    /// Seconds it was old already when it came.
    age: u64,
    /// Seconds after which it may not be given any more, if it said so.
    lifetime: Option<u64>,
    /// Whether it says that it is for every client.
    is_public: bool,
    /// The request headers that it depends on.
    vary: Box<[HeaderName]>,
}

impl Kept {
    /// A response received at `at`; without its body yet. `None` if it may not be given to others, whatever the request was.
    pub fn new(status: StatusCode, headers: &HeaderMap, at: Timestamp) -> Option<Self> {
        if status != StatusCode::OK || headers.contains_key(SET_COOKIE) {
            return None;
        }
        let control = Control::of(headers);
        if control.forbids {
            return None;
        }
        let age = headers.get(AGE).and_then(|age| age.to_str().ok()?.trim().parse().ok()).unwrap_or(0);
        Some(Self {
            vary: vary(headers)?,
            headers: headers.clone(),
            body: Bytes::new(),
            at,
            age,
            lifetime: control.lifetime(),
            is_public: control.is_for_everybody,
        })
    }

    /// Whether it may be stored for a request that may say who its client is, if `is_personal`: then only under a key with all
    /// that the request says. What it varies by must be part of the key.
    pub fn may_be_stored(&self, is_personal: bool, headers: &Headers) -> bool {
        (self.is_public || !is_personal) && self.vary.iter().all(|name| headers.tell_apart_by(name.as_str()))
    }

    /// With its body, which has ended.
    pub fn with_body(self, body: Bytes) -> Self {
        Self { body, ..self }
    }

    /// The body.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// How long ago it was received.
    pub fn kept_for(&self, now: Timestamp) -> Duration {
        now.since(self.at)
    }

    /// Whether it may still be sent.
    pub fn is_usable(&self, now: Timestamp, max_age: Duration) -> bool {
        // RFC 9111 section 4.2: fresh as long as its lifetime is longer than its age.
        let is_young = |lifetime| self.age_at(now) < lifetime;
        self.kept_for(now) <= max_age && self.lifetime.is_none_or(is_young)
    }

    /// Adds its headers, and what tells that it is old, to those of a refusal.
    pub fn extend(&self, headers: &mut HeaderMap, now: Timestamp) {
        headers.remove(CONTENT_TYPE);
        // Else what the rule says counts: the upstream spoke of another request.
        let own = self.headers.iter().filter(|(name, _)| !headers.contains_key(*name));
        let own: Vec<_> = own.map(|(name, value)| (name.clone(), value.clone())).collect();
        for (name, value) in own {
            headers.append(name, value);
        }
        headers.insert(AGE, HeaderValue::from(self.age_at(now)));
        headers.insert(WARNING, STALE);
    }

    /// About how many bytes it takes.
    pub fn size(&self) -> usize {
        let headers = self.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 64);
        OVERHEAD + self.body.len() + headers.sum::<usize>()
    }

    fn age_at(&self, now: Timestamp) -> u64 {
        self.age.saturating_add(self.kept_for(now).as_secs())
    }
}

/// What an answer's `cache-control` says that matters here (RFC 9111 section 5.2.2).
#[derive(Debug, Default)]
struct Control {
    forbids: bool,
    is_for_everybody: bool,
    must_be_fresh: bool,
    max_age: Option<u64>,
    shared_max_age: Option<u64>,
}

impl Control {
    fn of(headers: &HeaderMap) -> Self {
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

    /// RFC 9111 section 4.2.4: some answers must not be given once they are stale.
    fn lifetime(&self) -> Option<u64> {
        self.must_be_fresh.then(|| self.shared_max_age.or(self.max_age).unwrap_or(0))
    }
}

/// The request headers that a response varies by; `None` if one of them is not a header, as in `vary: *`.
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
