//! Rule matching: finds the limits that apply to a request.
//!
//! Every rule that matches applies. A matching `allow` rule exempts the request from all other rules. Otherwise a
//! matching `deny` rule rejects it. Otherwise the limits of all matching rules become the checks that the request must
//! pass. A request that can be read in two ways is rejected if the reading decides whether a `deny` rule or a limit
//! applies, or which counter is charged. The module is pure. A rule set is compiled once per configuration and is
//! immutable.

pub mod attribute;
pub mod classes;
pub mod containment;
pub mod cost;
pub mod cost_unit;
pub mod deferral;
pub mod enforced_share;
pub mod error_bound;
pub mod explain;
pub mod feedback;
pub mod group_place;
pub mod grpc;
pub mod header_twins;
pub mod key;
pub mod key_text;
pub mod matcher;
pub mod membership;
pub mod outcome;
pub mod own_limits;
pub mod path_set;
pub mod pattern;
pub mod remote_limit;
pub mod routes;
pub mod rule;
pub mod schedule;
pub mod selection;
pub mod shared_limit;
pub mod stated_limit;
pub mod stream_limit;
pub mod streams;
pub mod value_list;
pub mod wait;

mod alternatives;
mod body_need;
mod bound_rule;
mod changing_limits;
mod index;
mod planned_checks;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use smallvec::SmallVec;

use self::alternatives::RuleGroups;
use self::attribute::IncompleteKey;
use self::bound_rule::{ActionKind, BoundRule, KeyMemo};
use self::index::CandidateIndex;
use self::matcher::Match;
use self::pattern::Route;
use self::planned_checks::PlannedCheck;
pub use self::planned_checks::{RequiredLimits, StoreLossFallback, limit_specs};
use self::remote_limit::RemoteQuery;
use self::rule::{Action, LimitAction, LimitSource, OnMissing, Rule};
use self::selection::{CheckRole, Denial, SelectedCheck, Selection};
use self::shared_limit::InstanceSource;
use crate::identify::Attributes;
use weir_limiter::decision::Enforcement;
use weir_limiter::elastic::Headroom;
use weir_limiter::key::{KeyHash, KeyHasher};
use weir_limiter::{Check, LimitHandle, LimitId};

/// Maximum number of checks for which there is room before any rule has been matched.
const MAX_RESERVED: usize = 64;

/// A rule's position in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleIndex(pub usize);

/// All rules of one configuration, bound to the limit handles that count for them.
#[derive(Debug)]
pub struct RuleSet {
    /// The rules as configured, in file order. Generations of one configuration share them.
    rules: Arc<[Rule]>,
    /// Index of the rules for proxied requests.
    index: CandidateIndex,
    /// Index of the rules of each Envoy domain.
    domains: HashMap<Box<str>, CandidateIndex>,
    /// What this generation keeps of each rule, parallel to `rules`.
    bound: Box<[BoundRule]>,
    /// Whether no rule is `allow` or `deny`.
    all_limit: bool,
    /// Whether any rule defers requests.
    has_deferrals: bool,
    /// Whether any rule has limits inside streams.
    has_streams: bool,
    /// Groups of rules of which a request needs one.
    groups: RuleGroups,
    elastic: bool,
    /// Whether any rule follows a provider.
    has_feedback: bool,
    hasher: KeyHasher,
    /// Hasher for keys of shared limits.
    fleet_hasher: KeyHasher,
    /// Replacement of each shared limit while the store is unreachable.
    store_loss_fallbacks: HashMap<LimitId, StoreLossFallback>,
}

/// Rejection by a rule before any of its limits is evaluated.
struct EarlyDenial {
    /// Whether the rule is enforced for the request. If not, it is in shadow mode.
    is_enforced: bool,
    denial: Denial,
}

/// Key of a request under one rule.
#[derive(Clone, Copy)]
struct RequestKey<'r> {
    key: KeyHash,
    /// The route by which the rule applies, which may be part of the key.
    route: Route<'r>,
    /// Whether every part of the key is present. All requests without some part share one key.
    is_complete: bool,
    is_enforced: bool,
    /// Hash of the key and the value, if different values are counted.
    value: Option<KeyHash>,
    hasher: KeyHasher,
}

