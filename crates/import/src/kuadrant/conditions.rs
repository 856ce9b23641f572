//! Conditions of policies and limits: predicates in a subset of CEL, and comparisons of `v1beta2`.

use super::super::expression::Expression;
use super::super::gateway_api::matches::RouteMatch;
use super::super::ledger::{Ledger, flow_text};
use super::super::remark::brief;
use super::super::scope::MatchField;
use super::super::selection::RequestSet;
use super::super::tree::{field_text, get, items, scalar_text};
use super::attributes::{Comparison, RequestAttribute};
use super::messages;
use weir_yaml::Node;

/// Returns the requests that meet all conditions of a list.
pub(super) fn read_conditions(list: Option<&Node>, ledger: &Ledger) -> RequestSet {
    let conditions = items(list).iter().map(|condition| read_condition(condition, ledger));
    conditions.fold(RequestSet::all(), |all, one| all.and(&one))
}

fn read_condition(node: &Node, ledger: &Ledger) -> RequestSet {
    ledger.message(node, &messages::PREDICATE);
    if let Some(text) = field_text(node, "predicate") {
        get(node, "predicate").into_iter().for_each(|predicate| ledger.use_all(predicate));
        return of_predicate(text);
    }
    let Some(selector) = field_text(node, "selector") else {
        return RequestSet::unknown(format!(
            "a condition without `predicate` or `selector` is not expressed: {}",
            brief(&flow_text(node))
        ));
    };
    ledger.use_all(node);
    let operator = field_text(node, "operator").unwrap_or_default();
    let value = field_text(node, "value").unwrap_or_default();
    of_comparison(selector, operator, value)
        .unwrap_or_else(|| RequestSet::unknown(not_expressed(&format!("{selector} {operator} {value}"))))
}

fn not_expressed(text: &str) -> String {
    format!("the condition `{}` is not expressed", brief(text))
}

fn of_comparison(selector: &str, operator: &str, value: &str) -> Option<RequestSet> {
    let attribute = RequestAttribute::of_selector(selector)?;
    match operator {
        "eq" => attribute.selection(Comparison::Equal, value),
        "neq" => Some(attribute.selection(Comparison::Equal, value)?.inverse()),
        "startswith" => attribute.selection(Comparison::StartsWith, value),
        "endswith" => attribute.selection(Comparison::EndsWith, value),
        "matches" => attribute.selection(Comparison::Matches, value),
        _ => None,
    }
}

/// Returns the requests that a predicate selects.
pub(super) fn of_predicate(text: &str) -> RequestSet {
    match Expression::parse(text) {
        Ok(expression) => of_expression(&expression, text),
        Err(problem) => RequestSet::unknown(format!("{}: {problem}", not_expressed(text))),
    }
}

/// Returns the requests that an expression selects; `whole` is the predicate, for remarks.
fn of_expression(expression: &Expression, whole: &str) -> RequestSet {
    match expression {
        Expression::And(left, right) => of_expression(left, whole).and(&of_expression(right, whole)),
        Expression::Or(left, right) => of_expression(left, whole).or(&of_expression(right, whole)),
        Expression::Not(inner) => of_expression(inner, whole).inverse(),
        Expression::Name(name) if name == "true" => RequestSet::all(),
        Expression::Name(name) if name == "false" => RequestSet::default(),
        simple => of_simple(simple).unwrap_or_else(|| RequestSet::unknown(not_expressed(whole))),
    }
}

fn of_simple(expression: &Expression) -> Option<RequestSet> {
    let equal = |one: &Expression, other: &Expression| match (one, other) {
        (attribute, Expression::Text(text)) | (Expression::Text(text), attribute) => {
            RequestAttribute::of(attribute)?.selection(Comparison::Equal, text)
        }
        _ => None,
    };
    match expression {
        Expression::Equal(left, right) => equal(left, right),
        Expression::NotEqual(left, right) => Some(equal(left, right)?.inverse()),
        Expression::In(value, list) => of_membership(value, list),
        Expression::Call { of: Some(of), name, arguments } => {
            let [Expression::Text(text)] = arguments.as_slice() else { return None };
            let comparison = match name.as_str() {
                "startsWith" => Comparison::StartsWith,
                "endsWith" => Comparison::EndsWith,
                "contains" => Comparison::Contains,
                "matches" => Comparison::Matches,
                _ => return None,
            };
            RequestAttribute::of(of)?.selection(comparison, text)
        }
        Expression::Call { of: None, name, arguments } if name == "has" => {
            let [attribute] = arguments.as_slice() else { return None };
            present(&RequestAttribute::of(attribute)?)
        }
        _ => None,
    }
}

