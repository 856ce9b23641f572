//! Deferred calls: a rule with `respond` accepts calls at once and sends them later, at the rate of its limit.
//!
//! The limit of such a rule is not charged when a call is accepted. The call is stored together with its key, so that it
//! is counted under the same key when it is sent, whatever has changed since then, such as the time of a `schedule`.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use http::StatusCode;

use super::attribute::IncompleteKey;
use super::key::{self, KeyTemplate};
use super::matcher::Match;
use super::pattern::Route;
use super::rule::{Action, LimitAction, OnMissing};
use super::selection::{Denial, Selection, SideEffects};
use super::{ActionKind, RequestKey, RuleIndex, RuleSet};
use crate::identify::Attributes;
use weir_limiter::elastic::Headroom;
use weir_limiter::key::{KeyHash, KeyHasher};

/// How a rule accepts calls and sends them later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deferral {
    /// Status code of the response to an accepted call.
    pub status: StatusCode,
    /// Maximum number of attempts to send a call.
    pub attempts: NonZeroU32,
    /// Backoff after the first failed attempt.
    pub first_backoff: Duration,
    /// Maximum backoff.
    pub max_backoff: Duration,
    /// Maximum age of a call that is sent.
    pub max_age: Duration,
    /// Maximum size of a call's body, in bytes.
    pub max_body: u32,
    /// Maximum number of stored calls.
    pub max_stored: NonZeroU64,
}

/// A request that a rule defers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeferredRequest {
    pub rule: RuleIndex,
    /// Encoding of its key.
    pub key: Box<[u8]>,
}

/// A rejection of a request that a rule would defer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeniedDeferral {
    pub rule: RuleIndex,
    /// Why it rejects the request.
    pub denial: Denial,
}

impl RuleSet {
    /// Whether any rule defers requests.
    pub const fn has_deferrals(&self) -> bool {
        self.has_deferrals
    }

    /// Returns the first rule that defers a request, with its key.
    ///
    /// # Errors
    /// The rule that rejects the request, because its key is ambiguous or a required part is missing.
    pub fn deferral(&self, request: &Attributes<'_>) -> Result<Option<DeferredRequest>, DeniedDeferral> {
        for index in self.of_kind(&self.index.candidates(request), ActionKind::Defer) {
            let Action::Limit(limiting) = &self.rules[index].action else { continue };
            let rule = RuleIndex(index);
            let route = match self.rules[index].applies_to(request) {
                Match::No => continue,
                Match::Yes(route) => route,
                Match::Unclear(_, ambiguity) => {
                    return Err(DeniedDeferral { rule, denial: Denial::Ambiguous(ambiguity) });
                }
            };
            match (limiting.key.encoded(request, route), limiting.on_missing) {
                (Ok(key), _) => return Ok(Some(DeferredRequest { rule, key: key.as_slice().into() })),
                (Err(IncompleteKey::Ambiguous(ambiguity)), _) => {
                    return Err(DeniedDeferral { rule, denial: Denial::Ambiguous(ambiguity) });
                }
                (Err(IncompleteKey::Missing), OnMissing::Skip) => {}
                (Err(IncompleteKey::Missing), OnMissing::Shared) => {
                    return Ok(Some(DeferredRequest { rule, key: key::INCOMPLETE_KEY.into() }));
                }
                (Err(IncompleteKey::Missing), OnMissing::Deny) => {
                    return Err(DeniedDeferral { rule, denial: Denial::Forbidden });
                }
            }
        }
        Ok(None)
    }

    /// Selects the limits for sending a deferred request: only those of the rule that deferred it.
    pub fn select_deferred(
        &self,
        deferred: &DeferredRequest,
        request: &Attributes<'_>,
        headroom: Headroom,
    ) -> Selection {
        let mut selected = smallvec::SmallVec::new();
        if let Some(limiting) = self.get(deferred.rule).and_then(|rule| rule.action.limiting()) {
            let hasher = if limiting.shared().is_some() { self.fleet_hasher } else { self.hasher };
            let key = RequestKey {
                key: limiting.key.hash_encoded(&deferred.key, hasher),
                value: None,
                route: Route(""),
                is_complete: *deferred.key != *key::INCOMPLETE_KEY,
                is_enforced: limiting.is_enforced_for(&deferred.key),
                hasher,
            };
            self.add_checks(deferred.rule.0, limiting, key, request, headroom, &mut selected);
        }
        Selection::Limited(selected, SideEffects::default())
    }

    /// Whether the rule at `index` defers requests, so that only stored requests are subject to its limits.
    pub fn is_deferral(&self, index: RuleIndex) -> bool {
        self.has_deferrals && self.bound.get(index.0).is_some_and(|rule| rule.kind == ActionKind::Defer)
    }

    /// Yields the rules that defer requests.
    pub fn deferrals(&self) -> impl Iterator<Item = (RuleIndex, &str, &Deferral)> {
        self.rules.iter().enumerate().filter_map(|(index, rule)| {
            let deferral = rule.action.limiting()?.deferral.as_deref()?;
            Some((RuleIndex(index), &*rule.name, deferral))
        })
    }
}

impl KeyTemplate {
    /// Returns the key with this encoding; the same as that of a request with such a key.
    fn hash_encoded(&self, encoded: &[u8], hasher: KeyHasher) -> KeyHash {
        match (&*self.0, encoded) {
            // A lone IPv4 address: its length, and four bytes.
            ([part], &[0, 0, 0, 4, a, b, c, d]) if part.is_address() => {
                hasher.hash_u32(u32::from_be_bytes([a, b, c, d]))
            }
            _ => hasher.hash(encoded),
        }
    }
}

impl LimitAction {
    /// Whether the rule is enforced, not in shadow mode, for the key with this encoding.
    fn is_enforced_for(&self, encoded: &[u8]) -> bool {
        self.throttle != super::rule::Throttle::Shadow && self.enforced_share.includes(encoded)
    }
}
