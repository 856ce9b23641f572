//! The domain in which Envoy's rate limit filter may apply a rule.
//!
//! Envoy makes one call, before the request is forwarded or after its response, and does not report its
//! outcome. It also cannot delay a request. The keys that have no meaning then are listed in `applicability`.

use super::scope::Scope;
use crate::config::at::At;
use crate::config::problem::{Fault, Report};
use crate::config::raw;
use crate::rules::pattern::HeaderPattern;
use crate::rules::rule::Rule;

/// Reads the domain of the rule at `at`.
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
        report.value(at, "leading or trailing spaces, but the domain must equal the one that Envoy sends");
    }
    if !scope.has_service {
        let note = Fault::new("not used, because the rate limit service for Envoy is disabled");
        report.note(at, note.hint("add the section `rls`"));
    }
    Some(name.into())
}

/// Adds a note for conditions on attributes that no descriptor contains: such a rule applies only to proxied
/// requests, whatever its domain.
pub(super) fn note_what_is_never_told(rule: &Rule, at: At<'_>, report: &mut Report<'_>) {
    if rule.domain.is_none() {
        return;
    }
    let is_wanted =
        |patterns: &[HeaderPattern]| !patterns.iter().any(|pattern| matches!(pattern, HeaderPattern::Absent));
    let never = rule.matcher.conditions.iter().filter(|condition| {
        !condition.attribute.source().is_in_descriptors() && is_wanted(&condition.patterns)
    });
    let mut fields: Vec<_> = never.map(|condition| condition.attribute.word()).collect();
    fields.dedup();
    let at = at.key("match");
    for field in fields {
        let note = Fault::new("never matches a rate limit request from Envoy, so `domain` has no effect");
        report.note(at.key(field), note.hint("use `descriptor` to match what Envoy sends"));
    }
}
