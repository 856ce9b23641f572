//! Stored responses that move to a process that replaces this one.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};

use super::{Fallbacks, RuleCache};
use weir_limiter::timestamp::Timestamp;
use weir_policy::response::fallback::{CachedResponse, FallbackCacheSettings};

/// A stored response without its body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MovedResponse {
    rule: Box<str>,
    /// The new process keeps the response only if these are the same there: they determine what may be stored.
    terms: StorageTerms,
    key: Vec<u8>,
    headers: Vec<(String, Vec<u8>)>,
    /// Nanoseconds since it was received.
    age: u64,
}

/// What determines the keys of stored responses, and which ones are stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StorageTerms {
    max_size: u64,
    ignored: Vec<String>,
    personal: Vec<String>,
}

impl RuleCache {
    fn terms(&self) -> StorageTerms {
        let FallbackCacheSettings { max_size, ignored, .. } = &self.settings;
        let names = |names: &[HeaderName]| names.iter().map(ToString::to_string).collect();
        StorageTerms { max_size: *max_size, ignored: names(ignored), personal: names(&self.headers.personal) }
    }
}

impl Fallbacks {
    /// Returns all stored responses, each with its body.
    pub(crate) fn stored(&self, now: Timestamp) -> impl Iterator<Item = (MovedResponse, Bytes)> {
        self.caches.iter().flatten().flat_map(move |cache| {
            let terms = cache.terms();
            let stored = cache.responses.iter().map(|(key, response)| {
                let headers = response.headers().iter();
                let headers = headers.map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()));
                let moved = MovedResponse {
                    rule: cache.rule.clone(),
                    terms: terms.clone(),
                    key: key.to_vec(),
                    headers: headers.collect(),
                    age: u64::try_from(response.time_in_cache(now).as_nanos()).unwrap_or(u64::MAX),
                };
                (moved, response.body().clone())
            });
            stored.collect::<Vec<_>>()
        })
    }

    /// Stores a response of another process, unless there is one of this process. Returns whether the rule stores it.
    pub(crate) fn adopt(&self, moved: MovedResponse, body: Bytes, now: Timestamp) -> bool {
        let MovedResponse { rule, terms, key, headers, age } = moved;
        let caches = self.caches.iter().flatten();
        let Some(cache) = caches.into_iter().find(|cache| cache.rule == rule && cache.terms() == terms)
        else {
            return false;
        };
        let headers = headers.into_iter().map(|(name, value)| {
            Some((HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_maybe_shared(value).ok()?))
        });
        let Some(headers) = headers.collect::<Option<Vec<_>>>() else { return false };
        let received_at = Timestamp::from_nanos(now.as_nanos().saturating_sub(age));
        let headers: HeaderMap = headers.into_iter().fold(HeaderMap::new(), |mut all, (name, value)| {
            all.append(name, value);
            all
        });
        let Some(response) = CachedResponse::new(StatusCode::OK, &headers, received_at) else { return false };
        if cache.responses.peek(&*key).is_none() {
            cache.responses.insert(key.into(), Arc::new(response.with_body(body)));
        }
        true
    }
}
