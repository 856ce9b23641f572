//! `GET /limits/top`: the heaviest keys of each rule.

use http::StatusCode;
use serde_json::{Value, json};
use strsim::levenshtein;

use super::AdminState;
use super::query::Query;
use super::response::{self, FullResponse};
use crate::engine::overrides::OverrideKind;
use crate::engine::{Policy, overrides};
use crate::limiter::timestamp::Timestamp;
use crate::observe::key_sketch::MAX_KEYS_PER_SKETCH;
use crate::observe::key_writer::key_of;
use crate::observe::top_keys::{RuleTop, TopKey, covered_time};
use crate::rules::RuleIndex;
use crate::rules::rule::Rule;

/// Keys per rule unless the query asks for another number.
const DEFAULT_KEYS: usize = 20;
/// Maximum number of keys per rule.
const MAX_KEYS: usize = 1000;

/// `GET /limits/top[?rule=NAME][&n=NUMBER]`
pub(super) fn top(state: &AdminState, query: &Query<'_>) -> FullResponse {
    let policy = state.process.policy();
    let max = match query.get("n").map(|n| n.parse::<usize>()) {
        None => DEFAULT_KEYS,
        Some(Ok(max @ 1..=MAX_KEYS)) => max,
        Some(_) => {
            let problem = format!("n: expected a number from 1 to {MAX_KEYS}\n");
            return response::text(StatusCode::BAD_REQUEST, problem);
        }
    };
    let now = state.process.now();
    let mut rules: Vec<(RuleIndex, &Rule)> =
        policy.rules.rules().iter().enumerate().map(|(index, rule)| (RuleIndex(index), rule)).collect();
    if let Some(name) = query.get("rule") {
        rules.retain(|(_, rule)| *rule.name == *name);
        if rules.is_empty() {
            return response::text(StatusCode::NOT_FOUND, unknown_rule(&policy, &name));
        }
    }
    let rules: Vec<Value> = rules
        .into_iter()
        .filter(|(_, rule)| key_of(rule).is_some())
        .map(|(index, rule)| {
            rule_json(state, &policy, index, rule, &state.top_keys.top(&rule.name, max, now), now)
        })
        .collect();
    let seconds = covered_time(state.start_time, now).as_secs();
    response::json(&json!({ "window_seconds": seconds, "rules": rules }))
}

fn unknown_rule(policy: &Policy, name: &str) -> String {
    let names = policy.rules.rules().iter().map(|rule| &*rule.name);
    match names.min_by_key(|known| levenshtein(known, name)) {
        Some(nearest) => format!("no rule of this name, did you mean \"{nearest}\"?\n"),
        None => "there are no rules\n".to_owned(),
    }
}

/// Returns the heaviest keys of one rule.
pub(super) fn rule_json(
    state: &AdminState,
    policy: &Policy,
    index: RuleIndex,
    rule: &Rule,
    top: &RuleTop,
    now: Timestamp,
) -> Value {
    let key_json = |key| key_json(state, policy, index, rule, key, now);
    json!({
        "rule": rule.name,
        "tracked": top.tracked,
        "capacity": MAX_KEYS_PER_SKETCH,
        "max_overcount": top.max_overcount,
        "incomplete": top.is_incomplete,
        "keys": top.keys.iter().map(key_json).collect::<Value>(),
    })
}

fn key_json(
    state: &AdminState,
    policy: &Policy,
    index: RuleIndex,
    rule: &Rule,
    key: &TopKey,
    now: Timestamp,
) -> Value {
    let is_banned = overrides::time_banned(policy, &state.limiter, index, key.key, now).is_some();
    let overridden = state.overrides.of_key(rule, key.key, now);
    let is_boosted = overridden.iter().any(|entry| entry.action.kind() == OverrideKind::Boost);
    json!({
        "key": &*key.text,
        "fingerprint": state.limiter.hasher().fingerprint(key.key),
        "admitted": key.counts.admitted,
        "rejected": key.counts.rejected,
        "shadow": key.counts.shadow,
        "delayed": key.counts.delayed,
        "banned": is_banned,
        "boosted": is_boosted,
        "seconds_since_first": now.since(key.first_seen).as_secs(),
        "seconds_since_last": now.since(key.last_seen).as_secs(),
    })
}
