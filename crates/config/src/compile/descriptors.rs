//! Conditions and key parts that use the descriptors sent by Envoy.

use std::collections::BTreeMap;

use super::context::{CompileContext, MatcherOwner};
use super::{map_items, patterns};
use crate::at::At;
use crate::diagnostic::ValueError;
use crate::raw;
use weir_policy::rules::attribute::Attribute;
use weir_policy::rules::matcher::{Condition, EntryPattern};
use weir_policy::rules::pattern::HeaderPattern;

pub(super) type DescriptorPatterns = BTreeMap<String, raw::OneOrMany<raw::HeaderValues>>;

/// Compiles `descriptor` of a matcher.
pub(super) fn compile_conditions(
    map: &DescriptorPatterns,
    at: At<'_>,
    context: &mut CompileContext<'_>,
) -> Vec<Condition> {
    require_domain(at, context);
    if map.is_empty() && !at.is_reported() {
        at.error("empty map, expected at least one key");
    }
    let entries = map.iter().filter_map(|(key, values)| compile_entry(key, values, at, context));
    entries.map(|(key, any)| Condition { attribute: Attribute::Descriptor(key), patterns: any }).collect()
}

/// Compiles `entries` of a matcher.
pub(super) fn compile_entries(
    raw: &raw::OneOrMany<DescriptorPatterns>,
    at: At<'_>,
    context: &mut CompileContext<'_>,
) -> Box<[EntryPattern]> {
    require_domain(at, context);
    map_items(raw, at, |map, at| compile_single_entry(map, at, context)).into()
}

/// Compiles the part `{descriptor: KEY}` of a key.
pub(super) fn compile_key_part(key: &str, at: At<'_>, context: &CompileContext<'_>) -> Option<Attribute> {
    require_domain(at, context);
    if key.is_empty() {
        at.error("empty, expected the key of an entry");
        return None;
    }
    Some(Attribute::Descriptor(key.into()))
}

/// Compiles one item of `entries`: a map with a single key.
fn compile_single_entry(
    map: &DescriptorPatterns,
    at: At<'_>,
    context: &mut CompileContext<'_>,
) -> Option<EntryPattern> {
    let (Some((key, values)), 1) = (map.first_key_value(), map.len()) else {
        if !at.is_reported() {
            let error = ValueError::new(format!("expected a map of one key, got {}", map.len()));
            at.error(error.with_hint("as in `[{ first: \"*\" }, { second: value }]`"));
        }
        return None;
    };
    let entry = compile_entry(key, values, at, context)?;
    if entry.1.iter().any(|pattern| matches!(pattern, HeaderPattern::Absent)) {
        let error = ValueError::new("`!present` in `entries` never matches");
        at.key(key).error(error.with_hint("omit the entry, or use `descriptor`"));
    }
    Some(entry)
}

fn compile_entry(
    key: &str,
    values: &raw::OneOrMany<raw::HeaderValues>,
    at: At<'_>,
    context: &mut CompileContext<'_>,
) -> Option<EntryPattern> {
    let at = at.key(key);
    if key.is_empty() {
        at.key_error("empty, expected the key of an entry");
        return None;
    }
    Some((
        key.into(),
        map_items(values, at, |raw, at| patterns::compile_header_pattern(raw, at, context)).into(),
    ))
}

fn require_domain(at: At<'_>, context: &CompileContext<'_>) {
    match context.matcher_owner {
        MatcherOwner::DomainRule => {}
        MatcherOwner::Rule => {
            let error = ValueError::new("descriptors come only from Envoy, and this rule has no `domain`");
            at.key_error(error.with_hint("add `domain: NAME` to the rule"));
        }
        MatcherOwner::Upstream => at.key_error("proxied requests have no descriptors"),
    }
}
