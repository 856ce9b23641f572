//! Attributes that rules need and that a log may lack: headers, cookies, tokens, certificates, parts of responses.
//!
//! The engine decides a request without them as one that did not have them. That may be wrong, so the report states for
//! how many requests of each rule it was done, and what the consequence is.

mod attribute;

use std::fmt;

use http::HeaderName;
use http::header::{HOST, REFERER, USER_AGENT};

pub(super) use self::attribute::LoggedLine;
use self::attribute::NeededAttribute;
use super::record::{LoggedRequest, LoggedValue, ParsedBlock};
use weir_policy::engine::Policy;
use weir_policy::identify::Attributes;
use weir_policy::identify::forwarded::X_FORWARDED_FOR;
use weir_policy::rules::cost::{Cost, CostEstimate, ResponseFieldsCost};
use weir_policy::rules::matcher::{Condition, Match, Matcher};
use weir_policy::rules::rule::{Action, LimitAction, OnMissing, Rule};

/// Name of the header that most proxies set to a unique number.
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Consequence of a missing attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Consequence {
    /// The key is incomplete.
    Key(OnMissing),
    /// A condition is evaluated without it.
    Condition,
    /// The cost is the default.
    Cost,
    /// What is reserved until the response states the cost is the default.
    Estimate,
    /// What is reserved has no part for the size of the request.
    Prompt,
    /// The cost is the estimate.
    StatedCost,
    /// One of several numbers that make up the cost is missing.
    Summand,
    /// The limit is the default.
    Limit,
    /// Whether the response counts is unknown.
    Counting,
}

#[derive(Debug)]
struct RuleNeed {
    attribute: NeededAttribute,
    consequence: Consequence,
    /// Requests that the log recorded without it.
    requests: u64,
}

/// The needs of all rules.
#[derive(Debug)]
pub(super) struct Needs {
    rules: Box<[NeedsOfRule]>,
    /// Request headers that rules need.
    headers: Box<[HeaderName]>,
}

#[derive(Debug)]
struct NeedsOfRule {
    needs: Vec<RuleNeed>,
    /// Conditions of the rule without those on attributes that a log may lack.
    probe: Matcher,
}

impl fmt::Display for Consequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key(OnMissing::Skip) => "the key is incomplete, on_missing: skip was applied",
            Self::Key(OnMissing::Shared) => "the key is incomplete, on_missing: shared was applied",
            Self::Key(OnMissing::Deny) => "the key is incomplete, on_missing: deny was applied",
            Self::Condition => "the condition was evaluated as for a request without it",
            Self::Cost => "the default cost was charged",
            Self::Estimate => "the default estimate was reserved",
            Self::Prompt => "`max` was reserved, or without it no units for the prompt",
            Self::StatedCost => "the estimate was charged",
            Self::Summand => "it counted as 0, or the estimate was charged without any of them",
            Self::Limit => "the default limit was applied",
            Self::Counting => "such responses did not count",
        })
    }
}

/// Requests that a rule decided without an attribute that the log lacks.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Undecidable {
    pub attribute: String,
    /// How the rule decided without it.
    pub consequence: String,
    /// Values of `--field` that say where a JSON log has it, such as `json:model=KEY`; any one is enough.
    pub fields: Vec<String>,
    pub requests: u64,
}

impl Undecidable {
    /// Returns which option says where a log has it; empty if there is none.
    pub(super) fn hint(&self) -> String {
        match &*self.fields {
            [] => String::new(),
            fields => format!("; if a JSON log has it, name its key with --field {}", fields.join(" or ")),
        }
    }
}

impl Needs {
    /// Returns what the rules of `policy` need.
    pub(super) fn of(policy: &Policy) -> Self {
        let token = policy.identify.jwt.as_ref().and_then(|verifier| verifier.header()).cloned();
        let rules: Box<[_]> =
            policy.rules.rules().iter().map(|rule| NeedsOfRule::of(rule, token.as_ref())).collect();
        let mut headers: Vec<HeaderName> = Vec::new();
        for need in rules.iter().flat_map(|rule| &rule.needs) {
            if let NeededAttribute::Header(name) = &need.attribute
                && !headers.contains(name)
            {
                headers.push(name.clone());
            }
        }
        Self { rules, headers: headers.into() }
    }

    /// Returns the request headers that rules need.
    pub(super) fn headers(&self) -> &[HeaderName] {
        &self.headers
    }

    /// Counts what the log lacks of a request.
    #[inline]
    pub(super) fn count_missing(&mut self, line: LoggedLine<'_>, attributes: &Attributes<'_>) {
        for rule in &mut self.rules {
            let is_missing = |need: &RuleNeed| !need.attribute.is_recorded(line);
            if !rule.needs.iter().any(is_missing) || rule.probe.matches(attributes) == Match::No {
                continue;
            }
            let missing = rule.needs.iter_mut().filter(|need| is_missing(need));
            missing.for_each(|need| need.requests = need.requests.saturating_add(1));
        }
    }

    /// Returns what the rule at `index` decided without.
    pub(super) fn undecidable(&self, index: usize) -> Vec<Undecidable> {
        let needs = self.rules.get(index).into_iter().flat_map(|rule| &rule.needs);
        let missing = needs.filter(|need| need.requests > 0);
        missing
            .map(|need| Undecidable {
                attribute: need.attribute.to_string(),
                consequence: need.consequence.to_string(),
                fields: need.attribute.options(),
                requests: need.requests,
            })
            .collect()
    }
}

