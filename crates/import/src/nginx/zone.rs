//! Zones of `limit_req_zone` and `limit_conn_zone`: their rate, and the key that requests are counted by.

use super::super::remark::{Effect, Remark};
use super::super::rule_text::{map, scalar};
use super::super::scope::{MatchField, Scope};
use super::key_piece::{KeyPiece, split_variables};
use super::selection::Selections;
use super::syntax::{Directive, Place};

/// Maximum number of header variables in a key of several: each doubles the number of rules.
const MAX_OPTIONAL_PARTS: usize = 3;

/// A rate of requests, as nginx reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    pub(super) count: u32,
    /// 1 for `r/s`, 60 for `r/m`.
    pub(super) seconds: u32,
}

#[derive(Clone, Debug)]
pub(super) struct NginxZone {
    pub(super) name: String,
    /// `None` for a zone of connections.
    pub(super) rate: Option<Rate>,
    /// The key as written, or why the zone cannot be used.
    pub(super) key: Result<String, String>,
    pub(super) place: Place,
}

/// A rule's key for a part of the requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyCase {
    /// Parts of `key`, as written in a rule.
    pub(super) parts: Vec<String>,
    /// The variables and the text between them. Keys with the same parts and different text have different counters.
    pub(super) template: String,
    /// The requests that have this key.
    pub(super) scope: Scope,
    /// Whether each server has counters of its own.
    pub(super) is_per_server: bool,
    /// Differences to the key in nginx.
    pub(super) notes: Vec<Remark>,
}

impl NginxZone {
    /// Reads `limit_req_zone` or `limit_conn_zone`; `Err` has the reason why it has no meaning here.
    pub(super) fn parse(directive: &Directive) -> Result<Self, String> {
        let find = |prefix: &str| directive.arguments.iter().find_map(|word| word.strip_prefix(prefix));
        let zone = find("zone=").ok_or_else(|| format!("`{}` without `zone=`", directive.name))?;
        let name = zone.split(':').next().unwrap_or_default().to_owned();
        let rate = match (directive.name.as_str(), find("rate=")) {
            ("limit_conn_zone", _) => None,
            // The rate that nginx uses if none is given.
            (_, None) => Some(Rate { count: 1, seconds: 1 }),
            (_, Some(text)) => Some(parse_rate(text).ok_or_else(|| format!("invalid rate `{text}`"))?),
        };
        let key = directive.argument(0);
        let key = match key.contains("zone=") {
            true => Err("the syntax before nginx 1.7.6 is not supported".to_owned()),
            false => Ok(key.to_owned()),
        };
        Ok(Self { name, rate, key, place: directive.place.clone() })
    }

    /// Returns the variables of the key.
    pub(super) fn variables(&self) -> Vec<String> {
        let pieces = split_variables(self.key.as_deref().unwrap_or_default());
        let variable = |piece| match piece {
            KeyPiece::Variable(name) => Some(name),
            KeyPiece::Literal(_) => None,
        };
        pieces.into_iter().filter_map(variable).collect()
    }

    /// Whether the key may contain the name of the server.
    pub(super) fn is_per_server(&self) -> bool {
        self.key.as_deref().is_ok_and(|key| key.contains("server_name"))
    }

    /// Returns the keys of the zone's requests; requests without any of them are not limited.
    ///
    /// # Errors
    /// Returns what in the key is not supported.
    pub(super) fn key_cases(&self, selections: &Selections<'_>) -> Result<Vec<KeyCase>, String> {
        let key = self.key.as_deref().map_err(Clone::clone)?;
        let pieces = split_variables(key);
        let [KeyPiece::Variable(only)] = pieces.as_slice() else { return plain_cases(&pieces, selections) };
        if !selections.contains(only) {
            return plain_cases(&pieces, selections);
        }
        let mut cases = Vec::new();
        for selected in selections.resolve(only)? {
            for mut case in plain_cases(&split_variables(&selected.value), selections)? {
                case.scope = selected.scope.intersection(&case.scope).ok_or_else(|| {
                    format!("`${only}` and the key it selects need two conditions on a header")
                })?;
                cases.push(case);
            }
        }
        Ok(cases)
    }
}

fn parse_rate(text: &str) -> Option<Rate> {
    let (count, seconds) = match (text.strip_suffix("r/s"), text.strip_suffix("r/m")) {
        (Some(count), _) => (count, 1),
        (_, Some(count)) => (count, 60),
        _ => return None,
    };
    let count = count.parse().ok().filter(|count| (1..=1_000_000_000).contains(count))?;
    Some(Rate { count, seconds })
}

