//! `GET /limits/top`: the heaviest keys of each rule, and of each limit of documents.

use http::StatusCode;
use serde_json::{Value, json};

use super::command_error::CommandError;
use super::key_counts::{counts_json, top_json};
use super::query::Query;
use super::response::{self, FullResponse};
use super::{AdminState, document_limits};
use weir_limiter::timestamp::Timestamp;
use weir_policy::engine::overrides::OverrideKind;
use weir_policy::engine::{Policy, overrides};
use weir_policy::rules::RuleIndex;
use weir_policy::rules::rule::Rule;
use weir_telemetry::observe::key_writer::key_of;
use weir_telemetry::observe::top_keys::{RuleTop, TopKey, covered_time};

/// Keys per rule unless the query asks for another number.
const DEFAULT_KEYS: usize = 20;
/// Maximum number of keys per rule.
const MAX_KEYS: usize = 1000;

/// `GET /limits/top[?rule=NAME][?domain=DOMAIN[&name=NAME]][&n=NUMBER]`
pub(super) fn top(state: &AdminState, query: &Query<'_>) -> FullResponse {
    let max = match query.get("n").map(|n| n.parse::<usize>()) {
        None => DEFAULT_KEYS,
        Some(Ok(max @ 1..=MAX_KEYS)) => max,
        Some(_) => {
            let problem = format!("n: expected a number from 1 to {MAX_KEYS}\n");
            return response::text(StatusCode::BAD_REQUEST, problem);
        }
    };
    let now = state.process.now();
    let seconds = covered_time(state.start_time, now).as_secs();
    let result = check_filters(query).and_then(|()| {
        let rules = rules(state, query, max, now)?;
        let documents = match query.get("rule") {
            Some(_) => None,
            None => document_limits::top(state, query, max, now)?,
        };
        Ok(json!({ "window_seconds": seconds, "rules": rules, "documents": documents }))
    });
    match result {
        Ok(top) => response::json(&top),
        Err(CommandError { status, problem }) => response::text(status, format!("{problem}\n")),
    }
}

fn check_filters(query: &Query<'_>) -> Result<(), CommandError> {
    match (query.get("rule"), query.get("domain"), query.get("name")) {
        (Some(_), Some(_), _) => Err(CommandError::bad_request("expected only one of `rule` and `domain`")),
        (_, None, Some(_)) => Err(CommandError::bad_request("`name` needs `domain`")),
        _ => Ok(()),
    }
}

/// Returns the heaviest keys of the rule that `query` names, or of all; none if it names a domain.
fn rules(
    state: &AdminState,
    query: &Query<'_>,
    max: usize,
    now: Timestamp,
) -> Result<Vec<Value>, CommandError> {
    let policy = state.process.policy();
    let mut rules: Vec<(RuleIndex, &Rule)> =
        policy.rules.rules().iter().enumerate().map(|(index, rule)| (RuleIndex(index), rule)).collect();
    if let Some(name) = query.get("rule") {
        rules.retain(|(_, rule)| *rule.name == *name);
        if rules.is_empty() {
            let names = policy.rules.rules().iter().map(|rule| &*rule.name);
            return Err(CommandError::unknown_name(format_args!("unknown rule `{name}`"), &name, names));
        }
    }
    let counted =
        rules.into_iter().filter(|(_, rule)| key_of(rule).is_some() && query.get("domain").is_none());
    let shown = counted.map(|(index, rule)| {
        rule_json(state, &policy, index, rule, &state.top_keys.top(&rule.name, max, now), now)
    });
    Ok(shown.collect())
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
    let mut fields = top_json(top, |key| key_json(state, policy, index, rule, key, now));
    fields.insert("rule".to_owned(), (*rule.name).into());
    fields.into()
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
    let mut fields = counts_json(state, key, now);
    fields["banned"] = is_banned.into();
    fields["boosted"] = is_boosted.into();
    if rule.limits().iter().any(|limit| limit.stated.is_some()) {
        let limits = policy.rules.rule_checks(index).filter(|(role, _)| role.reported_limit().is_some());
        let in_force = limits.filter_map(|(_, limit)| state.limiter.quota_in_force(limit, key.key, now));
        fields["limits"] = in_force.map(|quota| quota.limit().to_string()).collect();
    }
    fields
}
