//! Patterns for the values of headers and claims.

use std::collections::BTreeMap;

use super::each;
use super::scope::Scope;
use crate::config::at::At;
use crate::config::files::values::VALUES;
use crate::config::problem::{Fault, Report, quoted};
use crate::config::raw;
use crate::identify::jwt::claim::ClaimName;
use crate::rules::attribute::Attribute;
use crate::rules::matcher::Condition;
use crate::rules::pattern::HeaderPattern;

/// Compiles one pattern of a header.
pub(super) fn of_header(
    raw: &raw::HeaderValues,
    at: At<'_>,
    scope: &mut Scope<'_>,
    report: &mut Report<'_>,
) -> Option<HeaderPattern> {
    match raw {
        raw::HeaderValues::Pattern(pattern) => parse(&pattern.0, at, report),
        raw::HeaderValues::File(raw::FileName { file }) => {
            let list = scope.files.load(file.as_deref()?, &VALUES, at.key("file"), report)?;
            if list.is_empty() {
                report.note(at.key("file"), "the file has no values, so it matches no request");
            }
            Some(HeaderPattern::InList(list))
        }
    }
}

/// Compiles `jwt` of a matcher.
pub(super) fn of_claims(
    map: &BTreeMap<String, raw::OneOrMany<raw::ClaimPattern>>,
    at: At<'_>,
    scope: &Scope<'_>,
    report: &mut Report<'_>,
) -> Vec<Condition> {
    if map.is_empty() && !report.is_faulty(at) {
        report.value(at, "empty map, expected at least one claim");
    }
    let read = |(name, patterns): (&String, &raw::OneOrMany<raw::ClaimPattern>)| {
        let at = at.key(name);
        let claim = claim(name, at, scope, report)?;
        let patterns = each(patterns, at, |raw, at| match raw {
            raw::ClaimPattern::Flag(flag) => Some(HeaderPattern::Exact(flag.to_string().into())),
            raw::ClaimPattern::Number(number) => Some(HeaderPattern::Exact(number.to_string().into())),
            raw::ClaimPattern::Text(text) => parse(text, at, report),
        });
        Some(Condition { attribute: Attribute::Jwt(claim), patterns: patterns.into() })
    };
    map.iter().filter_map(read).collect()
}

/// Parses the name of a claim, and registers the claim as used.
pub(super) fn claim(name: &str, at: At<'_>, scope: &Scope<'_>, report: &mut Report<'_>) -> Option<ClaimName> {
    if !scope.has_tokens {
        let fault = Fault::new("claims need the section `jwt`, and there is none");
        report.key(at, fault.hint("add `jwt` with the keys that verify tokens"));
    }
    let Some(claim) = ClaimName::new(name) else {
        report.key(at, "empty, expected a claim name");
        return None;
    };
    scope.claims.borrow_mut().push(claim.clone());
    Some(claim)
}

pub(super) fn parse(text: &str, at: At<'_>, report: &mut Report<'_>) -> Option<HeaderPattern> {
    report.take(at, HeaderPattern::parse(text).map_err(|error| format!("{error}, got {}", quoted(text))))
}
