//! Conditions and key parts that use the descriptors sent by Envoy.

use std::collections::BTreeMap;

use super::scope::{Asks, Scope};
use super::{each, patterns};
use crate::config::at::At;
use crate::config::problem::{Fault, Report};
use crate::config::raw;
use crate::rules::attribute::Attribute;
use crate::rules::matcher::{Condition, EntryPattern};
use crate::rules::pattern::HeaderPattern;

pub(super) type Map = BTreeMap<String, raw::OneOrMany<raw::HeaderValues>>;

/// Compiles `descriptor` of a matcher.
pub(super) fn conditions(
    map: &Map,
    at: At<'_>,
    scope: &mut Scope<'_>,
    report: &mut Report<'_>,
) -> Vec<Condition> {
    needs_domain(at, scope, report);
    if map.is_empty() && !report.is_faulty(at) {
        report.value(at, "empty map, expected at least one key");
    }
    let entries = map.iter().filter_map(|(key, values)| entry(key, values, at, scope, report));
    entries.map(|(key, any)| Condition { attribute: Attribute::Descriptor(key), patterns: any }).collect()
}

/// Compiles `entries` of a matcher.
pub(super) fn entries(
    raw: &raw::OneOrMany<Map>,
    at: At<'_>,
    scope: &mut Scope<'_>,
    report: &mut Report<'_>,
) -> Box<[EntryPattern]> {
    needs_domain(at, scope, report);
    each(raw, at, |map, at| only_entry(map, at, scope, report)).into()
}

/// Compiles the part `{descriptor: KEY}` of a key.
pub(super) fn part(key: &str, at: At<'_>, scope: &Scope<'_>, report: &mut Report<'_>) -> Option<Attribute> {
    needs_domain(at, scope, report);
    if key.is_empty() {
        report.value(at, "empty, expected the key of an entry");
        return None;
    }
    Some(Attribute::Descriptor(key.into()))
}

/// Compiles one item of `entries`: a map with a single key.
fn only_entry(map: &Map, at: At<'_>, scope: &mut Scope<'_>, report: &mut Report<'_>) -> Option<EntryPattern> {
    let (Some((key, values)), 1) = (map.first_key_value(), map.len()) else {
        if !report.is_faulty(at) {
            let fault = Fault::new(format!("expected a map of one key, got {}", map.len()));
            report.value(at, fault.hint("as in `[{ first: \"*\" }, { second: value }]`"));
        }
        return None;
    };
    let entry = entry(key, values, at, scope, report)?;
    if entry.1.iter().any(|pattern| matches!(pattern, HeaderPattern::Absent)) {
        let fault = Fault::new("`!present` in `entries` never matches");
        report.value(at.key(key), fault.hint("omit the entry, or use `descriptor`"));
    }
    Some(entry)
}

fn entry(
    key: &str,
    values: &raw::OneOrMany<raw::HeaderValues>,
    at: At<'_>,
    scope: &mut Scope<'_>,
    report: &mut Report<'_>,
) -> Option<EntryPattern> {
    let at = at.key(key);
    if key.is_empty() {
        report.key(at, "empty, expected the key of an entry");
        return None;
    }
    Some((key.into(), each(values, at, |raw, at| patterns::of_header(raw, at, scope, report)).into()))
}

fn needs_domain(at: At<'_>, scope: &Scope<'_>, report: &mut Report<'_>) {
    match scope.asks {
        Asks::Domain => {}
        Asks::Rule => {
            let fault = Fault::new("descriptors come only from Envoy, and this rule has no `domain`");
            report.key(at, fault.hint("add `domain: NAME` to the rule"));
        }
        Asks::Upstream => report.key(at, "proxied requests have no descriptors"),
    }
}