impl RuleSet {
    /// Creates a rule set of `rules` in file order, from which `limits` were created. The limiter has returned `handles`
    /// for them.
    pub fn bind(
        rules: Arc<[Rule]>,
        limits: &RequiredLimits,
        handles: &[LimitHandle],
        hasher: KeyHasher,
    ) -> Self {
        let bound = BoundRule::bind_all(&rules, limits.planned_checks(&rules, handles));
        let mut kinds = bound.iter().map(|rule| rule.kind);
        let planned = bound.iter().flat_map(|rule| &rule.checks);
        Self {
            store_loss_fallbacks: planned
                .filter_map(|planned| Some((planned.handle().id, planned.fallback?)))
                .collect(),
            index: CandidateIndex::new(&rules, |rule| !rule.reads_descriptors()),
            domains: domains(&rules),
            all_limit: kinds.clone().all(|kind| matches!(kind, ActionKind::Limit | ActionKind::Defer)),
            has_deferrals: kinds.any(|kind| kind == ActionKind::Defer),
            groups: RuleGroups::new(&rules),
            has_streams: bound.iter().any(|rule| !rule.streams.is_empty()),
            bound,
            elastic: rules.iter().any(Rule::is_elastic),
            has_feedback: false,
            rules,
            hasher,
            fleet_hasher: hasher,
        }
    }

    /// Returns this rule set with another hasher for keys of shared limits.
    pub fn in_fleet(self, fleet: KeyHasher) -> Self {
        Self { fleet_hasher: fleet, ..self }
    }

