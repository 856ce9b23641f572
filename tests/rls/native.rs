//! Native rules in a domain of Envoy's rate limit service: which descriptors they match, what they count, and how they
//! combine with limits from YAML.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use http::{HeaderMap, Method, Uri};
use weir::config;
use weir::engine::Policy;
use weir::identify::identify;
use weir::limiter::elastic::Headroom;
use weir::rls::answer::{Answer, Code};
use weir::rls::request::{Descriptor, Request};
use weir::rls::settings::{Counting, HeaderNames, Settings};
use weir::rls::unit::Unit;
use weir::rules::RuleIndex;
use weir::rules::selection::Selection;
use weir::telemetry::metrics::DecisionOutcome;

use crate::desk::{Desk, START, codes, descriptor, given_back, hits, limited, remaining};

const YAML: &str = "
domain: y
descriptors:
- {key: a, rate_limit: {unit: hour, requests_per_unit: 10}}
";

/// Returns a service with the YAML above and these native rules.
fn desk(rules: &str) -> Desk {
    with(rules, Settings::default())
}

fn with(rules: &str, settings: Settings) -> Desk {
    with_configuration(&format!("listeners: 127.0.0.1:0\nupstream: echo\nrules:\n{rules}"), settings)
}

/// Returns a service with the YAML above and a whole configuration.
pub(crate) fn with_configuration(text: &str, settings: Settings) -> Desk {
    let mut desk = Desk::with(YAML, settings);
    desk.service.native = Some(policy(text, &desk));
    desk
}

fn policy(text: &str, desk: &Desk) -> Arc<Policy> {
    let config = match config::from_text(text, Path::new("weir.yaml"), &|_| None) {
        Ok(config) => config,
        Err(problems) => {
            panic!("{}", problems.iter().map(|problem| format!("{problem}\n")).collect::<String>())
        }
    };
    config.policy.install(1, &desk.limiter, START)
}

/// Returns how many of `count` requests with this descriptor are admitted, in domain `d`.
fn passing(desk: &Desk, entries: &str, count: usize) -> usize {
    (0..count).filter(|_| desk.ask(entries).overall == Code::Ok).count()
}

fn told(answer: &Answer) -> Vec<(u32, Option<Unit>, &str)> {
    let limits = answer.statuses.iter().filter_map(|status| status.current_limit.as_ref());
    limits.map(|limit| (limit.requests_per_unit, limit.unit, &*limit.name)).collect()
}

#[test]
fn a_rule_is_for_the_descriptors_of_its_domain_that_it_matches() {
    let desk = desk(
        r#"
  - { name: other, domain: e, limit: 1/h }
  - { name: none, limit: 1/h }
  - { name: one, domain: d, match: { descriptor: { a: [x, "~^y"], b: "!present" } }, limit: 3/h }
"#,
    );
    for free in ["", "a=z", "b=1", "a=x,b=1"] {
        assert_eq!(passing(&desk, free, 5), 5, "{free}");
    }
    assert_eq!(passing(&desk, "a=x", 5), 3);
    assert_eq!(passing(&desk, "a=yy,c=1", 5), 0, "all matching descriptors share a counter");
}

