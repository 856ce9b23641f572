use http::Method;
use proptest::prelude::*;

use super::*;
use crate::rules::pattern::{HostPattern, PathPattern};
use crate::rules::rule::Action;

fn path(text: &str) -> PathPattern {
    PathPattern::parse(text).unwrap()
}

fn host(text: &str) -> HostPattern {
    HostPattern::parse(text).unwrap()
}

fn value(text: &str) -> HeaderPattern {
    HeaderPattern::parse(text).unwrap()
}

fn header(name: &'static str, pattern: &str) -> Condition {
    let attribute = Attribute::Header(http::HeaderName::from_static(name));
    Condition { attribute, patterns: [value(pattern)].into() }
}

fn on(paths: &[&str]) -> Matcher {
    Matcher { paths: paths.iter().map(|text| path(text)).collect(), ..Matcher::default() }
}

fn rule(matcher: Matcher, except: &[Matcher]) -> Rule {
    Rule { name: "r".into(), matcher, except: except.into(), action: Action::Deny, ..Rule::default() }
}

#[test]
fn path_is_within_a_prefix_or_a_template() {
    for (narrow, wide) in [
        ("/api/admin", "/api/*"),
        ("/api/", "/api/*"),
        ("/api/v1/*", "/api/*"),
        ("/api/*", "/*"),
        ("/users/{id}", "/users/*"),
        ("/users/{id}/*", "/users/*"),
        ("/users/7/*", "/users/{id}/*"),
        ("/users/7", "/users/{id}"),
        ("/users/{a}/orders/{b}", "/users/{id}/*"),
        ("/{a}/{b}/*", "/{a}/*"),
        ("/x/{b}", "/{a}/{b}"),
        ("/a.php", "~\\.php$"),
        ("~^/a", "~^/a"),
    ] {
        assert!(path(narrow).is_within(&path(wide)), "{narrow} in {wide}");
    }
}

#[test]
fn path_that_may_lie_outside_is_not_within() {
    for (narrow, wide) in [
        ("/api", "/api/*"),
        ("/api/*", "/api/v1/*"),
        ("/apis/*", "/api/*"),
        ("/users/*", "/users/{id}"),
        ("/users/*", "/users/{id}/*"),
        ("/users/{id}", "/users/{id}/*"),
        ("/users/{id}", "/users/7"),
        ("/{a}/b", "/x/*"),
        ("/{a}/*", "/x/*"),
        ("~^/a", "/a/*"),
        ("~^/a$", "~^/a"),
        ("/api/*", "~^/api"),
    ] {
        assert!(!path(narrow).is_within(&path(wide)), "{narrow} in {wide}");
    }
}

#[test]
fn host_and_value_patterns_are_compared() {
    assert!(host("a.example.com").is_within(&host("*.example.com")));
    assert!(host("*.a.example.com").is_within(&host("*.example.com")));
    assert!(!host("example.com").is_within(&host("*.example.com")));
    assert!(!host("*.example.com").is_within(&host("*.a.example.com")));
    assert!(value("x").is_within(&value("*")) && value("~^x").is_within(&value("*")));
    assert!(value("xy").is_within(&value("~^x")) && value("!present").is_within(&value("!present")));
    assert!(!value("*").is_within(&value("x")) && !value("!present").is_within(&value("*")));
    assert!(!value("x").is_within(&value("!present")));
}

#[test]
fn matcher_is_within_one_that_has_fewer_conditions() {
    let narrow = Matcher {
        methods: [Method::GET].into(),
        conditions: [header("x-a", "y")].into(),
        client_ip: Some(["10.1.0.0/16".parse::<ipnet::IpNet>().unwrap()].into_iter().collect()),
        ..on(&["/api/admin"])
    };
    assert!(narrow.is_within(&Matcher::default()) && narrow.is_within(&on(&["/api/*", "/other"])));
    assert!(narrow.is_within(&Matcher { conditions: [header("x-a", "*")].into(), ..Matcher::default() }));
    assert!(!narrow.is_within(&Matcher { conditions: [header("x-b", "*")].into(), ..Matcher::default() }));
    assert!(!narrow.is_within(&Matcher { methods: [Method::POST].into(), ..Matcher::default() }));
    let network = |text: &str| Matcher {
        client_ip: Some([text.parse::<ipnet::IpNet>().unwrap()].into_iter().collect()),
        ..Matcher::default()
    };
    assert!(narrow.is_within(&network("10.0.0.0/8")) && !narrow.is_within(&network("10.1.1.0/24")));
    assert!(!Matcher::default().is_within(&narrow) && !on(&["/api/admin", "/b"]).is_within(&on(&["/api/*"])));
}

