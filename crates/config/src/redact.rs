//! Removes secrets from a configuration before it is displayed: values that the schema marks as secret
//! (`raw::Secret`), and values under user-defined names that look like secrets.
//!
//! Works on the parsed document, not on its text, because a value may be quoted, folded over lines or inside
//! a flow mapping. Comments are removed, because they may contain old passwords.

use serde_json::Value as Schema;
use serde_yaml::{Mapping, Value};

use super::fragments;
use super::schema::{has_secret_keys, is_secret, schema};
use super::schema_check::alternatives::Alternatives;

const HIDDEN: &str = "[redacted]";
const HIDDEN_USER: &str = "[redacted]@";
const HIDDEN_QUERY: &str = "?[redacted]";

/// Values that are shown, because they reveal nothing: any value, no value, and the name of the rule.
const VISIBLE_PATTERNS: [&str; 3] = ["*", "!present", "{rule}"];

/// A name that is not in the schema is suspicious if it contains one of these.
const SUSPICIOUS_NAME_PARTS: [&str; 9] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "authorization",
    "private_key",
    "api_key",
];

/// Returns the document without its secrets, or a comment if it cannot be read.
pub fn redact(text: &str) -> String {
    if fragments::is_folder(text) {
        let files = fragments::split(text).map(|(name, text)| format!("# {name}\n{}", redact(text)));
        return files.collect::<Vec<_>>().join("---\n");
    }
    let shown = serde_yaml::from_str(text)
        .map(|value| redact_value(value, Some(schema())))
        .and_then(|value| serde_yaml::to_string(&value));
    // The error is left out, because it may quote a line that contains a secret.
    shown.unwrap_or_else(|_| "# not shown: not valid YAML\n".to_owned())
}

/// Returns `value` without its secrets; `schema` is `None` below an unknown key.
fn redact_value(value: Value, schema: Option<&Schema>) -> Value {
    if schema.is_some_and(is_secret) {
        return hide_values(value);
    }
    let alternatives = schema.map(Alternatives::from_schema);
    let of_kind = |kind| alternatives.as_ref()?.of_type(kind);
    match remove_tags(value) {
        Value::Mapping(map) => Value::Mapping(redact_map(map, of_kind("object"))),
        Value::Sequence(items) => {
            // A single value may be written in place of a list, and a list in place of a single value.
            let items_are = of_kind("array").and_then(|list| list.get("items")).or(schema);
            Value::Sequence(items.into_iter().map(|item| redact_value(item, items_are)).collect())
        }
        value if alternatives.as_ref().is_some_and(Alternatives::has_secret) => hide_values(value),
        Value::String(text) => Value::String(redact_urls(&text)),
        value => value,
    }
}

fn redact_map(map: Mapping, schema: Option<&Schema>) -> Mapping {
    let properties = schema.and_then(|schema| schema.get("properties"));
    let others = schema.and_then(|schema| schema.get("additionalProperties"));
    let has_secret_keys = schema.is_some_and(has_secret_keys);
    let mut secret_count = 0_usize;
    let mut entries = Mapping::new();
    for (name, value) in map {
        let text = name.as_str();
        let known = text.and_then(|name| properties?.get(name));
        if known.is_none() && has_secret_keys {
            secret_count += 1;
            continue;
        }
        let value = match known {
            None if text.is_some_and(is_suspicious_name) => hide_values(value),
            known => redact_value(value, known.or(others)),
        };
        entries.insert(name, value);
    }
    if secret_count > 0 {
        entries.insert(HIDDEN.into(), format!("{secret_count} members").into());
    }
    entries
}

/// Removes tags, so that a tagged value is checked like any other.
fn remove_tags(value: Value) -> Value {
    match value {
        Value::Tagged(tagged) => remove_tags(tagged.value),
        value => value,
    }
}

fn is_suspicious_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace(['-', ' '], "_");
    SUSPICIOUS_NAME_PARTS.iter().any(|part| name.contains(part)) || name.contains("apikey")
}

