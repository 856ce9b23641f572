//! Fallback cache: recent successful responses, sent in place of rejections.
//!
//! Each rule that uses it has a cache of its own within its budget. The cache is shared by all workers and kept across
//! reloads that do not change its settings. A response is copied while it passes through, and stored after its last
//! byte. `response::fallback` defines the key and which responses may be stored. Copies in progress have a budget of
//! the same size, because their duration depends on the client.

mod cached;
mod moved;
mod recorder;
mod recording;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderName, Method, request};
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

pub(super) use self::cached::CachedFallbacks;
pub(super) use self::recorder::Recorder;
use self::recording::{ActiveRecording, RecordingRegistry};
use super::headers::Hop;
use weir_limiter::timestamp::Timestamp;
use weir_limits::PendingLimits;
use weir_policy::engine::Policy;
use weir_policy::identify::{Attributes, client_ip};
use weir_policy::response::fallback::cache_key::{self, CacheHeaderRules, CacheKey};
use weir_policy::response::fallback::{CachedResponse, FallbackCacheSettings};
use weir_policy::rules::RuleIndex;
use weir_upstream::Upstream;

/// Age at which a stored response is replaced by the next one. This is often enough for responses that are served as
/// stale.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// Estimated size of a response, for the data structures of a cache.
const TYPICAL_RESPONSE_SIZE: u64 = 16 << 10;
const MAX_ESTIMATED_RESPONSES: u64 = 4096;

/// The fallback caches of a generation.
#[derive(Debug, Default)]
pub struct Fallbacks {
    /// One per rule, by its index.
    caches: Box<[Option<Arc<RuleCache>>]>,
    /// Headers that identify clients according to the configuration.
    personal_headers: Arc<[HeaderName]>,
}

/// A request, with what is known about its client and its upstream.
#[derive(Clone, Copy)]
pub(super) struct IncomingRequest<'a, 'h> {
    head: &'a request::Parts,
    has_body: bool,
    hop: &'a Hop<'a>,
    attributes: &'a Attributes<'h>,
    policy: &'a Policy,
    /// In the order of the policy's routes.
    upstreams: &'a [Rc<Upstream>],
}

/// The stored responses of one rule.
#[derive(Debug)]
struct RuleCache {
    rule: Box<str>,
    settings: FallbackCacheSettings,
    headers: CacheHeaderRules,
    responses: Cache<Box<[u8]>, Arc<CachedResponse>, SizeWeighter>,
    recordings: RecordingRegistry,
}

#[derive(Clone, Debug)]
struct SizeWeighter;

impl Weighter<Box<[u8]>, Arc<CachedResponse>> for SizeWeighter {
    fn weight(&self, key: &Box<[u8]>, response: &Arc<CachedResponse>) -> u64 {
        (key.len() + response.size()) as u64
    }
}

impl Fallbacks {
    /// Creates the caches of `policy`. Those of `before` are kept if their rule and settings still exist.
    pub fn new(policy: &Policy, before: &Self) -> Self {
        if policy.rules.rules().iter().all(|rule| rule.rejection.cached_fallback.is_none()) {
            return Self::default();
        }
        let personal: Arc<[_]> = policy.identifying_headers().into();
        // If further headers identify clients now, older responses may have been meant for one client only.
        let known: &[_] = if personal == before.personal_headers { &before.caches } else { &[] };
        let cache = |rule: &str, settings: &FallbackCacheSettings| {
            let known =
                known.iter().flatten().find(|known| &*known.rule == rule && known.settings == *settings);
            known.cloned().or_else(|| RuleCache::new(rule, settings.clone(), &personal).map(Arc::new))
        };
        let rules = policy.rules.rules().iter();
        let caches = rules.map(|rule| cache(&rule.name, rule.rejection.cached_fallback.as_ref()?)).collect();
        Self { caches, personal_headers: personal }
    }

    /// Returns the stored response to the same request, for a request that `rule` rejects.
    pub(super) fn look_up(
        &self,
        rule: RuleIndex,
        request: IncomingRequest<'_, '_>,
        now: Timestamp,
    ) -> Option<Arc<CachedResponse>> {
        let memory = self.cache(rule)?;
        if !matches!(request.head.method, Method::GET | Method::HEAD) || request.has_body() {
            return None;
        }
        let key = request.key(&memory.headers);
        let mut stored = key.to_look_up().filter_map(|key| memory.responses.get(key));
        stored.find(|kept| kept.is_usable(now, memory.settings.max_age))
    }

