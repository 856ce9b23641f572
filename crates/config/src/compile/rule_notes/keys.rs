//! Parts of keys whose absence means unlimited: a rule by a header does not apply to requests without it, unless
//! `on_missing` says otherwise.

use super::wide_rules::WideRules;
use super::{RuleEntry, map_items, single_path_matchers};
use crate::at::At;
use crate::diagnostic::ValueError;
use crate::quoting::backquoted;
use weir_policy::rules::attribute::Attribute;
use weir_policy::rules::matcher::{Condition, Matcher};
use weir_policy::rules::pattern::HeaderPattern;
use weir_policy::rules::rule::{Action, OnMissing};

pub(super) fn add_notes(entries: &[RuleEntry<'_>], at: At<'_>) {
    let wide = WideRules::select(entries, |_| true);
    // A rule for requests without an attribute shows that the author has thought of them.
    let conditions = entries.iter().flat_map(|entry| &entry.rule.matcher.conditions);
    let mut considered: Vec<&Attribute> = Vec::new();
    for condition in conditions.filter(|condition| is_absence(condition)) {
        if !considered.contains(&&condition.attribute) {
            considered.push(&condition.attribute);
        }
    }
    for entry in entries {
        // Set explicitly, `skip` states the intention. A dry run limits nothing anyway.
        let Some(limiting) =
            entry.limiting().filter(|_| entry.raw.on_missing.is_none() && entry.is_enforced())
        else {
            continue;
        };
        let Some(key) = &entry.raw.key else { continue };
        let (rule_at, mut parts) = (entry.position(&at), limiting.key.0.iter());
        map_items(key, rule_at.key("key"), |_, at| {
            let part = parts.next()?;
            if !part.is_chosen_by_client() || considered.contains(&part) || is_implied(entry, part) {
                return None;
            }
            let lacking = entry.rule.matcher.without(part);
            let is_caught = |lacking: &Matcher| {
                wide.candidates(lacking).any(|other| is_caught_by(entry, part, lacking, other))
            };
            // Several rules may catch the requests of one path each.
            let is_each_path_caught = || {
                let single = single_path_matchers(&lacking);
                !single.is_empty() && single.iter().all(is_caught)
            };
            (!is_caught(&lacking) && !is_each_path_caught()).then(|| at.note(missing_part_note(part)))
        });
    }
}

fn missing_part_note(part: &Attribute) -> ValueError {
    let thing = match part.word() {
        "header" => Some("the header"),
        "cookie" => Some("the cookie"),
        "query" => Some("the query parameter"),
        "json" | "form" | "body" => Some("the field"),
        "jwt" => Some("a valid token with the claim"),
        _ => None,
    };
    let what = match thing.zip(part.parameter()) {
        Some((thing, name)) => format!("{thing} {}", backquoted(&name)),
        None => format!("a value for `{part}`"),
    };
    ValueError::new(format!("requests without {what} are not limited, by this rule or another")).with_hint(
        "add `on_missing: shared` to limit them together, `deny` to reject them, or `skip` if this is intended",
    )
}

/// Whether the rule applies only to requests that have the part.
fn is_implied(entry: &RuleEntry<'_>, part: &Attribute) -> bool {
    // Other claims of a token, or other names of a certificate, show that it is there.
    let is_of_same_kind = |condition: &Condition| {
        let is_positive = condition.patterns.iter().all(|pattern| !matches!(pattern, HeaderPattern::Absent));
        is_positive && condition.attribute.word() == part.word() && matches!(part.word(), "jwt" | "tls")
    };
    entry.rule.requires(part)
        || entry.rule.matcher.conditions.iter().any(is_of_same_kind)
        || entry.rule.reads_descriptors()
}

/// Whether `other` decides about the requests of the rule that lack the part, to which `lacking` applies.
fn is_caught_by(entry: &RuleEntry<'_>, part: &Attribute, lacking: &Matcher, other: &RuleEntry<'_>) -> bool {
    if std::ptr::eq(entry.rule, other.rule) {
        return false;
    }
    // What another rule excepts is excepted intentionally.
    let is_match = || lacking.is_within(&other.rule.matcher);
    match &other.rule.action {
        Action::Allow | Action::Deny => is_match(),
        Action::Limit(limiting) => {
            let has_value =
                |own: &Attribute| own != part && (!own.is_chosen_by_client() || lacking.requires(own));
            let limits_requests = !limiting.limits.is_empty() || limiting.in_flight.is_some();
            other.is_enforced()
                && limits_requests
                && (limiting.on_missing != OnMissing::Skip || limiting.counted_parts().iter().all(has_value))
                && is_match()
        }
    }
}

/// Whether the condition holds if the attribute is absent.
fn is_absence(condition: &Condition) -> bool {
    condition.patterns.iter().any(|pattern| matches!(pattern, HeaderPattern::Absent))
}
