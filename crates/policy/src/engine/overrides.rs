//! Overrides that an operator sets for one key of one rule: a raised limit or a ban, each until a fixed time.
//!
//! The book lists them by counter, because rules that share a counter share its overrides. The counters themselves are in
//! the limiter. A policy that replaces another takes the overrides over for every counter that keeps its name and key.
//! They end with the process.

mod lineage;

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use self::lineage::{CounterLineage, LineageId, LineageMap};
use super::Policy;
use crate::rules::RuleIndex;
use crate::rules::key_text::LabeledKeyPart;
use crate::rules::rule::{Action, LimitAction, LimitSource, Rule};
use crate::rules::selection::CheckRole;
use weir_limiter::key::KeyHash;
use weir_limiter::quota::{Limit, QuotaChange};
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{LimitHandle, Limiter};

/// Maximum number of overrides in force.
pub const MAX_OVERRIDES: usize = 10_000;

/// One key of one rule.
#[derive(Clone, Debug)]
pub struct OverrideTarget {
    /// Position of the rule.
    pub rule: RuleIndex,
    pub key: KeyHash,
    /// The parts of the key; `None` if it is known by its hash only.
    pub key_parts: Option<Box<[LabeledKeyPart]>>,
}

/// What an override does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverrideAction {
    /// Raises the limits of the rule.
    Boost(QuotaChange),
    /// Rejects every request.
    Ban,
}

/// The kind of an override. A key has at most one of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OverrideKind {
    /// A raised limit.
    Boost,
    Ban,
}

/// An override in force.
#[derive(Clone, Debug)]
pub struct ActiveOverride {
    /// Name of the rule for which it was set. If that rule is gone, another that shares its counter.
    pub rule: Box<str>,
    /// Names of all rules that share the counter, in file order.
    pub rules: Vec<Box<str>>,
    pub key: KeyHash,
    /// The parts of the key; `None` if it is known by its hash only.
    pub key_parts: Option<Box<[LabeledKeyPart]>>,
    /// What it does.
    pub action: OverrideAction,
    /// When it ends, by the clock of the limits.
    pub until: Timestamp,
}

/// Why an override cannot be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OverrideError {
    /// The rule is `allow` or `deny`.
    #[error("the rule has no limits")]
    NoLimits,
    /// Another rate limit service counts.
    #[error("another rate limit service counts the rule's limit (`scope: rls`): set it there")]
    Remote,
    /// A single limit cannot replace several.
    #[error("`limit` needs a rule with exactly one limit that is not soft: use `factor`")]
    SeveralLimits,
    /// The given limit is lower than that of the rule.
    #[error("limit: expected more than the limit of the rule, which is {0}: a boost raises it")]
    TooLow(Limit),
    /// The raised limit is not valid.
    #[error("the raised limit is too large")]
    TooLarge,
    /// There is no room.
    #[error("{MAX_OVERRIDES} overrides are in force, the maximum: clear some first")]
    Full,
}

/// All overrides in force.
#[derive(Debug, Default)]
pub struct OverrideBook(Mutex<BTreeMap<OverrideId, ActiveOverride>>);

/// A key of a counter, and a kind of override.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OverrideId {
    lineage: LineageId,
    key: KeyHash,
    kind: OverrideKind,
}

impl OverrideKind {
    /// Every kind, in the order of the documentation.
    pub const ALL: [Self; 2] = [Self::Boost, Self::Ban];

    /// Returns the name used in metrics, logs and responses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Boost => "boost",
            Self::Ban => "ban",
        }
    }
}

impl OverrideAction {
    pub const fn kind(self) -> OverrideKind {
        match self {
            Self::Boost(_) => OverrideKind::Boost,
            Self::Ban => OverrideKind::Ban,
        }
    }
}

