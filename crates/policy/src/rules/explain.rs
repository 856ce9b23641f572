//! Why each rule applies to a request or does not, for operators.
//!
//! [`RuleSet::select`] decides; this module only describes. For a rule that does not apply it names the first field of
//! `match` that fails, or the exception that holds. Values of headers in `match` are never part of the description,
//! because they may be secrets.

use serde::{Deserialize, Serialize};

use super::attribute::{AttributeSource, IncompleteKey};
use super::key;
use super::key_text::{KeyTextError, LabeledKeyPart, ParsedKey, write_key};
use super::matcher::{Condition, Match, Matcher, has_exactly};
use super::pattern::{HeaderPattern, HostPattern, PathPattern, Route};
use super::rule::{Action, LimitAction, OnMissing, Rule};
use super::selection::CheckRole;
use super::stream_limit::StreamLimit;
use super::{RuleIndex, RuleSet, StoreLossFallback};
use crate::identify::Attributes;
use weir_limiter::LimitHandle;
use weir_limiter::key::{KeyHash, KeyHasher};

/// Prefix length by which an IPv6 address is shown whole.
const FULL_PREFIX: u8 = 128;

/// How one rule relates to a request.
#[derive(Clone, Debug)]
pub struct RuleExplanation<'r> {
    /// Position of the rule.
    pub index: RuleIndex,
    pub rule: &'r Rule,
    /// Whether it applies, and why not.
    pub status: RuleStatus,
    /// The request's key, if the rule limits and its conditions hold.
    pub key: Option<ExplainedKey>,
}

/// Whether a rule applies to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleStatus {
    /// It does, by this route; empty without `match.path`.
    Applies(String),
    /// This field of `match` does not hold.
    Mismatch(Mismatch),
    /// This exception holds, counted from 0.
    Excepted(usize),
    /// The request lacks this part of the key.
    MissingKey(String),
    /// It depends on how the request is read, so the request is rejected.
    Ambiguous(String),
}

/// A field of `match` that does not hold, as `/explain` reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mismatch {
    /// The field, such as `path` or `header.x-internal`.
    pub field: String,
    /// The request's value, if it has one that can be shown.
    pub actual: Option<String>,
    /// The configured values, if they can be shown.
    pub expected: Option<String>,
}

/// Key of a request under one rule.
#[derive(Clone, Debug)]
pub struct ExplainedKey {
    /// Its parts, in the order of the rule's `key`.
    pub parts: Vec<LabeledKeyPart>,
    pub text: String,
    /// The key of the counters; `None` if the request has none.
    pub hash: Option<KeyHash>,
    /// Whether every part is present. All requests without some part share one key, if the rule counts them.
    pub is_complete: bool,
    /// Whether the rule is enforced for this key. If not, it is in shadow mode.
    pub is_enforced: bool,
}

impl Mismatch {
    fn new(field: impl Into<String>, actual: Option<String>, expected: Option<String>) -> Self {
        Self { field: field.into(), actual, expected }
    }
}

