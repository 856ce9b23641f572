//! A configuration in one line, for `weir check` and the log.

use std::fmt;

use super::Config;
use weir_policy::rules::rule::{Action, Rule};

/// Maximum number of addresses that are listed.
const MAX_ADDRESSES: usize = 3;

/// What a configuration contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigSummary {
    /// Addresses of the listeners.
    pub listeners: String,
    /// Addresses or names of the upstreams.
    pub upstream: String,
    /// Number of rules, by their effect.
    pub rules: String,
    /// Server with the rest of the configuration, or the rate limit service, if configured.
    rest: Option<String>,
}

impl Config {
    /// Returns what the configuration contains.
    pub fn summary(&self) -> ConfigSummary {
        let listeners = self.listeners.iter().map(|listener| listener.settings.address.to_string());
        let upstream = match &*self.upstreams {
            [only] => listed(only.settings.addresses.iter().map(ToString::to_string)),
            all => listed(all.iter().map(|upstream| upstream.settings.name.to_string())),
        };
        let central = self.central.as_ref().map(|_| "the rest from a configuration server".to_owned());
        let rls = self.rls.as_ref().map(|_| "rate limit service for Envoy".to_owned());
        ConfigSummary {
            listeners: listed(listeners),
            upstream,
            rules: describe_rules(&self.policy.rules),
            rest: central.or(rls),
        }
    }
}

impl fmt::Display for ConfigSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { listeners, upstream, rules, rest } = self;
        let parts = [("listens on ", listeners), ("upstream ", upstream), ("", rules)];
        let mut parts: Vec<String> = parts
            .iter()
            .filter(|(_, text)| !text.is_empty())
            .map(|(name, text)| format!("{name}{text}"))
            .collect();
        parts.extend(rest.clone());
        f.write_str(&parts.join(", "))
    }
}

fn listed(mut all: impl ExactSizeIterator<Item = String>) -> String {
    let count = all.len();
    let shown: Vec<String> = all.by_ref().take(MAX_ADDRESSES).collect();
    let text = shown.join(" and ");
    if count > MAX_ADDRESSES { format!("{text} and {} more", count - MAX_ADDRESSES) } else { text }
}

fn describe_rules(rules: &[Rule]) -> String {
    let count = |is_kind: fn(&Action) -> bool| rules.iter().filter(|rule| is_kind(&rule.action)).count();
    let kinds = [
        ("limit", count(|action| matches!(action, Action::Limit(_)))),
        ("allow", count(|action| matches!(action, Action::Allow))),
        ("deny", count(|action| matches!(action, Action::Deny))),
    ];
    let kinds: Vec<String> =
        kinds.iter().filter(|(_, count)| *count > 0).map(|(kind, count)| format!("{count} {kind}")).collect();
    let noun = if rules.len() == 1 { "rule" } else { "rules" };
    match kinds.is_empty() {
        true => format!("no {noun}"),
        false => format!("{} {noun} ({})", rules.len(), kinds.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::from_text;

    fn summary(text: &str) -> String {
        from_text(text, Path::new("weir.yaml"), &|_| None).unwrap().summary().to_string()
    }

    #[test]
    fn summary_has_addresses_and_rules() {
        let text = "listeners: 127.0.0.1:8080\nupstream: 127.0.0.1:3000\nrules:\n  - { name: a, limit: 10/s }\n  \
                    - { name: b, match: { path: /b }, action: allow }\n";
        assert_eq!(
            summary(text),
            "listens on 127.0.0.1:8080, upstream 127.0.0.1:3000, 2 rules (1 limit, 1 allow)"
        );
    }

    #[test]
    fn summary_shortens_long_lists() {
        let text =
            "listeners: [127.0.0.1:1, 127.0.0.1:2, 127.0.0.1:3, 127.0.0.1:4]\nupstream: echo\nrules: []\n";
        assert_eq!(
            summary(text),
            "listens on 127.0.0.1:1 and 127.0.0.1:2 and 127.0.0.1:3 and 1 more, upstream echo, no rules"
        );
    }
}