/// What a variable contributes to a key.
enum NginxKeyPart {
    /// A part that every request has.
    Always(String),
    /// A header, which may be missing.
    Header(String),
    /// A cookie or a parameter, which may be missing.
    Optional(String),
    /// The name of the server.
    Server,
    /// The same for all requests.
    Constant,
}

fn key_part(variable: &str, notes: &mut Vec<Remark>) -> Option<NginxKeyPart> {
    let client = || map([("client_ip", map([("prefix", "128")]))]);
    Some(match variable {
        "binary_remote_addr" | "remote_addr" => NginxKeyPart::Always(client()),
        "proxy_protocol_addr" => {
            notes.push(Remark::new(
                Effect::Differs,
                "`$proxy_protocol_addr` is `client_ip`: set `proxy_protocol` of the listener".to_owned(),
            ));
            NginxKeyPart::Always(client())
        }
        "server_name" => NginxKeyPart::Server,
        "host" => NginxKeyPart::Always("host".to_owned()),
        "http_host" => {
            notes.push(Remark::new(Effect::None, "`$http_host` is `host`, which has no port".to_owned()));
            NginxKeyPart::Always("host".to_owned())
        }
        "uri" | "document_uri" => NginxKeyPart::Always("path".to_owned()),
        "request_uri" => {
            notes.push(Remark::new(
                Effect::Tighter,
                "`$request_uri` is `path`: requests that differ in their query share a counter".to_owned(),
            ));
            NginxKeyPart::Always("path".to_owned())
        }
        "request_method" => NginxKeyPart::Always("method".to_owned()),
        "scheme" | "server_port" | "server_addr" | "hostname" => {
            notes.push(Remark::new(Effect::Tighter, format!("`${variable}` is not a part of the key")));
            NginxKeyPart::Constant
        }
        _ => return named_part(variable, notes),
    })
}

/// Returns what `$http_NAME`, `$cookie_NAME` and `$arg_NAME` contribute; `None` for other variables.
fn named_part(variable: &str, notes: &mut Vec<Remark>) -> Option<NginxKeyPart> {
    let (kind, name) = variable.split_once('_').filter(|(_, name)| !name.is_empty())?;
    let optional = |kind: &str| Some(NginxKeyPart::Optional(map([(kind, scalar(name))])));
    match kind {
        "http" => {
            if matches!(name, "x_forwarded_for" | "x_real_ip") {
                notes.push(Remark::new(Effect::None, format!(
                    "clients can send any `${variable}`: prefer `key: client_ip` with `client_ip.trusted_proxies`"
                )));
            }
            header_name(variable).map(NginxKeyPart::Header)
        }
        "cookie" => optional("cookie"),
        "arg" => optional("query"),
        _ => None,
    }
}

/// Returns the keys of variables that no `map` or `geo` defines.
fn plain_cases(pieces: &[KeyPiece], selections: &Selections<'_>) -> Result<Vec<KeyCase>, String> {
    let mut case = KeyCase::default();
    let mut headers = Vec::new();
    let (mut is_optional, mut has_literal) = (false, false);
    for piece in pieces {
        let KeyPiece::Variable(variable) = piece else {
            has_literal = true;
            continue;
        };
        if selections.contains(variable) {
            return Err(format!(
                "`${variable}` of a `map` or `geo` in a key of several parts is not supported"
            ));
        }
        let part = key_part(variable, &mut case.notes)
            .ok_or_else(|| format!("the variable `${variable}` is not supported"))?;
        match part {
            NginxKeyPart::Always(part) => push_new(&mut case.parts, part),
            NginxKeyPart::Header(name) => push_new(&mut headers, name),
            NginxKeyPart::Optional(part) => {
                is_optional = true;
                push_new(&mut case.parts, part);
            }
            NginxKeyPart::Server => case.is_per_server = true,
            NginxKeyPart::Constant => has_literal = true,
        }
    }
    let is_single = case.parts.len() + headers.len() <= 1 && !has_literal && !case.is_per_server;
    if is_optional && !is_single {
        case.notes.push(Remark::new(
            Effect::Looser,
            "requests without a part of the key are not limited; nginx counts them by the rest",
        ));
    }
    if headers.len() > MAX_OPTIONAL_PARTS {
        return Err(format!("more than {MAX_OPTIONAL_PARTS} headers in one key"));
    }
    let has_other_parts = !case.parts.is_empty() || has_literal || case.is_per_server;
    let mut cases = header_cases(&case, &headers, has_other_parts);
    for case in &mut cases {
        case.template = template_without_missing(pieces, &case.scope);
    }
    Ok(cases)
}