#[test]
fn entries_are_all_there_are_in_their_order() {
    let desk =
        desk(r#"  - { name: r, domain: d, match: { entries: [{ a: "*" }, { b: [x, y] }] }, limit: 1/h }"#);
    for free in ["a=1", "b=x", "b=x,a=1", "a=1,b=z", "a=1,b=x,c=2", "a=1,a=1,b=x"] {
        assert_eq!(passing(&desk, free, 3), 3, "{free}");
    }
    assert_eq!(passing(&desk, "a=1,b=x", 3), 1);
    assert_eq!(passing(&desk, "a=2,b=y", 3), 0);
}

#[test]
fn what_any_exception_holds_for_is_excepted() {
    let desk = desk(
        r#"
  - name: r
    domain: d
    except: [{ descriptor: { a: x } }, { entries: { b: y } }]
    limit: 1/h
"#,
    );
    assert_eq!(passing(&desk, "a=x,b=y", 3), 3);
    assert_eq!(passing(&desk, "b=y", 3), 3);
    assert_eq!(passing(&desk, "c=1,b=y", 3), 1);
}

#[test]
fn values_are_counted_apart_and_none_looks_like_another() {
    let desk = desk("  - { name: r, domain: d, key: [{ descriptor: a }, { descriptor: b }], limit: 1/h }");
    for entries in ["a=1,b=2", "a=12,b=", "a=,b=12", "a=1,a=2,b=", "a=2,a=1,b=", "a=1,b=2,b=2"] {
        assert_eq!(passing(&desk, entries, 2), 1, "{entries}");
    }
    assert_eq!(passing(&desk, "b=2,a=1", 2), 0, "the order of entries does not matter");
    assert_eq!(passing(&desk, "a=1", 3), 3, "a descriptor without a part of the key is not limited");
}

#[test]
fn a_missing_part_is_dealt_with_as_the_rule_says() {
    let desk = desk(
        r#"
  - { name: s, domain: d, match: { descriptor: { m: shared } }, key: { descriptor: a }, limit: 1/h, on_missing: shared }
  - { name: d, domain: d, match: { descriptor: { m: deny } }, key: { descriptor: a }, limit: 1/h, on_missing: deny }
"#,
    );
    assert_eq!(passing(&desk, "m=shared", 3), 1);
    assert_eq!(passing(&desk, "m=deny", 3), 0);
    assert_eq!(desk.ask("m=deny").stats.rules, [(RuleIndex(1), DecisionOutcome::Denied)]);
}

#[test]
fn a_refused_request_is_charged_nowhere() {
    let desk = desk(
        r#"
  - { name: wide, domain: d, match: { descriptor: { all: "*" } }, limit: 10/h, algorithm: fixed_window }
  - { name: narrow, domain: d, key: { descriptor: one }, limit: 2/h, algorithm: fixed_window }
"#,
    );
    let ask = || desk.ask_all("d", vec![descriptor("all=1"), descriptor("one=x"), descriptor("free=1")]);
    for left in [1, 0] {
        let answer = ask();
        assert_eq!((answer.overall, remaining(&answer)), (Code::Ok, vec![8 + left, left, 0]));
    }
    for _ in 0..5 {
        let answer = ask();
        assert_eq!(answer.overall, Code::OverLimit);
        assert_eq!(codes(&answer), [Code::Ok, Code::OverLimit, Code::Ok]);
        assert_eq!(remaining(&answer), [8, 0, 0]);
        assert_eq!(answer.statuses[2].current_limit, None);
        assert_eq!(answer.stats.rules, [(RuleIndex(1), DecisionOutcome::Limited)]);
    }
}

#[test]
fn hits_are_what_a_request_costs() {
    let desk = desk("  - { name: r, domain: d, limit: 10/h, cost: 2, algorithm: fixed_window }");
    let ask = |descriptor: Descriptor| {
        let answer = desk.ask_all("d", vec![descriptor]);
        (answer.overall, answer.statuses[0].limit_remaining)
    };
    assert_eq!(ask(hits("a=1", 3)), (Code::Ok, 4));
    assert_eq!(ask(hits("a=1", 3)), (Code::OverLimit, 4));
    assert_eq!(ask(hits("a=1", 2)), (Code::Ok, 0));
    assert_eq!(ask(hits("a=1", 0)), (Code::Ok, 0), "zero hits are never over the limit");
    assert_eq!(ask(given_back("a=1", 1)), (Code::Ok, 2));
    assert_eq!(ask(given_back("a=1", 100)), (Code::Ok, 10), "never more than the limit");
    assert_eq!(ask(hits("a=1", u64::MAX)), (Code::OverLimit, 10));
    let request = Request { domain: "d".into(), descriptors: vec![descriptor("a=1")], hits_addend: 5 };
    assert_eq!(desk.try_ask(&request).unwrap().statuses[0].limit_remaining, 0);
}

#[test]
fn what_is_given_back_is_not_lost_with_a_refused_request() {
    for algorithm in ["gcra", "token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log"]
    {
        let desk = desk(&format!(
            r#"
  - {{ name: full, domain: d, match: {{ descriptor: {{ a: "*" }} }}, action: deny }}
  - {{ name: r, domain: d, limit: 4/h, algorithm: {algorithm} }}
"#
        ));
        assert_eq!(passing(&desk, "b=1", 9), 4, "{algorithm}");
        let answer = desk.ask_all("d", vec![given_back("b=1", 3), descriptor("a=1")]);
        assert_eq!(codes(&answer), [Code::Ok, Code::OverLimit], "{algorithm}");
        assert_eq!(passing(&desk, "b=1", 9), 3, "{algorithm}");
    }
}

#[test]
fn what_is_charged_afterwards_counts_where_refusals_are_charged() {
    // A request with no hits checks the limit first, and a second one charges the true cost later.
    let later = |rule: &str| {
        let desk = desk(&format!("  - {{ name: r, domain: d, limit: 10/h, algorithm: fixed_window{rule} }}"));
        let turn = || {
            let passes = desk.ask_all("d", vec![hits("a=1", 0)]).overall == Code::Ok;
            passes.then(|| desk.ask_all("d", vec![hits("a=1", 4)])).is_some()
        };
        (0..10).filter(|_| turn()).count()
    };
    assert_eq!(later(", on_denied: charge"), 3);
    assert_eq!(later(""), 10, "without `on_denied: charge`, rejected requests are not charged");
}

#[test]
fn deny_is_over_the_limit_and_allow_is_not() {
    let desk = desk(
        r#"
  - { name: good, domain: d, match: { descriptor: { a: good } }, action: allow }
  - { name: bad, domain: d, match: { descriptor: { a: [bad, good] } }, action: deny }
  - { name: all, domain: d, limit: 1/h }
"#,
    );
    assert_eq!(passing(&desk, "a=good", 3), 3);
    assert_eq!(passing(&desk, "a=bad", 3), 0);
    assert_eq!(passing(&desk, "a=other", 3), 1);
    let answer = desk.ask_all("d", vec![descriptor("a=good"), descriptor("a=bad")]);
    assert_eq!(codes(&answer), [Code::Ok, Code::OverLimit]);
    let outcomes = [(RuleIndex(0), DecisionOutcome::Exempt), (RuleIndex(1), DecisionOutcome::Denied)];
    assert_eq!((answer.overall, &answer.stats.rules[..]), (Code::OverLimit, &outcomes[..]));
}

#[test]
fn modes_are_those_of_the_proxy() {
    let mut desk = desk(
        r#"
  - { name: looks-on, domain: d, match: { descriptor: { m: shadow } }, limit: 1/h, throttle: shadow }
  - { name: a-tenth, domain: d, match: { descriptor: { m: soft } }, limit: 10/h, throttle: soft 20%, algorithm: fixed_window }
  - { name: nobody, domain: d, match: { descriptor: { m: canary } }, limit: 1/h, enforce: 0% }
  - name: banned
    domain: d
    match: { descriptor: { m: ban } }
    limit: 1/s
    on_limit: { ban: 1m }
"#,
    );
    assert_eq!(passing(&desk, "m=shadow", 4), 4);
    assert_eq!(told(&desk.ask("m=shadow")), [], "a limit in shadow mode is not reported");
    assert_eq!(desk.ask("m=shadow").stats.rules, [(RuleIndex(0), DecisionOutcome::Shadow)]);
    assert_eq!(passing(&desk, "m=canary", 4), 4);
    assert_eq!(passing(&desk, "m=soft", 20), 12);
    let answer = desk.ask("m=soft");
    assert_eq!(told(&answer), [(10, Some(Unit::Hour), "a-tenth")]);
    assert_eq!(passing(&desk, "m=ban", 4), 1);
    desk.pass(30);
    let answer = desk.ask("m=ban");
    assert_eq!(answer.overall, Code::OverLimit);
    assert_eq!(answer.statuses[0].duration_until_reset, Some(Duration::from_secs(30)));
    assert_eq!(told(&answer), [(1, Some(Unit::Second), "banned")]);
    let back = desk.ask_all("d", vec![given_back("m=ban", 1)]);
    assert_eq!(back.overall, Code::Ok, "refunds are not rejected");
}

#[test]
fn the_tightest_limit_is_told() {
    let desk = desk(
        r#"
  - { name: ten, domain: d, limit: 10/30s, algorithm: fixed_window }
  - { name: five, domain: d, limits: [5/60s, 100/d], algorithm: fixed_window }
  - { name: never, domain: d, limit: 1/h, throttle: shadow }
"#,
    );
    let answer = desk.ask("a=1");
    assert_eq!(told(&answer), [(5, Some(Unit::Minute), "five")], "60 s is reported as a minute");
    assert_eq!(remaining(&answer), [4]);
    assert_eq!(answer.statuses[0].duration_until_reset, Some(Duration::from_secs(58)));
    desk.ask_all("d", vec![hits("a=1", 4)]);
    let answer = desk.ask("a=1");
    assert_eq!((answer.overall, told(&answer)), (Code::OverLimit, vec![(5, Some(Unit::Minute), "five")]));
}

#[test]
fn a_period_that_the_protocol_does_not_have_is_unknown_there() {
    let unit = |limit: &str| {
        let desk = desk(&format!("  - {{ name: r, domain: d, limit: {limit}, algorithm: fixed_window }}"));
        told(&desk.ask("a=1"))[0].1
    };
    assert_eq!(unit("10/30s"), None);
    assert_eq!(unit("10/500ms"), None);
    assert_eq!([unit("1/d"), unit("1/24h")], [Some(Unit::Day); 2]);
    assert_eq!([unit("1/7d"), unit("1/w")], [Some(Unit::Week); 2]);
    assert_eq!(
        (unit("1/30d"), unit("1/month"), unit("1/year")),
        (Some(Unit::Month), Some(Unit::Month), Some(Unit::Year))
    );
}

#[test]
fn entries_with_the_usual_names_are_what_rules_look_at() {
    let desk = desk(
        r#"
  - { name: path, domain: d, match: { path: "/users/{id}", method: POST, host: "*.example.com" }, key: route, limit: 2/h }
  - { name: ip, domain: d, match: { client_ip: 192.0.2.0/24 }, key: client_ip, limit: 1/h }
  - { name: regex, domain: d, match: { path: "~.?" , descriptor: { regex: "*" } }, limit: 1/h }
"#,
    );
    let entries = |path: &str| format!("path={path},method=POST,host=api.example.com");
    assert_eq!(passing(&desk, &entries("/users/1"), 1) + passing(&desk, &entries("/users/./2"), 3), 2);
    assert_eq!(passing(&desk, &entries("/user"), 3), 3);
    assert_eq!(passing(&desk, "path=/users/1,method=GET,host=api.example.com", 3), 3);
    assert_eq!(passing(&desk, "remote_address=192.0.2.1", 3), 1);
    assert_eq!(passing(&desk, "remote_address=192.0.2.2", 3), 1);
    assert_eq!(passing(&desk, "remote_address=198.51.100.1", 3), 3);
    assert_eq!(passing(&desk, "masked_remote_address=192.0.2.0/24", 3), 3);
    assert_eq!(passing(&desk, "regex=1", 3), 3, "a missing path matches no pattern");
}

#[test]
fn a_rule_serves_proxied_requests_too_unless_it_reads_descriptors() {
    let desk = desk(
        r#"
  - { name: both, domain: d, key: client_ip, limit: 2/h }
  - { name: envoy, domain: d, match: { descriptor: { a: "!present" } }, limit: 1/h }
  - { name: key, domain: d, key: { descriptor: a }, on_missing: deny, limit: 1/h }
  - { name: except, domain: d, except: { descriptor: { a: b } }, action: deny }
"#,
    );
    let policy = desk.service.native.as_deref().unwrap();
    let (uri, headers) = (Uri::from_static("/"), HeaderMap::new());
    let peer = [192, 0, 2, 9].into();
    let proxied = identify(&Method::GET, &uri, &headers, peer, &policy.identify, START).unwrap();
    let Selection::Limited(selected, _) = policy.rules.select(&proxied, Headroom::NONE) else { panic!() };
    let rules: Vec<_> = selected.iter().map(|selected| selected.rule).collect();
    assert_eq!(rules, [RuleIndex(0)]);
    assert!(!desk.limiter.check(&[selected[0].check], START).is_rejected());
    assert_eq!(passing(&desk, "remote_address=192.0.2.9,a=b", 3), 1, "both use one counter");
}

#[test]
fn a_limit_that_comes_along_takes_the_place_of_rules() {
    let desk = desk(
        r#"
  - { name: bad, domain: d, match: { descriptor: { a: bad } }, action: deny }
  - { name: one, domain: d, limit: 1/h }
"#,
    );
    let passing = |entries: &str| {
        let ask = || desk.ask_all("d", vec![limited(entries, 3, Some(Unit::Hour))]);
        (0..6).filter(|_| ask().overall == Code::Ok).count()
    };
    assert_eq!((passing("a=1"), passing("a=bad")), (3, 0));
    assert_eq!(told(&desk.ask("a=1")), [(1, Some(Unit::Hour), "one")]);
}

#[test]
fn yaml_and_native_rules_of_a_domain_both_apply_and_the_worse_is_told() {
    let desk = desk(
        r#"
  - { name: low, domain: y, key: { descriptor: a }, limit: 4/h, algorithm: fixed_window }
  - { name: free, domain: y, match: { descriptor: { a: good } }, action: allow }
"#,
    );
    let ask = |entries: &str| desk.ask_all("y", vec![descriptor(entries)]);
    assert_eq!(told(&ask("a=1")), [(4, Some(Unit::Hour), "low")]);
    assert_eq!(remaining(&ask("a=1")), [2]);
    assert_eq!(told(&ask("a=good")), [(10, Some(Unit::Hour), "")], "exempt from native rules only");
    let answers: Vec<_> = (0..4).map(|_| ask("a=1").overall).collect();
    assert_eq!(answers, [Code::Ok, Code::Ok, Code::OverLimit, Code::OverLimit]);
    // By default the limits of the reference count rejected requests.
    let answer = desk.ask_all("y", vec![given_back("a=1", 4)]);
    assert_eq!(told(&answer), [(4, Some(Unit::Hour), "low")]);
    assert_eq!(remaining(&answer), [4]);
    let answers: Vec<_> = (0..5).map(|_| ask("a=1").overall).collect();
    assert_eq!(answers[..4], [Code::Ok; 4], "two of ten are left, and four were refunded");
    let over = ask("a=1");
    assert_eq!(over.overall, Code::OverLimit);
}

#[test]
fn what_either_refuses_neither_charges_where_that_is_asked_for() {
    let settings = Settings {
        counting: Counting::AllOrNothing,
        headers: Some(HeaderNames::default()),
        ..Settings::default()
    };
    let rules = r#"
  - { name: some, domain: y, match: { descriptor: { b: "*" } }, limit: 3/h, algorithm: fixed_window }
"#;
    let desk = with(rules, settings);
    let ask = |entries: [&str; 2]| desk.ask_all("y", entries.map(descriptor).to_vec());
    for _ in 0..3 {
        assert_eq!(ask(["a=1", "b=1"]).overall, Code::Ok);
    }
    for _ in 0..5 {
        let answer = ask(["a=1", "b=1"]);
        assert_eq!((codes(&answer), remaining(&answer)), (vec![Code::Ok, Code::OverLimit], vec![7, 0]));
        assert_eq!(answer.headers[0].1, "3", "headers describe the limit that rejects");
    }
    for _ in 0..7 {
        assert_eq!(ask(["a=1", "c=1"]).overall, Code::Ok);
    }
    assert_eq!(codes(&ask(["a=1", "c=1"])), [Code::OverLimit, Code::Ok]);
    desk.ask_all("y", vec![given_back("b=1", 1)]);
    assert_eq!(ask(["a=1", "b=1"]).overall, Code::OverLimit);
    assert_eq!(desk.ask_all("y", vec![descriptor("b=1")]).overall, Code::Ok, "it was not charged");
}

#[test]
fn in_shadow_mode_native_rules_refuse_nobody_either() {
    let settings = Settings { shadow_mode: true, ..Settings::default() };
    let desk = with("  - { name: r, domain: d, limit: 2/h }", settings);
    for _ in 0..2 {
        assert_eq!(codes(&desk.ask("a=1")), [Code::Ok]);
    }
    let answer = desk.ask("a=1");
    assert_eq!((answer.overall, codes(&answer)), (Code::Ok, vec![Code::OverLimit]));
    assert!(answer.stats.global_shadow_mode);
}

#[test]
fn a_domain_needs_no_yaml() {
    let mut desk = desk("  - { name: r, domain: d, limit: 1/h }");
    desk.service.rules = None;
    assert_eq!(passing(&desk, "a=1", 3), 1);
    assert!(
        desk.try_ask(&Request { domain: "z".into(), descriptors: vec![descriptor("a=1")], hits_addend: 0 })
            .is_err()
    );
    let answer = desk.ask("a=1");
    assert_eq!(answer.stats.domain_not_found, 0);
}

#[test]
fn together_they_let_pass_exactly_what_both_let_pass() {
    let settings = Settings { counting: Counting::AllOrNothing, ..Settings::default() };
    let rules = "  - { name: r, domain: y, key: { descriptor: b }, limit: 6/h, algorithm: fixed_window }";
    for _ in 0..20 {
        let desk = with(rules, settings.clone());
        let ask = |_: &usize| {
            let both = vec![descriptor("a=1"), descriptor("b=1")];
            desk.ask_all("y", both).overall == Code::Ok
        };
        let passed: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| (0..10_usize).filter(ask).count())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        let look = desk.ask_all("y", vec![hits("a=1", 0), hits("b=1", 0)]);
        assert_eq!((passed, remaining(&look)), (6, vec![4, 0]));
    }
}
