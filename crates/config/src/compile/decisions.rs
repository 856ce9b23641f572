//! Listeners that decide for another proxy (`decide`), and which rules may apply there.
//!
//! That proxy asks once, before it forwards the request, and reports neither the body nor the outcome. The keys that have
//! no meaning then are listed in `applicability`.

use crate::applicability::RESTRICT;
use crate::at::At;
use crate::diagnostic::ValueError;
use crate::{ListenerConfig, raw};
use weir_policy::decision::DecisionProtocol;
use weir_policy::rules::attribute::{Attribute, AttributeSource};
use weir_policy::rules::matcher::Matcher;
use weir_policy::rules::pattern::HeaderPattern;
use weir_policy::rules::rule::{Action, Rule};

/// Compiles `decide` of the listener at `at`; `None` if it forwards requests.
pub(super) fn compile(
    raw: &raw::ListenerMap,
    client_ip: Option<&raw::ClientIp>,
    at: At<'_>,
) -> Option<DecisionProtocol> {
    let decide = raw.decide?;
    let decide_at = at.key("decide");
    if raw.forward_proxy.as_ref().is_some_and(raw::ForwardProxy::is_on) {
        let error = ValueError::new("cannot be combined with `forward_proxy`");
        decide_at.key_error(error.with_hint("such a listener forwards nothing: use one listener for each"));
    }
    let trusted = client_ip.and_then(|raw| raw.trusted_proxies.as_ref());
    if trusted.is_none_or(|list| list.items().next().is_none()) {
        let error = ValueError::new("needs `client_ip.trusted_proxies`: only trusted proxies get decisions");
        decide_at.error(error.with_hint("add the address of the proxy that asks, such as 127.0.0.1"));
    }
    Some(match decide {
        raw::Decide::ForwardAuth => DecisionProtocol::ForwardAuth,
        raw::Decide::AuthRequest => DecisionProtocol::AuthRequest,
        raw::Decide::ExtAuthz => DecisionProtocol::ExtAuthz,
    })
}

/// Returns the names of the listeners that decide for another proxy.
pub(super) fn listener_names(all: &[ListenerConfig]) -> Vec<Box<str>> {
    let deciding = all.iter().filter(|listener| listener.decide.is_some());
    deciding.map(|listener| listener.settings.name.clone()).collect()
}

/// Whether `rule` may apply to a request on one of the listeners `deciding`.
pub(super) fn may_apply(rule: &Rule, deciding: &[Box<str>]) -> bool {
    let is_reached = |name: &str| {
        let excluded = rule.except.iter().any(|except| excludes_listener(except, name));
        !excluded && listener_conditions(&rule.matcher).all(|patterns| names(patterns, name))
    };
    !rule.reads_descriptors() && deciding.iter().any(|name| is_reached(name))
}

/// Reports attributes of the rule at `at` that no proxy sends when it asks for a decision.
pub(super) fn check_attributes(rule: &Rule, at: At<'_>) {
    let key = match &rule.action {
        Action::Limit(limiting) => limiting.counted_parts(),
        Action::Allow | Action::Deny => &[],
    };
    report_unavailable(key.iter(), at.key("key"));
    report_unavailable(attributes_of(std::slice::from_ref(&rule.matcher)), at.key("match"));
    report_unavailable(attributes_of(&rule.except), at.key("except"));
}

fn attributes_of(matchers: &[Matcher]) -> impl Iterator<Item = &Attribute> {
    matchers.iter().flat_map(|matcher| &matcher.conditions).map(|condition| &condition.attribute)
}

fn report_unavailable<'a>(mut attributes: impl Iterator<Item = &'a Attribute>, at: At<'_>) {
    let reason = |attribute: &Attribute| {
        let source = attribute.source();
        let is_certificate = matches!(source, AttributeSource::Certificate(_));
        let of_body = source.body().map(|_| "the proxy that asks does not send bodies");
        of_body.or_else(|| is_certificate.then_some("the certificate is that of the proxy that asks"))
    };
    let found = attributes.find_map(|attribute| Some((attribute.word(), reason(attribute)?)));
    if let Some((word, reason)) = found {
        let error = format!("`{word}` has no meaning on a listener with `decide`: {reason}");
        at.key_error(ValueError::new(error).with_hint(RESTRICT));
    }
}

/// Whether `except` holds for every request on the listener with this name.
fn excludes_listener(except: &Matcher, name: &str) -> bool {
    // Without `..`, so that a new field is considered here.
    let Matcher { paths, methods, hosts, client_ip, schedule, conditions, entries } = except;
    let has_no_field = paths.is_empty() && methods.is_empty() && hosts.is_empty();
    let has_no_option = client_ip.is_none() && schedule.is_none() && entries.is_none();
    let is_only_listener = conditions.iter().all(|part| part.attribute == Attribute::Listener);
    has_no_field
        && has_no_option
        && is_only_listener
        && listener_conditions(except).all(|patterns| names(patterns, name))
}

fn listener_conditions(matcher: &Matcher) -> impl Iterator<Item = &[HeaderPattern]> {
    let conditions = matcher.conditions.iter().filter(|part| part.attribute == Attribute::Listener);
    conditions.map(|part| &*part.patterns)
}

fn names(patterns: &[HeaderPattern], name: &str) -> bool {
    patterns.iter().any(|pattern| matches!(pattern, HeaderPattern::Exact(known) if **known == *name))
}
