//! `counter` of rules: which rules charge the same counter, and whether they can.
//!
//! Unless a rule names another counter, it charges the one of its own name. Rules of one counter may differ
//! in the requests that they match, in the cost of a request and in how they reject. Everything that defines
//! the counter must be the same.

use std::collections::HashMap;

use super::map_items;
use super::rules::{self, check_name, rule_position};
use crate::at::At;
use crate::diagnostic::ValueError;
use crate::parse::nearest_name;
use crate::quoting::backquoted;
use crate::raw;
use weir_limiter::quota::Quota;
use weir_limiter::reservation::ChargeTiming;
use weir_limiter::zone::Zone;
use weir_policy::rules::rule::{Action, LimitAction, LimitSource, Rule, RuleLimit, Throttle};

/// Reads the counter that the rule at `at` names.
pub(super) fn read_name(raw: &raw::Rule, at: At<'_>) -> Option<Box<str>> {
    let counter = raw.counter.as_deref()?;
    at.key("counter").ok(check_name(counter))?;
    Some(counter.into())
}

/// A rule and its index in the list.
#[derive(Clone, Copy)]
struct CounterUser<'r> {
    rule: &'r Rule,
    action: &'r LimitAction,
    index: Option<usize>,
}

impl CounterUser<'_> {
    /// Returns the rule's name and line for a message. It is in the list at `list`.
    fn describe(self, list: At<'_>) -> String {
        rules::describe(self.rule, self.index, list)
    }
}

/// Checks that the `rules` at `at` can share counters as configured.
pub(super) fn check(raw: &raw::Rules, rules: &[Rule], at: At<'_>) {
    let mut counters: HashMap<&str, Vec<CounterUser<'_>>> = HashMap::new();
    let mut compiled = rules.iter().zip(raw.items().map(|(index, _)| index));
    map_items(raw, at, |raw, rule_at| {
        let (rule, index) = compiled.next()?;
        let Action::Limit(limiting) = &rule.action else { return None };
        let user = CounterUser { rule, action: limiting, index };
        let others = counters.entry(rule.counter()).or_default();
        // A rule with problems is not compared: they are reported already, and may be the reason for a
        // difference.
        let is_comparable = raw.name.is_some() && !rule_at.is_reported();
        if let Some(first) = others.first().filter(|_| is_comparable) {
            compare_definitions(*first, user, at);
        }
        for other in others.iter().filter(|_| is_comparable) {
            compare_optional_settings(*other, user, at);
        }
        if is_comparable {
            others.push(user);
        }
        Some(())
    });
    note_unshared(raw, &counters, at);
}

/// Reports what a rule in the list at `at` does not have in common with the first rule of its counter.
fn compare_definitions(first: CounterUser<'_>, other: CounterUser<'_>, at: At<'_>) {
    let (one, two) = (first.action, other.action);
    let aspects = [
        ("key", one.key_text(), two.key_text()),
        ("limits", format_limits(one), format_limits(two)),
        ("throttle", format_throttle(one.throttle), format_throttle(two.throttle)),
        ("enforce", one.enforced_share.to_string(), two.enforced_share.to_string()),
        (
            "on_change",
            format!("{:?}", one.on_change).to_lowercase(),
            format!("{:?}", two.on_change).to_lowercase(),
        ),
        ("feedback", format_feedback(one), format_feedback(two)),
        ("scope", format_scope(one), format_scope(two)),
    ];
    for (what, one, two) in aspects.into_iter().filter(|(_, one, two)| one != two) {
        report_difference(what, first, &one, other, &two, at);
    }
}

/// Reports differences between two rules of a counter, in the list at `at`, in settings that may be absent from either.
fn compare_optional_settings(earlier: CounterUser<'_>, later: CounterUser<'_>, at: At<'_>) {
    let max_in_flight = |sharing: CounterUser<'_>| {
        let fixed = sharing.action.in_flight.map(|max| max.to_string());
        sharing.action.adaptive.map(|range| range.to_string()).or(fixed)
    };
    if let (Some(one), Some(two)) = (max_in_flight(earlier), max_in_flight(later))
        && one != two
    {
        report_difference("in_flight", earlier, &one, later, &two, at);
    }
    let delays = |sharing: CounterUser<'_>| matches!(sharing.action.throttle, Throttle::Delay(_));
    let charges_on_response =
        |sharing: CounterUser<'_>| sharing.action.cost_model.charge_timing() == ChargeTiming::OnResponse;
    for (delaying, charging) in [(earlier, later), (later, earlier)] {
        if delays(delaying) && charges_on_response(charging) {
            let error = ValueError::new(format!(
                "rule {} delays requests, but the charges of rule {} to the same counter {} depend on the \
                 response",
                delaying.describe(at),
                charging.describe(at),
                backquoted(later.rule.counter()),
            ));
            rule_position(later.index, &at)
                .key(counter_yaml_key(later.rule))
                .error(error.with_hint("delays are computed before the response"));
        }
    }
}

