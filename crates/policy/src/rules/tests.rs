mod alternatives;
mod ambiguity;
mod body_need;
mod counters;
mod deferrals;

use std::num::NonZeroU32;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use proptest::prelude::*;

use super::attribute::Attribute;
use super::key::KeyTemplate;
use super::matcher::Matcher;
use super::pattern::PathPattern;
use super::rule::{LimitAction, RuleLimit, Throttle};

use super::*;
use crate::identify::{IdentifySettings, identify};
use weir_limiter::algorithm::Algorithm;
use weir_limiter::decision::Decision;
use weir_limiter::elastic::Headroom;
use weir_limiter::quota::{Limit, Period, Quota, TimeUnit};
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{self as limiter, InstanceCounts, Limiter};

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const START: Timestamp = Timestamp::from_secs(1_795_248_000);

fn paths(patterns: &[&str]) -> Matcher {
    Matcher {
        paths: patterns.iter().map(|pattern| PathPattern::parse(pattern).unwrap()).collect(),
        ..Matcher::default()
    }
}

fn rule(name: &str, patterns: &[&str], action: Action) -> Rule {
    Rule { name: name.into(), matcher: paths(patterns), action, ..Rule::default() }
}

fn allow_rule(pattern: &str) -> Rule {
    rule("allow", &[pattern], Action::Allow)
}

fn deny_rule(pattern: &str) -> Rule {
    rule("deny", &[pattern], Action::Deny)
}

pub(super) fn limiting(key: &[Attribute], on_missing: OnMissing, counts: &[u32]) -> Action {
    let quota = |count: &u32| {
        let limit = Limit::new(NonZeroU32::new(*count).unwrap(), Period::one(TimeUnit::Hour));
        RuleLimit::from(Quota::new(Algorithm::Gcra, limit, None).unwrap())
    };
    Action::Limit(LimitAction {
        key: KeyTemplate(key.into()),
        on_missing,
        limits: counts.iter().map(quota).collect(),
        ..LimitAction::default()
    })
}

fn limit(name: &str, patterns: &[&str], key: &[Attribute], counts: &[u32]) -> Rule {
    rule(name, patterns, limiting(key, OnMissing::Skip, counts))
}

/// Rules, and the limiter that they are bound to.
struct BoundRules {
    rules: RuleSet,
    limiter: Limiter,
}

fn bound(rules: Vec<Rule>) -> BoundRules {
    let limiter = Limiter::new(limiter::LimiterSettings { max_keys: 1000, secret: [7, 11] });
    let limits = RequiredLimits::from_rules(&rules, &InstanceCounts::single());
    let handles = limiter.install(limits.specs(), START);
    BoundRules { rules: RuleSet::bind(rules.into(), &limits, &handles, limiter.hasher()), limiter }
}

impl BoundRules {
    fn select(&self, uri: &str) -> Selection {
        self.select_with(uri, &[])
    }

    /// Matches a request with these lines of `x-api-key`.
    fn select_with(&self, uri: &str, keys: &[&'static str]) -> Selection {
        let uri: Uri = uri.parse().unwrap();
        let mut headers = HeaderMap::new();
        for key in keys {
            headers.append(API_KEY, HeaderValue::from_static(key));
        }
        let (peer, settings) = ([192, 0, 2, 1].into(), IdentifySettings::default());
        let request = identify(&Method::GET, &uri, &headers, peer, &settings, START).unwrap();
        self.rules.select(&request, Headroom::NONE)
    }

    fn limit_checks(&self, uri: &str) -> Vec<SelectedCheck> {
        match self.select(uri) {
            Selection::Limited(selected, _) => selected.to_vec(),
            other @ (Selection::Exempt(_) | Selection::Denied(..)) => {
                panic!("{uri}: {other:?}")
            }
        }
    }

    fn decide(&self, uri: &str) -> Decision {
        let checks: Vec<_> = self.limit_checks(uri).iter().map(|selected| selected.check).collect();
        self.limiter.check(&checks, START)
    }

    fn passes(&self, uri: &str) -> bool {
        !self.decide(uri).is_rejected()
    }
}

/// Returns the names of the rules whose limits apply, each with the limit's position.
fn names<'a>(bound: &'a BoundRules, uri: &str) -> Vec<(&'a str, usize)> {
    let name = |selected: SelectedCheck| {
        (&*bound.rules.get(selected.rule).unwrap().name, selected.role.reported_limit().unwrap())
    };
    bound.limit_checks(uri).into_iter().map(name).collect()
}

