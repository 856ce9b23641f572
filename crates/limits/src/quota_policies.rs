//! The limits of a configuration as quota policies of the IETF draft, with unique names.
//!
//! The only limit of a rule has the name of its counter, which is the rule's name unless rules share a counter. Several
//! limits are distinguished by their periods, or by the networks that they are for. So a name does not change when a
//! limit before it is added or removed. Rules that share a counter have the same policies.

use std::collections::{HashMap, HashSet};

use weir_limiter::key::{KeyHash, KeyHasher};
use weir_policy::response::ietf::{QuotaPolicy, QuotaUnit};
use weir_policy::rules::cost::Cost;
use weir_policy::rules::rule::{Action, Rule, RuleLimit};
use weir_policy::rules::selection::CheckRole;

/// The quota policies of one rule.
#[derive(Debug, Default)]
pub(super) struct RulePolicies {
    limits: Box<[QuotaPolicy]>,
    permits: Option<QuotaPolicy>,
    /// The counter's name, if the rule has a key and so several partitions.
    partitioned: Option<Box<str>>,
}

impl RulePolicies {
    /// Returns the policies of each of `rules`.
    pub(super) fn of_rules(rules: &[Rule]) -> impl Iterator<Item = Self> {
        // Names of counters take precedence over derived names.
        let taken = rules.iter().map(|rule| rule.counter().to_owned()).collect();
        let mut counters = CounterPolicies { taken, limits: HashMap::new(), permits: HashMap::new() };
        rules.iter().map(move |rule| rule_policies(rule, &mut counters))
    }

    /// Returns the policy of a check; `None` if the check is not a limit or its margin.
    pub(super) fn policy(&self, role: CheckRole) -> Option<&QuotaPolicy> {
        match role {
            CheckRole::Permit => self.permits.as_ref(),
            role => self.limits.get(role.reported_limit()?),
        }
    }

    /// Returns the pseudonym that `hasher` computes of a key, if the rule has a key.
    pub(super) fn partition(&self, key: KeyHash, hasher: KeyHasher) -> Option<[u8; 8]> {
        Some(hasher.opaque_id(key, self.partitioned.as_ref()?))
    }
}

/// Policies of the counters so far, for rules that share a counter, and all names in use.
struct CounterPolicies<'a> {
    taken: HashSet<String>,
    limits: HashMap<&'a str, Box<[QuotaPolicy]>>,
    permits: HashMap<&'a str, QuotaPolicy>,
}

fn rule_policies<'a>(rule: &'a Rule, counters: &mut CounterPolicies<'a>) -> RulePolicies {
    let Action::Limit(limiting) = &rule.action else { return RulePolicies::default() };
    let (counter, taken) = (rule.counter(), &mut counters.taken);
    let unit = match &limiting.cost_model.cost {
        Cost::RequestBytes(measure) | Cost::ResponseBytes(measure) => {
            QuotaUnit::ContentBytes(measure.bytes_per_unit)
        }
        Cost::Fixed(_)
        | Cost::Header(_)
        | Cost::RequestField(_)
        | Cost::ResponseHeader(_)
        | Cost::ResponseFields(_) => QuotaUnit::Requests,
    };
    let limits = counters.limits.entry(counter).or_insert_with(|| {
        let policies = limiting.limits.iter().map(|limit| {
            let written = limit.quota.limit();
            let name = name_of(rule, limit, limiting.limits.len(), taken);
            QuotaPolicy::new(&name, written.count.get(), unit, Some(written.period.duration()))
        });
        policies.collect()
    });
    // A policy states a fixed quota, which an adaptive limit has not.
    let permits = limiting.in_flight.filter(|_| limiting.adaptive.is_none()).map(|most| {
        let permits = counters.permits.entry(counter).or_insert_with(|| {
            let name = match limiting.limits.is_empty() {
                true => counter.to_owned(),
                false => unique(format!("{counter}/in_flight"), taken),
            };
            QuotaPolicy::new(&name, most.get(), QuotaUnit::ConcurrentRequests, None)
        });
        permits.clone()
    });
    let partitioned = (!limiting.key.0.is_empty()).then(|| counter.into());
    RulePolicies { limits: limits.clone(), permits, partitioned }
}

fn name_of(rule: &Rule, limit: &RuleLimit, limits: usize, taken: &mut HashSet<String>) -> String {
    match &limit.nested {
        Some(nested) => unique(format!("{}/{}", rule.counter(), nested.prefix), taken),
        None if limits > 1 => unique(QuotaPolicy::name_of(rule.counter(), limit.quota.window()), taken),
        None => rule.counter().to_owned(),
    }
}

/// Returns `name`, or `name` with a number appended if it is taken.
fn unique(name: String, taken: &mut HashSet<String>) -> String {
    let numbered = (2_u64..).map(|number| format!("{name}.{number}"));
    let free = std::iter::once(name.clone()).chain(numbered).find(|name| !taken.contains(name));
    let name = free.unwrap_or(name);
    taken.insert(name.clone());
    name
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use weir_limiter::algorithm::Algorithm;
    use weir_limiter::quota::{Limit, Period, Quota, TimeUnit};
    use weir_policy::rules::rule::LimitAction;

    fn rule(name: &str, units: &[TimeUnit], in_flight: Option<u32>) -> Rule {
        let limit = |unit: &TimeUnit| {
            let limit = Limit::new(NonZeroU32::MIN, Period::one(*unit));
            RuleLimit::from(Quota::new(Algorithm::Gcra, limit, None).unwrap())
        };
        let limiting = LimitAction {
            limits: units.iter().map(limit).collect(),
            in_flight: in_flight.and_then(NonZeroU32::new),
            ..LimitAction::default()
        };
        Rule { name: name.into(), action: Action::Limit(limiting), ..Rule::default() }
    }

    #[test]
    fn quota_policy_names_are_unique() {
        let rules = [
            rule("a", &[TimeUnit::Second, TimeUnit::Day, TimeUnit::Day], Some(3)),
            rule("a/s", &[TimeUnit::Minute], None),
            rule("b", &[], Some(3)),
        ];
        let all: Vec<_> = RulePolicies::of_rules(&rules).collect();
        let policies = all.iter().flat_map(|policies| policies.limits.iter().chain(&policies.permits));
        let names: Vec<_> = policies.map(QuotaPolicy::name).collect();
        assert_eq!(names, ["a/s.2", "a/d", "a/d.2", "a/in_flight", "a/s", "b"]);
    }

    #[test]
    fn rules_with_a_shared_counter_report_its_quota_policies() {
        let sharing = |name: &str, in_flight| {
            let mut rule = rule(name, &[TimeUnit::Second, TimeUnit::Day], in_flight);
            let Action::Limit(limiting) = &mut rule.action else { unreachable!("not a limit action") };
            limiting.counter = Some("budget".into());
            rule
        };
        let rules = [sharing("a", None), sharing("b", Some(3)), sharing("c", Some(3))];
        let all: Vec<_> = RulePolicies::of_rules(&rules).collect();
        let names = |policies: &RulePolicies| -> Vec<String> {
            policies.limits.iter().chain(&policies.permits).map(|policy| policy.name().to_owned()).collect()
        };
        assert_eq!(names(&all[0]), ["budget/s", "budget/d"]);
        assert_eq!(names(&all[1]), ["budget/s", "budget/d", "budget/in_flight"]);
        assert_eq!(names(&all[2]), names(&all[1]));
    }
}
