//! Names and notations of all limits in response headers, computed once per configuration.

use std::borrow::Cow;

use super::quota_policies::QuotaPolicies;
use weir_limiter::key::KeyHasher;
use weir_policy::engine::Policy;
use weir_policy::response::LimitHeaderSettings;
use weir_policy::response::rate_limit_headers::Notation;
use weir_policy::rules::rule::{Rule, RuleLimit};
use weir_policy::rules::selection::SelectedCheck;

/// What the rate limit headers of one configuration generation are written from.
#[derive(Debug)]
pub struct HeaderTables {
    /// Which headers are sent.
    pub(super) settings: LimitHeaderSettings,
    /// Notation of each rule's limits in `x-ratelimit-*`.
    pub(super) notations: Box<[Box<[Notation]>]>,
    /// The quota policies of the IETF headers.
    pub(super) quota_policies: QuotaPolicies,
}

impl HeaderTables {
    /// Creates the tables of `policy`, whose keys are hashed by `hasher`.
    pub fn new(policy: &Policy, hasher: KeyHasher) -> Self {
        let rules = policy.rules.rules();
        let mut notations: Box<[Box<[Notation]>]> = rules.iter().map(notations).collect();
        Notation::join(notations.iter_mut().flatten());
        Self {
            settings: policy.response.clone(),
            notations,
            quota_policies: QuotaPolicies::new(rules, hasher),
        }
    }

    pub(super) fn notation(&self, selected: &SelectedCheck) -> Option<&Notation> {
        self.notations.get(selected.rule.0)?.get(selected.role.reported_limit()?)
    }
}

fn notations(rule: &Rule) -> Box<[Notation]> {
    rule.limits().iter().map(|limit| Notation::new(&limit_name(rule, limit), &limit.quota)).collect()
}

/// Returns the name of a limit; limits of nested networks have their prefix length in it.
fn limit_name<'a>(rule: &'a Rule, limit: &RuleLimit) -> Cow<'a, str> {
    match &limit.nested {
        Some(nested) => format!("{}/{}", rule.counter(), nested.prefix).into(),
        None => Cow::Borrowed(rule.counter()),
    }
}