impl OverrideBook {
    /// Sets an override until `until`, for all rules that share the rule's counter. It replaces one of the same kind.
    ///
    /// # Errors
    /// [`OverrideError`]; nothing has changed then.
    pub fn set(
        &self,
        policy: &Policy,
        limiter: &Limiter,
        target: &OverrideTarget,
        action: OverrideAction,
        until: Timestamp,
        now: Timestamp,
    ) -> Result<ActiveOverride, OverrideError> {
        let (rule, limiting) = limit_rule(policy, target.rule)?;
        let (lineages, id) = (LineageMap::of_policy(policy), LineageId::of_rule(rule));
        let (id, lineage) =
            id.and_then(|id| lineages.get(&id).map(|of| (id, of))).ok_or(OverrideError::NoLimits)?;
        if let OverrideAction::Boost(change) = action {
            check_change(limiter, lineage, limiting, change)?;
        }
        let id = OverrideId { lineage: id, key: target.key, kind: action.kind() };
        let entry = ActiveOverride {
            rule: rule.name.clone(),
            rules: lineage.rules.clone(),
            key: target.key,
            key_parts: target.key_parts.clone(),
            action,
            until,
        };
        let mut entries = self.0.lock();
        entries.retain(|_, entry| entry.until > now);
        if entries.len() >= MAX_OVERRIDES && !entries.contains_key(&id) {
            return Err(OverrideError::Full);
        }
        put_in_force(limiter, lineage, &entry, now);
        entries.insert(id, entry.clone());
        Ok(entry)
    }

    /// Ends the overrides of this kind for a key, for all rules that share the rule's counter; returns whether there was
    /// one.
    pub fn clear(
        &self,
        policy: &Policy,
        limiter: &Limiter,
        target: &OverrideTarget,
        kind: OverrideKind,
        now: Timestamp,
    ) -> bool {
        let Some(id) = policy.rules.get(target.rule).and_then(LineageId::of_rule) else { return false };
        let lineages = LineageMap::of_policy(policy);
        let mut entries = self.0.lock();
        for (_, limit) in lineages.get(&id).into_iter().flat_map(|lineage| &lineage.limits) {
            lift(limiter, *limit, target.key, kind, now);
        }
        let id = OverrideId { lineage: id, key: target.key, kind };
        entries.remove(&id).is_some_and(|entry| entry.until > now)
    }

    /// Returns the overrides in force, by counter and key.
    pub fn active(&self, now: Timestamp) -> Vec<ActiveOverride> {
        let mut entries = self.0.lock();
        entries.retain(|_, entry| entry.until > now);
        entries.values().cloned().collect()
    }

    pub fn of_key(&self, rule: &Rule, key: KeyHash, now: Timestamp) -> Vec<ActiveOverride> {
        let Some(lineage) = LineageId::of_rule(rule) else { return Vec::new() };
        let entries = self.0.lock();
        let id = |kind| OverrideId { lineage: lineage.clone(), key, kind };
        let found = OverrideKind::ALL.into_iter().filter_map(|kind| entries.get(&id(kind)));
        found.filter(|entry| entry.until > now).cloned().collect()
    }

    /// Applies all overrides to the policy that replaces `old`. Those of counters that it does not have, or that have
    /// another key there, end.
    pub(super) fn reapply(&self, old: &Policy, new: &Policy, limiter: &Limiter, now: Timestamp) {
        let mut entries = self.0.lock();
        entries.retain(|_, entry| entry.until > now);
        if entries.is_empty() {
            return;
        }
        let (old, new) = (LineageMap::of_policy(old), LineageMap::of_policy(new));
        // First, since a limit may have moved to a counter with overrides of its own.
        for (id, entry) in entries.iter() {
            let is_left = |limit| new.get(&id.lineage).is_none_or(|of| !of.has_limit(limit));
            let before = old.get(&id.lineage).into_iter().flat_map(|of| &of.limits);
            for (_, limit) in before.filter(|(_, limit)| is_left(*limit)) {
                lift(limiter, *limit, entry.key, id.kind, now);
            }
        }
        entries.retain(|id, entry| {
            let Some(lineage) = new.get(&id.lineage) else { return false };
            entry.rules.clone_from(&lineage.rules);
            if let Some(first) = lineage.rules.first().filter(|_| !lineage.rules.contains(&entry.rule)) {
                entry.rule.clone_from(first);
            }
            put_in_force(limiter, lineage, entry, now);
            true
        });
    }
}

