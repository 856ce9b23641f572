//! Names and notations of all limits in response headers, computed once per configuration; of rejections, when a rule first
//! rejects.

use std::borrow::Cow;
use std::sync::OnceLock;

use super::quota_policies::RulePolicies;
use weir_limiter::key::KeyHasher;
use weir_policy::engine::Policy;
use weir_policy::response::ietf::QuotaPolicy;
use weir_policy::response::rate_limit_headers::Notation;
use weir_policy::response::rejection::PreparedHeaders;
use weir_policy::response::{LimitHeaderSettings, Visibility};
use weir_policy::rules::RuleIndex;
use weir_policy::rules::rule::{Rule, RuleLimit};
use weir_policy::rules::selection::SelectedCheck;

/// What the rate limit headers of one configuration generation are written from.
#[derive(Debug)]
pub struct HeaderTables {
    /// Which headers are sent.
    pub(super) settings: LimitHeaderSettings,
    /// By rule, in file order.
    rules: Box<[RuleHeaders]>,
    /// Computes pseudonyms of partitions.
    hasher: KeyHasher,
}

/// How headers describe the limits of one rule.
#[derive(Debug)]
struct RuleHeaders {
    /// Notation of each limit in `x-ratelimit-*`.
    notations: Box<[Notation]>,
    /// The quota policies of the IETF headers.
    policies: RulePolicies,
    /// Precomputed headers of rejections, if possible. Most of thousands of rules never reject.
    prepared: OnceLock<Option<Box<PreparedHeaders>>>,
}

impl HeaderTables {
    /// Creates the tables of `policy`, whose keys are hashed by `hasher`.
    pub fn new(policy: &Policy, hasher: KeyHasher) -> Self {
        let rules = policy.rules.rules();
        let headers = |(rule, policies)| RuleHeaders {
            notations: notations(rule),
            policies,
            prepared: OnceLock::new(),
        };
        let mut rules: Box<[_]> = rules.iter().zip(RulePolicies::of_rules(rules)).map(headers).collect();
        Notation::join(rules.iter_mut().flat_map(|headers| &mut headers.notations));
        Self { settings: policy.response.clone(), rules, hasher }
    }

    /// Precomputes the headers of rejections by a rule with one limit that does not change.
    fn prepare(&self, rule: &Rule, notations: &[Notation]) -> Option<Box<PreparedHeaders>> {
        let LimitHeaderSettings { ratelimit_headers, ietf_headers, names } = &self.settings;
        let [only] = notations else { return None };
        let is_sent = *ratelimit_headers != Visibility::Off && !ietf_headers;
        let is_fixed = !rule.is_elastic() && rule.feedback().is_none();
        let prepare = || PreparedHeaders::new(&rule.rejection.headers, only, names).map(Box::new);
        (is_sent && is_fixed).then(prepare).flatten()
    }

    pub(super) fn notation(&self, selected: &SelectedCheck) -> Option<&Notation> {
        self.rules.get(selected.rule.0)?.notations.get(selected.role.reported_limit()?)
    }

    /// Returns the quota policy of a check; `None` if the check is not a limit or its margin.
    pub(super) fn quota_policy(&self, selected: &SelectedCheck) -> Option<&QuotaPolicy> {
        self.rules.get(selected.rule.0)?.policies.policy(selected.role)
    }

    /// Returns the pseudonym of the check's key, if its rule has a key.
    pub(super) fn partition(&self, selected: &SelectedCheck) -> Option<[u8; 8]> {
        self.rules.get(selected.rule.0)?.policies.partition(selected.check.key, self.hasher)
    }

    /// Returns the precomputed headers of rejections by a rule of `policy`.
    pub(super) fn prepared(&self, policy: &Policy, index: RuleIndex) -> Option<&PreparedHeaders> {
        let (rule, headers) = (policy.rules.rules().get(index.0)?, self.rules.get(index.0)?);
        headers.prepared.get_or_init(|| self.prepare(rule, &headers.notations)).as_deref()
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
