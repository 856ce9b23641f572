//! The last good answers, kept for those whose requests are refused.
//!
//! Each rule that asks for it has a memory of its own within its budget, shared by the workers and kept across
//! reloads that leave its settings as they are. An answer is taken down while it passes and kept when its last
//! byte has gone by; who may get it is for `response::fallback` to say. What is being taken down has a budget of the
//! same size, since how long that takes is up to the client.

mod capture;
mod taking;

use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, Method, request};
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

pub(super) use self::capture::Capture;
use self::taking::{Desk, Taking};
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

/// The memories of a generation.
#[derive(Debug, Default)]
pub struct Fallbacks {
    /// Beside its rules.
    memories: Box<[Option<Arc<Memory>>]>,
    /// The headers by which the configuration tells clients apart.
    telling: Box<[HeaderName]>,
}

/// The answers that are kept for one rule.
#[derive(Debug)]
struct Memory {
    rule: Box<str>,
    keeping: Keeping,
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
        if policy.refusals.iter().all(|refusal| refusal.keeping.is_none()) {
            return Self::default();
        }
        let telling = policy.telling_headers();
        // Who tells clients apart by more headers than before must not go by what was kept before.
        let known: &[_] = if telling == before.telling { &before.memories } else { &[] };
        let rules = policy.rules.rules().iter().zip(&policy.refusals);
        let memory = |(rule, keeping): (&str, Keeping)| {
            let known =
                known.iter().flatten().find(|memory| &*memory.rule == rule && memory.keeping == keeping);
            known.cloned().or_else(|| Memory::new(rule, keeping).map(Arc::new))
        };
        Self {
            memories: rules.map(|(rule, refusal)| memory((&rule.name, refusal.keeping?))).collect(),
            telling,
        }
    }

    /// What was last answered to the same request, for one that `rule` refuses.
    pub(super) fn recall(&self, rule: RuleIndex, head: &request::Parts, now: Timestamp) -> Option<Arc<Kept>> {
        let memory = self.memory(rule)?;
        if !matches!(head.method, Method::GET | Method::HEAD) {
            return None;
        }
        let kept = memory.answers.get(&*key_of(head))?;
        // Whose answer it was decides who may get it; who asks now does not.
        let asked = Asked::with(&head.headers, &self.telling, false);
        kept.suits(&asked, now, memory.keeping.max_age).then_some(kept)
    }

    /// Prepares to take down the answer to a request that passed `rules`; its client may be `is_certified`, by a
    /// certificate that holds.
    pub(super) fn listen(
        &self,
        rules: impl Iterator<Item = RuleIndex>,
        head: &request::Parts,
        is_certified: bool,
        now: Timestamp,
    ) -> Option<Box<Capture>> {
        if self.memories.is_empty() || head.method != Method::GET || has_body(&head.headers) {
            return None;
        }
        let mut memories = rules.filter_map(|rule| self.memory(rule)).peekable();
        memories.peek()?;
        let key = key_of(head).into();
        let takings: Vec<_> = memories.filter_map(|memory| Taking::begin(memory, &key, now)).collect();
        if takings.is_empty() {
            return None;
        }
        let asked = Asked::with(&head.headers, &self.telling, is_certified);
        Some(Box::new(Capture::new(takings, asked, now)))
    }

    fn memory(&self, rule: RuleIndex) -> Option<&Arc<Memory>> {
        self.memories.get(rule.0)?.as_ref()
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
        Some(Self { rule: rule.into(), keeping, answers, desk: Desk::default() })
    }
}

fn has_body(headers: &HeaderMap) -> bool {
    headers.contains_key(CONTENT_LENGTH) || headers.contains_key(TRANSFER_ENCODING)
}

/// What two requests must have in common to be the same: where they go, in full.
fn key_of(head: &request::Parts) -> Vec<u8> {
    let host = Host::of(&head.uri, &head.headers);
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    [host.as_str().as_bytes(), b"\0", target.as_bytes()].concat()
}

#[cfg(test)]
mod tests;
