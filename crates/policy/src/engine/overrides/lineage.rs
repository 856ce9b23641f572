//! Counters as overrides see them: all rules that charge a counter, and all limits that have the rules' key.
//!
//! Rules with the same `counter` and key share their limits. Permits and bans may belong to some of them only, so an
//! override of a key has to reach the limits of all of them.

use std::collections::BTreeMap;

use super::limit_rule;
use crate::engine::Policy;
use crate::rules::RuleIndex;
use crate::rules::rule::Rule;
use crate::rules::selection::CheckRole;
use weir_limiter::LimitHandle;

/// Identity of a counter across policies: the name that its rules charge, and their key template.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LineageId {
    counter: Box<str>,
    template: Box<str>,
}

/// The rules of one counter in one policy.
#[derive(Clone, Debug, Default)]
pub(super) struct CounterLineage {
    /// Names of the rules, in file order.
    pub(super) rules: Vec<Box<str>>,
    /// Their limits with the rules' key, each once.
    pub(super) limits: Vec<(CheckRole, LimitHandle)>,
}

/// The counters of one policy.
#[derive(Debug)]
pub(super) struct LineageMap(BTreeMap<LineageId, CounterLineage>);

impl LineageId {
    /// Returns the identity of the counter of `rule`; `None` if it has no limits.
    pub(super) fn of_rule(rule: &Rule) -> Option<Self> {
        let limiting = rule.action.limiting()?;
        Some(Self { counter: rule.counter().into(), template: limiting.key.to_string().into() })
    }
}

impl CounterLineage {
    fn add(&mut self, policy: &Policy, index: RuleIndex, rule: &Rule) {
        self.rules.push(rule.name.clone());
        for limit in policy.rules.limits_by_key(index) {
            if !self.limits.contains(&limit) {
                self.limits.push(limit);
            }
        }
    }

    /// Whether `limit` is among the limits.
    pub(super) fn has_limit(&self, limit: LimitHandle) -> bool {
        self.limits.iter().any(|(_, own)| *own == limit)
    }
}

impl LineageMap {
    /// Returns the counters of all rules that are counted in this process or in the store.
    pub(super) fn of_policy(policy: &Policy) -> Self {
        let mut lineages = BTreeMap::<LineageId, CounterLineage>::new();
        for index in (0..policy.rules.rules().len()).map(RuleIndex) {
            if let Ok((rule, _)) = limit_rule(policy, index)
                && let Some(id) = LineageId::of_rule(rule)
            {
                lineages.entry(id).or_default().add(policy, index, rule);
            }
        }
        Self(lineages)
    }

    /// Returns the rules and limits of one counter.
    pub(super) fn get(&self, id: &LineageId) -> Option<&CounterLineage> {
        self.0.get(id)
    }
}
