//! Variables of a `map` of a composed text, such as `map "$office:$request_method" $key`.
//!
//! If all its variables are of `map` and `geo` blocks, each combination of their values has a value. If all are
//! attributes of the request, an entry is split where the text between the variables is.

use super::super::pattern::parse_regex;
use super::super::scope::{MatchField, Scope, ScopeCondition};
use super::key_piece::{KeyPiece, split_variables};
use super::selection::{
    Entry, SelectionPattern, Selections, ValueScope, attribute_field, look_up, read_map, rule_pattern,
};
use super::syntax::Directive;

/// Maximum number of combinations of values.
const MAX_COMBINATIONS: usize = 64;
/// Maximum number of entries, because each excepts those before it.
const MAX_ENTRIES: usize = 100;

/// Returns the values that are not empty, each with its requests.
///
/// # Errors
/// Returns what cannot be expressed by `match` and `except`.
pub(super) fn resolve(
    selections: &Selections<'_>,
    block: &Directive,
    variable: &str,
    depth: usize,
) -> Result<Vec<ValueScope>, String> {
    let pieces = split_variables(block.argument(0));
    let entries = read_map(block)?;
    if entries.len() > MAX_ENTRIES {
        return Err(format!("{}: more than {MAX_ENTRIES} entries of a composed text", block.place));
    }
    let variables: Vec<&str> = pieces.iter().filter_map(variable_of).collect();
    if variables.iter().all(|name| selections.contains(name)) {
        return combinations(selections, &pieces, &entries, depth);
    }
    if variables.iter().any(|name| selections.contains(name)) {
        return Err(format!(
            "{}: a `map` of `{}` is not supported, which has variables of blocks and of requests",
            block.place,
            block.argument(0)
        ));
    }
    by_entry(&pieces, &entries, block, variable)
}

fn variable_of(piece: &KeyPiece) -> Option<&str> {
    match piece {
        KeyPiece::Variable(name) => Some(name),
        KeyPiece::Literal(_) => None,
    }
}

/// Returns a value for each combination of the values of all variables.
fn combinations(
    selections: &Selections<'_>,
    pieces: &[KeyPiece],
    entries: &[Entry],
    depth: usize,
) -> Result<Vec<ValueScope>, String> {
    let mut texts: Vec<(String, Scope)> = vec![(String::new(), Scope::default())];
    for piece in pieces {
        let name = match piece {
            KeyPiece::Literal(text) => {
                texts.iter_mut().for_each(|(begin, _)| begin.push_str(text));
                continue;
            }
            KeyPiece::Variable(name) => name,
        };
        let values = selections.all_values(name, depth + 1)?;
        if texts.len() * values.len() > MAX_COMBINATIONS {
            return Err(format!("more than {MAX_COMBINATIONS} combinations of values"));
        }
        let mut longer = Vec::new();
        for (begin, scope) in &texts {
            for ValueScope { value, scope: other } in &values {
                let both = scope
                    .intersection(other)
                    .ok_or_else(|| format!("`${name}` and another variable select by the same attribute"))?;
                longer.push((format!("{begin}{value}"), both));
            }
        }
        texts = longer;
    }
    let value = |(text, scope): (String, Scope)| ValueScope { value: look_up(entries, &text), scope };
    Ok(texts.into_iter().map(value).filter(|one| !one.value.is_empty()).collect())
}

/// Returns a value for each entry: its requests, except those of entries that take precedence.
fn by_entry(
    pieces: &[KeyPiece],
    entries: &[Entry],
    block: &Directive,
    variable: &str,
) -> Result<Vec<ValueScope>, String> {
    let mut preceding: Vec<Vec<ScopeCondition>> = Vec::new();
    let mut scopes = Vec::new();
    let is_text = |entry: &&Entry| matches!(entry.pattern, SelectionPattern::Text(_));
    // Texts take precedence over regexes, and the default is the last entry.
    let ordered = entries.iter().filter(is_text).chain(entries.iter().filter(|entry| !is_text(entry)));
    for entry in ordered {
        let conditions = conditions(pieces, &entry.pattern, block, variable)?;
        if !entry.value.is_empty() {
            // Texts exclude each other.
            let exceptions = if is_text(&entry) { Vec::new() } else { preceding.clone() };
            scopes.push(ValueScope {
                value: entry.value.clone(),
                scope: Scope { conditions: conditions.clone(), exceptions },
            });
        }
        preceding.push(conditions);
    }
    Ok(scopes)
}

