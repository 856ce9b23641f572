//! The heaviest keys of a limit and their decisions, as JSON.

use serde_json::{Map, Value, json};

use super::AdminState;
use weir_limiter::timestamp::Timestamp;
use weir_telemetry::observe::key_sketch::MAX_KEYS_PER_SKETCH;
use weir_telemetry::observe::top_keys::{RuleTop, TopKey};

/// Returns the heaviest keys of a rule or of another limit.
pub(super) fn top_json(top: &RuleTop, key_json: impl Fn(&TopKey) -> Value) -> Map<String, Value> {
    let fields = [
        ("tracked", top.tracked.into()),
        ("capacity", MAX_KEYS_PER_SKETCH.into()),
        ("max_overcount", top.max_overcount.into()),
        ("incomplete", top.is_incomplete.into()),
        ("keys", top.keys.iter().map(key_json).collect()),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the decisions of a key.
pub(super) fn counts_json(state: &AdminState, key: &TopKey, now: Timestamp) -> Value {
    json!({
        "key": &*key.text,
        "fingerprint": state.limiter.hasher().fingerprint(key.key),
        "admitted": key.counts.admitted,
        "rejected": key.counts.rejected,
        "shadow": key.counts.shadow,
        "delayed": key.counts.delayed,
        "seconds_since_first": now.since(key.first_seen).as_secs(),
        "seconds_since_last": now.since(key.last_seen).as_secs(),
    })
}
