//! What people read: the rules of a pod as a table, and the result of a change.

use std::fmt::Write as _;

use serde_json::Value;

use super::commands::KeyAction;
use crate::top::line::{left_aligned, printable_text, right_aligned, width};

/// Maximum widths of columns.
const MAX_NAME: usize = 40;
const MAX_LIMIT: usize = 40;

/// Maximum number of bans and boosts that are listed.
const MAX_OVERRIDES: usize = 50;

/// Columns with numbers, and the outcomes that each counts.
const NUMBERS: [(&str, &[&str]); 4] = [
    ("ALLOWED", &["allowed", "soft", "exempt", "diverted"]),
    ("DELAYED", &["delayed"]),
    ("SHADOW", &["shadow"]),
    ("REJECTED", &["limited", "banned", "denied"]),
];

/// Width of a column with numbers.
const NUMBER: usize = 12;

/// Returns the rules of `GET /limits` as a table, and the bans and boosts of `GET /limits/overrides`.
pub(super) fn limits_text(limits: &Value, overrides: &Value) -> String {
    let rules: Vec<(String, String, &Value)> =
        items(&limits["rules"]).map(|rule| (text_of(&rule["name"]), terms(rule), rule)).collect();
    let widest = |texts: &mut dyn Iterator<Item = usize>, max: usize| texts.max().unwrap_or(0).clamp(5, max);
    let name = widest(&mut rules.iter().map(|(name, _, _)| width(name)), MAX_NAME);
    let limit = widest(&mut rules.iter().map(|(_, terms, _)| width(terms)), MAX_LIMIT);
    let mut text = format!("{}  {}", left_aligned("RULE", name), left_aligned("LIMIT", limit));
    for title in NUMBERS.map(|(title, _)| title).into_iter().chain(["COUNTERS"]) {
        text += &right_aligned(title, NUMBER);
    }
    text.push('\n');
    for (rule, terms, value) in &rules {
        text += &format!("{}  {}", left_aligned(rule, name), left_aligned(terms, limit));
        for (_, outcomes) in NUMBERS {
            let made = outcomes.iter().filter_map(|outcome| value["decisions"][outcome].as_u64());
            text += &right_aligned(&made.fold(0, u64::saturating_add).to_string(), NUMBER);
        }
        let counters = value["counters"].as_u64().map_or_else(|| "–".to_owned(), |keys| keys.to_string());
        text += &right_aligned(&counters, NUMBER);
        text.push('\n');
    }
    if rules.is_empty() {
        text += "no rules: every request is forwarded\n";
    }
    // Writing to a string cannot fail.
    let _ = write!(text, "{}", documents_text(limits));
    text + &overrides_text(overrides)
}

fn documents_text(limits: &Value) -> String {
    match items(&limits["documents"]).count() {
        0 => String::new(),
        count => format!("limits of documents: {count}, `--format json` has them\n"),
    }
}

fn overrides_text(overrides: &Value) -> String {
    let all: Vec<&Value> = items(&overrides["overrides"]).collect();
    let mut text = String::new();
    for entry in all.iter().take(MAX_OVERRIDES) {
        let change = match text_of(&entry["change"]) {
            change if change.is_empty() => String::new(),
            change => format!(" ({change})"),
        };
        let (kind, rule) = (text_of(&entry["action"]), text_of(&entry["rule"]));
        text += &format!("{kind}{change}: {rule}: {} until {}\n", key_of(entry), text_of(&entry["until"]));
    }
    let more = all.len().saturating_sub(MAX_OVERRIDES);
    if more > 0 {
        text += &format!("and {more} more bans and boosts, `--format json` has them\n");
    }
    text
}

