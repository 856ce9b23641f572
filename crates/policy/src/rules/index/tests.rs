use http::header::{HOST, HeaderName};
use http::{HeaderMap, HeaderValue, Method, Uri};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;
use crate::identify::{IdentifySettings, identify};
use crate::rules::attribute::Attribute;
use crate::rules::matcher::Condition;
use crate::rules::pattern::{HeaderPattern, PathPattern};
use crate::rules::rule::{Action, OnMissing};
use crate::rules::tests::limiting;
use crate::rules::{RequiredLimits, RuleSet};
use weir_limiter::elastic::Headroom;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{self as limiter, InstanceCounts, Limiter};

const NOW: Timestamp = Timestamp::from_secs(1_795_248_000);

const PATHS: [&str; 26] = [
    "/",
    "/*",
    "/a",
    "/a/",
    "/a/*",
    "/a/b",
    "/a/b/*",
    "/a/{x}",
    "/a/{x}/*",
    "/{x}",
    "/{x}/*",
    "/{x}/b",
    "/{x}/{y}",
    "/{x}/{y}/*",
    "/a/{x}/c",
    "/a/b/c",
    "/b/*",
    "~a",
    "~^/a/",
    "~b$",
    "~^/a/b",
    "~c",
    "~/b/",
    "~^/$",
    "~[ab]/c",
    "~^/b",
];
const HOSTS: [&str; 14] = [
    "a.test", "b.test", "x.a.test", "*.test", "*.a.test", "*.b.test", "~^a", "~test$", "~x", "~^b\\.", "~y",
    "~\\.a\\.", "~z", "~^$",
];
const HEADERS: [(&str, &str); 8] = [
    ("x-a", "1"),
    ("x-a", "2"),
    ("x-a", "*"),
    ("x-a", "!present"),
    ("x-a", "~^[12]$"),
    ("x-b", "1"),
    ("x-b", "*"),
    ("x-b", "!present"),
];
const SEGMENTS: [&str; 6] = ["a", "b", "c", "d", "", "a-long-one-that-no-rule-names"];
const REQUEST_HOSTS: [&str; 9] =
    ["", "a.test", "b.test", "x.a.test", "x.y.a.test", "test", "A.TEST:80", "other", ".......a.test"];

fn matchers() -> impl Strategy<Value = Matcher> {
    let few = |mut list: Vec<&'static str>| {
        list.truncate(3);
        list
    };
    let paths = prop_oneof![
        2 => Just(Vec::new()),
        5 => subsequence(&PATHS[..], 1..=1),
        2 => subsequence(&PATHS[..], 1..=3).prop_shuffle(),
    ];
    let hosts = prop_oneof![3 => Just(Vec::new()), 2 => subsequence(&HOSTS[..], 1..=3)].prop_map(few);
    let methods = subsequence(vec![Method::GET, Method::POST], 0..=2);
    let headers = prop_oneof![3 => Just(Vec::new()), 2 => subsequence(&HEADERS[..], 1..=3)];
    (paths, hosts, methods, headers).prop_map(|(paths, hosts, methods, headers)| Matcher {
        paths: paths.into_iter().map(|text| PathPattern::parse(text).unwrap()).collect(),
        hosts: hosts.into_iter().map(|text| HostPattern::parse(text).unwrap()).collect(),
        methods: methods.into(),
        conditions: ["x-a", "x-b"]
            .into_iter()
            .filter_map(|name| {
                let mine = headers.iter().filter(|(given, _)| *given == name);
                let mine: Box<[_]> = mine.map(|(_, text)| HeaderPattern::parse(text).unwrap()).collect();
                (!mine.is_empty()).then(|| on_header(HeaderName::from_static(name), mine))
            })
            .collect(),
        ..Matcher::default()
    })
}

fn on_header(name: HeaderName, any: Box<[HeaderPattern]>) -> Condition {
    Condition { attribute: Attribute::Header(name), patterns: any }
}

