//! Notes on rules that a trailing slash bypasses.
//!
//! Most frameworks serve `/login/` as `/login`, at least with some settings, and a rule for one of the two
//! does not match the other. Only rules that deny or limit are noted, and only if no rule of the same kind
//! has a pattern for the other path.

use std::collections::HashSet;

use super::map_items;
use crate::config::config_path::ConfigPath;
use crate::config::diagnostic::{Diagnostics, ValueError};
use crate::config::raw;
use crate::rules::pattern::PathPattern;
use crate::rules::rule::{Action, Rule};

/// Maximum number of separate notes; more are combined into one.
const MAX_NOTES: usize = 5;

/// Adds a note for each path of `rules`, compiled from `raw`, that does not match with a trailing slash.
pub(super) fn note_bypassed_rules(
    raw: &raw::ZeroOrMany<raw::Rule>,
    at: ConfigPath<'_>,
    rules: &[Rule],
    report: &mut Diagnostics<'_>,
) {
    let patterns = [
        RulePaths::from_rules(rules.iter().filter(|rule| matches!(rule.action, Action::Deny))),
        RulePaths::from_rules(rules.iter().filter(|rule| matches!(rule.action, Action::Limit(_)))),
    ];
    let mut bypassed = Vec::new();
    for_each_bypassed_path(raw, at, rules, &patterns, |slashed, _| bypassed.push(slashed));
    if bypassed.len() > MAX_NOTES {
        let note =
            format!("{} paths do not match with a trailing slash, such as `{}`", bypassed.len(), bypassed[0]);
        report.add_note(
            at,
            ValueError::new(note).with_hint("set `trailing_slash: ignore` beside `rules` to match both"),
        );
        return;
    }
    for_each_bypassed_path(raw, at, rules, &patterns, |slashed, at| {
        let note =
            ValueError::new(format!("does not match `{slashed}`, which many services treat as the same"));
        report.add_note(at, note.with_hint("set `trailing_slash: ignore` to match both"));
    });
}

/// Calls `found` with each path that no pattern matches with a trailing slash, and its position.
fn for_each_bypassed_path(
    raw: &raw::ZeroOrMany<raw::Rule>,
    at: ConfigPath<'_>,
    rules: &[Rule],
    [denied, limited]: &[RulePaths<'_>; 2],
    mut found: impl FnMut(String, ConfigPath<'_>),
) {
    let mut rules = rules.iter();
    map_items(raw, at, |raw, at| {
        let patterns = match rules.next()?.action {
            Action::Allow => return None,
            Action::Deny => denied,
            Action::Limit(_) => limited,
        };
        // A matcher that sets `trailing_slash` does so intentionally.
        let matching = raw.matching.as_ref().filter(|matching| matching.trailing_slash.is_none())?;
        let paths = matching.path.as_ref()?;
        let at = at.key("match");
        map_items(paths, at.key("path"), |path, at| {
            let slashed = PathPattern::parse(&path.0).ok()?.with_other_end()?.example()?;
            let is_bypassed = slashed.ends_with('/') && !patterns.matches_any(&slashed);
            is_bypassed.then(|| found(format!("{}/", path.0), at))
        });
        Some(())
    });
}

/// The path patterns of rules of one kind.
#[derive(Debug)]
struct RulePaths<'r> {
    /// In a set, because a file may contain thousands.
    exact: HashSet<String>,
    others: Vec<&'r PathPattern>,
}

impl<'r> RulePaths<'r> {
    fn from_rules(rules: impl Iterator<Item = &'r Rule>) -> Self {
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

    fn matches_any(&self, path: &str) -> bool {
        self.exact.contains(path) || self.others.iter().any(|pattern| pattern.matches(path))
    }
}