impl RuleSet {
    /// Describes how every rule relates to `request`, in file order: to a request of the proxy, or to a descriptor of
    /// this Envoy domain. `ipv6_prefix` is for keys as text.
    pub fn explain(
        &self,
        request: &Attributes<'_>,
        domain: Option<&str>,
        ipv6_prefix: u8,
    ) -> Vec<RuleExplanation<'_>> {
        let rules = self.rules.iter().enumerate();
        rules.map(|(index, rule)| self.explain_rule(index, rule, request, domain, ipv6_prefix)).collect()
    }

    /// Returns the key of the rule at `index` that `text` describes; `None` if there is no such rule or it does not
    /// limit.
    ///
    /// # Errors
    /// [`KeyTextError`] if `text` is not a key of the rule.
    pub fn parse_key(
        &self,
        index: RuleIndex,
        text: &str,
        ipv6_prefix: u8,
    ) -> Option<Result<ParsedKey, KeyTextError>> {
        let Action::Limit(limiting) = &self.get(index)?.action else { return None };
        Some(limiting.key.parse(text, ipv6_prefix, self.hasher_of(limiting)))
    }

    pub fn position(&self, name: &str) -> Option<RuleIndex> {
        self.rules.iter().position(|rule| *rule.name == *name).map(RuleIndex)
    }

    /// Returns the limits of the rule at `index` whose counters have the rule's key, with their roles: those that count,
    /// and those that replace them while the store is unreachable. Limits of wider networks have other keys.
    pub fn limits_by_key(&self, index: RuleIndex) -> Vec<(CheckRole, LimitHandle)> {
        let Some(Action::Limit(limiting)) = self.get(index).map(|rule| &rule.action) else {
            return Vec::new();
        };
        let planned = self.planned_checks(index);
        let has_key = |role| role == CheckRole::Ban || limiting.has_ban_key(role);
        let of_check = planned.filter(|planned| has_key(planned.role())).flat_map(|planned| {
            let fallback = match planned.fallback {
                Some(StoreLossFallback::Counted(handle) | StoreLossFallback::Marked(handle)) => Some(handle),
                Some(StoreLossFallback::Denied) | None => None,
            };
            std::iter::once(planned.handle()).chain(fallback).map(|handle| (planned.role(), handle))
        });
        of_check.collect()
    }

    /// Yields the limits inside streams of the rule at `index`, each with its handle.
    pub fn stream_limits(&self, index: RuleIndex) -> impl Iterator<Item = (&StreamLimit, LimitHandle)> {
        let limiting = self.get(index).and_then(|rule| rule.action.limiting());
        let limits = limiting.and_then(|limiting| limiting.streams.as_deref()).map(|streams| &streams.limits);
        let bound = self.bound.get(index.0).map(|bound| &bound.streams);
        let pairs = limits.into_iter().flatten().zip(bound.into_iter().flatten());
        pairs.map(|(limit, planned)| (limit, planned.handle()))
    }

    fn hasher_of(&self, limiting: &LimitAction) -> KeyHasher {
        if limiting.shared().is_some() { self.fleet_hasher } else { self.hasher }
    }

    fn explain_rule<'r>(
        &self,
        index: usize,
        rule: &'r Rule,
        request: &Attributes<'_>,
        domain: Option<&str>,
        ipv6_prefix: u8,
    ) -> RuleExplanation<'r> {
        let mut explained = RuleExplanation {
            index: RuleIndex(index),
            rule,
            status: status(rule, request, domain),
            key: None,
        };
        let (RuleStatus::Applies(_), Action::Limit(limiting)) = (&explained.status, &rule.action) else {
            return explained;
        };
        let Match::Yes(route) = rule.applies_to(request) else { return explained };
        let is_per_stream = limiting.streams.as_ref().is_some_and(|streams| streams.is_per_stream);
        explained.key = (!is_per_stream)
            .then(|| explained_key(limiting, request, route, self.hasher_of(limiting), ipv6_prefix));
        match limiting.counted_key().missing_part(request, route) {
            None => {}
            Some((part, IncompleteKey::Ambiguous(ambiguity))) => {
                explained.status = RuleStatus::Ambiguous(format!("{part}: {ambiguity}"));
            }
            Some((part, IncompleteKey::Missing)) => match limiting.on_missing {
                OnMissing::Skip | OnMissing::Deny => explained.status = RuleStatus::MissingKey(part),
                OnMissing::Shared => {}
            },
        }
        explained
    }
}

impl Matcher {
    /// Returns the first field that does not hold for the request, in the order in which [`Self::matches`] tests them.
    pub fn first_mismatch(&self, request: &Attributes<'_>) -> Option<Mismatch> {
        let client = request.client_ip();
        if !self.methods.is_empty() && !request.method.is_some_and(|method| self.methods.contains(method)) {
            let expected = join(self.methods.iter().map(ToString::to_string));
            return Some(Mismatch::new("method", request.method.map(ToString::to_string), expected));
        }
        if !self.hosts.is_empty() && !self.matches_host(request) {
            let expected = join(self.hosts.iter().map(ToString::to_string));
            return Some(Mismatch::new("host", Some(request.host.as_str().to_owned()), expected));
        }
        if self.client_ip.as_ref().is_some_and(|set| !client.is_some_and(|ip| set.contains(ip))) {
            return Some(Mismatch::new("client_ip", client.map(|ip| ip.to_string()), None));
        }
        if self.schedule.as_ref().is_some_and(|schedule| !schedule.contains(request.now)) {
            return Some(Mismatch::new("schedule", None, None));
        }
        if self.entries.as_ref().is_some_and(|entries| !has_exactly(request, entries)) {
            return Some(Mismatch::new("descriptors", None, None));
        }
        let is_path = |path: &PathPattern| !request.path.is_empty() && path.matches(&request.path);
        let first = self.paths.iter().find(|path| path.matches(&request.path));
        if !self.paths.is_empty() && !first.is_some_and(is_path) {
            let expected = join(self.paths.iter().map(|path| path.as_str().to_owned()));
            return Some(Mismatch::new("path", Some(request.path.to_string()), expected));
        }
        self.conditions.iter().find_map(|condition| failed_condition(condition, request))
    }
}

