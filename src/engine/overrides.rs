//! Overrides that an operator sets for one key of one rule: a raised limit or a ban, each until a fixed time.
//!
//! The book lists them; the counters that they affect are in the limiter. A policy that replaces another takes them over
//! for every rule that keeps its name and key. They end with the process.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::Policy;
use crate::limiter::key::KeyHash;
use crate::limiter::quota::QuotaChange;
use crate::limiter::timestamp::Timestamp;
use crate::limiter::{LimitHandle, Limiter};
use crate::rules::RuleIndex;
use crate::rules::rule::{Action, LimitAction, LimitSource, Rule};
use crate::rules::selection::CheckRole;

/// Maximum number of overrides in force.
pub const MAX_OVERRIDES: usize = 10_000;

/// One key of one rule.
#[derive(Clone, Debug)]
pub struct OverrideTarget {
    /// Position of the rule.
    pub rule: RuleIndex,
    /// The key.
    pub key: KeyHash,
    /// The key as text, to be listed; `None` if it is not to be shown.
    pub key_text: Option<Box<str>>,
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
    /// A ban.
    Ban,
}

/// An override in force.
#[derive(Clone, Debug)]
pub struct ActiveOverride {
    /// Name of the rule.
    pub rule: Box<str>,
    /// The key.
    pub key: KeyHash,
    /// The key as text, if it may be shown.
    pub key_text: Option<Box<str>>,
    /// What it does.
    pub action: OverrideAction,
    /// When it ends, by the clock of the limits.
    pub until: Timestamp,
    /// The rule's key template. An override belongs to it.
    template: Box<str>,
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

/// A key of a rule, and a kind of override.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OverrideId {
    rule: Box<str>,
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
    /// Returns its kind.
    pub const fn kind(self) -> OverrideKind {
        match self {
            Self::Boost(_) => OverrideKind::Boost,
            Self::Ban => OverrideKind::Ban,
        }
    }
}

impl OverrideBook {
    /// Sets an override until `until`. It replaces one of the same kind.
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
        if let OverrideAction::Boost(change) = action {
            check_change(policy, limiter, target.rule, limiting, change)?;
        }
        let id = OverrideId { rule: rule.name.clone(), key: target.key, kind: action.kind() };
        let entry = ActiveOverride {
            rule: rule.name.clone(),
            key: target.key,
            key_text: target.key_text.clone(),
            action,
            until,
            template: limiting.key.to_string().into(),
        };
        let mut entries = self.0.lock();
        entries.retain(|_, entry| entry.until > now);
        if entries.len() >= MAX_OVERRIDES && !entries.contains_key(&id) {
            return Err(OverrideError::Full);
        }
        put_in_force(policy, limiter, target.rule, &entry, now);
        entries.insert(id, entry.clone());
        Ok(entry)
    }

    /// Ends the overrides of this kind for a key; returns whether there was one.
    pub fn clear(
        &self,
        policy: &Policy,
        limiter: &Limiter,
        target: &OverrideTarget,
        kind: OverrideKind,
        now: Timestamp,
    ) -> bool {
        let Some(rule) = policy.rules.get(target.rule) else { return false };
        let id = OverrideId { rule: rule.name.clone(), key: target.key, kind };
        let mut entries = self.0.lock();
        for (_, limit) in policy.rules.limits_by_key(target.rule) {
            match kind {
                OverrideKind::Boost => limiter.unboost_counter(limit, target.key, now),
                OverrideKind::Ban => limiter.ban_counter(limit, target.key, None),
            }
        }
        entries.remove(&id).is_some_and(|entry| entry.until > now)
    }

    /// Returns the overrides in force, by rule and key.
    pub fn active(&self, now: Timestamp) -> Vec<ActiveOverride> {
        let mut entries = self.0.lock();
        entries.retain(|_, entry| entry.until > now);
        entries.values().cloned().collect()
    }

    /// Returns the overrides of one key of the rule with this name.
    pub fn of_key(&self, rule: &str, key: KeyHash, now: Timestamp) -> Vec<ActiveOverride> {
        let entries = self.0.lock();
        let id = |kind| OverrideId { rule: rule.into(), key, kind };
        let found = OverrideKind::ALL.into_iter().filter_map(|kind| entries.get(&id(kind)));
        found.filter(|entry| entry.until > now).cloned().collect()
    }

    /// Applies all overrides to another policy. Those of rules that it does not have, or that have another key there,
    /// end.
    pub(super) fn reapply(&self, policy: &Policy, limiter: &Limiter, now: Timestamp) {
        self.0.lock().retain(|_, entry| {
            let kept = policy.rules.position(&entry.rule).filter(|rule| {
                limit_rule(policy, *rule).is_ok_and(|(_, of)| of.key.to_string() == *entry.template)
            });
            if let Some(rule) = kept.filter(|_| entry.until > now) {
                put_in_force(policy, limiter, rule, entry, now);
            }
            kept.is_some() && entry.until > now
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

fn put_in_force(policy: &Policy, limiter: &Limiter, rule: RuleIndex, entry: &ActiveOverride, now: Timestamp) {
    for (role, limit) in policy.rules.limits_by_key(rule) {
        match entry.action {
            OverrideAction::Ban => limiter.ban_counter(limit, entry.key, Some(entry.until)),
            OverrideAction::Boost(change) if is_raised_by(change, role) => {
                limiter.boost_counter(limit, entry.key, change, entry.until, now);
            }
            OverrideAction::Boost(_) => {}
        }
    }
}

/// Whether a change raises the limit with this role: a new rate is no number of requests in flight.
fn is_raised_by(change: QuotaChange, role: CheckRole) -> bool {
    match (role, change) {
        (CheckRole::Ban, _) | (CheckRole::Permit, QuotaChange::Limit(_)) => false,
        (CheckRole::Permit, QuotaChange::Factor(_))
        | (CheckRole::Limit(_) | CheckRole::Margin(_) | CheckRole::Mark(_), _) => true,
    }
}

/// Checks that every limit can be raised.
fn check_change(
    policy: &Policy,
    limiter: &Limiter,
    rule: RuleIndex,
    limiting: &LimitAction,
    change: QuotaChange,
) -> Result<(), OverrideError> {
    let is_single = limiting.limits.len() == 1 && limiting.limits[0].quota_with_margin.is_none();
    if matches!(change, QuotaChange::Limit(_)) && !is_single {
        return Err(OverrideError::SeveralLimits);
    }
    let is_valid =
        |limit: LimitHandle| limiter.quota(limit).is_none_or(|quota| change.apply(&quota).is_some());
    let raised = policy.rules.limits_by_key(rule).into_iter().filter(|(role, _)| is_raised_by(change, *role));
    if raised.map(|(_, limit)| limit).all(is_valid) { Ok(()) } else { Err(OverrideError::TooLarge) }
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

#[cfg(test)]
mod tests;
