//! The text as a tree of values, and where each of them stands.
//!
//! `serde_yaml` says what the values are, but its values have no places. A second pass over the events of
//! another parser maps every path to its line and column, finds duplicate keys, and, since it runs first and
//! needs neither recursion nor much time, keeps absurd nesting away from everything behind it.

mod events;
mod positions;

use std::path::Path;

use serde_yaml::Value;

pub(super) use self::positions::{Position, Positions};
use super::problem::{Problem, in_order, shown};

/// Deeper than this no configuration is; far below what recursion over it could not bear.
pub(super) const DEEPEST: usize = 64;

/// More values than this come only from aliases that multiply each other.
const MOST_VALUES: u64 = 1_000_000;

/// A text whose events cannot be read is still tried as values up to this size: then nothing in it can be worse
/// than slow.
const LARGEST_UNSEEN: usize = 64 << 10;

/// A parsed file.
#[derive(Debug)]
pub(super) struct Document {
    /// What it says, merge keys applied.
    pub(super) value: Value,
    /// Where it says so.
    pub(super) positions: Positions,
}

/// The one document in `text`.
pub(super) fn parse(text: &str, file: &Path) -> Result<Document, Vec<Problem>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let scan = events::scan(text);
    let problem = |at: Position, message: &str, hint: Option<String>| Problem {
        line: at.line,
        column: at.column,
        hint,
        ..Problem::of_file(file, message)
    };
    if !scan.faults.is_empty() {
        let described = scan.faults.into_iter().map(|fault| Problem {
            path: shown(&fault.path).to_owned(),
            ..problem(fault.at, &fault.message, fault.hint)
        });
        return Err(in_order(described.collect()));
    }
    if let Some((at, error)) = scan.failed
        && is_suspicious(text)
    {
        return Err(vec![problem(at, &format!("not valid YAML: {error}"), tab_hint(text, at))]);
    }
    match value_of(text) {
        Ok(value) => Ok(Document { value, positions: scan.positions }),
        Err(error) => {
            let (at, path, message) = describe(&error);
            Err(vec![Problem { path: shown(&path).to_owned(), ..problem(at, &message, tab_hint(text, at)) }])
        }
    }
}

const TOO_DEEP: &str = "nested more than 64 levels deep";

fn value_of(text: &str) -> Result<Value, serde_yaml::Error> {
    let mut value: Value = serde_yaml::from_str(text)?;
    value.apply_merge()?;
    Ok(value)
}

/// The library writes the place into the text; here it stands in front of it.
fn describe(error: &serde_yaml::Error) -> (Position, String, String) {
    let at = error
        .location()
        .map_or(Position::START, |location| Position { line: location.line(), column: location.column() });
    let here = format!(" at line {} column {}", at.line, at.column);
    let text = error.to_string().replacen(&here, "", 1);
    match huge_number(&text) {
        Some((path, number)) => (at, path.to_owned(), format!("a number above {}, got {number}", u64::MAX)),
        None => (at, String::new(), format!("not valid YAML: {text}")),
    }
}

/// The path and the number, where the library complains about an integer that fits none of its types.
fn huge_number(text: &str) -> Option<(&str, &str)> {
    let (path, rest) = text.split_once("invalid type: integer `")?;
    let (number, _) = rest.split_once("` as ")?;
    Some((path.strip_suffix(": ").unwrap_or(path), number))
}

/// The most frequent reason that YAML cannot be read has no message of its own.
fn tab_hint(text: &str, at: Position) -> Option<String> {
    let line = text.lines().nth(at.line.checked_sub(1)?)?;
    let indent = &line[..line.len() - line.trim_start().len()];
    indent.contains('\t').then(|| "indent with spaces, not with tabs".to_owned())
}

/// Whether reading `text` could take more time or memory than it deserves. Only asked where the events, which
/// would know, cannot be read to the end; brackets in quotes and comments are counted too.
fn is_suspicious(text: &str) -> bool {
    if text.len() > LARGEST_UNSEEN {
        return true;
    }
    let mut open = 0_usize;
    for byte in text.bytes() {
        match byte {
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        if open > 16 * DEEPEST {
            return true;
        }
    }
    let dashes = |line: &str| line.split(' ').take_while(|word| matches!(*word, "-" | "?" | "")).count();
    text.lines().any(|line| dashes(line.trim_start()) > DEEPEST)
}

#[cfg(test)]
mod tests;
