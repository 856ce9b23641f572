//! Notes on rules that a trailing slash bypasses.
//!
//! Most frameworks serve `/login/` as `/login`, at least with some settings, and a rule for one of the two
//! does not match the other. Only rules that deny or limit are noted, and only if no rule of the same kind
//! has a pattern for the other path.

use std::collections::HashSet;

use super::each;
use crate::config::at::At;
use crate::config::problem::{Fault, Report};
use crate::config::raw;
use crate::rules::pattern::PathPattern;
use crate::rules::rule::{Action, Rule};

/// Maximum number of separate notes; more are combined into one.
const MAX_NOTES: usize = 5;

/// Adds a note for each path of `rules`, compiled from `raw`, that does not match with a trailing slash.
pub(super) fn note(raw: &raw::ZeroOrMany<raw::Rule>, at: At<'_>, rules: &[Rule], report: &mut Report<'_>) {
    let patterns = [
        Patterns::of(rules.iter().filter(|rule| matches!(rule.action, Action::Deny))),
        Patterns::of(rules.iter().filter(|rule| matches!(rule.action, Action::Limit(_)))),
    ];
    let mut missed = Vec::new();
    each_path(raw, at, rules, &patterns, |slashed, _| missed.push(slashed));
    if missed.len() > MAX_NOTES {
        let note =
            format!("{} paths do not match with a trailing slash, such as `{}`", missed.len(), missed[0]);
        report.note(at, Fault::new(note).hint("set `trailing_slash: ignore` beside `rules` to match both"));
        return;
    }
    each_path(raw, at, rules, &patterns, |slashed, at| {
        let note = Fault::new(format!("does not match `{slashed}`, which many services treat as the same"));
        report.note(at, note.hint("set `trailing_slash: ignore` to match both"));
    });
}

/// Calls `found` with each path that no pattern matches with a trailing slash, and its position.
fn each_path(
    raw: &raw::ZeroOrMany<raw::Rule>,
    at: At<'_>,
    rules: &[Rule],
    [denied, limited]: &[Patterns<'_>; 2],
    mut found: impl FnMut(String, At<'_>),
) {
    let mut rules = rules.iter();
    each(raw, at, |raw, at| {
        let patterns = match rules.next()?.action {
            Action::Allow => return None,
            Action::Deny => denied,
            Action::Limit(_) => limited,
        };
        // A matcher that sets `trailing_slash` does so intentionally.
        let matching = raw.matching.as_ref().filter(|matching| matching.trailing_slash.is_none())?;
        let paths = matching.path.as_ref()?;
        let at = at.key("match");
        each(paths, at.key("path"), |path, at| {
            let slashed = PathPattern::parse(&path.0).ok()?.with_other_end()?.example()?;
            let is_missed = slashed.ends_with('/') && !patterns.match_any(&slashed);
            is_missed.then(|| found(format!("{}/", path.0), at))
        });
        Some(())
    });
}

/// The path patterns of rules of one kind.
#[derive(Debug)]
struct Patterns<'r> {
    /// In a set, because a file may contain thousands.
    exact: HashSet<String>,
    others: Vec<&'r PathPattern>,
}

impl<'r> Patterns<'r> {
    fn of(rules: impl Iterator<Item = &'r Rule>) -> Self {
        let mut patterns = Self { exact: HashSet::new(), others: Vec::new() };
        for pattern in rules.flat_map(|rule| &rule.matcher.paths) {
            match pattern.example() {
                Some(path) if !pattern.as_str().contains('{') => drop(patterns.exact.insert(path)),
                // A pattern for every path belongs to a general rule, and does not cover this one.
                None if pattern.as_str() == "/*" => {}
                _ => patterns.others.push(pattern),
            }
        }
        patterns
    }

    fn match_any(&self, path: &str) -> bool {
        self.exact.contains(path) || self.others.iter().any(|pattern| pattern.matches(path))
    }
}