proptest! {
    #[test]
    fn checks_of_a_rule_do_not_depend_on_the_rules_before(
        keys in prop::collection::vec(prop::sample::subsequence(
            vec![
                Attribute::ClientIp,
                Attribute::Path,
                Attribute::Method,
                Attribute::Route,
                Attribute::Header(API_KEY),
            ],
            0..4,
        ), 1..20),
        has_key: bool,
        on_missing in prop::sample::select(vec![OnMissing::Skip, OnMissing::Shared]),
    ) {
        let rule = |(number, key): (usize, &Vec<Attribute>)| {
            // A rule without a pattern applies to all requests.
            let pattern = [&["/{a}"][..], &["/*"], &[]][number % 3];
            let mut action = limiting(key, on_missing, &[9, 8][..1 + number % 2]);
            if let Action::Limit(limiting) = &mut action && number % 5 == 0 {
                limiting.throttle = Throttle::Shadow;
            }
            rule(&format!("rule-{number}"), pattern, action)
        };
        let all = bound(keys.iter().enumerate().map(rule).collect());
        let headers = if has_key { &["acme"][..] } else { &[] };
        let selected = |bound: &BoundRules| match bound.select_with("/x", headers) {
            Selection::Limited(selected, _) => selected.to_vec(),
            other => panic!("{other:?}"),
        };
        let checks_of = |selected: Vec<SelectedCheck>| -> Vec<_> {
            selected.into_iter().map(|SelectedCheck { role, check, .. }| {
                (role, check.key, check.enforcement, check.cost)
            }).collect()
        };
        let alone =
            keys.iter().enumerate().flat_map(|keyed| checks_of(selected(&bound(vec![rule(keyed)]))));
        prop_assert_eq!(checks_of(selected(&all)), alone.collect::<Vec<_>>());
    }
}

#[test]
fn allow_beats_deny_beats_limit_in_any_rule_order() {
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for order in orders {
        let rules = [allow_rule("/a/b/c"), deny_rule("/a/b/*"), limit("limit", &["/a/*"], &[], &[5])];
        let bound = bound(order.iter().map(|index: &usize| rules[*index].clone()).collect());
        let at = |rule| RuleIndex(order.iter().position(|index| *index == rule).unwrap());
        assert!(matches!(bound.select("/a/b/c"), Selection::Exempt(rule) if rule == at(0)), "{order:?}");
        assert!(matches!(bound.select("/a/b/d"), Selection::Denied(rule, _) if rule == at(1)), "{order:?}");
        assert_eq!(names(&bound, "/a/c"), [("limit", 0)]);
        assert!(bound.limit_checks("/").is_empty());
    }
}

#[test]
fn matching_limits_apply_in_file_order() {
    let bound = bound(vec![
        limit("all", &[], &[], &[5, 6]),
        limit("other", &["/b/*"], &[], &[5]),
        deny_rule("/denied"),
        limit("a", &["/a/*"], &[Attribute::ClientIp], &[5]),
    ]);
    assert_eq!(names(&bound, "/a/1"), [("all", 0), ("all", 1), ("a", 0)]);
    assert_eq!(names(&bound, "/c"), [("all", 0), ("all", 1)]);
}

#[test]
fn rule_is_skipped_if_an_except_matches() {
    for action in [Action::Allow, Action::Deny, limiting(&[], OnMissing::Skip, &[5])] {
        let except = [paths(&["/a/open/*"]), paths(&["/a/free"])].into();
        let bound = bound(vec![Rule { except, ..rule("rule", &["/a/*"], action) }]);
        for uri in ["/a/open/1", "/a/free", "/b"] {
            assert!(bound.limit_checks(uri).is_empty(), "{uri}");
        }
        let applies = !matches!(bound.select("/a/1"), Selection::Limited(limits, _) if limits.is_empty());
        assert!(applies);
    }
}

#[test]
fn except_requires_all_its_conditions() {
    let except = Matcher { methods: [Method::POST].into(), ..paths(&["/a/open"]) };
    let bound = bound(vec![Rule { except: [except].into(), ..deny_rule("/a/*") }]);
    assert!(matches!(bound.select("/a/open"), Selection::Denied(..)));
}

#[test]
fn on_missing_skips_shares_or_denies() {
    let by_user = |on_missing| {
        let user = [Attribute::Query("user".into())];
        bound(vec![
            limit("before", &[], &[], &[9]),
            rule("users", &[], limiting(&user, on_missing, &[2])),
            limit("after", &[], &[], &[9]),
        ])
    };
    let skip = by_user(OnMissing::Skip);
    assert_eq!(names(&skip, "/"), [("before", 0), ("after", 0)]);
    assert_eq!(names(&skip, "/?user=1"), [("before", 0), ("users", 0), ("after", 0)]);

    let shared = by_user(OnMissing::Shared);
    assert!(shared.passes("/") && shared.passes("/other?user1") && !shared.passes("/?users=1"));
    // Neither an empty nor an undecodable value maps to the shared counter.
    assert!(shared.passes("/?user=") && shared.passes("/?user=%ff"));

    let deny = by_user(OnMissing::Deny);
    assert!(matches!(deny.select("/"), Selection::Denied(RuleIndex(1), Denial::Forbidden)));
    assert_eq!(deny.limit_checks("/?user=1").len(), 3);
}

#[test]
fn allow_rule_beats_on_missing_deny() {
    let user = [Attribute::Query("user".into())];
    let bound =
        bound(vec![rule("users", &[], limiting(&user, OnMissing::Deny, &[2])), allow_rule("/health")]);
    assert!(matches!(bound.select("/health"), Selection::Exempt(RuleIndex(1))));
}