/// Returns the pieces as text, without the headers that requests of this scope do not have.
fn template_without_missing(pieces: &[KeyPiece], scope: &Scope) -> String {
    let is_missing = |variable: &str| {
        let is_same = |field: &MatchField| matches!(field, MatchField::Header(name) if header_name(variable).as_ref() == Some(name));
        scope.conditions.iter().any(|condition| is_same(&condition.field))
    };
    let text = |piece: &KeyPiece| match piece {
        KeyPiece::Literal(text) => text.clone(),
        KeyPiece::Variable(variable) if is_missing(variable) => String::new(),
        KeyPiece::Variable(variable) => format!("${{{variable}}}"),
    };
    pieces.iter().map(text).collect()
}

/// Returns the header of `$http_NAME`; `None` for other variables.
fn header_name(variable: &str) -> Option<String> {
    let name = variable.strip_prefix("http_").filter(|name| !name.is_empty() && *name != "host")?;
    Some(name.to_ascii_lowercase().replace('_', "-"))
}

/// Adds a part unless it is there.
fn push_new(parts: &mut Vec<String>, part: String) {
    if !parts.contains(&part) {
        parts.push(part);
    }
}

/// Returns a key for each combination of present and missing headers: nginx counts a missing header as an empty
/// value, but a key that is empty as a whole is not limited.
fn header_cases(case: &KeyCase, headers: &[String], has_other_parts: bool) -> Vec<KeyCase> {
    let mut cases = Vec::new();
    for missing in 0..1_usize << headers.len() {
        let is_missing = |index: usize| missing >> index & 1 == 1;
        if !has_other_parts && !headers.is_empty() && (0..headers.len()).all(is_missing) {
            continue;
        }
        let mut one = case.clone();
        for (index, name) in headers.iter().enumerate() {
            match is_missing(index) {
                true => one.scope.require(MatchField::Header(name.clone()), vec!["!present".to_owned()]),
                false => one.parts.push(map([("header", scalar(name))])),
            }
        }
        cases.push(one);
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::super::syntax;
    use super::*;

    fn keys(zone: &str) -> Result<Vec<String>, String> {
        let file =
            syntax::parse("f", &format!("limit_req_zone {zone} zone=z:1m rate=1r/s;"), &|_| Vec::new());
        let zone = NginxZone::parse(&file.unwrap().directives[0]).unwrap();
        let cases = zone.key_cases(&Selections::default())?;
        Ok(cases.into_iter().map(|case| case.parts.join(", ")).collect())
    }

    #[test]
    fn nginx_variables_become_key_parts() {
        for (zone, expected) in [
            ("$binary_remote_addr", "{ client_ip: { prefix: 128 } }"),
            ("${remote_addr}$uri", "{ client_ip: { prefix: 128 } }, path"),
            ("$http_x_api_key", "{ header: x-api-key }"),
            ("$cookie_session", "{ cookie: session }"),
            ("\"$arg_user:$host\"", "{ query: user }, host"),
            ("$server_name", ""),
            ("constant", ""),
        ] {
            assert_eq!(keys(zone).unwrap(), [expected], "{zone}");
        }
        assert_eq!(keys("$upstream_addr").unwrap_err(), "the variable `$upstream_addr` is not supported");
    }

    #[test]
    fn missing_headers_of_a_combined_key_are_counted_by_the_rest() {
        let address = "{ client_ip: { prefix: 128 } }";
        let with = format!("{address}, {{ header: x-a }}");
        assert_eq!(keys("$binary_remote_addr$http_x_a").unwrap(), [with.as_str(), address]);
        let [both, a, b] = ["{ header: a }, { header: b }", "{ header: b }", "{ header: a }"];
        assert_eq!(keys("$http_a$http_b").unwrap(), [both, a, b], "an empty key is not limited");
        assert_eq!(keys("$http_a:$http_b").unwrap().len(), 4, "the colon is never empty");
    }

    #[test]
    fn nginx_rates_are_per_second_or_per_minute() {
        assert_eq!(parse_rate("10r/s"), Some(Rate { count: 10, seconds: 1 }));
        assert_eq!(parse_rate("30r/m"), Some(Rate { count: 30, seconds: 60 }));
        assert_eq!(["0r/s", "10", "1r/h", "r/s", "-1r/s"].map(parse_rate), [None; 5]);
    }
}