    /// Prepares to record the response to a request that its limits admit so far.
    pub(super) fn record(
        &self,
        pending: &PendingLimits,
        request: IncomingRequest<'_, '_>,
        now: Timestamp,
    ) -> Option<Box<Recorder>> {
        // A service may read the body of a GET, which is not part of the key.
        if self.caches.is_empty() || request.head.method != Method::GET || request.has_body() {
            return None;
        }
        // A service may respond differently to requests that are marked as over a limit.
        if pending.limits().marked_rules().next().is_some() {
            return None;
        }
        let takings: Vec<_> = pending
            .rules()
            .filter_map(|rule| self.cache(rule))
            .filter_map(|memory| {
                let key = request.key(&memory.headers);
                ActiveRecording::start(memory, key.to_store()?, now)
            })
            .collect();
        (!takings.is_empty()).then(|| Box::new(Recorder::new(takings, now)))
    }

    fn cache(&self, rule: RuleIndex) -> Option<&Arc<RuleCache>> {
        self.caches.get(rule.0)?.as_ref()
    }
}

impl RuleCache {
    fn new(rule: &str, keeping: FallbackCacheSettings, personal: &Arc<[HeaderName]>) -> Option<Self> {
        let headers =
            CacheHeaderRules { personal: Arc::clone(personal), ignored: Arc::clone(&keeping.ignored) };
        let usual =
            usize::try_from((keeping.budget / TYPICAL_RESPONSE_SIZE).clamp(1, MAX_ESTIMATED_RESPONSES))
                .ok()?;
        let options = OptionsBuilder::new()
            // A single shard, so that every response may use the whole budget.
            .shards(1)
            .estimated_items_capacity(usual)
            .weight_capacity(keeping.budget)
            .build()
            .ok()?;
        let answers = Cache::with_options(
            options,
            SizeWeighter,
            DefaultHashBuilder::default(),
            DefaultLifecycle::default(),
        );
        Some(Self {
            rule: rule.into(),
            settings: keeping,
            headers,
            responses: answers,
            recordings: RecordingRegistry::default(),
        })
    }
}

impl<'a, 'h> IncomingRequest<'a, 'h> {
    #[inline]
    pub(super) const fn new(
        head: &'a request::Parts,
        has_body: bool,
        hop: &'a Hop<'a>,
        attributes: &'a Attributes<'h>,
        policy: &'a Policy,
        upstreams: &'a [Rc<Upstream>],
    ) -> Self {
        Self { head, has_body, hop, attributes, policy, upstreams }
    }

    /// Whether the request has a body. Over HTTP/2, a body needs no length.
    fn has_body(&self) -> bool {
        let headers = &self.head.headers;
        headers.contains_key(CONTENT_LENGTH) || headers.contains_key(TRANSFER_ENCODING) || self.has_body
    }

    fn key(&self, headers: &CacheHeaderRules) -> CacheKey {
        // Before the request is prepared for its upstream, only a forward proxy hides its clients.
        let Hop { tls, client, hides_client, .. } = *self.hop;
        let trusted = &self.policy.identify.trusted_proxies;
        let certified = tls.filter(|tls| tls.certificate.is_some());
        let route = self.policy.routes.choose(self.attributes);
        let upstream = route.and_then(|route| self.upstreams.get(route));
        // No upstream has a name with spaces.
        let forward_proxy = hides_client.then(|| match self.head.uri.scheme_str() {
            Some("https") => "forward proxy https",
            Some(_) | None => "forward proxy http",
        });
        let request = cache_key::CacheRequest {
            upstream: forward_proxy
                .unwrap_or_else(|| upstream.map_or("", |upstream| &upstream.settings().name)),
            authority: authority(self.head),
            target: self.head.uri.path_and_query().map_or("/", |target| target.as_str()),
            is_tls: tls.is_some(),
            headers: &self.head.headers,
            client: client.ip,
            peer_is_trusted: client.peer_is_trusted,
            chain_is_trusted: client_ip::is_chain_trusted(client, &self.head.headers, trusted),
            certificate: certified.map(|tls| tls.forwarded.as_ref().map_or(&[][..], |told| told.as_bytes())),
        };
        CacheKey::new(&request, headers)
    }
}

/// Returns the host and port as the upstream receives them.
fn authority(head: &request::Parts) -> &[u8] {
    match head.uri.authority() {
        Some(authority) => authority.as_str().rsplit('@').next().unwrap_or_default().as_bytes(),
        None => head.headers.get(HOST).map_or(b"", |host| host.as_bytes()),
    }
}

#[cfg(test)]
mod tests;