/// `request.method in ['GET', 'HEAD']`, or `'x-a' in request.headers`
fn of_membership(value: &Expression, list: &Expression) -> Option<RequestSet> {
    if let (Expression::Text(name), Some(["request", "headers"])) = (value, list.path().as_deref()) {
        return present(&RequestAttribute::of_selector(&format!("request.headers.{name}"))?);
    }
    let Expression::List(values) = list else { return None };
    let attribute = RequestAttribute::of(value)?;
    let mut selection = RequestSet::default();
    for value in values {
        let Expression::Text(text) = value else { return None };
        selection = selection.or(&attribute.selection(Comparison::Equal, text)?);
    }
    Some(selection)
}

fn present(attribute: &RequestAttribute) -> Option<RequestSet> {
    match attribute {
        RequestAttribute::Header(name) => {
            Some(RequestSet::matching(MatchField::Header(name.clone()), vec!["*".to_owned()]))
        }
        RequestAttribute::Path { .. } | RequestAttribute::Host | RequestAttribute::Method => {
            Some(RequestSet::all())
        }
        RequestAttribute::ClientIp { .. } => None,
    }
}

/// Returns the requests of the route selectors of `v1beta2`, of which one is enough.
pub(super) fn read_route_selectors(list: Option<&Node>, ledger: &Ledger) -> RequestSet {
    let selectors = items(list);
    if selectors.is_empty() {
        return RequestSet::all();
    }
    let mut any = RequestSet::default();
    for selector in selectors {
        ledger.message(selector, &messages::ROUTE_SELECTOR);
        let hosts = get(selector, "hostnames");
        hosts.into_iter().for_each(|hosts| ledger.use_all(hosts));
        let names: Vec<String> = items(hosts).iter().filter_map(scalar_text).map(str::to_owned).collect();
        let mut own = RequestSet::all();
        let matches = items(get(selector, "matches"));
        if !matches.is_empty() {
            let read = matches.iter().map(|one| {
                let matching = RouteMatch::read(false, Some(one));
                matching.mark(ledger);
                matching.selection
            });
            own = read.fold(RequestSet::default(), |any, one| any.or(&one));
        }
        any = any.or(&own.and(&RequestSet::matching(MatchField::Host, names)));
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule_text::RuleText;

    /// Returns `match` and `except` of the alternatives, and the remarks.
    fn written(predicate: &str) -> (Vec<String>, Vec<String>) {
        let selection = of_predicate(predicate);
        let scope = |scope: &crate::scope::Scope| {
            let mut rule = RuleText::default();
            scope.write(&mut rule);
            rule.fields.iter().map(|(key, value)| format!("{key}: {value}")).collect::<Vec<_>>().join(" ")
        };
        (
            selection.scopes.iter().map(scope).collect(),
            selection.remarks.iter().map(|remark| remark.comment()).collect(),
        )
    }

    #[test]
    fn predicates_on_attributes_become_match_and_except() {
        for (predicate, expected) in [
            ("request.url_path == '/a'", "match: { path: \"/a\", trailing_slash: exact }"),
            ("request.path.startsWith('/a/')", "match: { path: \"/a/*\" }"),
            ("!request.url_path.startsWith('/healthz')", "except: { path: \"~^/healthz\" }"),
            ("request.method in ['GET', 'HEAD']", "match: { method: [GET, HEAD] }"),
            ("'x-a' in request.headers", "match: { header: { x-a: \"*\" } }"),
            ("request.headers['x-a'] != 'b'", "except: { header: { x-a: b } }"),
            ("request.host == 'A.com' && request.method == 'PUT'", "match: { host: a.com, method: PUT }"),
            ("request.method == 'GET' || request.method == 'PUT'", "match: { method: [GET, PUT] }"),
            ("request.url_path.matches('^/[0-9]+$')", "match: { path: \"~^/[0-9]+$\" }"),
            ("source.remote_address == '192.0.2.1'", "match: { client_ip: \"192.0.2.1\" }"),
            ("true", ""),
        ] {
            assert_eq!(written(predicate), (vec![expected.to_owned()], vec![]), "{predicate}");
        }
        assert_eq!(written("false"), (vec![], vec![]));
    }

    #[test]
    fn predicates_that_rules_cannot_express_are_left_out_and_make_the_limit_tighter() {
        let (scopes, remarks) = written("request.method == 'GET' && auth.identity.group == 'admin'");
        assert_eq!(scopes, ["match: { method: GET }"]);
        assert!(remarks[0].starts_with("tighter: the condition `request.method == 'GET' && "), "{remarks:?}");
        let (scopes, remarks) = written("size(x) > 1");
        assert_eq!(scopes, [""]);
        assert!(remarks[0].ends_with("unexpected character `>`"), "{remarks:?}");
        let (scopes, _) = written("request.method == 'GET' || auth.identity.group == 'admin'");
        assert_eq!(scopes, [""]);
    }

    #[test]
    fn paths_with_a_query_differ() {
        let (scopes, remarks) = written("request.path == '/a'");
        assert_eq!(scopes, ["match: { path: \"/a\", trailing_slash: exact }"]);
        assert!(remarks[0].starts_with("differs: `request.path` has the query"), "{remarks:?}");
    }
}