/// Returns a condition that does not hold as a mismatch.
fn failed_condition(
    Condition { attribute, patterns }: &Condition,
    request: &Attributes<'_>,
) -> Option<Mismatch> {
    if attribute.matches(request, patterns) != Ok(false) {
        return None;
    }
    let expected = match attribute.source() {
        AttributeSource::Plans(_) | AttributeSource::AutonomousSystem | AttributeSource::Location => {
            join(patterns.iter().filter_map(HeaderPattern::text))
        }
        AttributeSource::Client { .. }
        | AttributeSource::Head
        | AttributeSource::Header(_)
        | AttributeSource::Token
        | AttributeSource::Listener
        | AttributeSource::Certificate(_)
        | AttributeSource::Body(_)
        | AttributeSource::Descriptor(_) => None,
    };
    let actual = attribute.text(request, Route(""), FULL_PREFIX).ok();
    Some(Mismatch::new(attribute.label(), actual, expected))
}

fn status(rule: &Rule, request: &Attributes<'_>, domain: Option<&str>) -> RuleStatus {
    let is_served = match domain {
        Some(_) => rule.domain.as_deref() == domain,
        None => !rule.reads_descriptors(),
    };
    if !is_served {
        let (field, actual) = if domain.is_some() { ("domain", domain) } else { ("descriptors", None) };
        let expected = rule.domain.as_deref().map(str::to_owned);
        return RuleStatus::Mismatch(Mismatch::new(field, actual.map(str::to_owned), expected));
    }
    match rule.applies_to(request) {
        Match::Yes(route) => RuleStatus::Applies(route.0.to_owned()),
        Match::Unclear(_, ambiguity) => RuleStatus::Ambiguous(ambiguity.to_string()),
        Match::No => match rule.matcher.first_mismatch(request) {
            Some(mismatch) => RuleStatus::Mismatch(mismatch),
            None => RuleStatus::Excepted(
                rule.except
                    .iter()
                    .position(|except| matches!(except.matches(request), Match::Yes(_)))
                    .unwrap_or(0),
            ),
        },
    }
}

fn explained_key(
    limiting: &LimitAction,
    request: &Attributes<'_>,
    route: Route<'_>,
    hasher: KeyHasher,
    ipv6_prefix: u8,
) -> ExplainedKey {
    let parts = limiting.key.parts(request, route, ipv6_prefix);
    let hash = limiting.key.hash(request, route, hasher);
    let is_complete = hash.is_ok();
    ExplainedKey {
        text: write_key(&parts),
        parts,
        hash: match (hash, limiting.on_missing) {
            (Ok(hash), _) => Some(hash),
            (Err(IncompleteKey::Missing), OnMissing::Shared) => Some(key::incomplete_key(hasher)),
            (Err(_), _) => None,
        },
        is_complete,
        is_enforced: limiting.is_enforced(is_complete.then_some((request, route))),
    }
}

/// Joins values for display; `None` if there are none.
fn join(values: impl Iterator<Item = String>) -> Option<String> {
    let all = values.collect::<Vec<_>>().join(", ");
    (!all.is_empty()).then_some(all)
}

impl std::fmt::Display for HostPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exact(host) => f.write_str(host),
            Self::Suffix(suffix) => write!(f, "*{suffix}"),
            Self::Regex(regex) => write!(f, "~{regex}"),
        }
    }
}

impl HeaderPattern {
    /// Returns the pattern as configured; `None` for a list.
    fn text(&self) -> Option<String> {
        Some(match self {
            Self::Present => "*".to_owned(),
            Self::Absent => "!present".to_owned(),
            Self::Exact(value) => value.to_string(),
            Self::Regex(regex) => format!("~{regex}"),
            Self::Number(number) => number.to_string(),
            Self::InList(_) => return None,
        })
    }
}

#[cfg(test)]
mod tests;
