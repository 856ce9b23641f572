//! Rules of routers, such as ``Host(`a.example`) && PathPrefix(`/api`)``.
//!
//! The functions are those of `pkg/muxer/http/matcher.go` in traefik/traefik. A prefix of a path may end anywhere.

use super::super::expression::Expression;
use super::super::gateway_api::matches::exact_path;
use super::super::network::parse_network;
use super::super::pattern::{is_literal_path, parse_regex};
use super::super::remark::brief;
use super::super::rule_text::literal_pattern;
use super::super::scope::MatchField;
use super::super::selection::RequestSet;

/// Returns the requests of a rule.
pub(super) fn rule_selection(text: &str) -> RequestSet {
    match Expression::parse(text) {
        Ok(expression) => of_expression(&expression, text),
        Err(problem) => {
            RequestSet::unknown(format!("the rule `{}` is not expressed: {problem}", brief(text)))
        }
    }
}

fn of_expression(expression: &Expression, whole: &str) -> RequestSet {
    match expression {
        Expression::And(left, right) => of_expression(left, whole).and(&of_expression(right, whole)),
        Expression::Or(left, right) => of_expression(left, whole).or(&of_expression(right, whole)),
        Expression::Not(inner) => of_expression(inner, whole).inverse(),
        Expression::Call { of: None, name, arguments } => {
            let texts: Vec<&str> = arguments
                .iter()
                .filter_map(|argument| match argument {
                    Expression::Text(text) => Some(text.as_str()),
                    _ => None,
                })
                .collect();
            let found = if texts.len() == arguments.len() { of_function(name, &texts) } else { None };
            found.unwrap_or_else(|| {
                let call = format!("{name}({})", texts.join(", "));
                RequestSet::unknown(format!("rules do not match `{}`", brief(&call)))
            })
        }
        _ => RequestSet::unknown(format!("the rule `{}` is not expressed", brief(whole))),
    }
}

/// Returns the requests for which a function is true; `None` if rules cannot express it.
fn of_function(name: &str, values: &[&str]) -> Option<RequestSet> {
    let first = values.first().copied()?;
    // Before v3, a function could have several values, of which one is enough.
    let any = |field: MatchField, pattern: &dyn Fn(&str) -> Option<String>| {
        let patterns: Option<Vec<String>> = values.iter().map(|value| pattern(value)).collect();
        Some(RequestSet::matching(field, patterns?))
    };
    let regex = |text: &str| parse_regex(text, false).map(|_| format!("~{text}"));
    match name.to_ascii_lowercase().as_str() {
        "host" if values.contains(&"*") => Some(RequestSet::all()),
        "host" => any(MatchField::Host, &|host| Some(host.trim_end_matches('.').to_ascii_lowercase())),
        "hostregexp" => any(MatchField::Host, &regex),
        "path" => any(MatchField::Path, &|path| path.starts_with('/').then(|| exact_path(path))),
        "pathprefix" if values.contains(&"/") => Some(RequestSet::all()),
        "pathprefix" => any(MatchField::Path, &|path| path.starts_with('/').then(|| prefix_pattern(path))),
        "pathregexp" => any(MatchField::Path, &regex),
        "method" => any(MatchField::Method, &|method| Some(method.to_ascii_uppercase())),
        "clientip" => {
            any(MatchField::ClientIp, &|network| parse_network(network).map(|_| network.to_owned()))
        }
        "header" | "headers" => of_header(first, literal_pattern(values.get(1)?)),
        "headerregexp" | "headersregexp" => of_header(first, regex(values.get(1)?)?),
        _ => None,
    }
}

fn of_header(name: &str, pattern: String) -> Option<RequestSet> {
    let name = name.to_ascii_lowercase();
    http::HeaderName::from_bytes(name.as_bytes()).ok()?;
    Some(RequestSet::matching(MatchField::Header(name), vec![pattern]))
}

/// Returns the pattern of all paths that begin with a text.
pub(super) fn prefix_pattern(prefix: &str) -> String {
    match prefix.strip_suffix('/') {
        Some(folder) if is_literal_path(folder) => format!("{prefix}*"),
        _ => format!("~^{}", regex::escape(prefix)),
    }
}

#[cfg(test)]
mod tests;