/// Frees the counters of one key of a rule, and ends a ban that a rejection has started; returns how many counters there
/// were.
///
/// # Errors
/// [`OverrideError`] if the rule has no limits that are counted here.
pub fn reset(policy: &Policy, limiter: &Limiter, target: &OverrideTarget) -> Result<usize, OverrideError> {
    limit_rule(policy, target.rule)?;
    let limits = policy.rules.limits_by_key(target.rule).into_iter();
    Ok(limits.filter(|(_, limit)| limiter.reset_counter(*limit, target.key)).count())
}

/// Returns the time until the ban of a key of a rule ends, whether an operator or a rejection has started it; `None` if
/// none runs.
pub fn time_banned(
    policy: &Policy,
    limiter: &Limiter,
    rule: RuleIndex,
    key: KeyHash,
    now: Timestamp,
) -> Option<Duration> {
    let left = |(role, limit)| {
        let started =
            || limiter.usage(limit, key, now).filter(|usage| usage.used > 0).map(|usage| usage.reset);
        let by_rule = if role == CheckRole::Ban { started() } else { None };
        limiter.time_banned(limit, key, now).max(by_rule)
    };
    policy.rules.limits_by_key(rule).into_iter().filter_map(left).max()
}

fn put_in_force(limiter: &Limiter, lineage: &CounterLineage, entry: &ActiveOverride, now: Timestamp) {
    for (role, limit) in &lineage.limits {
        match entry.action {
            OverrideAction::Ban => limiter.ban_counter(*limit, entry.key, Some(entry.until)),
            OverrideAction::Boost(change) if is_raised_by(change, *role) => {
                limiter.boost_counter(*limit, entry.key, change, entry.until, now);
            }
            OverrideAction::Boost(_) => {}
        }
    }
}

/// Ends the override of this kind of one counter.
fn lift(limiter: &Limiter, limit: LimitHandle, key: KeyHash, kind: OverrideKind, now: Timestamp) {
    match kind {
        OverrideKind::Boost => limiter.unboost_counter(limit, key, now),
        OverrideKind::Ban => limiter.ban_counter(limit, key, None),
    }
}

/// Whether a change raises the limit with this role: a new rate is no number of requests in flight, and none of bytes.
fn is_raised_by(change: QuotaChange, role: CheckRole) -> bool {
    match (role, change) {
        (CheckRole::Ban | CheckRole::Seen, _)
        | (CheckRole::Permit | CheckRole::Stream(_), QuotaChange::Limit(_)) => false,
        (CheckRole::Permit | CheckRole::Stream(_), QuotaChange::Factor(_))
        | (CheckRole::Limit(_) | CheckRole::Margin(_) | CheckRole::Mark(_), _) => true,
    }
}

/// Checks that every limit can be raised.
fn check_change(
    limiter: &Limiter,
    lineage: &CounterLineage,
    limiting: &LimitAction,
    change: QuotaChange,
) -> Result<(), OverrideError> {
    let is_single = limiting.limits.len() == 1 && limiting.limits[0].quota_with_margin.is_none();
    if matches!(change, QuotaChange::Limit(_)) && !is_single {
        return Err(OverrideError::SeveralLimits);
    }
    let is_valid =
        |limit: LimitHandle| limiter.quota(limit).is_none_or(|quota| change.apply(&quota).is_some());
    if let (QuotaChange::Limit(limit), [only]) = (change, &*limiting.limits)
        && limit.is_slower_than(only.quota.limit())
    {
        return Err(OverrideError::TooLow(only.quota.limit()));
    }
    let mut raised = lineage.limits.iter().filter(|(role, _)| is_raised_by(change, *role));
    if raised.all(|(_, limit)| is_valid(*limit)) { Ok(()) } else { Err(OverrideError::TooLarge) }
}

/// Returns the rule at `index` if it has limits that are counted in this process or in the store.
fn limit_rule(policy: &Policy, index: RuleIndex) -> Result<(&Rule, &LimitAction), OverrideError> {
    let rule = policy.rules.get(index).ok_or(OverrideError::NoLimits)?;
    let Action::Limit(limiting) = &rule.action else { return Err(OverrideError::NoLimits) };
    match limiting.source {
        LimitSource::Remote(_) => Err(OverrideError::Remote),
        LimitSource::Local | LimitSource::Shared(_) => Ok((rule, limiting)),
    }
}
