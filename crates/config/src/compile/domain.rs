//! The domain in which Envoy's rate limit filter may apply a rule.
//!
//! Envoy makes one call, before the request is forwarded or after its response, and does not report its
//! outcome. It also cannot delay a request. The keys that have no meaning then are listed in `applicability`.

use super::context::CompileContext;
use crate::at::At;
use crate::diagnostic::ValueError;
use crate::raw;
use weir_policy::rules::pattern::HeaderPattern;
use weir_policy::rules::rule::Rule;

/// Reads the domain of the rule at `at`.
pub(super) fn read_name(raw: &raw::Rule, at: At<'_>, context: &CompileContext<'_>) -> Option<Box<str>> {
    let name = raw.domain.as_deref()?;
    let at = at.key("domain");
    if name.is_empty() {
        at.error("empty, expected the name of a domain");
    } else if name.trim() != name {
        at.error("leading or trailing spaces, but the domain must equal the one that Envoy sends");
    }
    if !context.has_rls {
        let note = ValueError::new("not used, because the rate limit service for Envoy is disabled");
        at.note(note.with_hint("add the section `rls`"));
    }
    Some(name.into())
}

/// Adds a note for conditions on attributes that no descriptor contains: such a rule applies only to proxied
/// requests, whatever its domain.
pub(super) fn note_unavailable_attributes(rule: &Rule, at: At<'_>) {
    if rule.domain.is_none() {
        return;
    }
    let requires_value =
        |patterns: &[HeaderPattern]| !patterns.iter().any(|pattern| matches!(pattern, HeaderPattern::Absent));
    let unavailable = rule.matcher.conditions.iter().filter(|condition| {
        !condition.attribute.source().is_in_descriptors() && requires_value(&condition.patterns)
    });
    let mut fields: Vec<_> = unavailable.map(|condition| condition.attribute.word()).collect();
    fields.dedup();
    let at = at.key("match");
    for field in fields {
        let note =
            ValueError::new("never matches a rate limit request from Envoy, so `domain` has no effect");
        at.key(field).note(note.with_hint("use `descriptor` to match what Envoy sends"));
    }
}
