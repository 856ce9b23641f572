use regex::Regex;

use super::*;
use crate::rule_text::RuleText;
use crate::scope::{Scope, ScopeCondition};

fn written(rule: &str) -> (Vec<String>, Vec<String>) {
    let selection = rule_selection(rule);
    let scope = |scope: &Scope| {
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
fn rules_of_routers_become_match_and_except() {
    for (rule, expected) in [
        ("Host(`A.example`)", "match: { host: a.example }"),
        ("Host(`a.example`) && PathPrefix(`/api`)", "match: { host: a.example, path: \"~^/api\" }"),
        ("PathPrefix(`/api/`)", "match: { path: \"/api/*\" }"),
        ("PathPrefix(`/`)", ""),
        ("Host(`a.example`, `b.example`)", "match: { host: [a.example, b.example] }"),
        ("Host(`a.example`) || Host(`b.example`)", "match: { host: [a.example, b.example] }"),
        ("!Path(`/health`)", "except: { path: \"/health\", trailing_slash: exact }"),
        ("Method(`post`) && Header(`X-A`, `*`)", "match: { method: POST, header: { x-a: \"~^\\\\*$\" } }"),
        ("ClientIP(`10.0.0.0/8`)", "match: { client_ip: \"10.0.0.0/8\" }"),
        ("HostRegexp(`^.+\\.a$`)", "match: { host: \"~^.+\\\\.a$\" }"),
    ] {
        assert_eq!(written(rule), (vec![expected.to_owned()], vec![]), "{rule}");
    }
}

#[test]
fn functions_that_rules_do_not_have_make_the_limit_tighter() {
    let (scopes, remarks) = written("Host(`a.example`) && Query(`debug`, `1`)");
    assert_eq!(scopes, ["match: { host: a.example }"]);
    assert_eq!(remarks, ["tighter: rules do not match `Query(debug, 1)`"]);
    let (scopes, remarks) = written("Host(`a`");
    assert_eq!((scopes.len(), remarks.len()), (1, 1));
}

/// A request, for tests.
#[derive(Clone, Copy, Debug)]
struct TestRequest {
    host: &'static str,
    path: &'static str,
    method: &'static str,
    header: &'static str,
}

fn requests() -> Vec<TestRequest> {
    let mut all = Vec::new();
    for host in ["a.example", "b.example", "c.example"] {
        for path in ["/", "/a", "/a/", "/a/b", "/ab"] {
            for method in ["GET", "PUT"] {
                all.extend(["1", "2"].map(|header| TestRequest { host, path, method, header }));
            }
        }
    }
    all
}

/// A rule of a router with what it says of a request.
struct TestRule {
    text: String,
    selects: Box<dyn Fn(TestRequest) -> bool>,
}

/// Returns a rule with operators of at most this depth, by the digits of a number.
fn test_rule(number: &mut u64, depth: u32) -> TestRule {
    let mut digit = |base: u64| {
        let digit = *number % base;
        *number /= base;
        digit
    };
    let leaf =
        |text: &str, selects: Box<dyn Fn(TestRequest) -> bool>| TestRule { text: text.to_owned(), selects };
    let operator = if depth == 0 { 3 } else { digit(4) };
    if operator == 3 {
        return match digit(8) {
            0 => leaf("Host(`a.example`)", Box::new(|one| one.host == "a.example")),
            1 => leaf("Host(`b.example`)", Box::new(|one| one.host == "b.example")),
            2 => leaf("Path(`/a`)", Box::new(|one| one.path == "/a")),
            3 => leaf("PathPrefix(`/a/`)", Box::new(|one| one.path.starts_with("/a/"))),
            4 => leaf("PathPrefix(`/a`)", Box::new(|one| one.path.starts_with("/a"))),
            5 => leaf("Method(`GET`)", Box::new(|one| one.method == "GET")),
            6 => leaf("Header(`X`, `1`)", Box::new(|one| one.header == "1")),
            _ => leaf("PathPrefix(`/`)", Box::new(|_| true)),
        };
    }
    let left = test_rule(number, depth - 1);
    if operator == 2 {
        let selects: Box<dyn Fn(TestRequest) -> bool> = Box::new(move |one| !(left.selects)(one));
        return TestRule { text: format!("!({})", left.text), selects };
    }
    let right = test_rule(number, depth - 1);
    let sign = if operator == 0 { "&&" } else { "||" };
    let text = format!("({}) {sign} ({})", left.text, right.text);
    let selects: Box<dyn Fn(TestRequest) -> bool> = match operator {
        0 => Box::new(move |one| (left.selects)(one) && (right.selects)(one)),
        _ => Box::new(move |one| (left.selects)(one) || (right.selects)(one)),
    };
    TestRule { text, selects }
}

fn meets(condition: &ScopeCondition, request: TestRequest) -> bool {
    let value = match &condition.field {
        MatchField::Host => request.host,
        MatchField::Path => request.path,
        MatchField::Method => request.method,
        MatchField::Header(_) => request.header,
        MatchField::ClientIp => panic!("no address in these rules"),
    };
    condition.patterns.iter().any(|pattern| match (pattern.strip_prefix('~'), pattern.strip_suffix('*')) {
        (Some(regex), _) => Regex::new(regex).unwrap().is_match(value),
        (None, Some(prefix)) => value.starts_with(prefix),
        (None, None) => pattern == value,
    })
}

fn is_in(scope: &Scope, request: TestRequest) -> bool {
    let all_of = |conditions: &[ScopeCondition]| conditions.iter().all(|condition| meets(condition, request));
    all_of(&scope.conditions) && !scope.exceptions.iter().any(|exception| all_of(exception))
}

#[test]
fn every_selected_request_is_in_exactly_one_alternative() {
    let mut exact = 0;
    for seed in 0_u64..3000 {
        let mut number = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let rule = test_rule(&mut number, 3);
        let selection = rule_selection(&rule.text);
        if !selection.remarks.is_empty() {
            continue;
        }
        exact += 1;
        for request in requests() {
            let found = selection.scopes.iter().filter(|scope| is_in(scope, request)).count();
            let expected = usize::from((rule.selects)(request));
            assert_eq!(found, expected, "{}\n{request:?}\n{:#?}", rule.text, selection.scopes);
        }
    }
    assert!(exact > 2500, "only {exact} rules without remarks");
}
