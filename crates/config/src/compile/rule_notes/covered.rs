//! Rules without effect: those whose requests another rule exempts or rejects, and those whose exceptions match
//! everything that they match.

use super::wide_rules::WideRules;
use super::{RuleEntry, map_items, single_path_matchers, with_path};
use crate::at::At;
use crate::diagnostic::ValueError;
use crate::quoting::backquoted;
use weir_policy::rules::matcher::Matcher;
use weir_policy::rules::rule::Action;

pub(super) fn add_notes(entries: &[RuleEntry<'_>], at: At<'_>) {
    // A rule for every request has a note of its own.
    let is_general =
        |entry: &RuleEntry<'_>| entry.rule.matcher.holds_for_all() && entry.rule.except.is_empty();
    let allowing =
        WideRules::select(entries, |entry| matches!(entry.rule.action, Action::Allow) && !is_general(entry));
    let denying =
        WideRules::select(entries, |entry| matches!(entry.rule.action, Action::Deny) && !is_general(entry));
    for entry in entries {
        if is_excepted(entry) {
            let note =
                ValueError::new("excludes every request that `match` selects, so the rule never applies");
            entry.position(&at).key("except").note(note.with_hint("remove the rule, or narrow `except`"));
            continue;
        }
        match entry.rule.action {
            Action::Allow => {}
            Action::Deny => note_covered(entry, &[&allowing], at),
            Action::Limit(_) => note_covered(entry, &[&allowing, &denying], at),
        }
    }
}

/// Whether every request that `match` selects is excluded by one of the exceptions.
fn is_excepted(entry: &RuleEntry<'_>) -> bool {
    let is_excluded = |matcher: &Matcher| entry.rule.except.iter().any(|except| matcher.is_within(except));
    let is_each_path_excluded = || {
        let single = single_path_matchers(&entry.rule.matcher);
        !single.is_empty() && single.iter().all(is_excluded)
    };
    !entry.rule.except.is_empty() && (is_excluded(&entry.rule.matcher) || is_each_path_excluded())
}

/// Adds a note if other rules cover the rule, or a path of it.
fn note_covered(entry: &RuleEntry<'_>, wide: &[&WideRules<'_, '_>], at: At<'_>) {
    let find = |matcher: &Matcher| {
        let mut candidates = wide.iter().flat_map(|wide| wide.candidates(matcher));
        candidates.find(|other| entry.rule.is_within(matcher, other.rule))
    };
    let rule_at = entry.position(&at);
    if let Some(other) = find(&entry.rule.matcher) {
        let note = covered_note("has no effect", entry, &other.describe(at), other);
        return rule_at.key(effect_key(entry)).note(note);
    }
    if single_path_matchers(&entry.rule.matcher).is_empty() {
        return;
    }
    let (match_at, matching) = (rule_at.key("match"), entry.raw.matching.as_deref());
    let Some(paths) = matching.and_then(|matching| matching.path.as_ref()) else { return };
    map_items(paths, match_at.key("path"), |path, path_at| {
        let other = find(&with_path(&entry.rule.matcher, &path.0))?;
        let note = covered_note("this path has no effect", entry, &other.describe(at), other);
        path_at.note(note);
        Some(())
    });
}

/// Returns the key whose value has no effect.
fn effect_key(entry: &RuleEntry<'_>) -> &'static str {
    if entry.raw.action.is_some() { "action" } else { "name" }
}

/// Returns the note that `other`, as `described`, covers the rule.
fn covered_note(subject: &str, entry: &RuleEntry<'_>, described: &str, other: &RuleEntry<'_>) -> ValueError {
    let reason = match (&entry.rule.action, &other.rule.action) {
        (_, Action::Deny) => "rejects the same requests with 403",
        (Action::Limit(_), _) => "exempts the same requests from all limits",
        (Action::Allow | Action::Deny, _) => "allows the same requests, and `allow` overrides `deny`",
    };
    ValueError::new(format!("{subject}: {described} {reason}"))
        .with_hint(format!("exclude them in {} with `except`", backquoted(&other.rule.name)))
}
