//! Patterns for the values of headers and claims.

use std::collections::BTreeMap;

use super::context::CompileContext;
use super::map_items;
use crate::at::At;
use crate::data_files::header_values::VALUES;
use crate::diagnostic::ValueError;
use crate::quoting::quoted;
use crate::raw;
use weir_policy::identify::jwt::claim::ClaimName;
use weir_policy::rules::attribute::Attribute;
use weir_policy::rules::matcher::Condition;
use weir_policy::rules::pattern::HeaderPattern;

/// Compiles one pattern of a header.
pub(super) fn compile_header_pattern(
    raw: &raw::HeaderValues,
    at: At<'_>,
    context: &mut CompileContext<'_>,
) -> Option<HeaderPattern> {
    match raw {
        raw::HeaderValues::Pattern(pattern) => parse_pattern(&pattern.0, at),
        raw::HeaderValues::File(raw::FileName { file }) => {
            let list = at.key("file").load(context.files, file.as_deref()?, &VALUES)?;
            if list.is_empty() {
                at.key("file").note("the file has no values, so it matches no request");
            }
            Some(HeaderPattern::InList(list))
        }
    }
}

/// Compiles `jwt` of a matcher.
pub(super) fn compile_claims(
    map: &BTreeMap<String, raw::OneOrMany<raw::ClaimPattern>>,
    at: At<'_>,
    context: &CompileContext<'_>,
) -> Vec<Condition> {
    if map.is_empty() && !at.is_reported() {
        at.error("empty map, expected at least one claim");
    }
    let read = |(name, patterns): (&String, &raw::OneOrMany<raw::ClaimPattern>)| {
        let at = at.key(name);
        let claim = register_claim(name, at, context)?;
        Some(Condition { attribute: Attribute::Jwt(claim), patterns: compile_scalars(patterns, at) })
    };
    map.iter().filter_map(read).collect()
}

/// Compiles the patterns of a claim, or of a field of a body.
pub(super) fn compile_scalars(
    patterns: &raw::OneOrMany<raw::ClaimPattern>,
    at: At<'_>,
) -> Box<[HeaderPattern]> {
    let patterns = map_items(patterns, at, |raw, at| match raw {
        raw::ClaimPattern::Flag(flag) => Some(HeaderPattern::Exact(flag.to_string().into())),
        raw::ClaimPattern::Number(number) => Some(HeaderPattern::Exact(number.to_string().into())),
        raw::ClaimPattern::Text(text) => parse_pattern(text, at),
    });
    patterns.into()
}

/// Parses the name of a claim, and registers the claim as used.
pub(super) fn register_claim(name: &str, at: At<'_>, context: &CompileContext<'_>) -> Option<ClaimName> {
    if !context.has_jwt {
        let error = ValueError::new("claims need the section `jwt`, and there is none");
        at.key_error(error.with_hint("add `jwt` with the keys that verify tokens"));
    }
    let Some(claim) = ClaimName::new(name) else {
        at.key_error("empty, expected a claim name");
        return None;
    };
    context.used_claims.borrow_mut().push(claim.clone());
    Some(claim)
}

pub(super) fn parse_pattern(text: &str, at: At<'_>) -> Option<HeaderPattern> {
    at.ok(HeaderPattern::parse(text).map_err(|error| format!("{error}, got {}", quoted(text))))
}