impl NeedsOfRule {
    fn of(rule: &Rule, token: Option<&HeaderName>) -> Self {
        let mut collected = Self { needs: Vec::new(), probe: probe_of(&rule.matcher) };
        for matcher in std::iter::once(&rule.matcher).chain(&rule.except) {
            let mut add = |attribute| collected.add(attribute, Consequence::Condition);
            if !matcher.methods.is_empty() {
                add(NeededAttribute::Method);
            }
            if !matcher.hosts.is_empty() {
                add(NeededAttribute::Host);
            }
            if matcher.client_ip.is_some() {
                add(NeededAttribute::Client);
            }
            let of_conditions = matcher.conditions.iter();
            let needed = |condition: &Condition| NeededAttribute::of(&condition.attribute, token);
            of_conditions.filter_map(needed).for_each(add);
        }
        if let Action::Limit(limiting) = &rule.action {
            collected.add_limiting(limiting, token);
        }
        collected
    }

    fn add_limiting(&mut self, limiting: &LimitAction, token: Option<&HeaderName>) {
        let key = limiting.counted_parts().iter().filter_map(|part| NeededAttribute::of(part, token));
        key.for_each(|attribute| self.add(attribute, Consequence::Key(limiting.on_missing)));
        let stated = limiting.limits.iter().filter_map(|limit| limit.stated.as_ref());
        let attributes = stated.filter_map(|stated| NeededAttribute::of(stated.attribute(), token));
        attributes.for_each(|attribute| self.add(attribute, Consequence::Limit));
        match &limiting.cost_model.cost {
            Cost::Header(header) => self.add(NeededAttribute::Header(header.name.clone()), Consequence::Cost),
            Cost::ResponseHeader(header) => {
                self.add(NeededAttribute::ResponseHeader(header.name.clone()), Consequence::Cost);
            }
            Cost::RequestField(stated) => {
                let field = NeededAttribute::of_fields(std::slice::from_ref(&stated.field));
                self.add(field, Consequence::Cost);
            }
            Cost::ResponseFields(stated) => self.add_stated(stated),
            Cost::RequestBytes(_) => self.add(NeededAttribute::BodySize, Consequence::Cost),
            Cost::Fixed(_) | Cost::ResponseBytes(_) => {}
        }
        let counts = limiting.cost_model.counts.as_ref();
        for (name, _) in counts.into_iter().flat_map(|counts| &counts.headers) {
            self.add(NeededAttribute::ResponseHeader(name.clone()), Consequence::Counting);
        }
        if limiting.cost_model.reads_calls() {
            self.add(NeededAttribute::CallStatus, Consequence::Counting);
        }
    }

    /// Adds what a cost needs that the response states: its numbers, and what the estimate depends on.
    fn add_stated(&mut self, stated: &ResponseFieldsCost) {
        let is_sum = stated.terms.len() > 1;
        let consequence = if is_sum { Consequence::Summand } else { Consequence::StatedCost };
        for term in &stated.terms {
            self.add(NeededAttribute::of_response(&term.fields), consequence);
        }
        let CostEstimate { stated: endpoints, repetitions, .. } = &stated.estimate;
        let maxima: Vec<_> = endpoints.iter().flat_map(|stated| &stated.fields).cloned().collect();
        let of_endpoints: Vec<_> =
            endpoints.iter().flat_map(|stated| &stated.endpoint.fields).cloned().collect();
        for fields in
            [maxima.as_slice(), repetitions, &of_endpoints].into_iter().filter(|fields| !fields.is_empty())
        {
            self.add(NeededAttribute::of_fields(fields), Consequence::Estimate);
        }
        if stated.estimate.bytes_per_unit.is_some() {
            self.add(NeededAttribute::BodySize, Consequence::Prompt);
        }
    }

    fn add(&mut self, attribute: NeededAttribute, consequence: Consequence) {
        if !self.needs.iter().any(|need| need.attribute == attribute && need.consequence == consequence) {
            self.needs.push(RuleNeed { attribute, consequence, requests: 0 });
        }
    }
}

/// Returns the conditions of a rule that every log allows to evaluate.
fn probe_of(matcher: &Matcher) -> Matcher {
    Matcher {
        paths: matcher.paths.clone(),
        schedule: matcher.schedule.clone(),
        entries: matcher.entries.clone(),
        ..Matcher::default()
    }
}

/// Returns the text of a header if the log records it; the inner `None` if the request does not have it. `needed` is the
/// list that the indices of further headers refer to.
pub(super) fn recorded_header<'b>(
    name: &HeaderName,
    request: &LoggedRequest,
    block: &'b ParsedBlock,
    needed: &[HeaderName],
) -> Option<Option<&'b [u8]>> {
    let own = match () {
        () if *name == USER_AGENT => request.user_agent,
        () if *name == REFERER => request.referer,
        () if *name == HOST => request.host,
        () if *name == X_FORWARDED_FOR => request.forwarded_for,
        () if *name == X_REQUEST_ID => request.request_id,
        () => super::record::TextSpan::UNRECORDED,
    };
    let is_named = |header: &&LoggedValue| needed.get(header.name as usize) == Some(name);
    let span = match own.is_recorded() {
        true => own,
        false => block.values_of(request).iter().find(is_named)?.value,
    };
    let text = span.text(&block.data);
    // No request has such a value: the log has changed it, or it was never valid.
    let has_controls =
        |text: &[u8]| text.iter().any(|byte| (*byte < b' ' && *byte != b'\t') || *byte == 0x7f);
    (!text.is_some_and(has_controls)).then_some(text)
}