    /// Returns all rules, in file order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    pub fn get(&self, index: RuleIndex) -> Option<&Rule> {
        self.rules.get(index.0)
    }

    /// Returns the limit handles of the rule at `index`: limits, concurrency limit, ban, and replacements of shared
    /// limits.
    pub fn limit_handles(&self, index: RuleIndex) -> impl Iterator<Item = LimitHandle> + '_ {
        self.planned_checks(index).flat_map(PlannedCheck::handles)
    }

    /// Returns the checks of the rule at `index`, each with its limit handle.
    pub fn rule_checks(&self, index: RuleIndex) -> impl Iterator<Item = (CheckRole, LimitHandle)> + '_ {
        self.planned_checks(index).map(|planned| (planned.role(), planned.handle()))
    }

    fn planned_checks(&self, index: RuleIndex) -> impl Iterator<Item = &PlannedCheck> {
        self.bound.get(index.0).into_iter().flat_map(|rule| rule.checks.iter().chain(&rule.streams))
    }

    /// Returns the bans of shared rules, each with a limit that has the same key. The store keeps a ban with the
    /// counters of that limit.
    ///
    /// Rules that share a counter are left out: a ban belongs to one rule, so there each instance has bans of its own.
    pub fn shared_bans(&self) -> impl Iterator<Item = (LimitHandle, LimitHandle)> + '_ {
        self.rules.iter().zip(&self.bound).filter_map(|(rule, BoundRule { checks, .. })| {
            let Action::Limit(limiting) = &rule.action else { return None };
            if !limiting.is_leased() || limiting.counter.is_some() {
                return None;
            }
            let ban = checks.iter().find(|planned| planned.role() == CheckRole::Ban)?;
            let mut beside = checks.iter().filter(|planned| limiting.has_ban_key(planned.role()));
            // A rate limit contacts the store more often than a concurrency limit does.
            let rate = beside.clone().find(|planned| planned.role() != CheckRole::Permit);
            Some((ban.handle(), rate.or_else(|| beside.next())?.handle()))
        })
    }

    /// Returns the DNS names whose address counts are the numbers of instances that limits are divided by.
    pub fn names_of_instances(&self) -> BTreeSet<Box<str>> {
        let name = |rule: &Rule| match &rule.shared()?.instances {
            Some(InstanceSource::Dns(name)) => Some(name.clone()),
            Some(_) | None => None,
        };
        self.rules.iter().filter_map(name).collect()
    }

    /// Whether any limit is counted in the store, shared with other instances.
    pub fn is_shared(&self) -> bool {
        !self.store_loss_fallbacks.is_empty()
    }

    /// Returns the replacement of a shared limit while the store is unreachable.
    pub fn store_loss_fallback(&self, handle: LimitHandle) -> Option<StoreLossFallback> {
        self.store_loss_fallbacks.get(&handle.id).copied()
    }

    /// Makes `check` count locally, as its rule requires while the store is unreachable; returns whether requests may
    /// pass.
    pub fn use_store_loss_fallback(&self, check: &mut Check) -> bool {
        match self.store_loss_fallback(check.handle) {
            Some(StoreLossFallback::Counted(handle)) => check.handle = handle,
            Some(StoreLossFallback::Marked(handle)) => {
                check.handle = handle;
                check.enforcement = Enforcement::Marking;
            }
            Some(StoreLossFallback::Denied) | None => return false,
        }
        true
    }

    /// Whether any limit is elastic, so that headroom must be measured.
    pub fn is_elastic(&self) -> bool {
        self.elastic
    }

    /// Matches all rules against a proxied request, with this headroom for elastic limits.
    pub fn select(&self, request: &Attributes<'_>, headroom: Headroom) -> Selection {
        self.select_among(&self.index.candidates(request), request, headroom)
    }

    /// As [`Self::select`], in the memory of another selection.
    #[inline]
    pub fn select_into(&self, found: &mut Selection, request: &Attributes<'_>, headroom: Headroom) {
        self.select_among_into(found, &self.index.candidates(request), request, headroom);
    }

    /// Whether any rule is for this Envoy domain.
    pub fn has_domain(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// Matches the rules of `domain` against an Envoy descriptor.
    pub fn select_in(&self, domain: &str, request: &Attributes<'_>) -> Selection {
        let candidates = self.domains.get(domain).map(|index| index.candidates(request));
        self.select_among(&candidates.unwrap_or_default(), request, Headroom::NONE)
    }

    /// Returns those of `candidates` whose rule is of this kind.
    fn of_kind(&self, candidates: &[u32], kind: ActionKind) -> impl Iterator<Item = usize> {
        let indices = candidates.iter().map(|candidate| *candidate as usize);
        indices.filter(move |index| self.bound[*index].kind == kind)
    }

    /// Matches the rules at `candidates`, which must be ascending.
    #[inline]
    fn select_among(&self, candidates: &[u32], request: &Attributes<'_>, headroom: Headroom) -> Selection {
        let mut found = Selection::default();
        self.select_among_into(&mut found, candidates, request, headroom);
        found
    }

    fn select_among_into(
        &self,
        found: &mut Selection,
        candidates: &[u32],
        request: &Attributes<'_>,
        headroom: Headroom,
    ) {
        if !self.all_limit
            && let Some(decided) = self.decided_without_limits(candidates, request)
        {
            *found = decided;
            return;
        }
        let (selected, beside) = found.clear();
        selected.reserve(candidates.len().min(MAX_RESERVED));
        let mut memo = KeyMemo::default();
        for index in self.of_kind(candidates, ActionKind::Limit) {
            let rule = &self.bound[index];
            if let Some(key) = rule.known_key(&memo) {
                rule.add_constant_checks(key, selected);
                continue;
            }
            match self.select_limits(index, request, headroom, &mut memo, selected, &mut beside.queries) {
                None => {}
                Some(EarlyDenial { is_enforced: true, denial }) => {
                    *found = Selection::Denied(RuleIndex(index), denial);
                    return;
                }
                Some(EarlyDenial { is_enforced: false, .. }) => beside.shadow_rules.push(RuleIndex(index)),
            }
        }
        if !self.groups.is_empty() {
            self.groups.mark_alternatives(selected);
        }
    }

    /// Returns the selection if a rule exempts or rejects the request regardless of limits.
    fn decided_without_limits(&self, candidates: &[u32], request: &Attributes<'_>) -> Option<Selection> {
        for index in self.of_kind(candidates, ActionKind::Allow) {
            // A request that is exempt under one reading only is not exempt.
            if let Match::Yes(_) = self.rules[index].applies_to(request) {
                return Some(Selection::Exempt(RuleIndex(index)));
            }
        }
        for index in self.of_kind(candidates, ActionKind::Deny) {
            match self.rules[index].applies_to(request) {
                Match::No => {}
                Match::Yes(_) => return Some(Selection::Denied(RuleIndex(index), Denial::Forbidden)),
                Match::Unclear(_, ambiguity) => {
                    return Some(Selection::Denied(RuleIndex(index), Denial::Ambiguous(ambiguity)));
                }
            }
        }
        None
    }

    /// Adds the checks of one rule if it applies, or the query to its rate limit service; returns a rejection if
    /// neither is possible.
    fn select_limits(
        &self,
        index: usize,
        request: &Attributes<'_>,
        headroom: Headroom,
        memo: &mut KeyMemo,
        selected: &mut SmallVec<[SelectedCheck; 2]>,
        queries: &mut Vec<RemoteQuery>,
    ) -> Option<EarlyDenial> {
        let (rule, bound) = (&self.rules[index], &self.bound[index]);
        let Action::Limit(limiting) = &rule.action else { return None };
        // All requests without a complete key count as one key, which is enforced or not like any other.
        let stop = |denial| Some(EarlyDenial { is_enforced: limiting.is_enforced(None), denial });
        let applies = if bound.applies_to_all { Match::Yes(Route("")) } else { rule.applies_to(request) };
        let route = match applies {
            Match::No => return None,
            Match::Yes(route) => route,
            Match::Unclear(_, ambiguity) => return stop(Denial::Ambiguous(ambiguity)),
        };
        let key = match self.key_of(bound, limiting, request, route, memo) {
            Ok(Some(key)) => key,
            Ok(None) => return None,
            Err(denial) => return stop(denial),
        };
        if !limiting.cost_model.request_fields().is_empty()
            && let Err(ambiguity) = request.body.get().ensure_known()
        {
            return stop(Denial::Ambiguous(ambiguity));
        }
        let remote = match &limiting.source {
            LimitSource::Remote(remote) => remote,
            LimitSource::Local | LimitSource::Shared(_) => {
                self.add_checks(index, limiting, key, request, headroom, selected);
                return None;
            }
        };
        let entries = match remote.descriptor(&limiting.key, request, route) {
            Ok(entries) => entries,
            Err(ambiguity) => return stop(Denial::Ambiguous(ambiguity)),
        };
        let mut local_fallback = SmallVec::new();
        self.add_checks(index, limiting, key, request, headroom, &mut local_fallback);
        queries.push(RemoteQuery {
            rule: RuleIndex(index),
            key: key.key,
            is_enforced: key.is_enforced,
            entries,
            hits: limiting.cost_model.reserve(request.into()).units,
            local_fallback,
        });
        None
    }

    /// Returns the key of a request under a rule that applies to it by `route`; `None` if the rule is skipped without one.
    ///
    /// # Errors
    /// [`Denial`] if the rule rejects requests without one, or if there are several.
    #[inline(always)]
    fn key_of<'r>(
        &self,
        bound: &BoundRule,
        limiting: &LimitAction,
        request: &Attributes<'_>,
        route: Route<'r>,
        memo: &mut KeyMemo,
    ) -> Result<Option<RequestKey<'r>>, Denial> {
        let hasher = if limiting.shared().is_some() { self.fleet_hasher } else { self.hasher };
        let hash = memo.get_or_insert(bound.key, || limiting.key.hash(request, route, hasher));
        let value =
            limiting.distinct.as_ref().map(|distinct| distinct.hash(request, route, hasher)).transpose();
        let hash = hash.and_then(|key| Ok((key, value?)));
        let (key, value, is_complete) = match (hash, limiting.on_missing) {
            (Ok((key, value)), _) => (key, value, true),
            (Err(IncompleteKey::Ambiguous(ambiguity)), _) => return Err(Denial::Ambiguous(ambiguity)),
            (Err(IncompleteKey::Missing), OnMissing::Skip) => return Ok(None),
            (Err(IncompleteKey::Missing), OnMissing::Shared) => {
                let key = key::incomplete_key(hasher);
                (key, limiting.distinct.as_ref().map(|_| key), false)
            }
            (Err(IncompleteKey::Missing), OnMissing::Deny) => return Err(Denial::Forbidden),
        };
        let key_is_enforced = || limiting.is_enforced(is_complete.then_some((request, route)));
        let is_enforced = bound.is_enforced.unwrap_or_else(key_is_enforced);
        Ok(Some(RequestKey { key, route, is_complete, is_enforced, value, hasher }))
    }

    /// Adds the checks of one rule that applies to the request.
    #[inline]
    fn add_checks(
        &self,
        index: usize,
        limiting: &LimitAction,
        key: RequestKey<'_>,
        request: &Attributes<'_>,
        headroom: Headroom,
        selected: &mut SmallVec<[SelectedCheck; 2]>,
    ) {
        for planned in &self.bound[index].checks {
            if planned.is_constant {
                planned.add_constant(key.key, key.is_enforced, selected);
            } else {
                selected.extend(self.varying_check(planned, limiting, key, request, headroom));
            }
        }
    }
}

/// Builds the index of each domain.
fn domains(rules: &[Rule]) -> HashMap<Box<str>, CandidateIndex> {
    let names: BTreeSet<&str> = rules.iter().filter_map(|rule| rule.domain.as_deref()).collect();
    let index = |name: &str| CandidateIndex::new(rules, |rule| rule.domain.as_deref() == Some(name));
    names.into_iter().map(|name| (name.into(), index(name))).collect()
}

#[cfg(test)]
mod tests;
