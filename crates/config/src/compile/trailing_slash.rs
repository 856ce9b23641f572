//! Notes on rules that a trailing slash bypasses.
//!
//! Most frameworks serve `/login/` as `/login`, at least with some settings, and a rule for one of the two
//! does not match the other. Only rules that deny or limit are noted, and only if no rule of the same kind
//! has a pattern for the other path.

use super::map_items;
use crate::at::At;
use crate::diagnostic::ValueError;
use crate::raw;
use weir_policy::rules::path_set::PathSet;
use weir_policy::rules::pattern::PathPattern;
use weir_policy::rules::rule::{Action, Rule};

/// Maximum number of separate notes; more are combined into one.
const MAX_NOTES: usize = 5;

/// Adds a note for each path of `rules`, compiled from `raw`, that does not match with a trailing slash.
pub(super) fn note_bypassed_rules(raw: &raw::Rules, at: At<'_>, rules: &[Rule]) {
    let patterns = [
        paths_of(rules, |action| matches!(action, Action::Deny)),
        paths_of(rules, |action| matches!(action, Action::Limit(_))),
    ];
    let mut bypassed = Vec::new();
    for_each_bypassed_path(raw, at, rules, &patterns, |slashed, _| bypassed.push(slashed));
    if bypassed.len() > MAX_NOTES {
        let note =
            format!("{} paths do not match with a trailing slash, such as `{}`", bypassed.len(), bypassed[0]);
        at.note(ValueError::new(note).with_hint("set `trailing_slash: ignore` beside `rules` to match both"));
        return;
    }
    for_each_bypassed_path(raw, at, rules, &patterns, |slashed, at| {
        let note =
            ValueError::new(format!("does not match `{slashed}`, which many services treat as the same"));
        at.note(note.with_hint("set `trailing_slash: ignore` to match both"));
    });
}

/// Calls `found` with each path that no pattern matches with a trailing slash, and its position.
fn for_each_bypassed_path(
    raw: &raw::Rules,
    at: At<'_>,
    rules: &[Rule],
    [denied, limited]: &[PathSet<'_>; 2],
    mut found: impl FnMut(String, At<'_>),
) {
    let mut rules = rules.iter();
    map_items(raw, at, |raw, at| {
        let patterns = match rules.next()?.action {
            Action::Allow => return None,
            Action::Deny => denied,
            Action::Limit(_) => limited,
        };
        // A matcher that sets `trailing_slash` does so intentionally.
        let matching = raw.matching.as_deref().filter(|matching| matching.trailing_slash.is_none())?;
        let paths = matching.path.as_ref()?;
        let at = at.key("match");
        map_items(paths, at.key("path"), |path, at| {
            // A regex has no other end, and is expensive to compile again.
            let pattern = Some(&path.0).filter(|text| !text.starts_with('~'))?;
            let slashed = PathPattern::parse(pattern).ok()?.with_other_end()?.example()?;
            let is_bypassed = slashed.ends_with('/') && !patterns.matches(&slashed);
            is_bypassed.then(|| found(format!("{}/", path.0), at))
        });
        Some(())
    });
}

/// Returns the path patterns of the rules that `is_meant` selects. A pattern for every path belongs to a general rule,
/// and does not cover a path of another.
fn paths_of(rules: &[Rule], is_meant: impl Fn(&Action) -> bool) -> PathSet<'_> {
    let meant = rules.iter().filter(|rule| is_meant(&rule.action));
    meant.flat_map(|rule| &rule.matcher.paths).filter(|pattern| pattern.as_str() != "/*").collect()
}
