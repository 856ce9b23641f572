//! Compiles rules, and checks which keys need or exclude one another and which have no effect.

use std::collections::HashMap;

use super::scope::{Asks, Scope};
use super::{
    counters, domain, each, given, limits, matching, nested, refusal, remote_limit, shared, tariff, throttle,
    windows,
};
use crate::config::applicability::{self, Given, Kind};
use crate::config::at::At;
use crate::config::defaults::LONGEST_NAME;
use crate::config::problem::{Fault, Report, named, quoted};
use crate::config::raw;
use crate::response::rejection::RejectionResponse;
use crate::rules::key::KeyTemplate;
use crate::rules::matcher::Matcher;
use crate::rules::rule::{Action, LimitAction, Rule, Throttle};

/// Compiles all rules in file order, each with its local reply.
pub(super) fn compile(
    raw: &raw::ZeroOrMany<raw::Rule>,
    at: At<'_>,
    scope: &mut Scope<'_>,
    report: &mut Report<'_>,
) -> Vec<(Rule, RejectionResponse)> {
    let mut lines = HashMap::new();
    let rules = each(raw, at, |raw, at| {
        let name = raw.name.as_deref().unwrap_or_default();
        if raw.name.is_some() {
            let name_at = at.key("name");
            report.take(name_at, check_name(name));
            if let Some(first) = lines.insert(name, report.line(name_at)) {
                let fault = Fault::new(format!("duplicate rule name {}", named(name)));
                report.value(name_at, fault.hint(format!("first in line {first}")));
            }
        }
        Some(rule(raw, name, at, scope, report))
    });
    counters::check(raw, &rules, at, report);
    rules
}

/// Checks a name, which becomes part of metrics, headers and log lines without escaping.
pub(super) fn check_name(name: &str) -> Result<(), Fault> {
    let bad = name.chars().find(|letter| !letter.is_ascii_graphic() || matches!(letter, '"' | '\\'));
    if name.is_empty() {
        return Err(Fault::new("empty name"));
    }
    if let Some(bad) = bad {
        return Err(Fault::new(format!(
            "invalid name, expected visible ASCII without quotes and backslashes, got {}",
            quoted(name)
        ))
        .hint(format!("remove {}", named(&bad.to_string()))));
    }
    if name.len() > LONGEST_NAME {
        return Err(Fault::new(format!("a name has at most {LONGEST_NAME} characters, got {}", name.len())));
    }
    Ok(())
}

fn rule(
    raw: &raw::Rule,
    name: &str,
    at: At<'_>,
    scope: &mut Scope<'_>,
    report: &mut Report<'_>,
) -> (Rule, RejectionResponse) {
    scope.asks =
        if raw.domain.is_some() || report.is_faulty(at.key("domain")) { Asks::Domain } else { Asks::Rule };
    let matcher = matching::matcher(raw.matching.as_ref(), at.key("match"), scope, report);
    let except = raw.except.as_ref().map_or_else(Vec::new, |list| {
        each(list, at.key("except"), |except, at| Some(matching::except(except, at, scope, report)))
    });
    let refusal = refusal::compile(raw.on_limit.as_ref(), name, at.key("on_limit"), scope.files, report);
    let action = match raw.action.unwrap_or_default() {
        raw::Action::Limit if report.is_faulty(at.key("action")) => Action::Deny,
        raw::Action::Limit => Action::Limit(limiting(raw, &matcher, at, scope, report)),
        raw::Action::Allow => Action::Allow,
        raw::Action::Deny => Action::Deny,
    };
    note_on_everybody(raw, &matcher, at, report);
    scope.asks = Asks::default();
    let domain = domain::name(raw, at, scope, report);
    let rule = Rule { name: name.into(), matcher, except: except.into(), action, domain };
    domain::note_what_is_never_told(&rule, at, report);
    applicable(raw, &rule, at, report);
    (rule, refusal)
}

/// Reports keys of the rule at `at` that have no meaning in it.
fn applicable(raw: &raw::Rule, rule: &Rule, at: At<'_>, report: &mut Report<'_>) {
    let (throttle, is_shared) = match &rule.action {
        Action::Limit(limiting) => (limiting.throttle, limiting.shared().is_some()),
        Action::Allow | Action::Deny => (Throttle::default(), false),
    };
    let written = Given { rule: raw, throttle };
    let is_remote = remote_limit::of(raw).is_some();
    let is_limit = matches!(rule.action, Action::Limit(_));
    let is_limited =
        given(limits::written_keys(raw)).next().is_some() || nested::prefixes_of(raw).next().is_some();
    let kinds = [
        (Kind::Unlimited, raw.action.unwrap_or_default() != raw::Action::Limit),
        (Kind::InFlight, is_limit && !is_limited && raw.in_flight.is_some()),
        (Kind::Remote, is_limit && is_remote),
        (Kind::RemoteAlone, is_limit && remote_limit::needs_no_limit(raw)),
        (Kind::Shared, is_shared),
        (Kind::Domain, rule.domain.is_some()),
        (Kind::Descriptors, rule.domain.is_some() && rule.reads_descriptors()),
    ];
    for (kind, _) in kinds.into_iter().filter(|(_, is_such)| *is_such) {
        applicability::check(&written, kind, at, report);
    }
}

fn limiting(
    raw: &raw::Rule,
    matcher: &Matcher,
    at: At<'_>,
    scope: &mut Scope<'_>,
    report: &mut Report<'_>,
) -> LimitAction {
    let key = raw
        .key
        .as_ref()
        .map_or_else(KeyTemplate::default, |key| matching::key(key, matcher, at, scope, report));
    let throttle = throttle::compile(raw.throttle.as_ref(), at.key("throttle"), report);
    let nested = nested::limits(raw, (&key, throttle), at, report);
    let mut limits = nested.unwrap_or_else(|| limits::compile(raw, throttle, at, report));
    windows::fit(raw, &mut limits, at, report);
    throttle::fit(throttle, &mut limits, at.key("throttle"), report);
    let tariff = tariff::compile(raw, &limits, at, scope, report);
    throttle::check_charging(throttle, &tariff, at.key("throttle"), report);
    let source = shared::source(raw, &key, at, scope, report);
    let enforce = throttle::enforce(raw, (throttle, &key), at, report);
    LimitAction {
        counter: counters::name(raw, at, report),
        key,
        on_missing: raw.on_missing.unwrap_or_default(),
        limits: limits.into(),
        cost_model: tariff,
        throttle,
        enforced_share: enforce,
        in_flight: raw.in_flight,
        ban: throttle::ban(raw.on_limit.as_ref(), at.key("on_limit"), report),
        on_denied: raw.on_denied.unwrap_or_default(),
        on_change: raw.on_change.unwrap_or_default(),
        source,
    }
}

/// Adds a note for an `allow` or `deny` of every request, because other rules never apply then.
fn note_on_everybody(raw: &raw::Rule, matcher: &Matcher, at: At<'_>, report: &mut Report<'_>) {
    if !matcher.holds_for_all() || raw.except.is_some() {
        return;
    }
    match raw.action.unwrap_or_default() {
        raw::Action::Allow => {
            report.note(at.key("action"), "exempts every request, so no other rule ever applies")
        }
        raw::Action::Deny => report.note(at.key("action"), "rejects every request that no other rule allows"),
        raw::Action::Limit => {}
    }
}
