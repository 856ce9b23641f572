//! The domain under which Envoy's rate limit filter may ask about a rule, and what it then cannot do.
//!
//! Envoy asks once, before the request is sent on or after it has been answered, and says nothing of what becomes of
//! it. It cannot be told to wait, either. So a rule that goes by any of this would do something else than it says.

use super::scope::Scope;
use crate::config::at::At;
use crate::config::problem::{Fault, Report};
use crate::config::raw;
use crate::rules::pattern::HeaderPattern;
use crate::rules::rule::{Action, Rule, Throttle};

/// What an answer of ours looks like; Envoy writes its own.
const OWN_ANSWER: [&str; 4] = ["status", "body", "headers", "fallback"];

/// The domain of the rule at `at`.
pub(super) fn name(
    raw: &raw::Rule,
    at: At<'_>,
    scope: &Scope<'_>,
    report: &mut Report<'_>,
) -> Option<Box<str>> {
    let name = raw.domain.as_deref()?;
    let at = at.key("domain");
    if name.is_empty() {
        report.value(at, "empty, expected the name of a domain");
    } else if name.trim() != name {
        report.value(at, "a domain without spaces around it is expected: Envoy sends it letter by letter");
    }
    if !scope.has_service {
        let note = Fault::new("nobody asks about it: Envoy's rate limit service is not served here");
        report.note(at, note.hint("add the section `rls`"));
    }
    Some(name.into())
}

/// What is wrong with a rule that has a domain.
pub(super) fn check(raw: &raw::Rule, rule: &Rule, at: At<'_>, report: &mut Report<'_>) {
    if rule.domain.is_none() {
        return;
    }
    let told = matches!(raw.cost, Some(raw::Cost::Told(_)));
    let ends = [
        ("in_flight", raw.in_flight.is_some()),
        ("count", raw.count.is_some()),
        ("refund_on", raw.refund_on.is_some()),
        ("cost", told),
    ];
    for (key, _) in ends.into_iter().filter(|(_, is_given)| *is_given) {
        let what = if key == "cost" { "heads and bodies" } else { "how requests end" };
        let fault = Fault::new(format!("`{key}` has no meaning with `domain`: Envoy says nothing of {what}"));
        report.key(
            at.key(key),
            fault.hint(match key {
                "cost" => "Envoy's `hits_addend` says what a request costs",
                _ => "make it a rule of its own, without `domain`",
            }),
        );
    }
    check_throttle(rule, at, report);
    if rule.reads_descriptors() {
        check_answer(raw, at, report);
    }
    note_what_is_never_told(rule, at, report);
}

fn check_throttle(rule: &Rule, at: At<'_>, report: &mut Report<'_>) {
    let Action::Limit(limiting) = &rule.action else { return };
    let what = match limiting.throttle {
        Throttle::Hard | Throttle::Shadow | Throttle::Soft { delay: None, .. } => return,
        Throttle::Delay(_) | Throttle::Soft { .. } => "Envoy cannot be told to wait",
        Throttle::Elastic(_) => "the headroom of upstreams behind Envoy is not known here",
    };
    let fault = Fault::new(format!("has no meaning with `domain`: {what}"));
    report.value(at.key("throttle"), fault.hint("`hard`, `shadow` and `soft 10%` have"));
}

/// A rule that is for Envoy alone refuses nobody itself.
fn check_answer(raw: &raw::Rule, at: At<'_>, report: &mut Report<'_>) {
    let Some(answer) = &raw.on_limit else { return };
    let at = at.key("on_limit");
    let given =
        [answer.status.is_some(), answer.body.is_some(), answer.headers.is_some(), answer.fallback.is_some()];
    for (key, _) in OWN_ANSWER.into_iter().zip(given).filter(|(_, is_given)| *is_given) {
        let fault = Fault::new(format!("`{key}` has no meaning in a rule that only Envoy asks about"));
        report.key(at.key(key), fault.hint("Envoy writes the answer"));
    }
}

/// A rule that asks for what no descriptor has is for proxied requests alone, whatever its domain.
fn note_what_is_never_told(rule: &Rule, at: At<'_>, report: &mut Report<'_>) {
    let is_wanted =
        |patterns: &[HeaderPattern]| !patterns.iter().any(|pattern| matches!(pattern, HeaderPattern::Absent));
    let never =
        rule.matcher.conditions.iter().filter(|condition| {
            !condition.attribute.source().is_in_descriptors() && is_wanted(&condition.any)
        });
    let mut fields: Vec<_> = never.map(|condition| condition.attribute.word()).collect();
    fields.dedup();
    let at = at.key("match");
    for field in fields {
        let note = Fault::new("never holds for what Envoy asks about, so `domain` changes nothing");
        report.note(at.key(field), note.hint("`descriptor` looks at what Envoy sends"));
    }
}
