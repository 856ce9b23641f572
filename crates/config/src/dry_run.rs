//! A rule of a configuration with another limit, as a dry run beside it.

use serde_yaml::{Mapping, Value};

use super::{fragments, redact};

/// Suffix of the name of a dry run: names are unique.
const SUFFIX: &str = "-suggested";
/// Keys that have no meaning in a dry run, or that only the limit as written needs.
const REMOVED: [&str; 12] = [
    "any_of",
    "burst",
    "counter",
    "enforce",
    "feedback",
    "in_flight",
    "limits",
    "on_limit",
    "respond",
    "scope",
    "throttle",
    "token_bucket",
];

/// Returns the rule with this name in the configuration `text` as YAML, with this limit in place of its own, in shadow
/// mode and without secrets; `None` if there is no such rule.
pub fn dry_run(text: &str, name: &str, limit: &str) -> Option<String> {
    let documents: Vec<&str> = match fragments::is_folder(text) {
        true => fragments::split(text).map(|(_, text)| text).collect(),
        false => vec![text],
    };
    let mut rule = documents.into_iter().find_map(|text| find_rule(&redact(text), name))?;
    REMOVED.iter().for_each(|key| {
        rule.remove(*key);
    });
    rule.insert("name".into(), format!("{name}{SUFFIX}").into());
    rule.insert("limit".into(), limit.into());
    rule.insert("throttle".into(), "shadow".into());
    serde_yaml::to_string(&[Value::Mapping(rule)]).ok()
}

fn find_rule(text: &str, name: &str) -> Option<Mapping> {
    let document: Value = serde_yaml::from_str(text).ok()?;
    let is_named = |rule: &Value| rule.get("name").and_then(Value::as_str) == Some(name);
    let rule = match document.get("rules")? {
        Value::Sequence(rules) => rules.iter().find(|rule| is_named(rule))?,
        rule => Some(rule).filter(|rule| is_named(rule))?,
    };
    rule.as_mapping().cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_is_copied_with_its_conditions_and_another_limit() {
        let text = "rules:\n  - { name: a, limit: 1/s }\n  - { name: b, match: { path: /x, header: { authorization: \
                    secret } }, key: client_ip, limits: [1/s, 5/min], burst: 3, on_limit: { status: 503 } }\n";
        let yaml = dry_run(text, "b", "9/s").unwrap();
        assert!(yaml.starts_with("- name: b-suggested\n"), "{yaml}");
        assert!(!yaml.contains("secret") && !yaml.contains("limits") && !yaml.contains("burst"), "{yaml}");
        let rules = yaml.lines().map(|line| format!("  {line}\n")).collect::<String>();
        let rules = rules.replace("'[redacted]'", "x");
        let text = format!("listeners: 127.0.0.1:0\nupstream: echo\nrules:\n{rules}");
        let config = crate::from_text(&text, std::path::Path::new("a.yaml"), &|_| None).unwrap();
        let rule = &config.policy.rules[0];
        assert_eq!(rule.limits()[0].quota.limit().to_string(), "9/s");
        assert_eq!(dry_run(text.as_str(), "c", "9/s"), None);
    }
}