/// Returns the conditions of an entry on each attribute; none for the default.
fn conditions(
    pieces: &[KeyPiece],
    pattern: &SelectionPattern,
    block: &Directive,
    variable: &str,
) -> Result<Vec<ScopeCondition>, String> {
    let unsupported = || {
        format!(
            "{}: an entry of a `map` of `{}` cannot be split into its variables",
            block.place,
            block.argument(0)
        )
    };
    if let SelectionPattern::Default = pattern {
        return Ok(Vec::new());
    }
    let parts = split_pattern(pieces, pattern).ok_or_else(unsupported)?;
    let mut conditions: Vec<ScopeCondition> = Vec::new();
    for (name, part) in pieces.iter().filter_map(variable_of).zip(&parts) {
        let field = attribute_field(name)
            .ok_or_else(|| format!("{}: a `map` of `${name}` is not supported", block.place))?;
        let matches_all = matches!(part, SelectionPattern::Regex { regex, .. } if is_any(regex.as_str()));
        if conditions.iter().any(|known| known.field == field) {
            return Err(unsupported());
        }
        if !matches_all {
            let text = part_pattern(&field, part, variable)?;
            conditions.push(ScopeCondition::new(field, vec![text]));
        }
    }
    if conditions.is_empty() { Err(unsupported()) } else { Ok(conditions) }
}

/// Returns the part of an entry for each variable; `None` if it cannot be split.
fn split_pattern(pieces: &[KeyPiece], pattern: &SelectionPattern) -> Option<Vec<SelectionPattern>> {
    match pattern {
        SelectionPattern::Default | SelectionPattern::Network { .. } => None,
        SelectionPattern::Text(text) => {
            let parts = split_text(text, pieces)?;
            Some(parts.into_iter().map(|part| SelectionPattern::Text(part.to_owned())).collect())
        }
        SelectionPattern::Regex { regex, order } => {
            let text = regex.as_str();
            let (fold, text) = text.strip_prefix("(?i)").map_or(("", text), |rest| ("(?i)", rest));
            // A part of an alternative is not a part of the whole.
            if text.contains(['|', '(']) {
                return None;
            }
            let parts = split_text(text, pieces)?;
            let last = parts.len().saturating_sub(1);
            let part = |(index, part): (usize, &str)| {
                let begin = if index > 0 { "^" } else { "" };
                let end = if index < last { "$" } else { "" };
                let regex = parse_regex(&format!("{fold}{begin}{part}{end}"), false)?;
                Some(SelectionPattern::Regex { regex, order: *order })
            };
            parts.into_iter().enumerate().map(part).collect()
        }
    }
}

fn part_pattern(field: &MatchField, part: &SelectionPattern, variable: &str) -> Result<String, String> {
    match (field, part) {
        // A method is one word of few, so a regex of it is one in full.
        (MatchField::Method, SelectionPattern::Regex { regex, .. }) => {
            let word = regex.as_str().trim_start_matches("(?i)");
            let word = word.trim_start_matches('^').trim_end_matches('$');
            rule_pattern(field, &SelectionPattern::Text(word.to_owned()), variable)
        }
        _ => rule_pattern(field, part, variable),
    }
}

fn is_any(regex: &str) -> bool {
    matches!(regex, "" | "^" | "$" | "^.*$" | "^.*" | ".*$" | ".*" | "^.+$")
}

/// Splits a text where the text between the variables is; `None` unless there is one way to do it.
fn split_text<'t>(text: &'t str, pieces: &[KeyPiece]) -> Option<Vec<&'t str>> {
    let mut parts = Vec::new();
    let mut rest = text;
    let mut is_variable_before = false;
    for piece in pieces {
        match piece {
            KeyPiece::Literal(literal) if is_variable_before => {
                let (part, behind) = rest.split_once(literal.as_str())?;
                parts.push(part);
                rest = behind;
                is_variable_before = false;
            }
            KeyPiece::Literal(literal) => {
                let anchored = rest.strip_prefix('^').unwrap_or(rest);
                rest = anchored.strip_prefix(literal.as_str())?;
            }
            // Nothing stands between two variables.
            KeyPiece::Variable(_) if is_variable_before => {
                return text.is_empty().then(|| pieces.iter().filter_map(variable_of).map(|_| "").collect());
            }
            KeyPiece::Variable(_) => is_variable_before = true,
        }
    }
    if is_variable_before {
        let has_more = pieces
            .iter()
            .any(|piece| matches!(piece, KeyPiece::Literal(text) if rest.contains(text.as_str())));
        if has_more {
            return None;
        }
        parts.push(rest);
    } else if !rest.is_empty() {
        return None;
    }
    Some(parts)
}
