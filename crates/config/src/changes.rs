//! Summary of what a new configuration would change, for reading before it is rolled out.
//!
//! One line for each change, in the order of the new file. Rules come first, because they decide what happens
//! to counters: a changed limit keeps its counters, a rule with a different name or key starts with empty
//! ones.

use std::collections::HashMap;

use super::Config;
use super::sections::{AT_STARTUP, RELOADED, changed_keys};
use weir_limiter::algorithm::conversion::OnChange;
use weir_limiter::quota::Quota;
use weir_policy::engine::CarryOver;
use weir_policy::rules::remote_limit::RemoteLimit;
use weir_policy::rules::rule::{Action, LimitAction, LimitSource, Rule, RuleLimit};

const COUNTERS_KEPT: &str = "counters kept";
const COUNTERS_RESET: &str = "counters reset";
const COUNTERS_DROPPED: &str = "counters dropped";

/// Returns the differences of `new` from `old`, one line each; empty if there are none.
pub fn describe_changes(old: &Config, new: &Config) -> Vec<String> {
    let mut lines = Vec::new();
    let carry_over = CarryOver::between(&old.policy, &new.policy);
    let (before, after) = (index_by_name(&old.policy.rules), index_by_name(&new.policy.rules));
    for rule in old.policy.rules.iter().filter(|rule| !after.contains_key(&*rule.name)) {
        let counters = if carry_over.keeps_counters_of(rule) { COUNTERS_KEPT } else { COUNTERS_DROPPED };
        lines.push(format!("rule {}: removed; {counters}", rule.name));
    }
    for rule in &*new.policy.rules {
        let Some(&index) = before.get(&*rule.name) else {
            let counters =
                if carry_over.keeps_counters_of(rule) { format!("; {COUNTERS_KEPT}") } else { String::new() };
            lines.push(format!("rule {}: added, {}{counters}", rule.name, summarize_rule(rule)));
            continue;
        };
        let mut parts = Vec::new();
        let replaced = &old.policy.rules[index];
        describe_rule_changes(replaced, rule, carry_over.keeps_counters_of(rule), &mut parts);
        if replaced.rejection != rule.rejection {
            parts.push("response to rejected requests changed".to_owned());
        }
        lines.extend(parts.into_iter().map(|part| format!("rule {}: {part}", rule.name)));
    }
    let order = new.policy.rules.iter().filter_map(|rule| before.get(&*rule.name));
    if !order.is_sorted() {
        lines.push("rules: order changed, which breaks ties between equal retry-after times".to_owned());
    }
    lines.extend(changed_keys(RELOADED, old, new).map(|keys| format!("{keys}: changed")));
    lines.extend(new.content_hashes.file_changes_since(&old.content_hashes));
    lines.extend(
        changed_keys(AT_STARTUP, old, new).map(|keys| format!("{keys}: changed; a new process takes over")),
    );
    lines
}

/// Appends the differences of two rules of the same name; `keeps_counters` is whether the counters of `new`
/// exist already.
fn describe_rule_changes(old: &Rule, new: &Rule, keeps_counters: bool, parts: &mut Vec<String>) {
    if old.matcher != new.matcher {
        parts.push(format!("match changed; {COUNTERS_KEPT}"));
    }
    if old.except != new.except {
        parts.push(format!("except changed; {COUNTERS_KEPT}"));
    }
    if old.domain != new.domain {
        let name = |domain: &Option<Box<str>>| domain.as_deref().unwrap_or("none").to_owned();
        parts.push(format!("domain {} → {}; {COUNTERS_KEPT}", name(&old.domain), name(&new.domain)));
    }
    if old.counter() != new.counter() {
        let counters = if keeps_counters { COUNTERS_KEPT } else { COUNTERS_RESET };
        parts.push(format!("counter {} → {}; {counters}", old.counter(), new.counter()));
    }
    match (&old.action, &new.action) {
        (Action::Limit(old), Action::Limit(new)) => describe_limit_changes(old, new, keeps_counters, parts),
        (Action::Limit(_), Action::Allow | Action::Deny) => {
            parts.push(format!("limit → {}; {COUNTERS_DROPPED}", summarize_rule(new)));
        }
        (Action::Allow | Action::Deny, Action::Limit(_)) => {
            parts.push(format!("{} → {}", action_name(&old.action), summarize_rule(new)));
        }
        (Action::Allow, Action::Allow) | (Action::Deny, Action::Deny) => {}
        (Action::Allow, Action::Deny) | (Action::Deny, Action::Allow) => {
            parts.push(format!("{} → {}", action_name(&old.action), action_name(&new.action)));
        }
    }
}

fn describe_limit_changes(
    old: &LimitAction,
    new: &LimitAction,
    keeps_counters: bool,
    parts: &mut Vec<String>,
) {
    // Compared as text, as the limit identity does.
    let (from, to) = (old.key.to_string(), new.key.to_string());
    if from != to {
        let counters = if keeps_counters { COUNTERS_KEPT } else { COUNTERS_RESET };
        parts.push(format!("key {from} → {to}; {counters}"));
    }
    describe_quota_changes(old, new, keeps_counters, parts);
    let describe_options = |limiting: &LimitAction| {
        let max_in_flight = in_flight_text(limiting).unwrap_or_else(|| "none".to_owned());
        let LimitAction { throttle, enforced_share: enforce, cost_model, .. } = limiting;
        [throttle.to_string(), enforce.to_string(), cost_model.cost.to_string(), max_in_flight]
    };
    let shown = describe_options(old).into_iter().zip(describe_options(new));
    for (name, (old, new)) in ["throttle", "enforce", "cost", "in_flight"].into_iter().zip(shown) {
        if old != new {
            parts.push(format!("{name} {old} → {new}"));
        }
    }
    let others = [
        ("scope", !has_same_source(old, new)),
        ("on_missing", old.on_missing != new.on_missing),
        (
            "count or refund_on",
            old.cost_model != new.cost_model && old.cost_model.cost == new.cost_model.cost,
        ),
        ("distinct", old.distinct != new.distinct),
        ("ban", old.ban != new.ban),
        ("on_denied", old.on_denied != new.on_denied),
        ("on_change", old.on_change != new.on_change),
        ("feedback", old.feedback != new.feedback),
        ("respond", old.deferral != new.deferral),
        ("on_limit.upstream", old.divert_to != new.divert_to),
        ("any_of", old.group_place != new.group_place),
    ];
    parts.extend(
        others.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| format!("{name} changed")),
    );
}