fn rules() -> impl Strategy<Value = Vec<Rule>> {
    let action = prop_oneof![
        1 => Just(Action::Allow),
        1 => Just(Action::Deny),
        8 => select(&[OnMissing::Skip, OnMissing::Shared, OnMissing::Deny][..])
            .prop_map(|missing| limiting(&[Attribute::Query("q".into())], missing, &[1])),
        8 => Just(limiting(&[Attribute::Route, Attribute::ClientIp], OnMissing::Skip, &[1, 2])),
    ];
    let rule = (matchers(), prop::option::weighted(0.2, matchers()), action);
    prop::collection::vec(rule, 0..60).prop_map(|rules| {
        let named = rules.into_iter().enumerate();
        named
            .map(|(index, (matcher, except, action))| Rule {
                name: format!("rule-{index}").into(),
                matcher,
                except: except.into_iter().collect(),
                action,
                ..Rule::default()
            })
            .collect()
    })
}

#[derive(Clone, Debug)]
struct IndexRequest {
    uri: Uri,
    method: Method,
    headers: HeaderMap,
}

fn requests() -> impl Strategy<Value = IndexRequest> {
    let path = prop::collection::vec(select(&SEGMENTS[..]), 0..5);
    let query = select(&["", "?q=1", "?r"][..]);
    let headers =
        subsequence(vec![("x-a", "1"), ("x-a", "2"), ("x-a", "3"), ("x-b", "1"), ("x-c", "1")], 0..=3);
    let method = select(&[Method::GET, Method::POST, Method::PUT][..]);
    (path, query, select(&REQUEST_HOSTS[..]), method, headers).prop_map(
        |(path, query, host, method, given)| {
            let mut headers = HeaderMap::new();
            for (name, value) in given {
                headers.append(name, HeaderValue::from_static(value));
            }
            if !host.is_empty() {
                headers.insert(HOST, HeaderValue::from_static(host));
            }
            IndexRequest { uri: format!("/{}{query}", path.join("/")).parse().unwrap(), method, headers }
        },
    )
}

fn bound(rules: Vec<Rule>) -> RuleSet {
    let limiter = Limiter::new(limiter::LimiterSettings { max_keys: 1000, secret: [7, 11] });
    let limits = RequiredLimits::from_rules(&rules, &InstanceCounts::single());
    let handles = limiter.install(limits.specs(), NOW);
    RuleSet::bind(rules.into(), &limits, &handles, limiter.hasher())
}

