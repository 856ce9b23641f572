//! The last good answers, kept for those whose requests are refused.
//!
//! Each rule that asks for it has a memory of its own within its budget, shared by the workers and kept across
//! reloads that leave its settings as they are. An answer is taken down while it passes and kept when its last
//! byte has gone by; who may get it is for `response::fallback` to say.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, Method, StatusCode, request};
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use crate::identify::host::Host;
use crate::limiter::timestamp::Timestamp;
use crate::policy::Policy;
use crate::response::fallback::{Asked, Keeping, Kept};
use crate::rules::RuleIndex;

/// An answer is taken down anew when the kept one has reached this age: often enough for what is called old.
const REFRESH: Duration = Duration::from_secs(1);
/// About the size of an answer, for the bookkeeping of a memory.
const USUAL_SIZE: u64 = 16 << 10;
const MOST_USUAL: u64 = 4096;

/// The memories of a generation, beside its rules.
#[derive(Debug, Default)]
pub struct Fallbacks(Box<[Option<Arc<Memory>>]>);

/// The answers that are kept for one rule.
#[derive(Debug)]
struct Memory {
    rule: Box<str>,
    keeping: Keeping,
    answers: Cache<Box<[u8]>, Arc<Kept>, Size>,
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
        if policy.refusals.iter().all(|refusal| refusal.keeping.is_none()) {
            return Self::default();
        }
        let rules = policy.rules.rules().iter().zip(&policy.refusals);
        let memory = |(rule, keeping): (&str, Keeping)| {
            let known =
                before.0.iter().flatten().find(|memory| &*memory.rule == rule && memory.keeping == keeping);
            known.cloned().or_else(|| Memory::new(rule, keeping).map(Arc::new))
        };
        Self(rules.map(|(rule, refusal)| memory((&rule.name, refusal.keeping?))).collect())
    }

    /// What was last answered to the same request, for one that `rule` refuses.
    pub(super) fn recall(&self, rule: RuleIndex, head: &request::Parts, now: Timestamp) -> Option<Arc<Kept>> {
        let memory = self.memory(rule)?;
        if !matches!(head.method, Method::GET | Method::HEAD) {
            return None;
        }
        let kept = memory.answers.get(&*key_of(head))?;
        kept.suits(&Asked::with(&head.headers), now, memory.keeping.max_age).then_some(kept)
    }

    /// Prepares to take down the answer to a request that passed `rules`.
    pub(super) fn listen(
        &self,
        rules: impl Iterator<Item = RuleIndex>,
        head: &request::Parts,
        now: Timestamp,
    ) -> Option<Box<Capture>> {
        if self.0.is_empty() || head.method != Method::GET || has_body(&head.headers) {
            return None;
        }
        let mut memories: Vec<_> = rules.filter_map(|rule| self.memory(rule)).cloned().collect();
        if memories.is_empty() {
            return None;
        }
        let key = key_of(head);
        memories.retain(|memory| memory.answers.peek(&*key).is_none_or(|kept| kept.kept_for(now) >= REFRESH));
        let largest = memories.iter().map(|memory| memory.keeping.largest).max()?;
        let asked = Asked::with(&head.headers);
        Some(Box::new(Capture { memories, key, asked, at: now, largest, kept: None, body: Vec::new() }))
    }

    fn memory(&self, rule: RuleIndex) -> Option<&Arc<Memory>> {
        self.0.get(rule.0)?.as_ref()
    }
}

impl Memory {
    fn new(rule: &str, keeping: Keeping) -> Option<Self> {
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
        Some(Self { rule: rule.into(), keeping, answers })
    }
}

/// An answer that is taken down while it passes.
#[derive(Debug)]
pub(super) struct Capture {
    memories: Vec<Arc<Memory>>,
    key: Box<[u8]>,
    asked: Asked,
    at: Timestamp,
    /// Bytes of a body that are worth taking down.
    largest: u64,
    /// The answer, once its head is known and may be kept.
    kept: Option<Kept>,
    body: Vec<u8>,
}

impl Capture {
    /// The head of the upstream's answer; whether there is any use in going on.
    pub(super) fn head(&mut self, status: StatusCode, headers: &HeaderMap) -> bool {
        self.kept = Kept::new(&self.asked, status, headers, self.at);
        self.kept.is_some()
    }

    /// A part of its body; whether there is any use in going on.
    pub(super) fn data(&mut self, data: &Bytes) -> bool {
        let length = (self.body.len() as u64).saturating_add(data.len() as u64);
        if length > self.largest {
            return false;
        }
        self.body.extend_from_slice(data);
        true
    }

    /// The body has come to its end.
    pub(super) fn keep(self) {
        let Self { memories, key, kept, mut body, .. } = self;
        let Some(kept) = kept else { return };
        body.shrink_to_fit();
        let kept = Arc::new(kept.with_body(Bytes::from(body)));
        for memory in memories {
            if kept.size() as u64 <= memory.keeping.largest {
                memory.answers.insert(key.clone(), Arc::clone(&kept));
            }
        }
    }
}

fn has_body(headers: &HeaderMap) -> bool {
    headers.contains_key(CONTENT_LENGTH) || headers.contains_key(TRANSFER_ENCODING)
}

/// What two requests must have in common to be the same: where they go, in full.
fn key_of(head: &request::Parts) -> Box<[u8]> {
    let host = Host::of(&head.uri, &head.headers);
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    [host.as_str().as_bytes(), b"\0", target.as_bytes()].concat().into()
}
