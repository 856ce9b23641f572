//! `GET /deferred` and `POST /deferred/requeue`: deferred calls and their dead letters.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

use super::query::Query;
use super::response::{self, FullResponse};
use super::{AdminState, audit};
use weir_store::deferred::handle::DeferredHandle;
use weir_store::deferred::{DeadLetter, DeferredRuleStatus};

/// `GET /deferred`
pub(super) fn list(state: &AdminState, _: &Query<'_>) -> FullResponse {
    let status = state.process.deferred().map(|handle| handle.status()).unwrap_or_default();
    response::json(&json!({ "rules": status.rules.iter().map(rule).collect::<Vec<_>>() }))
}

fn rule(status: &DeferredRuleStatus) -> Value {
    json!({
        "rule": status.rule,
        "configured": status.is_configured,
        "calls": status.stored,
        "held": status.held,
        "retrying": status.retrying,
        "oldest_seconds": status.oldest_age.as_ref().map(Duration::as_secs),
        "dead_letters": status.dead,
        "newest_dead_letters": status.dead_letters.iter().map(dead_letter).collect::<Vec<_>>(),
    })
}

fn dead_letter(letter: &DeadLetter) -> Value {
    json!({
        "entry": letter.entry,
        "id": letter.call,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "status": letter.status,
    })
}

/// `POST /deferred/requeue?rule=R&entry=ID`; without `entry`, the oldest dead letters.
pub(super) fn requeue(state: &AdminState, query: &Query<'_>) -> FullResponse {
    let bad_request = |text: &'static str| response::text(StatusCode::BAD_REQUEST, text);
    if query.pairs().any(|(name, _)| !matches!(&*name, "rule" | "entry")) {
        return bad_request("unknown parameter, expected rule and entry\n");
    }
    let Some(rule) = query.get("rule") else { return bad_request("rule is missing\n") };
    let entry = query.get("entry");
    if entry.as_ref().is_some_and(|entry| !is_entry(entry)) {
        return bad_request("entry is not the ID of a dead letter, such as 1700000000000-0\n");
    }
    let known = |handle: &&_| is_known(handle, &rule);
    let handle = state.process.deferred();
    let Some(handle) = handle.as_ref().filter(known) else {
        return response::text(StatusCode::NOT_FOUND, "no such rule has deferred calls\n");
    };
    if !handle.requeue(&rule, entry.as_deref()) {
        return response::text(StatusCode::SERVICE_UNAVAILABLE, "the queue to the store is full\n");
    }
    audit::record_command(query, &rule);
    response::ok()
}

fn is_known(handle: &DeferredHandle, name: &str) -> bool {
    handle.status().rules.iter().any(|rule| *rule.rule == *name)
}

/// Whether this is the ID of an entry of a stream.
fn is_entry(text: &str) -> bool {
    let is_number = |part: &str| part.parse::<u64>().is_ok();
    text.split_once('-').is_some_and(|(millis, sequence)| is_number(millis) && is_number(sequence))
}
