//! The last good responses, stored for the requests that a rule rejects.
//!
//! Each rule that asks for it has a cache of its own within its budget, shared by the workers and kept across
//! reloads that leave its settings as they are. A response is copied while it passes and stored when its last
//! byte has gone by; `response::fallback` says under which key, and which may be stored at all. What is being copied has a
//! budget of the same size, since how long that takes is up to the client.

mod recorder;
mod taking;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderName, Method, request};
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

pub(super) use self::recorder::Recorder;
use self::taking::{Desk, Taking};
use super::headers::Hop;
use crate::engine::Policy;
use crate::identify::{Attributes, client_ip};
use crate::limiter::timestamp::Timestamp;
use crate::limits::Pending;
use crate::response::fallback::cache_key::{self, CacheKey, Headers};
use crate::response::fallback::{Keeping, Kept};
use crate::rules::RuleIndex;
use crate::upstream::Upstream;

/// An answer is taken down anew when the kept one has reached this age: often enough for what is called old.
const REFRESH: Duration = Duration::from_secs(1);
/// About the size of an answer, for the bookkeeping of a memory.
const USUAL_SIZE: u64 = 16 << 10;
const MOST_USUAL: u64 = 4096;

/// The memories of a generation.
#[derive(Debug, Default)]
pub struct Fallbacks {
    /// Beside its rules.
    memories: Box<[Option<Arc<Memory>>]>,
    /// The headers by which the configuration tells clients apart.
    personal: Arc<[HeaderName]>,
}

/// A request and what is known of where it came from and goes to.
#[derive(Clone, Copy)]
pub(super) struct IncomingRequest<'a> {
    head: &'a request::Parts,
    has_body: bool,
    hop: &'a Hop<'a>,
    attributes: &'a Attributes<'a>,
    policy: &'a Policy,
    /// In the order of the policy's routes.
    upstreams: &'a [Rc<Upstream>],
}

/// The answers that are kept for one rule.
#[derive(Debug)]
struct Memory {
    rule: Box<str>,
    keeping: Keeping,
    headers: Headers,
    answers: Cache<Box<[u8]>, Arc<Kept>, Size>,
    desk: Desk,
}

#[derive(Clone, Debug)]
struct Size;

impl Weighter<Box<[u8]>, Arc<Kept>> for Size {
    fn weight(&self, key: &Box<[u8]>, kept: &Arc<Kept>) -> u64 {
        (key.len() + kept.size()) as u64
    }
}

impl Fallbacks {
    /// The memories of `policy`, those of `before` among them where they are still asked for.
    pub fn of(policy: &Policy, before: &Self) -> Self {
        if policy.rejections.iter().all(|refusal| refusal.keeping.is_none()) {
            return Self::default();
        }
        let personal: Arc<[_]> = policy.telling_headers().into();
        // Where clients are told apart by more headers than before, older responses may have been for one of them.
        let known: &[_] = if personal == before.personal { &before.memories } else { &[] };
        let rules = policy.rules.rules().iter().zip(&policy.rejections);
        let memory = |(rule, keeping): (&str, &Keeping)| {
            let known =
                known.iter().flatten().find(|memory| &*memory.rule == rule && memory.keeping == *keeping);
            known.cloned().or_else(|| Memory::new(rule, keeping.clone(), &personal).map(Arc::new))
        };
        let memories = rules.map(|(rule, refusal)| memory((&rule.name, refusal.keeping.as_ref()?))).collect();
        Self { memories, personal }
    }

    /// The stored response to the same request, for one that `rule` rejects.
    pub(super) fn look_up(
        &self,
        rule: RuleIndex,
        request: IncomingRequest<'_>,
        now: Timestamp,
    ) -> Option<Arc<Kept>> {
        let memory = self.memory(rule)?;
        if !matches!(request.head.method, Method::GET | Method::HEAD) || request.has_body() {
            return None;
        }
        let key = request.key(&memory.headers);
        let mut stored = key.to_look_up().filter_map(|key| memory.answers.get(key));
        stored.find(|kept| kept.is_usable(now, memory.keeping.max_age))
    }