/// Hides the values and keeps the structure. Patterns and the names of files with values stay visible.
fn hide_values(value: Value) -> Value {
    match remove_tags(value) {
        Value::Null => Value::Null,
        Value::String(text) if VISIBLE_PATTERNS.contains(&&*text) => Value::String(text),
        Value::Sequence(values) => Value::Sequence(values.into_iter().map(hide_values).collect()),
        Value::Mapping(map) => {
            let entry = |(name, value): (Value, Value)| match name.as_str() {
                Some("file") => (name, value),
                _ => (name, hide_values(value)),
            };
            Value::Mapping(map.into_iter().map(entry).collect())
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Tagged(_) => {
            Value::String(HIDDEN.to_owned())
        }
    }
}

/// Hides what precedes the `@` in `redis://user:password@host` (RFC 3986 section 3.2.1), and the query of
/// `https://host/?token=…`. A password may contain an unencoded `@` or `/`, so everything up to the last `@`
/// is removed.
fn redact_urls(text: &str) -> String {
    let word = |word: &str| {
        let Some((scheme, rest)) = word.find("://").map(|at| word.split_at(at + 3)) else {
            return word.to_owned();
        };
        let (user, rest) = rest.rsplit_once('@').map_or(("", rest), |(_, rest)| (HIDDEN_USER, rest));
        let (rest, query) = rest.split_once('?').map_or((rest, ""), |(rest, _)| (rest, HIDDEN_QUERY));
        [scheme, user, rest, query].concat()
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_redacted_in_every_yaml_form() {
        let shown = redact(
            "store:\n  redis: rediss://weir:s3cr3t@cache:6379/0\n  # old: s3cr3t\n  password: |\n    s3cr3t\n    \
             more s3cr3t\n  tls: {client_secret: [s3cr3t, 's3cr3t'], key: tls.key}\n\
             rules:\n  - match: {header: {Authorization: s3cr3t, x-api-key: s3cr3t}}\n    key: [client_ip]\n",
        );
        assert!(!shown.contains("s3cr3t"), "{shown}");
        assert!(shown.contains("rediss://[redacted]@cache:6379/0"), "{shown}");
        assert!(shown.contains("tls.key") && shown.contains("client_ip"), "{shown}");
    }

    #[test]
    fn plan_members_are_redacted_to_their_count() {
        let text = "plans: {of: {header: x-api-key}, members: {s3cr3t: pro, 's3cr3t 2': free, 7: pro}, default: free}";
        let shown = redact(text);
        assert!(
            !shown.contains("s3cr3t") && shown.contains("3 members") && shown.contains("default: free"),
            "{shown}"
        );
        assert!(redact("plans: {members: {file: keys.yaml}}").contains("file: keys.yaml"));
    }

    #[test]
    fn public_schema_keys_are_shown_despite_suspicious_names() {
        let shown = redact(
            "rules: [{name: a, token_bucket: {refill: 10, every: 1s}, key: {jwt: token}, client_token: s3cr3t}]\n\
             jwt: {public_key: {file: token.pem}, issuer: https://tokens.example}\n",
        );
        for kept in ["refill: 10", "every: 1s", "jwt: token", "file: token.pem", "https://tokens.example"] {
            assert!(shown.contains(kept), "{kept} in {shown}");
        }
        assert!(!shown.contains("s3cr3t"), "{shown}");
    }

    #[test]
    fn schema_secrets_are_redacted_whatever_their_type() {
        for text in [
            "jwt: {secret: 31415926}",
            "jwt: {secret: [31415926, {file: keys.txt}]}",
            "tracing: {headers: {x-team: 31415926}}",
            "rls: {config: {xds: {headers: {x-team: [31415926]}}}}",
            "rules: {on_limit: {headers: {x-team: 31415926}}}",
        ] {
            let shown = redact(text);
            assert!(!shown.contains("31415926") && shown.contains(HIDDEN), "{shown}");
            assert_eq!(text.contains("keys.txt"), shown.contains("file: keys.txt"), "{shown}");
        }
    }

    #[test]
    fn url_credentials_and_query_are_redacted() {
        let shown = redact_urls;
        assert_eq!(shown("a http://u:p@ss@h/x b@c"), "a http://[redacted]@h/x b@c");
        assert_eq!(shown("http://h/x y"), "http://h/x y");
        assert_eq!(shown("https://h/x?token=s3cr3t&a=b y?"), "https://h/x?[redacted] y?");
        assert_eq!(shown("http://u:p?a@h/x"), "http://[redacted]@h/x");
    }

    #[test]
    fn header_values_are_redacted_whatever_the_header_name() {
        let shown = redact(
            "rules:\n  - match: {header: {x-origin-verify: s3cr3t, x-b: ['~^s3cr3t$', \"*\"], x-c: {file: keys.txt}}}\n    \
             except:\n      - header: {authorization: \"!present\", x-probe: 53, file: s3cr3t}\n      \
             - header: !tag\n          x-d: &key !tag s3cr3t\n    key: {header: x-api-version}\n    cost: {header: x-cost}\n    \
             on_limit: {headers: {x-rule: \"{rule}\", set-x: 'Bearer s3cr3t', file: s3cr3t, x-e: *key}}\n\
             upstreams:\n  - match: {header: {x-canary: s3cr3t}}\n",
        );
        assert!(!shown.contains("s3cr3t") && !shown.contains("53"), "{shown}");
        for kept in ["'*'", "!present", "file: keys.txt", "header: x-api-version", "header: x-cost", "{rule}"]
        {
            assert!(shown.contains(kept), "{kept} in {shown}");
        }
    }

    #[test]
    fn invalid_yaml_is_not_shown() {
        let shown = redact("password: [s3cr3t");
        assert!(!shown.contains("s3cr3t"), "{shown}");
    }
}
