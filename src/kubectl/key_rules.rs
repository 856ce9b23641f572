//! Which rules count by the attributes of a key, such as `client_ip=203.0.113.7`.

use std::net::IpAddr;

use serde_json::Value;

/// Maximum number of rules that a message names.
const MAX_NAMED: usize = 20;

/// Returns a key as the admin port reads it. An address alone is that of a client.
pub(super) fn full_key(text: &str) -> String {
    let address = text.split_once('/').map_or(text, |(address, _)| address);
    if address.parse::<IpAddr>().is_ok() { format!("client_ip={text}") } else { text.to_owned() }
}

/// A rule that has a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyRule {
    pub(super) name: String,
    key: String,
}

/// Returns the rules with a key in the response of `GET /limits`.
pub(super) fn rules_with_keys(limits: &Value) -> Vec<KeyRule> {
    let rules = limits["rules"].as_array().into_iter().flatten();
    let rule = |rule: &Value| {
        Some(KeyRule { name: rule["name"].as_str()?.to_owned(), key: rule["key"].as_str()?.to_owned() })
    };
    rules.filter_map(rule).collect()
}

/// Returns the names of the rules that count by the attributes of a key.
///
/// # Errors
/// Returns which rules there are, if none does.
pub(super) fn rules_of_key(rules: &[KeyRule], key: &str) -> Result<Vec<String>, String> {
    let wanted = labels_of_text(key);
    let found: Vec<String> = rules
        .iter()
        .filter(|rule| labels_of_rule(&rule.key).is_some_and(|labels| labels == wanted))
        .map(|rule| rule.name.clone())
        .collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let all: Vec<String> =
        rules.iter().take(MAX_NAMED).map(|rule| format!("{} {}", rule.name, rule.key)).collect();
    let known = if all.is_empty() { "no rule has a key".to_owned() } else { all.join(", ") };
    Err(format!("no rule counts by the attributes of `{key}`: {known}; --rule NAME selects one"))
}

/// Returns the labels in a key as text: before each `=`, at the beginning and behind commas outside of quotes.
fn labels_of_text(key: &str) -> Vec<String> {
    let mut is_quoted = false;
    let parts = key.split(|letter| {
        is_quoted ^= letter == '"';
        letter == ',' && !is_quoted
    });
    parts.filter_map(|part| part.split_once('=')).map(|(label, _)| label.trim().to_owned()).collect()
}

/// Returns the labels of a rule's key, which is written as `[path, {header: x-key}]`; `None` if it counts networks of a
/// length of its own. An address names such a network, too, and the user may not mean all of it.
fn labels_of_rule(key: &str) -> Option<Vec<String>> {
    let mut depth = 0_u32;
    let inside = key.strip_prefix('[')?.strip_suffix(']')?;
    let parts = inside.split(|letter| {
        match letter {
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    });
    let label = |part: &str| {
        let Some(map) = part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) else {
            return Some(part.to_owned());
        };
        let (word, parameter) = map.split_once(": ")?;
        (word != "client_ip").then(|| format!("{word}.{parameter}"))
    };
    parts.map(str::trim).filter(|part| !part.is_empty()).map(label).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(rules: &[(&str, &str)]) -> Vec<KeyRule> {
        let rule = |(name, key): &(&str, &str)| KeyRule { name: (*name).to_owned(), key: (*key).to_owned() };
        rules.iter().map(rule).collect()
    }

    #[test]
    fn address_alone_is_that_of_a_client() {
        assert_eq!(full_key("203.0.113.7"), "client_ip=203.0.113.7");
        assert_eq!(full_key("2001:db8::/64"), "client_ip=2001:db8::/64");
        assert_eq!(full_key("path=/login"), "path=/login");
    }

    #[test]
    fn rules_of_a_key_are_those_with_its_attributes() {
        let all = rules(&[
            ("per-ip", "[client_ip]"),
            ("login", "[path, client_ip]"),
            ("networks", "[{client_ip: 24}]"),
            ("keys", "[{header: x-key}]"),
            ("total", "[]"),
            ("again", "[client_ip]"),
        ]);
        let found = |key| rules_of_key(&all, key);
        assert_eq!(found("client_ip=203.0.113.7").unwrap(), ["per-ip", "again"]);
        assert_eq!(found("path=/a, client_ip=203.0.113.7").unwrap(), ["login"]);
        assert_eq!(found("path=\"/a, x=1\",client_ip=203.0.113.7").unwrap(), ["login"]);
        assert_eq!(found("header.x-key=a,b").unwrap(), ["keys"]);
        let error = found("country=DE").unwrap_err();
        assert!(error.contains("per-ip [client_ip], login [path, client_ip]"), "{error}");
        assert!(rules_of_key(&[], "a=b").unwrap_err().contains("no rule has a key"));
    }

    #[test]
    fn rules_without_keys_are_left_out() {
        let limits = serde_json::json!({ "rules": [{ "name": "a", "key": "[path]" }, { "name": "b", "action": "deny" }] });
        assert_eq!(rules_with_keys(&limits), rules(&[("a", "[path]")]));
    }
}