#[test]
fn route_key_counts_all_paths_of_a_template_together() {
    let bound = bound(vec![limit("routes", &["/users/{id}", "/*"], &[Attribute::Route], &[2])]);
    assert!(bound.passes("/users/1") && bound.passes("/users/2") && !bound.passes("/users/3"));
    // The route is the first pattern that matches.
    assert!(bound.passes("/users/1/orders") && bound.passes("/x") && !bound.passes("/y"));
}

#[test]
fn path_key_counts_each_path_separately() {
    let bound = bound(vec![limit("paths", &["/users/{id}"], &[Attribute::Path], &[1])]);
    assert!(bound.passes("/users/1") && bound.passes("/users/2"));
    assert!(!bound.passes("/users/1") && !bound.passes("/users/%32"));
}

#[test]
fn limits_of_one_rule_have_separate_handles() {
    let bound = bound(vec![limit("api", &[], &[Attribute::ClientIp], &[3, 5])]);
    let [first, second] = bound.limit_checks("/").try_into().unwrap();
    assert_ne!(first.check.handle, second.check.handle);
    assert_eq!(first.check.key, second.check.key);
    bound.limiter.charge(first.check.handle, first.check.key, 2, START);
    let used = |selected: &SelectedCheck| {
        bound.limiter.usage(selected.check.handle, selected.check.key, START).unwrap().used
    };
    assert_eq!((used(&first), used(&second)), (2, 0));
}

#[test]
fn equal_limits_of_two_rules_count_separately() {
    let bound = bound(vec![
        limit("a", &["/a"], &[Attribute::ClientIp], &[1]),
        limit("b", &["/b"], &[Attribute::ClientIp], &[1]),
    ]);
    assert!(bound.passes("/a") && bound.passes("/b") && !bound.passes("/a") && !bound.passes("/b"));
}

#[test]
fn limit_handles_are_bound_in_spec_order() {
    let rules = vec![
        allow_rule("/allowed"),
        limit("a", &["/a"], &[Attribute::ClientIp, Attribute::Path], &[1, 2]),
        deny_rule("/denied"),
        limit("b", &["/b"], &[], &[3]),
    ];
    let specs = limit_specs(&rules);
    let lineages: Vec<_> = specs.iter().map(|spec| (&*spec.identity.rule, &*spec.identity.key)).collect();
    assert_eq!(lineages, [("a", "[client_ip, path]"), ("a", "[client_ip, path]"), ("b", "[]")]);
    let bound = bound(rules);
    let counts = |uri: &str| -> Vec<u32> {
        let usage = |selected: SelectedCheck| {
            bound.limiter.usage(selected.check.handle, selected.check.key, START).unwrap().remaining
        };
        bound.limit_checks(uri).into_iter().map(usage).collect()
    };
    assert_eq!((counts("/a"), counts("/b")), (vec![1, 2], vec![3]));
    let count = |index| bound.rules.limit_handles(RuleIndex(index)).count();
    assert_eq!([0, 1, 2, 3, 4].map(count), [0, 2, 0, 1, 0]);
}

#[test]
fn rule_applies_only_within_its_schedule() {
    use super::schedule::{Days, Schedule, ScheduleSpan, Times};
    // A limit that applies from 01:00 to 06:00 only.
    let night = ScheduleSpan {
        days: Days::ALL,
        times: [Times { start: 60, end: 360 }].into(),
        zone: jiff::tz::TimeZone::get("Europe/Berlin").unwrap(),
    };
    let within = Matcher { schedule: Some(Schedule::new([night])), ..Matcher::default() };
    let mut rules = vec![limit("night", &[], &[], &[1000]), limit("day", &[], &[], &[10])];
    rules[0].matcher = within.clone();
    rules[1].except = [within].into();
    let bound = bound(rules);
    for (moment, expected) in [
        ("2026-11-20T23:59:59.999Z", "day"),
        ("2026-11-21T00:00:00Z", "night"),
        ("2026-11-21T04:59:59.999Z", "night"),
        ("2026-11-21T05:00:00Z", "day"),
        // Daylight saving time.
        ("2026-07-01T03:59:59Z", "night"),
        ("2026-07-01T04:00:00Z", "day"),
    ] {
        let moment: jiff::Timestamp = moment.parse().unwrap();
        let now = Timestamp::from_nanos(u64::try_from(moment.as_nanosecond()).unwrap());
        let headers = HeaderMap::new();
        let (method, uri, settings) = (Method::GET, Uri::from_static("/"), IdentifySettings::default());
        let request = identify(&method, &uri, &headers, [192, 0, 2, 1].into(), &settings, now).unwrap();
        let Selection::Limited(selected, _) = bound.rules.select(&request, Headroom::NONE) else {
            panic!("{moment}")
        };
        let names: Vec<_> = selected.iter().map(|one| &*bound.rules.get(one.rule).unwrap().name).collect();
        assert_eq!(names, [expected], "{moment}");
    }
}
