//! A rule bound to its limits: what the selection reads of it, and the state of limits that change.
//!
//! It is computed once per configuration, and kept apart from the rule as configured, which is larger: a request that many
//! rules apply to reads few cache lines of each.

use std::sync::Arc;

use foldhash::HashMap;
use smallvec::SmallVec;

use super::attribute::{Attribute, IncompleteKey};
use super::key::KeyTemplate;
use super::planned_checks::PlannedCheck;
use super::rule::{Action, LimitAction, LimitSource, Rule};
use super::selection::{CheckRole, SelectedCheck};
use weir_limiter::adaptive::limits::AdaptiveLimits;
use weir_limiter::feedback::states::RuleFeedback;
use weir_limiter::key::KeyHash;

/// Number of keys of one request that are remembered.
const MEMO_SIZE: usize = 4;

/// The variant of an [`Action`], without its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ActionKind {
    Allow,
    Deny,
    Limit,
    /// A limit that is charged when a deferred request is sent.
    Defer,
}

/// Everything that one configuration generation keeps of a rule, beside the rule as configured.
#[derive(Debug)]
pub(super) struct BoundRule {
    pub(super) kind: ActionKind,
    /// Whether the rule applies to every request.
    pub(super) applies_to_all: bool,
    /// Whether the rule is enforced, not in shadow mode; `None` if that depends on the key.
    pub(super) is_enforced: Option<bool>,
    /// The rule's key; `None` if the key of a request depends on the rule.
    pub(super) key: Option<KeyId>,
    /// Whether the checks of all requests differ in nothing but the key, which has an id.
    is_constant: bool,
    /// The checks that the rule makes. Most rules make one, which is here: bound rules are read in a row.
    pub(super) checks: SmallVec<[PlannedCheck; 1]>,
    // Few rules have what follows, and a selection of other rules does not read it.
    /// Its limits inside streams.
    pub(super) streams: Box<[PlannedCheck]>,
    /// State of the adaptive concurrency limit.
    pub(super) adaptive_limits: Option<Arc<AdaptiveLimits>>,
    /// Signals of the provider that the rule follows.
    pub(super) feedback: Option<Arc<RuleFeedback>>,
}

/// Identifies a key among those of a configuration. A request has the same key under all rules with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyId(u32);

/// Some keys of a request under the rules so far. Most rules have the same few.
#[derive(Debug, Default)]
pub(super) struct KeyMemo([Option<(KeyId, Result<KeyHash, IncompleteKey>)>; MEMO_SIZE]);

impl KeyMemo {
    /// Returns the key with this id, which `compute` returns if it is not known. A key without an id is always computed.
    #[inline]
    pub(super) fn get_or_insert(
        &mut self,
        id: Option<KeyId>,
        compute: impl FnOnce() -> Result<KeyHash, IncompleteKey>,
    ) -> Result<KeyHash, IncompleteKey> {
        let Some(id) = id else { return compute() };
        match &mut self.0[id.0 as usize % MEMO_SIZE] {
            Some((known, key)) if *known == id => *key,
            slot => slot.insert((id, compute())).1,
        }
    }

    /// Returns the key with this id, if it is known and complete.
    #[inline]
    fn get(&self, id: KeyId) -> Option<KeyHash> {
        match self.0[id.0 as usize % MEMO_SIZE] {
            Some((known, Ok(key))) if known == id => Some(key),
            _ => None,
        }
    }
}

impl BoundRule {
    /// Binds `rules`, which make these `checks`.
    pub(super) fn bind_all(rules: &[Rule], checks: Box<[Box<[PlannedCheck]>]>) -> Box<[Self]> {
        let mut ids = KeyIds::default();
        let mut bound = Vec::with_capacity(rules.len());
        for (rule, checks) in rules.iter().zip(checks) {
            let limiting = rule.action.limiting();
            let is_stream = |planned: &PlannedCheck| matches!(planned.role(), CheckRole::Stream(_));
            let (streams, checks): (Vec<_>, Vec<_>) = checks.into_vec().into_iter().partition(is_stream);
            let mut rule = Self {
                kind: ActionKind::of(&rule.action),
                applies_to_all: rule.except.is_empty() && rule.matcher.holds_for_all(),
                is_enforced: limiting.map_or(Some(true), LimitAction::constant_enforcement),
                key: limiting.and_then(|limiting| ids.get_or_insert(limiting)),
                is_constant: false,
                checks: checks.into(),
                streams: streams.into(),
                adaptive_limits: None,
                feedback: None,
            };
            rule.is_constant = limiting.is_some_and(|limiting| rule.is_constant_for(limiting));
            bound.push(rule);
        }
        bound.into()
    }

    /// Whether the checks of all requests under the rule with these settings differ in nothing but the key.
    fn is_constant_for(&self, limiting: &LimitAction) -> bool {
        let is_counted_here = match limiting.source {
            LimitSource::Local | LimitSource::Shared(_) => true,
            LimitSource::Remote(_) => false,
        };
        is_counted_here
            && self.applies_to_all
            && self.is_enforced.is_some()
            && self.checks.iter().all(|planned| planned.is_constant)
    }

    /// Returns the key of a request whose checks can be [added](Self::add_constant_checks) without reading the rule, because
    /// an earlier rule has the same key.
    #[inline]
    pub(super) fn known_key(&self, memo: &KeyMemo) -> Option<KeyHash> {
        self.key.filter(|_| self.is_constant).and_then(|id| memo.get(id))
    }

    /// Adds the checks of a request with this key.
    #[inline]
    pub(super) fn add_constant_checks(&self, key: KeyHash, selected: &mut SmallVec<[SelectedCheck; 2]>) {
        for planned in &self.checks {
            planned.add_constant(key, self.is_enforced == Some(true), selected);
        }
    }
}

/// The ids of keys. Keys of shared limits are hashed differently, so they have other ids.
#[derive(Debug, Default)]
struct KeyIds<'a>(HashMap<(&'a KeyTemplate, bool), KeyId>);

impl<'a> KeyIds<'a> {
    /// Returns the id of a rule's key; `None` if the key of a request depends on the rule.
    fn get_or_insert(&mut self, limiting: &'a LimitAction) -> Option<KeyId> {
        let next = KeyId(u32::try_from(self.0.len()).ok()?);
        let key = (&limiting.key, limiting.shared().is_some());
        limiting.key.is_independent_of_rule().then(|| *self.0.entry(key).or_insert(next))
    }
}

impl ActionKind {
    fn of(action: &Action) -> Self {
        match action {
            Action::Allow => Self::Allow,
            Action::Deny => Self::Deny,
            Action::Limit(limiting) if limiting.deferral.is_some() => Self::Defer,
            Action::Limit(_) => Self::Limit,
        }
    }
}

impl KeyTemplate {
    /// Whether all rules with this key have the same one for a request.
    fn is_independent_of_rule(&self) -> bool {
        !self.0.iter().any(Attribute::depends_on_rule)
    }
}
