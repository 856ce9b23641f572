//! Takes secrets out of a configuration before it is shown.
//!
//! Done on the parsed document and not on its text: a value may be quoted, folded over lines or inside a
//! flow mapping, and a comment may hold last year's password. So comments do not survive.

use serde_yaml::Value;

const HIDDEN: &str = "[redacted]";
const HIDDEN_USER: &str = "[redacted]@";
const HIDDEN_QUERY: &str = "?[redacted]";

/// Values of headers that say nothing: any, none, and the name of the rule.
const PATTERNS: [&str; 3] = ["*", "!present", "{rule}"];

/// Parts of names whose values are nobody's business.
const SECRET: [&str; 9] = [
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

/// Maps of which every value is a secret.
const CREDENTIALS: [&[&str]; 2] = [&["tracing", "headers"], &["rls", "config", "xds", "headers"]];

/// The document without its secrets; a remark in its place where it cannot be read.
pub(super) fn yaml(text: &str) -> String {
    let shown = serde_yaml::from_str(text)
        .map(without_members)
        .map(without_credentials)
        .map(redacted)
        .and_then(|value| serde_yaml::to_string(&value));
    // Not with the reason: it might quote the very line that holds a secret.
    shown.unwrap_or_else(|_| "# not shown: not YAML\n".to_owned())
}

/// What members of plans are known by is most often an API key: only how many there are is shown.
fn without_members(mut value: Value) -> Value {
    if let Some(Value::Mapping(members)) = value.get_mut("plans").and_then(|plans| plans.get_mut("members")) {
        let written = members.iter().filter(|(name, _)| name.as_str() != Some("file")).count();
        members.retain(|name, _| name.as_str() == Some("file"));
        if written > 0 {
            members.insert(HIDDEN.into(), format!("{written} members").into());
        }
    }
    value
}

/// Headers that we send to others say who we are, whatever they are called.
fn without_credentials(mut value: Value) -> Value {
    for path in CREDENTIALS {
        let found = path.iter().try_fold(&mut value, |value, name| value.get_mut(*name));
        if let Some(found) = found {
            *found = hidden(std::mem::take(found));
        }
    }
    value
}

fn redacted(value: Value) -> Value {
    match value {
        Value::Mapping(mapping) => Value::Mapping(
            mapping
                .into_iter()
                .map(|(name, value)| {
                    let shown = match (name.as_str(), untagged(value)) {
                        (Some("header" | "headers"), Value::Mapping(headers)) => {
                            let headers = headers.into_iter();
                            Value::Mapping(headers.map(|(name, value)| (name, header_value(value))).collect())
                        }
                        (Some(name), value) if is_secret(name) => hidden(value),
                        (_, value) => redacted(value),
                    };
                    (name, shown)
                })
                .collect(),
        ),
        Value::Sequence(values) => Value::Sequence(values.into_iter().map(redacted).collect()),
        Value::String(text) => Value::String(without_credentials_in_urls(&text)),
        Value::Tagged(tagged) => redacted(tagged.value),
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
    }
}

/// A tag must not hide what a value is.
fn untagged(value: Value) -> Value {
    match value {
        Value::Tagged(tagged) => untagged(tagged.value),
        value => value,
    }
}

/// The value of a header in `match`, `except` or `on_limit`, or several. It is a key to something more often than not, whatever
/// the header is called. What holds no value stays: patterns, and the name of a file of values.
fn header_value(value: Value) -> Value {
    match untagged(value) {
        Value::String(text) if PATTERNS.contains(&&*text) => Value::String(text),
        Value::Sequence(values) => Value::Sequence(values.into_iter().map(header_value).collect()),
        Value::Mapping(mapping) => Value::Mapping(
            mapping
                .into_iter()
                .map(|(name, value)| match name.as_str() {
                    Some("file") => (name, value),
                    _ => (name, hidden(value)),
                })
                .collect(),
        ),
        value => hidden(value),
    }
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace(['-', ' '], "_");
    SECRET.iter().any(|part| name.contains(part)) || name.contains("apikey")
}

/// The shape stays, so that one sees what is configured.
fn hidden(value: Value) -> Value {
    match value {
        Value::Null => Value::Null,
        Value::Mapping(mapping) => {
            Value::Mapping(mapping.into_iter().map(|(name, value)| (name, hidden(value))).collect())
        }
        Value::Sequence(values) => Value::Sequence(values.into_iter().map(hidden).collect()),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Tagged(_) => {
            Value::String(HIDDEN.to_owned())
        }
    }
}

/// `redis://user:password@host` without what stands before the `@` (RFC 3986 section 3.2.1), and `https://host/?token=…`
/// without its query. A password may hold an unencoded `@` or `/`, so everything up to the last `@` goes.
fn without_credentials_in_urls(text: &str) -> String {
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
    fn secrets_do_not_show_however_they_are_written() {
        let shown = yaml(
            "store:\n  redis: rediss://weir:s3cr3t@cache:6379/0\n  # old: s3cr3t\n  password: |\n    s3cr3t\n    \
             more s3cr3t\n  tls: {client_secret: [s3cr3t, 's3cr3t'], key: tls.key}\n\
             rules:\n  - match: {header: {Authorization: s3cr3t, x-api-key: s3cr3t}}\n    key: [client_ip]\n",
        );
        assert!(!shown.contains("s3cr3t"), "{shown}");
        assert!(shown.contains("rediss://[redacted]@cache:6379/0"), "{shown}");
        assert!(shown.contains("tls.key") && shown.contains("client_ip"), "{shown}");
    }

    #[test]
    fn members_of_plans_are_counted_and_not_shown() {
        let text = "plans: {of: {header: x-api-key}, members: {s3cr3t: pro, 's3cr3t 2': free, 7: pro}, default: free}";
        let shown = yaml(text);
        assert!(
            !shown.contains("s3cr3t") && shown.contains("3 members") && shown.contains("default: free"),
            "{shown}"
        );
        assert!(yaml("plans: {members: {file: keys.yaml}}").contains("file: keys.yaml"));
    }

    #[test]
    fn a_password_with_an_at_sign_goes_as_a_whole() {
        let shown = without_credentials_in_urls;
        assert_eq!(shown("a http://u:p@ss@h/x b@c"), "a http://[redacted]@h/x b@c");
        assert_eq!(shown("http://h/x y"), "http://h/x y");
        assert_eq!(shown("https://h/x?token=s3cr3t&a=b y?"), "https://h/x?[redacted] y?");
        assert_eq!(shown("http://u:p?a@h/x"), "http://[redacted]@h/x");
    }

    #[test]
    fn values_of_headers_do_not_show_whatever_the_header_is_called() {
        let shown = yaml(
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
    fn what_is_no_yaml_is_not_shown() {
        let shown = yaml("password: [s3cr3t");
        assert!(!shown.contains("s3cr3t"), "{shown}");
    }
}
