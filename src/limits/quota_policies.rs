//! The limits of a configuration as quota policies of the IETF draft, each with a name of its own.
//!
//! A rule with one limit gives it the name of its counter, which is the rule's own unless rules share one. Where it has
//! several they are told apart by their periods, or by the networks they are for, so a name stays what it is when a
//! limit before it comes or goes. Rules that share a counter have the same policies.

use std::collections::{HashMap, HashSet};

use crate::limiter::key::KeyHasher;
use crate::response::ietf::{Policy, QuotaUnit};
use crate::rules::rule::{Action, Rule, RuleLimit};
use crate::rules::selection::{Part, Selected};
use crate::rules::tariff::Cost;

/// Beside the rules.
#[derive(Debug)]
pub(super) struct QuotaPolicies {
    rules: Box<[OfRule]>,
    /// Names partitions without saying what they are.
    hasher: KeyHasher,
}

/// Those of one rule.
#[derive(Debug, Default)]
struct OfRule {
    limits: Box<[Policy]>,
    permits: Option<Policy>,
    /// The counter's name, where it counts some things apart.
    partitioned: Option<Box<str>>,
}

impl QuotaPolicies {
    pub(super) fn new(rules: &[Rule], hasher: KeyHasher) -> Self {
        // The name of a counter is its own, whatever other names are derived.
        let taken = rules.iter().map(|rule| rule.counter().to_owned()).collect();
        let mut counters = Counters { taken, limits: HashMap::new(), permits: HashMap::new() };
        Self { rules: rules.iter().map(|rule| of_rule(rule, &mut counters)).collect(), hasher }
    }

    /// The policy of a check; `None` for what is no limit, or a limit with its margin.
    pub(super) fn policy(&self, selected: &Selected) -> Option<&Policy> {
        let of_rule = self.rules.get(selected.rule.0)?;
        match selected.part {
            Part::Permit => of_rule.permits.as_ref(),
            part => of_rule.limits.get(part.reported_limit()?),
        }
    }

    /// What names the key of a check, where its rule has one.
    pub(super) fn partition(&self, selected: &Selected) -> Option<[u8; 8]> {
        let name = self.rules.get(selected.rule.0)?.partitioned.as_ref()?;
        Some(self.hasher.alias(selected.check.key, name))
    }
}

/// The policies of counters so far, which rules that share one have in common, and all names in use.
struct Counters<'a> {
    taken: HashSet<String>,
    limits: HashMap<&'a str, Box<[Policy]>>,
    permits: HashMap<&'a str, Policy>,
}

fn of_rule<'a>(rule: &'a Rule, counters: &mut Counters<'a>) -> OfRule {
    let Action::Limit(limiting) = &rule.action else { return OfRule::default() };
    let (counter, taken) = (rule.counter(), &mut counters.taken);
    let unit = match &limiting.tariff.cost {
        Cost::RequestBytes(measure) | Cost::ResponseBytes(measure) => QuotaUnit::ContentBytes(measure.unit),
        Cost::Fixed(_) | Cost::Header(_) | Cost::ResponseHeader(_) => QuotaUnit::Requests,
    };
    let limits = counters.limits.entry(counter).or_insert_with(|| {
        let policies = limiting.limits.iter().map(|limit| {
            let written = limit.quota.limit();
            let name = name_of(rule, limit, limiting.limits.len(), taken);
            Policy::new(&name, written.count.get(), unit, Some(written.period.duration()))
        });
        policies.collect()
    });
    let permits = limiting.in_flight.map(|most| {
        let permits = counters.permits.entry(counter).or_insert_with(|| {
            let name = match limiting.limits.is_empty() {
                true => counter.to_owned(),
                false => unique(format!("{counter}/in_flight"), taken),
            };
            Policy::new(&name, most.get(), QuotaUnit::ConcurrentRequests, None)
        });
        permits.clone()
    });
    let partitioned = (!limiting.key.0.is_empty()).then(|| counter.into());
    OfRule { limits: limits.clone(), permits, partitioned }
}

fn name_of(rule: &Rule, limit: &RuleLimit, limits: usize, taken: &mut HashSet<String>) -> String {
    match &limit.nested {
        Some(nested) => unique(format!("{}/{}", rule.counter(), nested.prefix), taken),
        None if limits > 1 => unique(Policy::name_of(rule.counter(), limit.quota.window()), taken),
        None => rule.counter().to_owned(),
    }
}

/// `name`, or that with a number behind it where it is taken.
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
    use crate::limiter::algorithm::Algorithm;
    use crate::limiter::quota::{Limit, Period, Quota, Unit};
    use crate::rules::matcher::Matcher;
    use crate::rules::rule::Limiting;

    fn rule(name: &str, units: &[Unit], in_flight: Option<u32>) -> Rule {
        let limit = |unit: &Unit| {
            let limit = Limit::new(NonZeroU32::MIN, Period::one(*unit));
            RuleLimit::from(Quota::new(Algorithm::Gcra, limit, None).unwrap())
        };
        let limiting = Limiting {
            limits: units.iter().map(limit).collect(),
            in_flight: in_flight.and_then(NonZeroU32::new),
            ..Limiting::default()
        };
        let (matcher, action) = (Matcher::default(), Action::Limit(limiting));
        Rule { name: name.into(), matcher, except: Box::default(), action, domain: None }
    }

    #[test]
    fn every_limit_has_a_name_of_its_own() {
        let rules = [
            rule("a", &[Unit::Second, Unit::Day, Unit::Day], Some(3)),
            rule("a/s", &[Unit::Minute], None),
            rule("b", &[], Some(3)),
        ];
        let all = QuotaPolicies::new(&rules, KeyHasher::new([1, 2]));
        let policies = all.rules.iter().flat_map(|of_rule| of_rule.limits.iter().chain(&of_rule.permits));
        let names: Vec<_> = policies.map(Policy::name).collect();
        assert_eq!(names, ["a/s.2", "a/d", "a/d.2", "a/in_flight", "a/s", "b"]);
    }

    #[test]
    fn rules_that_share_a_counter_have_its_policies_and_only_those_with_in_flight_its_permits() {
        let sharing = |name: &str, in_flight| {
            let mut rule = rule(name, &[Unit::Second, Unit::Day], in_flight);
            let Action::Limit(limiting) = &mut rule.action else { unreachable!("it limits") };
            limiting.counter = Some("budget".into());
            rule
        };
        let rules = [sharing("a", None), sharing("b", Some(3)), sharing("c", Some(3))];
        let all = QuotaPolicies::new(&rules, KeyHasher::new([1, 2]));
        let names = |of_rule: &OfRule| -> Vec<String> {
            of_rule.limits.iter().chain(&of_rule.permits).map(|policy| policy.name().to_owned()).collect()
        };
        assert_eq!(names(&all.rules[0]), ["budget/s", "budget/d"]);
        assert_eq!(names(&all.rules[1]), ["budget/s", "budget/d", "budget/in_flight"]);
        assert_eq!(names(&all.rules[2]), names(&all.rules[1]));
    }
}
