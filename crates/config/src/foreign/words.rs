//! Words of other programs in place of the words here.

use super::snake_case;

/// Words in snake case, separated by spaces, and what to write, in places where `marker` is one of the known words.
struct PlaceWords {
    marker: &'static str,
    words: &'static [(&'static str, &'static str)],
}

const PLACES: &[PlaceWords] = &[
    PlaceWords {
        marker: "client_ip",
        words: &[
            (
                "remote_addr binary_remote_addr remote_address ip src source source_ip ip_address client address req.ip \
                 client_address remote_ip peer requester",
                "did you mean `client_ip`?",
            ),
            (
                "consumer credential user userid user_id sub subject",
                "write `{ jwt: sub }`, or `{ header: NAME }`",
            ),
            ("api_key apikey token authorization", "write `{ header: x-api-key }`"),
            ("request_host hostname authority server_name domain", "did you mean `host`?"),
            ("uri url request_uri", "did you mean `path`?"),
            ("session cookie", "write `{ cookie: session }`"),
            ("service global all none", "write `[]` for one counter for all"),
        ],
    },
    PlaceWords {
        marker: "allow",
        words: &[
            ("block drop reject tarpit forbid refuse denied 403", "did you mean `deny`?"),
            ("bypass skip pass exempt permit ignore whitelist accept", "did you mean `allow`?"),
            ("throttle ratelimit rate_limit", "did you mean `limit`?"),
            ("log shadow dry_run", "write `throttle: shadow`"),
        ],
    },
    PlaceWords {
        marker: "skip",
        words: &[
            ("reject block error fail 403 401", "did you mean `deny`?"),
            ("ignore allow pass bypass none", "did you mean `skip`?"),
            ("default global", "did you mean `shared`?"),
        ],
    },
    PlaceWords {
        marker: "sliding_log",
        words: &[
            ("fixed window", "did you mean `fixed_window`?"),
            ("sliding rolling", "did you mean `sliding_window`?"),
            ("bucket tokens", "did you mean `token_bucket`?"),
            ("leaky", "did you mean `leaky_bucket`?"),
            ("log moving_window", "did you mean `sliding_log`?"),
        ],
    },
    PlaceWords {
        marker: "local",
        words: &[
            ("global distributed cluster redis fleet all remote instances", "did you mean `shared`?"),
            ("instance process memory node pod", "did you mean `local`?"),
        ],
    },
];

const THROTTLE_WORDS: &[(&str, &str)] = &[
    ("dry_run report report_only log log_only observe monitor audit warn dryrun", "did you mean `shadow`?"),
    ("block reject deny drop enforce strict on true", "did you mean `hard`?"),
    ("queue wait buffer", "write `{ wait: { max: 2s } }`, or `delay 500ms`"),
    ("slow slow_down pace smooth", "write `delay 500ms`"),
    ("off none disabled false", "write `shadow` to count without rejecting"),
    ("adaptive auto", "write `elastic 3x`"),
];

/// Returns what to write instead of `text`, where only the `known` words are allowed.
pub(crate) fn foreign_word(text: &str, known: &[&str]) -> Option<String> {
    let place = PLACES.iter().find(|place| known.contains(&place.marker))?;
    let is_key = place.marker == "client_ip";
    let name = snake_case(text.trim_start_matches('$').trim_start_matches("req."));
    find(place.words, &name).map(ToOwned::to_owned).or_else(|| key_part(text).filter(|_| is_key))
}

/// Returns what to write instead of a throttle.
pub(crate) fn throttle_word(text: &str) -> Option<&'static str> {
    find(THROTTLE_WORDS, &snake_case(text.trim()))
}

fn find(words: &'static [(&str, &'static str)], name: &str) -> Option<&'static str> {
    let row = words.iter().find(|(names, _)| names.split_whitespace().any(|known| known == name));
    row.map(|(_, hint)| *hint)
}

/// Returns a part of a key with a name, such as nginx's `$http_x_api_key`, HAProxy's `hdr(x-api-key)`, or
/// `header:x-api-key`.
fn key_part(text: &str) -> Option<String> {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let written = |kind: &str, name: &str| is_name(name).then(|| format!("write `{{ {kind}: {name} }}`"));
    if let Some(name) = text.strip_prefix("$http_") {
        return written("header", &name.replace('_', "-"));
    }
    if let Some(name) = text.strip_prefix("$cookie_") {
        return written("cookie", name);
    }
    if let Some(name) = text.strip_prefix("$arg_") {
        return written("query", name);
    }
    let (kind, name) = match text.split_once('(') {
        Some((kind, rest)) => (kind, rest.strip_suffix(')')?),
        None => {
            text.split_once([':', '.', '=']).or_else(|| text.starts_with("x-").then_some(("header", text)))?
        }
    };
    let kind = match kind {
        "hdr" | "req.hdr" | "header" | "headers" | "request_header" | "http" => "header",
        "cookie" | "req.cook" | "cookies" => "cookie",
        "query" | "urlp" | "url_param" | "arg" | "param" => "query",
        "jwt" | "claim" | "claims" => "jwt",
        _ => return None,
    };
    written(kind, name.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_other_programs_are_suggested_as_parts_of_a_key() {
        for (text, hint) in [
            ("$binary_remote_addr", "did you mean `client_ip`?"),
            ("$http_x_api_key", "write `{ header: x-api-key }`"),
            ("hdr(x-api-key)", "write `{ header: x-api-key }`"),
            ("header:x-api-key", "write `{ header: x-api-key }`"),
            ("x-api-key", "write `{ header: x-api-key }`"),
            ("$cookie_sid", "write `{ cookie: sid }`"),
        ] {
            assert_eq!(foreign_word(text, &["client_ip", "path"]).as_deref(), Some(hint), "{text}");
        }
        assert_eq!(foreign_word("no-such", &["client_ip"]), None);
    }

    #[test]
    fn words_depend_on_their_place() {
        assert_eq!(foreign_word("global", &["local", "shared"]).as_deref(), Some("did you mean `shared`?"));
        assert_eq!(foreign_word("reject", &["skip", "deny"]).as_deref(), Some("did you mean `deny`?"));
        assert_eq!(throttle_word("dry-run"), Some("did you mean `shadow`?"));
    }
}