#[test]
fn exceptions_of_the_wider_rule_must_not_matter() {
    let within = |narrow: &Rule, wide: &Rule| narrow.is_within(&narrow.matcher, wide);
    let api = on(&["/api/*"]);
    let admin = rule(on(&["/api/admin"]), &[]);
    assert!(within(&admin, &rule(api.clone(), &[])));
    assert!(!within(&admin, &rule(api.clone(), &[on(&["/api/admin"])])));
    assert!(within(&admin, &rule(api.clone(), &[on(&["/api/public/*"])])));
    let probe = Matcher { conditions: [header("x-probe", "*")].into(), ..Matcher::default() };
    assert!(!within(&admin, &rule(api.clone(), std::slice::from_ref(&probe))));
    assert!(within(&rule(on(&["/api/admin"]), std::slice::from_ref(&probe)), &rule(api, &[probe])));
}

#[test]
fn rules_of_other_domains_do_not_cover_calls() {
    let of = |domain: Option<&str>| Rule { domain: domain.map(Into::into), ..rule(Matcher::default(), &[]) };
    let within = |narrow: &Rule, wide: &Rule| narrow.is_within(&narrow.matcher, wide);
    assert!(within(&of(None), &of(Some("edge"))) && within(&of(Some("edge")), &of(Some("edge"))));
    assert!(!within(&of(Some("edge")), &of(None)) && !within(&of(Some("edge")), &of(Some("other"))));
}

#[test]
fn presence_of_an_attribute_follows_from_conditions() {
    let key = Attribute::Header(http::HeaderName::from_static("x-a"));
    let with = |pattern: &str| Matcher { conditions: [header("x-a", pattern)].into(), ..Matcher::default() };
    assert!(with("*").requires(&key) && with("~^a").requires(&key));
    assert!(!with("!present").requires(&key) && !Matcher::default().requires(&key));
    assert!(rule(Matcher::default(), &[with("!present")]).requires(&key));
    let elsewhere = Matcher { paths: [path("/a")].into(), ..with("!present") };
    assert!(!rule(Matcher::default(), &[elsewhere]).requires(&key));
}

fn path_patterns() -> impl Strategy<Value = PathPattern> {
    let segment = prop::sample::select(vec!["a", "b", "{x}", "{y}"]);
    (prop::collection::vec(segment, 0..4), any::<bool>()).prop_map(|(segments, open)| {
        let text: String = segments.iter().map(|segment| format!("/{segment}")).collect();
        path(&match (text.is_empty(), open) {
            (true, false) => "/".to_owned(),
            (_, true) => format!("{text}/*"),
            (false, false) => text,
        })
    })
}

fn request_paths() -> impl Strategy<Value = String> {
    let segment = prop::sample::select(vec!["a", "b", "c", ""]);
    prop::collection::vec(segment, 1..5)
        .prop_map(|segments| segments.iter().map(|segment| format!("/{segment}")).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn path_matches_every_pattern_that_contains_its_own(
        narrow in path_patterns(),
        wide in path_patterns(),
        paths in prop::collection::vec(request_paths(), 1..40),
    ) {
        if let Some(first) = wide.first_segment() {
            prop_assert!(!narrow.is_within(&wide) || narrow.first_segment() == Some(first), "{narrow:?} {wide:?}");
        }
        for given in paths.iter().filter(|given| narrow.matches(given)) {
            prop_assert!(!narrow.is_within(&wide) || wide.matches(given), "{narrow:?} {wide:?} {given}");
            let first = given.split('/').nth(1);
            prop_assert!(narrow.first_segment().is_none_or(|only| Some(only) == first), "{narrow:?} {given}");
            prop_assert!(!narrow.is_disjoint(&wide) || !wide.matches(given), "{narrow:?} {wide:?} {given}");
        }
    }
}