/// Whether the source of both limits is the same. Positions of services are ignored, because they may change.
fn has_same_source(old: &LimitAction, new: &LimitAction) -> bool {
    let of_same_service = |remote: &RemoteLimit| RemoteLimit { service: 0, ..remote.clone() };
    match (&old.source, &new.source) {
        (LimitSource::Remote(old), LimitSource::Remote(new)) => of_same_service(old) == of_same_service(new),
        (old, new) => old == new,
    }
}

/// Pairs limits as the limiter does at a reload: first those with the same period, then the rest in order.
fn describe_quota_changes(
    old: &LimitAction,
    new: &LimitAction,
    keeps_counters: bool,
    parts: &mut Vec<String>,
) {
    let mut left: Vec<&RuleLimit> = old.limits.iter().collect();
    let mut continued: Vec<Option<&RuleLimit>> = vec![None; new.limits.len()];
    for same_period in [true, false] {
        for (limit, predecessor) in new.limits.iter().zip(&mut continued).filter(|(_, place)| place.is_none())
        {
            let fits = |old: &&RuleLimit| {
                let text = |limit: &RuleLimit| limit.own_key().map(ToString::to_string);
                let keys = text(old) == text(limit);
                keys && (!same_period || old.quota.window() == limit.quota.window())
            };
            *predecessor = left.iter().position(fits).map(|position| left.remove(position));
        }
    }
    let counters = match new.on_change {
        _ if !keeps_counters => COUNTERS_RESET,
        OnChange::Keep => COUNTERS_KEPT,
        OnChange::Proportional => "counters scaled in proportion",
        OnChange::Reset => COUNTERS_RESET,
    };
    for (limit, before) in new.limits.iter().zip(continued) {
        let [from, to] = [before, Some(limit)].map(stated_text);
        if before.is_some() && from != to {
            parts.push(format!("limits {from} → {to}"));
        }
        match before {
            Some(before) if before.quota != limit.quota => {
                let [from, to] = describe_quotas(&before.quota, &limit.quota);
                parts.push(format!("{from} → {to}; {counters}"));
            }
            Some(_) => {}
            None => parts.push(format!("{} added", limit.quota.limit())),
        }
    }
    parts.extend(left.iter().map(|limit| format!("{} removed; {COUNTERS_DROPPED}", limit.quota.limit())));
}

/// Returns where requests state the limit, or that they do not.
fn stated_text(limit: Option<&RuleLimit>) -> String {
    let stated = limit.and_then(|limit| limit.stated.as_ref());
    stated.map_or_else(|| "as configured".to_owned(), ToString::to_string)
}

/// Formats two quotas with the properties in which they differ.
fn describe_quotas(old: &Quota, new: &Quota) -> [String; 2] {
    let both = [old, new];
    let has_bursts =
        both.iter().any(|quota| quota.algorithm().has_burst() && quota.burst() != quota.limit().count);
    both.map(|quota| {
        let mut text = quota.limit().to_string();
        if has_bursts && quota.algorithm().has_burst() {
            text += &format!(", burst {}", quota.burst());
        }
        if old.algorithm() != new.algorithm() {
            text += &format!(", {}", quota.algorithm());
        }
        if old.precision() != new.precision() {
            text += &format!(", precision {}", quota.precision());
        }
        if old.zone() != new.zone() {
            text += &format!(", {}", quota.zone().name());
        }
        text
    })
}

/// A short description of a rule.
fn summarize_rule(rule: &Rule) -> String {
    let Action::Limit(limiting) = &rule.action else { return action_name(&rule.action).to_owned() };
    let mut limits: Vec<String> =
        limiting.limits.iter().map(|limit| limit.quota.limit().to_string()).collect();
    limits.extend(in_flight_text(limiting).map(|max| format!("{max} in flight")));
    match &limiting.source {
        LimitSource::Local => {}
        LimitSource::Shared(shared) => limits.push(format!("shared ({})", shared.mode.as_str())),
        LimitSource::Remote(remote) => {
            limits.push(format!("rate limit service {}, domain {}", remote.service_address, remote.domain))
        }
    }
    format!("{} by {}", limits.join(" and "), limiting.key)
}

/// The maximum number of requests in flight, or the bounds within which it adapts.
fn in_flight_text(limiting: &LimitAction) -> Option<String> {
    let fixed = limiting.in_flight.map(|max| max.to_string());
    limiting.adaptive.map(|range| range.to_string()).or(fixed)
}

const fn action_name(action: &Action) -> &'static str {
    match action {
        Action::Allow => "allow",
        Action::Deny => "deny",
        Action::Limit(_) => "limit",
    }
}

/// Returns the position of each rule by name.
fn index_by_name(rules: &[Rule]) -> HashMap<&str, usize> {
    rules.iter().enumerate().map(|(index, rule)| (&*rule.name, index)).collect()
}