fn with_attributes<T>(request: &IndexRequest, inspect: impl FnOnce(&Attributes<'_>) -> T) -> T {
    let (peer, settings) = ([192, 0, 2, 1].into(), IdentifySettings::default());
    let IndexRequest { uri, method, headers } = request;
    inspect(&identify(method, uri, headers, peer, &settings, NOW).unwrap())
}

fn get(uri: &str) -> IndexRequest {
    IndexRequest { uri: uri.parse().unwrap(), method: Method::GET, headers: HeaderMap::new() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rule_index_selects_the_same_rules_as_a_full_scan(
        rules in rules(),
        requests in prop::collection::vec(requests(), 40),
    ) {
        let all: Vec<RuleId> = (0..).take(rules.len()).collect();
        let set = bound(rules);
        let headroom = Headroom::default();
        for request in &requests {
            with_attributes(request, |attributes| {
                let (indexed, scanned) =
                    (set.select(attributes, headroom), set.select_among(&all, attributes, headroom));
                prop_assert_eq!(format!("{indexed:?}"), format!("{scanned:?}"), "{:?}", request);
                Ok(())
            })?;
        }
    }
}

/// Returns one rule for each pattern.
fn by_path(patterns: impl IntoIterator<Item = String>) -> Vec<Rule> {
    let of = |(index, text): (usize, String)| Rule {
        name: format!("rule-{index}").into(),
        matcher: Matcher { paths: [PathPattern::parse(&text).unwrap()].into(), ..Matcher::default() },
        action: limiting(&[], OnMissing::Skip, &[1, 2]),
        ..Rule::default()
    };
    patterns.into_iter().enumerate().map(of).collect()
}

fn candidates(rules: &[Rule], request: &IndexRequest) -> usize {
    let index = CandidateIndex::new(rules, |_| true);
    with_attributes(request, |attributes| index.candidates(attributes).len())
}

#[test]
fn rule_index_returns_only_matching_routes_of_ten_thousand() {
    let kinds = ["/exact/{n}", "/prefix/{n}/*", "/users/{id}/{n}", "/deep/{n}/{id}/*"];
    let patterns = (0..10_000).map(|n| kinds[n % kinds.len()].replace("{n}", &n.to_string()));
    let rules = by_path(patterns);
    for (path, expected) in [
        ("/exact/0", 1),
        ("/exact/1", 0),
        ("/prefix/1/x", 1),
        ("/prefix/1", 0),
        ("/users/7/2", 1),
        ("/deep/3/x/y/z", 1),
        ("/nothing", 0),
    ] {
        assert_eq!(candidates(&rules, &get(path)), expected, "{path}");
    }
}

#[test]
fn rule_index_separates_rules_by_host_header_and_method() {
    let tenant = |n: usize, change: &dyn Fn(&mut Matcher)| {
        let mut rule = by_path(["/api/*".to_owned()]).remove(0);
        rule.name = format!("rule-{n}").into();
        change(&mut rule.matcher);
        rule
    };
    let value = |text: &str| HeaderPattern::parse(text).unwrap();
    let by_host = |n: usize| {
        tenant(n, &|matcher| matcher.hosts = [HostPattern::parse(&format!("t{n}.test")).unwrap()].into())
    };
    let by_header = |n: usize| {
        let name = HeaderName::from_static("x-tenant");
        tenant(n, &|matcher| {
            matcher.conditions = [on_header(name.clone(), [value(&n.to_string())].into())].into()
        })
    };
    let by_method =
        |n: usize| tenant(n, &|matcher| matcher.methods = [Method::POST, Method::PUT][n % 2..=n % 2].into());
    let mut request = get("/api/1");
    request.headers.insert(HOST, HeaderValue::from_static("t17.test"));
    request.headers.insert("x-tenant", HeaderValue::from_static("23"));
    assert_eq!(candidates(&(0..1000).map(by_host).collect::<Vec<_>>(), &request), 1);
    assert_eq!(candidates(&(0..1000).map(by_header).collect::<Vec<_>>(), &request), 1);
    let methods: Vec<_> = (0..1000).map(by_method).collect();
    assert_eq!(candidates(&methods, &request), 0);
    request.method = Method::PUT;
    assert_eq!(candidates(&methods, &request), 500);
}

/// Templates with all combinations of `a` and a variable in eight segments: the worst case for the search.
#[test]
fn rule_index_walk_visits_each_node_once() {
    let patterns = (0..256_u32).map(|bits| {
        let segment = |at: u32| if bits >> at & 1 == 1 { "/a".to_owned() } else { format!("/{{x{at}}}") };
        (0..8).map(segment).collect::<String>() + "/end"
    });
    let rules = by_path(patterns);
    assert_eq!(candidates(&rules, &get("/a/a/a/a/a/a/a/a/end")), 256);
    assert_eq!(candidates(&rules, &get("/b/a/b/a/b/a/b/a/end")), 16);
    assert_eq!(candidates(&rules, &get("/a/a/a/a/a/a/a/a/other")), 0);
    assert_eq!(candidates(&rules, &get(&"/a".repeat(20_000))), 0);
}

#[test]
fn rule_index_walk_is_bounded_by_the_rules() {
    let mut rules = by_path(["/a/*".to_owned(), "/{x}/b".to_owned(), "/exact".to_owned()]);
    rules[2].matcher.hosts = [HostPattern::parse("*.a.test").unwrap()].into();
    let mut request = get(&format!("/a/{}", "a/".repeat(30_000)));
    request.headers.insert(HOST, ".".repeat(30_000).parse().unwrap());
    assert_eq!(candidates(&rules, &request), 1);
}

#[test]
fn rule_with_many_hosts_and_paths_is_indexed_by_path() {
    let mut rules = by_path(["/a".to_owned()]);
    let paths = (0..100).map(|n| PathPattern::parse(&format!("/{n}")).unwrap());
    let hosts = (0..100).map(|n| HostPattern::parse(&format!("{n}.test")).unwrap());
    rules[0].matcher.paths = paths.collect();
    rules[0].matcher.hosts = hosts.collect();
    assert_eq!(candidates(&rules, &get("/99")), 1);
    assert_eq!(candidates(&rules, &get("/100")), 0);
}

#[test]
fn regexes_too_large_for_one_set_are_matched_individually() {
    let rules = by_path((0..90).map(|n| format!("~^/{n}/[a-z]{{9000}}$")));
    let index = CandidateIndex::new(&rules, |_| true);
    assert!(!index.any.is_one_set());
    assert_eq!(candidates(&rules, &get("/7/x")), 0);
    assert_eq!(candidates(&rules, &get(&format!("/7/{}", "x".repeat(9000)))), 1);
}
