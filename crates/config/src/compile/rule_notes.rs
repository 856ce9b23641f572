//! Notes on rules that are valid and do not do what they seem to: rules without effect, limits that are never reached,
//! keys whose absence means unlimited.
//!
//! Only what is proven is noted, because a wrong note is worse than none. Each note can be avoided by stating the
//! intention: `on_missing: skip`, an `except`, or another order of magnitude.

mod covered;
mod keys;
mod unreachable;
mod wide_rules;

use std::collections::BTreeSet;

use super::map_items;
use super::rules::{describe, rule_position};
use crate::at::At;
use crate::raw;
use weir_policy::rules::matcher::Matcher;
use weir_policy::rules::rule::{Action, LimitAction, Rule, Throttle};

/// Maximum number of paths of a rule that are compared one by one.
const MAX_SINGLE_PATHS: usize = 200;

/// A rule and its position.
#[derive(Clone, Copy)]
struct RuleEntry<'r> {
    raw: &'r raw::Rule,
    rule: &'r Rule,
    /// Index in the list; `None` for a single rule in place of a list.
    index: Option<usize>,
}

/// Adds notes on the compiled `rules` at `at`, which have no errors. A client is an IPv6 network with a prefix of
/// `ipv6_prefix` bits.
pub(super) fn add_notes(raw: &raw::Rules, at: At<'_>, rules: &[Rule], ipv6_prefix: u8) {
    let entries: Vec<RuleEntry<'_>> =
        raw.items().zip(rules).map(|((index, raw), rule)| RuleEntry { raw, rule, index }).collect();
    covered::add_notes(&entries, at);
    // The limit of a rule with `respond` applies to other requests than it matches: those that it sends.
    let of_arrivals: Vec<_> = entries.iter().copied().filter(|entry| entry.raw.respond.is_none()).collect();
    unreachable::add_notes(&of_arrivals, ipv6_prefix, at);
    keys::add_notes(&entries, at);
}

impl<'r> RuleEntry<'r> {
    /// Returns the position of the rule in the list at `rules`.
    fn position<'p>(&self, rules: &'p At<'p>) -> At<'p> {
        rule_position(self.index, rules)
    }

    /// Returns what the rule does to requests, if it limits.
    const fn limiting(&self) -> Option<&'r LimitAction> {
        match &self.rule.action {
            Action::Limit(limiting) => Some(limiting),
            Action::Allow | Action::Deny => None,
        }
    }

    /// Whether the rule rejects every request over its limits.
    fn is_enforced(&self) -> bool {
        self.limiting().is_some_and(|limiting| {
            limiting.throttle != Throttle::Shadow
                && limiting.enforced_share.is_for_all()
                && limiting.divert_to.is_none()
                && limiting.group_place.is_none()
        })
    }

    /// Returns the rule's name and line for a message. It is in the list at `rules`.
    fn describe(&self, rules: At<'_>) -> String {
        format!("rule {}", describe(self.rule, self.index, rules))
    }
}

/// Returns the conditions for each of the path patterns alone; none if there is one pattern, or too many.
fn single_path_matchers(matcher: &Matcher) -> Vec<Matcher> {
    let texts: BTreeSet<&str> = matcher.paths.iter().map(|path| path.as_str()).collect();
    match texts.len() {
        2..=MAX_SINGLE_PATHS => texts.into_iter().map(|text| with_path(matcher, text)).collect(),
        _ => Vec::new(),
    }
}

/// Returns the conditions for one of the path patterns, as written.
fn with_path(matcher: &Matcher, text: &str) -> Matcher {
    let paths = matcher.paths.iter().filter(|path| path.as_str() == text).cloned().collect();
    Matcher { paths, ..matcher.clone() }
}

#[cfg(test)]
mod tests;
