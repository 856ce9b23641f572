//! Patterns for the values of headers and claims.

use std::collections::BTreeMap;

use super::context::CompileContext;
use super::map_items;
use crate::config_path::ConfigPath;
use crate::data_files::header_values::VALUES;
use crate::diagnostic::{Diagnostics, ValueError};
use crate::quoting::quoted;
use crate::raw;
use weir_policy::identify::jwt::claim::ClaimName;
use weir_policy::rules::attribute::Attribute;
use weir_policy::rules::matcher::Condition;
use weir_policy::rules::pattern::HeaderPattern;

/// Compiles one pattern of a header.
pub(super) fn compile_header_pattern(
    raw: &raw::HeaderValues,
    at: ConfigPath<'_>,
    context: &mut CompileContext<'_>,
    report: &mut Diagnostics<'_>,
) -> Option<HeaderPattern> {
    match raw {
        raw::HeaderValues::Pattern(pattern) => parse_pattern(&pattern.0, at, report),
        raw::HeaderValues::File(raw::FileName { file }) => {
            let list = context.files.load(file.as_deref()?, &VALUES, at.key("file"), report)?;
            if list.is_empty() {
                report.add_note(at.key("file"), "the file has no values, so it matches no request");
            }
            Some(HeaderPattern::InList(list))
        }
    }
}

/// Compiles `jwt` of a matcher.
pub(super) fn compile_claims(
    map: &BTreeMap<String, raw::OneOrMany<raw::ClaimPattern>>,
    at: ConfigPath<'_>,
    context: &CompileContext<'_>,
    report: &mut Diagnostics<'_>,
) -> Vec<Condition> {
    if map.is_empty() && !report.is_reported(at) {
        report.add_value_error(at, "empty map, expected at least one claim");
    }
    let read = |(name, patterns): (&String, &raw::OneOrMany<raw::ClaimPattern>)| {
        let at = at.key(name);
        let claim = register_claim(name, at, context, report)?;
        let patterns = map_items(patterns, at, |raw, at| match raw {
            raw::ClaimPattern::Flag(flag) => Some(HeaderPattern::Exact(flag.to_string().into())),
            raw::ClaimPattern::Number(number) => Some(HeaderPattern::Exact(number.to_string().into())),
            raw::ClaimPattern::Text(text) => parse_pattern(text, at, report),
        });
        Some(Condition { attribute: Attribute::Jwt(claim), patterns: patterns.into() })
    };
    map.iter().filter_map(read).collect()
}

/// Parses the name of a claim, and registers the claim as used.
pub(super) fn register_claim(
    name: &str,
    at: ConfigPath<'_>,
    context: &CompileContext<'_>,
    report: &mut Diagnostics<'_>,
) -> Option<ClaimName> {
    if !context.has_jwt {
        let error = ValueError::new("claims need the section `jwt`, and there is none");
        report.add_key_error(at, error.with_hint("add `jwt` with the keys that verify tokens"));
    }
    let Some(claim) = ClaimName::new(name) else {
        report.add_key_error(at, "empty, expected a claim name");
        return None;
    };
    context.used_claims.borrow_mut().push(claim.clone());
    Some(claim)
}

pub(super) fn parse_pattern(
    text: &str,
    at: ConfigPath<'_>,
    report: &mut Diagnostics<'_>,
) -> Option<HeaderPattern> {
    report.ok_or_report(
        at,
        HeaderPattern::parse(text).map_err(|error| format!("{error}, got {}", quoted(text))),
    )
}
