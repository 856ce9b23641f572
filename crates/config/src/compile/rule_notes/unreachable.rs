//! Limits that are never reached, because a tighter one always applies too and counts the same requests.

use std::collections::HashMap;

use super::RuleEntry;
use super::wide_rules::WideRules;
use crate::at::At;
use crate::diagnostic::ValueError;
use crate::quoting::backquoted;
use weir_limiter::check_options::OnDenied;
use weir_policy::rules::attribute::Attribute;
use weir_policy::rules::cost::{Cost, CostModel};
use weir_policy::rules::rule::{LimitAction, LimitSource, OnMissing, RuleLimit, Throttle};

pub(super) fn add_notes(entries: &[RuleEntry<'_>], ipv6_prefix: u8, at: At<'_>) {
    let mut counter_users: HashMap<&str, usize> = HashMap::new();
    entries.iter().for_each(|entry| *counter_users.entry(entry.rule.counter()).or_default() += 1);
    let strict = WideRules::select(entries, is_strict);
    // Other rules of a counter may charge it for requests that the tighter rule does not see, or ahead of time for
    // requests that they delay.
    let has_own_counter = |entry: &RuleEntry<'_>| counter_users.get(entry.rule.counter()) == Some(&1);
    for entry in entries.iter().filter(|entry| is_comparable(entry) && has_own_counter(entry)) {
        for (index, limit) in entry.rule.limits().iter().enumerate() {
            let tighter = find_in_rule(entry, index, limit).or_else(|| {
                // Limits are compared first, because most are not tighter, and to compare conditions costs more.
                let candidates = strict.candidates(&entry.rule.matcher);
                let tighter =
                    candidates.filter_map(|other| Some((other, tighter_limit(entry, limit, other)?)));
                let mut covering = tighter.filter(|(other, _)| covers(entry, other, ipv6_prefix));
                covering.next().map(|(other, tighter)| note_on_other(other, tighter, at))
            });
            if let Some(note) = tighter {
                add_note(entry, index, note, at);
            }
        }
        let fewer = strict.candidates(&entry.rule.matcher).filter(|other| has_fewer_in_flight(entry, other));
        let mut covering = fewer.filter(|other| covers(entry, other, ipv6_prefix));
        if let Some(note) = covering.find_map(|other| note_on_in_flight(other, at)) {
            entry.position(&at).key("in_flight").note(note);
        }
    }
}

/// Whether the rule rejects every request over its limits and counts each request fully.
fn is_strict(entry: &RuleEntry<'_>) -> bool {
    entry.is_enforced()
        && is_comparable(entry)
        && entry.limiting().is_some_and(|limiting| {
            limiting.throttle == Throttle::Hard && is_charged_for_every_request(&limiting.cost_model)
        })
}

/// Whether what the rule charges is known: a fixed cost to a counter of this process, nothing for rejected requests.
fn is_comparable(entry: &RuleEntry<'_>) -> bool {
    entry.limiting().is_some_and(|limiting| {
        limiting.source == LimitSource::Local
            && limiting.on_denied == OnDenied::Free
            && limiting.distinct.is_none()
            && matches!(limiting.cost_model.cost, Cost::Fixed(_))
            && limiting.limits.iter().all(|limit| limit.nested.is_none() && limit.stated.is_none())
    })
}

fn is_charged_for_every_request(model: &CostModel) -> bool {
    CostModel::fixed(units_of(model)) == *model
}

const fn units_of(model: &CostModel) -> u32 {
    if let Cost::Fixed(units) = model.cost { units } else { 0 }
}

/// Whether `other` counts every request of a key of the rule, under one key, at the same cost or a higher one.
fn covers(entry: &RuleEntry<'_>, other: &RuleEntry<'_>, ipv6_prefix: u8) -> bool {
    let (Some(own), Some(wide)) = (entry.limiting(), other.limiting()) else { return false };
    !std::ptr::eq(entry.rule, other.rule)
        && units_of(&own.cost_model) <= units_of(&wide.cost_model)
        && is_key_coarser(own, wide, ipv6_prefix)
        && entry.rule.is_within(&entry.rule.matcher, other.rule)
}

/// Whether requests of one key of `own` are requests of one key of `wide`.
fn is_key_coarser(own: &LimitAction, wide: &LimitAction, ipv6_prefix: u8) -> bool {
    let is_determined = |part: &Attribute| own.key.0.iter().any(|own| own.determines(part, ipv6_prefix));
    let counts_incomplete_keys = own.on_missing != OnMissing::Shared
        || wide.key.0.is_empty()
        || wide.key == own.key && wide.on_missing == OnMissing::Shared;
    wide.key.0.iter().all(is_determined) && counts_incomplete_keys
}

/// Returns a note if another limit of the same rule is tighter.
fn find_in_rule(entry: &RuleEntry<'_>, index: usize, limit: &RuleLimit) -> Option<ValueError> {
    let limiting = entry.limiting().filter(|_| is_strict(entry))?;
    let units = units_of(&limiting.cost_model);
    let others = limiting.limits.iter().enumerate().filter(|(other, _)| *other != index);
    let (_, tighter) =
        others.into_iter().find(|(_, other)| limit.quota.is_unreachable_behind(&other.quota, units))?;
    let note = format!("never reached: the limit {} of the same rule is tighter", tighter.quota.limit());
    Some(ValueError::new(note).with_hint("remove one of them, or check the periods"))
}

/// Returns the limit of `other` that is tighter, if any.
fn tighter_limit<'r>(
    entry: &RuleEntry<'_>,
    limit: &RuleLimit,
    other: &RuleEntry<'r>,
) -> Option<&'r RuleLimit> {
    let units = units_of(&entry.limiting()?.cost_model);
    other.rule.limits().iter().find(|tighter| limit.quota.is_unreachable_behind(&tighter.quota, units))
}

