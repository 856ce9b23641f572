use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use proptest::prelude::*;

use super::*;
use crate::identify::{IdentifySettings, identify};
use crate::rules::attribute::Attribute;
use weir_limiter::timestamp::Timestamp;

fn header(name: &'static str, pattern: &str) -> Condition {
    let patterns = [HeaderPattern::parse(pattern).unwrap()].into();
    Condition { attribute: Attribute::Header(HeaderName::from_static(name)), patterns }
}

fn matcher(methods: &[Method], path: &str, conditions: &[Condition]) -> Matcher {
    Matcher {
        methods: methods.into(),
        paths: if path.is_empty() { Box::default() } else { [PathPattern::parse(path).unwrap()].into() },
        conditions: conditions.into(),
        ..Matcher::default()
    }
}

fn status_of(rule: &Rule, method: &Method, path: &str, value: Option<&'static str>) -> RuleStatus {
    let headers: HeaderMap = value
        .map(|value| (HeaderName::from_static("x-a"), HeaderValue::from_static(value)))
        .into_iter()
        .collect();
    let (uri, settings) = (path.parse::<Uri>().unwrap(), IdentifySettings::default());
    let peer = [192, 0, 2, 1].into();
    let request = identify(method, &uri, &headers, peer, &settings, Timestamp::EPOCH).unwrap();
    status(rule, &request, None)
}

fn rule(matcher: Matcher, except: &[Matcher]) -> Rule {
    Rule { name: "r".into(), matcher, except: except.into(), action: Action::Deny, ..Rule::default() }
}

#[test]
fn first_field_that_fails_is_named_with_both_values() {
    let rule = rule(matcher(&[Method::POST], "/login", &[header("x-a", "secret")]), &[]);
    let mismatch = |field: &str, actual: Option<&str>, expected: Option<&str>| {
        RuleStatus::Mismatch(Mismatch::new(field, actual.map(str::to_owned), expected.map(str::to_owned)))
    };
    assert_eq!(status_of(&rule, &Method::GET, "/", None), mismatch("method", Some("GET"), Some("POST")));
    assert_eq!(status_of(&rule, &Method::POST, "/", None), mismatch("path", Some("/"), Some("/login")));
    let post = |value| status_of(&rule, &Method::POST, "/login", value);
    assert_eq!(post(None), mismatch("header.x-a", None, None));
    assert_eq!(
        post(Some("x")),
        mismatch("header.x-a", Some("x"), None),
        "the configured value may be a secret"
    );
    assert_eq!(post(Some("secret")), RuleStatus::Applies("/login".to_owned()));
}

#[test]
fn exception_that_holds_is_named() {
    let (get, probe) = (matcher(&[Method::GET], "", &[]), matcher(&[], "", &[header("x-a", "*")]));
    let rule = rule(Matcher::default(), &[get, probe]);
    assert_eq!(status_of(&rule, &Method::GET, "/", None), RuleStatus::Excepted(0));
    assert_eq!(status_of(&rule, &Method::POST, "/", Some("1")), RuleStatus::Excepted(1));
    assert_eq!(status_of(&rule, &Method::POST, "/", None), RuleStatus::Applies(String::new()));
}

fn matchers() -> impl Strategy<Value = Matcher> {
    let methods = prop::collection::vec(prop::sample::select(vec![Method::GET, Method::POST]), 0..2);
    let path = prop::sample::select(vec!["", "/a", "/a/*", "/{x}", "~a$"]);
    let conditions = prop::collection::vec(prop::sample::select(vec!["*", "!present", "1", "~2"]), 0..3);
    (methods, path, conditions).prop_map(|(methods, path, patterns)| {
        let conditions: Vec<_> = patterns.into_iter().map(|pattern| header("x-a", pattern)).collect();
        matcher(&methods, path, &conditions)
    })
}

proptest! {
    #[test]
    fn explanation_agrees_with_matching(
        matched in matchers(),
        except in prop::collection::vec(matchers(), 0..2),
        method in prop::sample::select(vec![Method::GET, Method::POST, Method::PUT]),
        path in prop::sample::select(vec!["/", "/a", "/a/b", "/b"]),
        value in prop::sample::select(vec![None, Some("1"), Some("2")]),
    ) {
        let rule = rule(matched, &except);
        let headers: HeaderMap = value
            .map(|value| (HeaderName::from_static("x-a"), HeaderValue::from_static(value)))
            .into_iter()
            .collect();
        let (uri, settings) = (path.parse::<Uri>().unwrap(), IdentifySettings::default());
        let peer = [192, 0, 2, 1].into();
        let request = identify(&method, &uri, &headers, peer, &settings, Timestamp::EPOCH).unwrap();
        let has_mismatch = rule.matcher.first_mismatch(&request).is_some();
        prop_assert_eq!(has_mismatch, rule.matcher.matches(&request) == Match::No);
        let applies = matches!(status(&rule, &request, None), RuleStatus::Applies(_));
        prop_assert_eq!(applies, matches!(rule.applies_to(&request), Match::Yes(_)));
    }
}