fn report_difference(
    what: &str,
    first: CounterUser<'_>,
    first_value: &str,
    other: CounterUser<'_>,
    other_value: &str,
    at: At<'_>,
) {
    let error = ValueError::new(format!(
        "rules sharing counter {} need the same `{what}`: {} has {first_value}, {} has {other_value}",
        backquoted(other.rule.counter()),
        first.describe(at),
        other.describe(at),
    ));
    rule_position(other.index, &at)
        .key(counter_yaml_key(other.rule))
        .error(error.with_hint("use another `counter` to count separately"));
}

/// Returns the key of a rule that names its counter.
fn counter_yaml_key(rule: &Rule) -> &'static str {
    if rule.counter() == &*rule.name { "name" } else { "counter" }
}

/// Adds a note for a counter that only one rule charges, because its name may be misspelt.
fn note_unshared(raw: &raw::Rules, counters: &HashMap<&str, Vec<CounterUser<'_>>>, at: At<'_>) {
    map_items(raw, at, |raw, at| {
        let counter = raw.counter.as_deref()?;
        let is_alone = counters.get(counter).is_some_and(|rules| rules.len() == 1);
        if is_alone && raw.name.as_deref() != Some(counter) {
            let others = counters.keys().copied().filter(|other| *other != counter);
            let note = ValueError::new(format!("no other rule charges the counter {}", backquoted(counter)));
            at.key("counter").note(note.with_suggestion(nearest_name(counter, others)));
        }
        Some(())
    });
}

fn format_limits(limiting: &LimitAction) -> String {
    let streams = limiting.streams.iter().flat_map(|streams| &streams.limits);
    let shown = limiting
        .limits
        .iter()
        .map(format_limit)
        .chain(streams.map(|limit| format!("{} {}", limit.measure.as_str(), format_quota(&limit.quota))));
    let shown: Vec<String> = shown.collect();
    if shown.is_empty() { "none".to_owned() } else { shown.join(" and ") }
}

fn format_limit(limit: &RuleLimit) -> String {
    let mut text = format_quota(&limit.quota);
    text.extend(limit.stated.iter().map(|stated| format!(" {stated}")));
    if let Some(raised) = &limit.quota_with_margin {
        text += &format!(", raised to {}", raised.limit());
    }
    if let Some(nested) = &limit.nested {
        text += &format!(", prefix {}", nested.prefix);
    }
    text
}

fn format_quota(quota: &Quota) -> String {
    let algorithm = quota.algorithm();
    let mut text = format!("{}, {algorithm}", quota.limit());
    if algorithm.has_burst() {
        text += &format!(", burst {}", quota.burst());
    }
    if quota.precision() > 1 {
        text += &format!(", precision {}", quota.precision());
    }
    if quota.zone() != Zone::default() {
        text += &format!(", {}", quota.zone().name());
    }
    text
}

/// Formats the part of `throttle` that changes the counters or makes a rule charge without enforcing. Whether
/// excess requests are delayed or rejected may differ between rules.
fn format_throttle(throttle: Throttle) -> String {
    match throttle {
        Throttle::Hard | Throttle::Delay(_) | Throttle::Wait => "hard".to_owned(),
        Throttle::Soft { margin, .. } => Throttle::Soft { margin, delay: None }.to_string(),
        Throttle::Shadow | Throttle::Elastic(_) => throttle.to_string(),
    }
}

fn format_feedback(limiting: &LimitAction) -> String {
    match &limiting.feedback {
        Some(feedback) => format!("a minimum of {}", feedback.controller.min()),
        None => "none".to_owned(),
    }
}

fn format_scope(limiting: &LimitAction) -> String {
    match &limiting.source {
        LimitSource::Local => "local".to_owned(),
        LimitSource::Remote(remote) => format!("rls {}", remote.service_address),
        LimitSource::Shared(shared) => shared.to_string(),
    }
}