    /// Prepares to store the response to a request that passed `limits`.
    pub(super) fn record(
        &self,
        pending: &Pending,
        request: IncomingRequest<'_>,
        now: Timestamp,
    ) -> Option<Box<Recorder>> {
        // A service may read the body of a GET, and the key does not have it.
        if self.memories.is_empty() || request.head.method != Method::GET || request.has_body() {
            return None;
        }
        // A service may have another response for what is marked as over a limit.
        if pending.so_far().marking().next().is_some() {
            return None;
        }
        let takings: Vec<_> = pending
            .rules()
            .filter_map(|rule| self.memory(rule))
            .filter_map(|memory| {
                let key = request.key(&memory.headers);
                Taking::begin(memory, key.to_store()?, now)
            })
            .collect();
        (!takings.is_empty()).then(|| Box::new(Recorder::new(takings, now)))
    }

    fn memory(&self, rule: RuleIndex) -> Option<&Arc<Memory>> {
        self.memories.get(rule.0)?.as_ref()
    }
}

impl Memory {
    fn new(rule: &str, keeping: Keeping, personal: &Arc<[HeaderName]>) -> Option<Self> {
        let headers = Headers { personal: Arc::clone(personal), ignored: Arc::clone(&keeping.ignored) };
        let usual = usize::try_from((keeping.budget / USUAL_SIZE).clamp(1, MOST_USUAL)).ok()?;
        let options = OptionsBuilder::new()
            // One, so that the budget is that of each answer, not a part of it.
            .shards(1)
            .estimated_items_capacity(usual)
            .weight_capacity(keeping.budget)
            .build()
            .ok()?;
        let answers =
            Cache::with_options(options, Size, DefaultHashBuilder::default(), DefaultLifecycle::default());
        Some(Self { rule: rule.into(), keeping, headers, answers, desk: Desk::default() })
    }
}

impl<'a> IncomingRequest<'a> {
    #[inline]
    pub(super) const fn new(
        head: &'a request::Parts,
        has_body: bool,
        hop: &'a Hop<'a>,
        attributes: &'a Attributes<'a>,
        policy: &'a Policy,
        upstreams: &'a [Rc<Upstream>],
    ) -> Self {
        Self { head, has_body, hop, attributes, policy, upstreams }
    }

    /// Over HTTP/2 a body needs no length.
    fn has_body(&self) -> bool {
        let headers = &self.head.headers;
        headers.contains_key(CONTENT_LENGTH) || headers.contains_key(TRANSFER_ENCODING) || self.has_body
    }

    fn key(&self, headers: &Headers) -> CacheKey {
        let Hop { tls, client, .. } = *self.hop;
        let trusted = &self.policy.identify.trusted_proxies;
        let certified = tls.filter(|tls| tls.certificate.is_some());
        let route = self.policy.routes.choose(self.attributes);
        let upstream = route.and_then(|route| self.upstreams.get(route));
        let request = cache_key::Request {
            upstream: upstream.map_or("", |upstream| &upstream.settings().name),
            authority: authority(self.head),
            target: self.head.uri.path_and_query().map_or("/", |target| target.as_str()),
            is_secured: tls.is_some(),
            headers: &self.head.headers,
            client: client.ip,
            peer_is_trusted: client.peer_is_trusted,
            chain_is_trusted: client_ip::is_vouched_for(client, &self.head.headers, trusted),
            certificate: certified.map(|tls| tls.forwarded.as_ref().map_or(&[][..], |told| told.as_bytes())),
        };
        CacheKey::new(&request, headers)
    }
}

/// The host and port in the spelling that the upstream gets.
fn authority(head: &request::Parts) -> &[u8] {
    match head.uri.authority() {
        Some(authority) => authority.as_str().rsplit('@').next().unwrap_or_default().as_bytes(),
        None => head.headers.get(HOST).map_or(b"", |host| host.as_bytes()),
    }
}

#[cfg(test)]
mod tests;
