//! Conditions and key parts that use the descriptors sent by Envoy.

use std::collections::BTreeMap;

use super::context::{CompileContext, MatcherOwner};
use super::{map_items, patterns};
use crate::config_path::ConfigPath;
use crate::diagnostic::{Diagnostics, ValueError};
use crate::raw;
use weir_policy::rules::attribute::Attribute;
use weir_policy::rules::matcher::{Condition, EntryPattern};
use weir_policy::rules::pattern::HeaderPattern;

pub(super) type DescriptorPatterns = BTreeMap<String, raw::OneOrMany<raw::HeaderValues>>;

/// Compiles `descriptor` of a matcher.
pub(super) fn compile_conditions(
    map: &DescriptorPatterns,
    at: ConfigPath<'_>,
    context: &mut CompileContext<'_>,
    report: &mut Diagnostics<'_>,
) -> Vec<Condition> {
    require_domain(at, context, report);
    if map.is_empty() && !report.is_reported(at) {
        report.add_value_error(at, "empty map, expected at least one key");
    }
    let entries = map.iter().filter_map(|(key, values)| compile_entry(key, values, at, context, report));
    entries.map(|(key, any)| Condition { attribute: Attribute::Descriptor(key), patterns: any }).collect()
}

/// Compiles `entries` of a matcher.
pub(super) fn compile_entries(
    raw: &raw::OneOrMany<DescriptorPatterns>,
    at: ConfigPath<'_>,
    context: &mut CompileContext<'_>,
    report: &mut Diagnostics<'_>,
) -> Box<[EntryPattern]> {
    require_domain(at, context, report);
    map_items(raw, at, |map, at| compile_single_entry(map, at, context, report)).into()
}

/// Compiles the part `{descriptor: KEY}` of a key.
pub(super) fn compile_key_part(
    key: &str,
    at: ConfigPath<'_>,
    context: &CompileContext<'_>,
    report: &mut Diagnostics<'_>,
) -> Option<Attribute> {
    require_domain(at, context, report);
    if key.is_empty() {
        report.add_value_error(at, "empty, expected the key of an entry");
        return None;
    }
    Some(Attribute::Descriptor(key.into()))
}

/// Compiles one item of `entries`: a map with a single key.
fn compile_single_entry(
    map: &DescriptorPatterns,
    at: ConfigPath<'_>,
    context: &mut CompileContext<'_>,
    report: &mut Diagnostics<'_>,
) -> Option<EntryPattern> {
    let (Some((key, values)), 1) = (map.first_key_value(), map.len()) else {
        if !report.is_reported(at) {
            let error = ValueError::new(format!("expected a map of one key, got {}", map.len()));
            report.add_value_error(at, error.with_hint("as in `[{ first: \"*\" }, { second: value }]`"));
        }
        return None;
    };
    let entry = compile_entry(key, values, at, context, report)?;
    if entry.1.iter().any(|pattern| matches!(pattern, HeaderPattern::Absent)) {
        let error = ValueError::new("`!present` in `entries` never matches");
        report.add_value_error(at.key(key), error.with_hint("omit the entry, or use `descriptor`"));
    }
    Some(entry)
}

fn compile_entry(
    key: &str,
    values: &raw::OneOrMany<raw::HeaderValues>,
    at: ConfigPath<'_>,
    context: &mut CompileContext<'_>,
    report: &mut Diagnostics<'_>,
) -> Option<EntryPattern> {
    let at = at.key(key);
    if key.is_empty() {
        report.add_key_error(at, "empty, expected the key of an entry");
        return None;
    }
    Some((
        key.into(),
        map_items(values, at, |raw, at| patterns::compile_header_pattern(raw, at, context, report)).into(),
    ))
}

fn require_domain(at: ConfigPath<'_>, context: &CompileContext<'_>, report: &mut Diagnostics<'_>) {
    match context.matcher_owner {
        MatcherOwner::DomainRule => {}
        MatcherOwner::Rule => {
            let error = ValueError::new("descriptors come only from Envoy, and this rule has no `domain`");
            report.add_key_error(at, error.with_hint("add `domain: NAME` to the rule"));
        }
        MatcherOwner::Upstream => report.add_key_error(at, "proxied requests have no descriptors"),
    }
}