/// Returns the note that the limit `tighter` of `other`, which covers the rule, is reached first.
fn note_on_other(other: &RuleEntry<'_>, tighter: &RuleLimit, at: At<'_>) -> ValueError {
    let (other_rule, limit) = (other.describe(at), tighter.quota.limit());
    let note = format!("never reached: {other_rule} limits the same requests to {limit}");
    ValueError::new(note).with_hint(format!(
        "exclude these requests in {} with `except`, or remove this limit",
        backquoted(&other.rule.name)
    ))
}

/// Whether `other` has a lower maximum of requests in flight than the rule.
fn has_fewer_in_flight(entry: &RuleEntry<'_>, other: &RuleEntry<'_>) -> bool {
    // An adaptive maximum is a bound and not meant to be reached.
    let own = entry.limiting().filter(|own| own.adaptive.is_none()).and_then(|own| own.in_flight);
    let fewer = other.limiting().and_then(|other| other.in_flight);
    own.zip(fewer).is_some_and(|(own, fewer)| fewer < own)
}

/// Returns the note that `other`, which covers the rule, has a lower maximum of requests in flight.
fn note_on_in_flight(other: &RuleEntry<'_>, at: At<'_>) -> Option<ValueError> {
    let fewer = other.limiting()?.in_flight?;
    let other_rule = other.describe(at);
    let note = format!("never reached: {other_rule} admits {fewer} of the same requests in flight");
    let hint = format!(
        "exclude these requests in {} with `except`, or remove this maximum",
        backquoted(&other.rule.name)
    );
    Some(ValueError::new(note).with_hint(hint))
}

/// Adds a note at the limit with this index.
fn add_note(entry: &RuleEntry<'_>, index: usize, note: ValueError, at: At<'_>) {
    let at = entry.position(&at);
    if entry.raw.token_bucket.is_some() {
        return at.key("token_bucket").note(note);
    }
    let Some(limits) = &entry.raw.limits else { return at.key("limit").note(note) };
    let at = at.key("limits");
    match limits.items().nth(index) {
        Some((Some(item), _)) => at.item(item).note(note),
        Some((None, _)) | None => at.note(note),
    }
}