/// Returns the result of a change, with what an operator might not expect.
pub(super) fn change_text(action: &KeyAction, changed: &Value) -> String {
    let until = text_of(&changed["until"]);
    let change = text_of(&changed["change"]);
    let was_in_force = changed["was_in_force"] == true;
    let verb = match action {
        KeyAction::Ban { .. } => format!("banned until {until}"),
        KeyAction::Boost { .. } if !until.is_empty() => format!("boosted ({change}) until {until}"),
        KeyAction::Unban if was_in_force => "ban ended".to_owned(),
        KeyAction::Unban => "no ban was in force".to_owned(),
        KeyAction::Boost { .. } if was_in_force => "boost ended".to_owned(),
        KeyAction::Boost { .. } => "no boost was in force".to_owned(),
    };
    let mut text = format!("{}: {} {verb}\n", text_of(&changed["rule"]), key_of(changed));
    for note in items(&changed["notes"]) {
        text += &format!("  note: {}\n", text_of(note));
    }
    text
}

/// Returns a key as the pod shows it, or its fingerprint.
fn key_of(value: &Value) -> String {
    match (text_of(&value["key"]), text_of(&value["fingerprint"])) {
        (key, _) if !key.is_empty() => key,
        (_, fingerprint) => format!("fingerprint {fingerprint}"),
    }
}

/// Returns what a rule does: its limits, its throttle unless it rejects, and its limit of requests in flight.
fn terms(rule: &Value) -> String {
    if rule["action"] != "limit" {
        return text_of(&rule["action"]);
    }
    let mut parts: Vec<String> = items(&rule["limits"]).map(|limit| text_of(&limit["limit"])).collect();
    parts.extend(
        Some(text_of(&rule["throttle"])).filter(|throttle| !throttle.is_empty() && throttle != "hard"),
    );
    parts.extend(match &rule["in_flight"] {
        Value::Null => None,
        Value::Number(max) => Some(format!("{max} in flight")),
        _ => Some(format!("{} in flight", rule["concurrency"]["limit"])),
    });
    parts.join(" ")
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Returns text without control characters, which could change the terminal.
fn text_of(value: &Value) -> String {
    printable_text(value.as_str().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_are_a_table_with_overrides_below() {
        let limits = json!({ "rules": [
            { "name": "per-ip", "action": "limit", "limits": [{ "limit": "100/s" }], "throttle": "hard", "counters": 7,
              "decisions": { "allowed": 5, "exempt": 1, "limited": 2, "banned": 3 } },
            { "name": "shape", "action": "limit", "limits": [{ "limit": "5/s" }], "throttle": "delay 1s", "in_flight": 4,
              "counters": 1, "decisions": { "delayed": 9 } },
            { "name": "health", "action": "allow", "decisions": { "exempt": 2 } },
        ] });
        let overrides = json!({ "overrides": [
            { "rule": "per-ip", "action": "ban", "key": "client_ip=203.0.113.7", "until": "2026-11-29T22:00:00Z" },
            { "rule": "per-ip", "action": "boost", "change": "factor 3", "key": null, "fingerprint": "8e\u{1b}0c", "until": "2026-11-29T22:00:00Z" },
        ] });
        let expected = "\
RULE    LIMIT                        ALLOWED     DELAYED      SHADOW    REJECTED    COUNTERS
per-ip  100/s                              6           0           0           5           7
shape   5/s delay 1s 4 in flight           0           9           0           0           1
health  allow                              2           0           0           0           –
ban: per-ip: client_ip=203.0.113.7 until 2026-11-29T22:00:00Z
boost (factor 3): per-ip: fingerprint 8e\u{fffd}0c until 2026-11-29T22:00:00Z
";
        assert_eq!(limits_text(&limits, &overrides), expected);
        assert!(
            limits_text(&json!({ "rules": [] }), &json!({}))
                .ends_with("no rules: every request is forwarded\n")
        );
    }

    #[test]
    fn changes_are_sentences() {
        let ban = KeyAction::Ban { duration: String::new() };
        let changed = json!({ "rule": "r", "key": "path=/a", "until": "T", "notes": ["one"] });
        assert_eq!(change_text(&ban, &changed), "r: path=/a banned until T\n  note: one\n");
        let ended = json!({ "rule": "r", "key": "path=/a", "was_in_force": false });
        assert_eq!(change_text(&KeyAction::Unban, &ended), "r: path=/a no ban was in force\n");
    }
}
