//! Native rules in a domain of Envoy's rate limit service: which descriptors they match, what they count, and how they
//! combine with limits from YAML.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use http::{HeaderMap, Method, Uri};
use weir_config as config;
use weir_limiter::elastic::Headroom;
use weir_policy::engine::Policy;
use weir_policy::identify::identify;
use weir_policy::rules::RuleIndex;
use weir_policy::rules::selection::Selection;
use weir_rls::request::{RlsDescriptor, RlsRequest};
use weir_rls::response::{Code, RlsResponse};
use weir_rls::settings::{Counting, HeaderNames, RlsSettings};
use weir_rls::unit::RlsUnit;
use weir_telemetry::metrics::DecisionOutcome;

use crate::fixture::{
    RlsFixture, START, codes, descriptor, remaining, with_hits, with_limit_override, with_negative_hits,
};

const YAML: &str = "
domain: y
descriptors:
- {key: a, rate_limit: {unit: hour, requests_per_unit: 10}}
";

/// Returns a service with the YAML above and these native rules.
fn fixture(rules: &str) -> RlsFixture {
    fixture_with_settings(rules, RlsSettings::default())
}

fn fixture_with_settings(rules: &str, settings: RlsSettings) -> RlsFixture {
    fixture_with_configuration(&format!("listeners: 127.0.0.1:0\nupstream: echo\nrules:\n{rules}"), settings)
}

/// Returns a service with the YAML above and a whole configuration.
pub(crate) fn fixture_with_configuration(text: &str, settings: RlsSettings) -> RlsFixture {
    let mut desk = RlsFixture::with_settings(YAML, settings);
    desk.service.native_policy = Some(policy(text, &desk));
    desk
}

fn policy(text: &str, desk: &RlsFixture) -> Arc<Policy> {
    let config = match config::from_text(text, Path::new("weir.yaml"), &|_| None) {
        Ok(config) => config,
        Err(problems) => {
            panic!("{}", problems.iter().map(|problem| format!("{problem}\n")).collect::<String>())
        }
    };
    config.policy.install(1, &desk.limiter, START)
}

/// Returns how many of `count` requests with this descriptor are admitted, in domain `d`.
fn admitted_count(desk: &RlsFixture, entries: &str, count: usize) -> usize {
    (0..count).filter(|_| desk.decide_one(entries).overall_code == Code::Ok).count()
}

fn reported_limits(response: &RlsResponse) -> Vec<(u32, Option<RlsUnit>, &str)> {
    let limits = response.statuses.iter().filter_map(|status| status.current_limit.as_ref());
    limits.map(|limit| (limit.requests_per_unit, limit.unit, &*limit.name)).collect()
}

fn rule_outcomes(response: &RlsResponse) -> Vec<(RuleIndex, DecisionOutcome)> {
    response.stats.rule_decisions.iter().map(|decision| (decision.rule, decision.outcome)).collect()
}

#[test]
fn native_rule_applies_to_matching_descriptors_of_its_domain() {
    let desk = fixture(
        r#"
  - { name: other, domain: e, limit: 1/h }
  - { name: none, limit: 1/h }
  - { name: one, domain: d, match: { descriptor: { a: [x, "~^y"], b: "!present" } }, limit: 3/h }
"#,
    );
    for free in ["", "a=z", "b=1", "a=x,b=1"] {
        assert_eq!(admitted_count(&desk, free, 5), 5, "{free}");
    }
    assert_eq!(admitted_count(&desk, "a=x", 5), 3);
    assert_eq!(admitted_count(&desk, "a=yy,c=1", 5), 0, "all matching descriptors share a counter");
}

#[test]
fn entries_match_the_complete_ordered_descriptor() {
    let desk =
        fixture(r#"  - { name: r, domain: d, match: { entries: [{ a: "*" }, { b: [x, y] }] }, limit: 1/h }"#);
    for free in ["a=1", "b=x", "b=x,a=1", "a=1,b=z", "a=1,b=x,c=2", "a=1,a=1,b=x"] {
        assert_eq!(admitted_count(&desk, free, 3), 3, "{free}");
    }
    assert_eq!(admitted_count(&desk, "a=1,b=x", 3), 1);
    assert_eq!(admitted_count(&desk, "a=2,b=y", 3), 0);
}

#[test]
fn any_matching_exception_exempts_a_descriptor() {
    let desk = fixture(
        r#"
  - name: r
    domain: d
    except: [{ descriptor: { a: x } }, { entries: { b: y } }]
    limit: 1/h
"#,
    );
    assert_eq!(admitted_count(&desk, "a=x,b=y", 3), 3);
    assert_eq!(admitted_count(&desk, "b=y", 3), 3);
    assert_eq!(admitted_count(&desk, "c=1,b=y", 3), 1);
}

#[test]
fn descriptor_values_have_distinct_counters() {
    let desk = fixture("  - { name: r, domain: d, key: [{ descriptor: a }, { descriptor: b }], limit: 1/h }");
    for entries in ["a=1,b=2", "a=12,b=", "a=,b=12", "a=1,a=2,b=", "a=2,a=1,b=", "a=1,b=2,b=2"] {
        assert_eq!(admitted_count(&desk, entries, 2), 1, "{entries}");
    }
    assert_eq!(admitted_count(&desk, "b=2,a=1", 2), 0, "the order of entries does not matter");
    assert_eq!(admitted_count(&desk, "a=1", 3), 3, "a descriptor without a part of the key is not limited");
}

#[test]
fn missing_key_part_is_handled_by_on_missing() {
    let desk = fixture(
        r#"
  - { name: s, domain: d, match: { descriptor: { m: shared } }, key: { descriptor: a }, limit: 1/h, on_missing: shared }
  - { name: d, domain: d, match: { descriptor: { m: deny } }, key: { descriptor: a }, limit: 1/h, on_missing: deny }
"#,
    );
    assert_eq!(admitted_count(&desk, "m=shared", 3), 1);
    assert_eq!(admitted_count(&desk, "m=deny", 3), 0);
    assert_eq!(rule_outcomes(&desk.decide_one("m=deny")), [(RuleIndex(1), DecisionOutcome::Denied)]);
}

#[test]
fn rejected_request_is_not_charged() {
    let desk = fixture(
        r#"
  - { name: wide, domain: d, match: { descriptor: { all: "*" } }, limit: 10/h, algorithm: fixed_window }
  - { name: narrow, domain: d, key: { descriptor: one }, limit: 2/h, algorithm: fixed_window }
"#,
    );
    let ask = || desk.decide("d", vec![descriptor("all=1"), descriptor("one=x"), descriptor("free=1")]);
    for left in [1, 0] {
        let answer = ask();
        assert_eq!((answer.overall_code, remaining(&answer)), (Code::Ok, vec![8 + left, left, 0]));
    }
    for _ in 0..5 {
        let answer = ask();
        assert_eq!(answer.overall_code, Code::OverLimit);
        assert_eq!(codes(&answer), [Code::Ok, Code::OverLimit, Code::Ok]);
        assert_eq!(remaining(&answer), [8, 0, 0]);
        assert_eq!(answer.statuses[2].current_limit, None);
        assert_eq!(rule_outcomes(&answer), [(RuleIndex(1), DecisionOutcome::Limited)]);
    }
}

#[test]
fn hits_multiply_the_cost_of_a_request() {
    let desk = fixture("  - { name: r, domain: d, limit: 10/h, cost: 2, algorithm: fixed_window }");
    let ask = |descriptor: RlsDescriptor| {
        let answer = desk.decide("d", vec![descriptor]);
        (answer.overall_code, answer.statuses[0].limit_remaining)
    };
    assert_eq!(ask(with_hits("a=1", 3)), (Code::Ok, 4));
    assert_eq!(ask(with_hits("a=1", 3)), (Code::OverLimit, 4));
    assert_eq!(ask(with_hits("a=1", 2)), (Code::Ok, 0));
    assert_eq!(ask(with_hits("a=1", 0)), (Code::Ok, 0), "zero hits are never over the limit");
    assert_eq!(ask(with_negative_hits("a=1", 1)), (Code::Ok, 2));
    assert_eq!(ask(with_negative_hits("a=1", 100)), (Code::Ok, 10), "never more than the limit");
    assert_eq!(ask(with_hits("a=1", u64::MAX)), (Code::OverLimit, 10));
    let request = RlsRequest { domain: "d".into(), descriptors: vec![descriptor("a=1")], hits_addend: 5 };
    assert_eq!(desk.try_decide(&request).unwrap().statuses[0].limit_remaining, 0);
}

#[test]
fn negative_hits_are_refunded_even_if_the_request_is_rejected() {
    for algorithm in ["gcra", "token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log"]
    {
        let desk = fixture(&format!(
            r#"
  - {{ name: full, domain: d, match: {{ descriptor: {{ a: "*" }} }}, action: deny }}
  - {{ name: r, domain: d, limit: 4/h, algorithm: {algorithm} }}
"#
        ));
        assert_eq!(admitted_count(&desk, "b=1", 9), 4, "{algorithm}");
        let answer = desk.decide("d", vec![with_negative_hits("b=1", 3), descriptor("a=1")]);
        assert_eq!(codes(&answer), [Code::Ok, Code::OverLimit], "{algorithm}");
        assert_eq!(admitted_count(&desk, "b=1", 9), 3, "{algorithm}");
    }
}

#[test]
fn late_charge_counts_if_rejections_are_charged() {
    // A request with no hits checks the limit first, and a second one charges the true cost later.
    let later = |rule: &str| {
        let desk =
            fixture(&format!("  - {{ name: r, domain: d, limit: 10/h, algorithm: fixed_window{rule} }}"));
        let turn = || {
            let passes = desk.decide("d", vec![with_hits("a=1", 0)]).overall_code == Code::Ok;
            passes.then(|| desk.decide("d", vec![with_hits("a=1", 4)])).is_some()
        };
        (0..10).filter(|_| turn()).count()
    };
    assert_eq!(later(", on_denied: charge"), 3);
    assert_eq!(later(""), 10, "without `on_denied: charge`, rejected requests are not charged");
}

#[test]
fn deny_rules_report_over_limit_and_allow_rules_ok() {
    let desk = fixture(
        r#"
  - { name: good, domain: d, match: { descriptor: { a: good } }, action: allow }
  - { name: bad, domain: d, match: { descriptor: { a: [bad, good] } }, action: deny }
  - { name: all, domain: d, limit: 1/h }
"#,
    );
    assert_eq!(admitted_count(&desk, "a=good", 3), 3);
    assert_eq!(admitted_count(&desk, "a=bad", 3), 0);
    assert_eq!(admitted_count(&desk, "a=other", 3), 1);
    let answer = desk.decide("d", vec![descriptor("a=good"), descriptor("a=bad")]);
    assert_eq!(codes(&answer), [Code::Ok, Code::OverLimit]);
    let outcomes = [(RuleIndex(0), DecisionOutcome::Exempt), (RuleIndex(1), DecisionOutcome::Denied)];
    assert_eq!((answer.overall_code, rule_outcomes(&answer)), (Code::OverLimit, outcomes.to_vec()));
}

#[test]
fn native_rules_support_shadow_soft_canary_and_ban() {
    let mut desk = fixture(
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
    assert_eq!(admitted_count(&desk, "m=shadow", 4), 4);
    assert_eq!(reported_limits(&desk.decide_one("m=shadow")), [], "a limit in shadow mode is not reported");
    assert_eq!(rule_outcomes(&desk.decide_one("m=shadow")), [(RuleIndex(0), DecisionOutcome::Shadow)]);
    assert_eq!(admitted_count(&desk, "m=canary", 4), 4);
    assert_eq!(admitted_count(&desk, "m=soft", 20), 12);
    let answer = desk.decide_one("m=soft");
    assert_eq!(reported_limits(&answer), [(10, Some(RlsUnit::Hour), "a-tenth")]);
    assert_eq!(admitted_count(&desk, "m=ban", 4), 1);
    desk.advance(30);
    let answer = desk.decide_one("m=ban");
    assert_eq!(answer.overall_code, Code::OverLimit);
    assert_eq!(answer.statuses[0].duration_until_reset, Some(Duration::from_secs(30)));
    assert_eq!(reported_limits(&answer), [(1, Some(RlsUnit::Second), "banned")]);
    let back = desk.decide("d", vec![with_negative_hits("m=ban", 1)]);
    assert_eq!(back.overall_code, Code::Ok, "refunds are not rejected");
}

#[test]
fn tightest_limit_is_reported() {
    let desk = fixture(
        r#"
  - { name: ten, domain: d, limit: 10/30s, algorithm: fixed_window }
  - { name: five, domain: d, limits: [5/60s, 100/d], algorithm: fixed_window }
  - { name: never, domain: d, limit: 1/h, throttle: shadow }
"#,
    );
    let answer = desk.decide_one("a=1");
    assert_eq!(
        reported_limits(&answer),
        [(5, Some(RlsUnit::Minute), "five")],
        "60 s is reported as a minute"
    );
    assert_eq!(remaining(&answer), [4]);
    assert_eq!(answer.statuses[0].duration_until_reset, Some(Duration::from_secs(58)));
    desk.decide("d", vec![with_hits("a=1", 4)]);
    let answer = desk.decide_one("a=1");
    assert_eq!(
        (answer.overall_code, reported_limits(&answer)),
        (Code::OverLimit, vec![(5, Some(RlsUnit::Minute), "five")])
    );
}

#[test]
fn period_without_a_protocol_unit_has_an_unknown_unit() {
    let unit = |limit: &str| {
        let desk = fixture(&format!("  - {{ name: r, domain: d, limit: {limit}, algorithm: fixed_window }}"));
        reported_limits(&desk.decide_one("a=1"))[0].1
    };
    assert_eq!(unit("10/30s"), None);
    assert_eq!(unit("10/500ms"), None);
    assert_eq!([unit("1/d"), unit("1/24h")], [Some(RlsUnit::Day); 2]);
    assert_eq!([unit("1/7d"), unit("1/w")], [Some(RlsUnit::Week); 2]);
    assert_eq!(
        (unit("1/30d"), unit("1/month"), unit("1/year")),
        (Some(RlsUnit::Month), Some(RlsUnit::Month), Some(RlsUnit::Year))
    );
}

#[test]
fn well_known_entries_supply_request_attributes() {
    let desk = fixture(
        r#"
  - { name: path, domain: d, match: { path: "/users/{id}", method: POST, host: "*.example.com" }, key: route, limit: 2/h }
  - { name: ip, domain: d, match: { client_ip: 192.0.2.0/24 }, key: client_ip, limit: 1/h }
  - { name: regex, domain: d, match: { path: "~.?" , descriptor: { regex: "*" } }, limit: 1/h }
"#,
    );
    let entries = |path: &str| format!("path={path},method=POST,host=api.example.com");
    assert_eq!(
        admitted_count(&desk, &entries("/users/1"), 1) + admitted_count(&desk, &entries("/users/./2"), 3),
        2
    );
    assert_eq!(admitted_count(&desk, &entries("/user"), 3), 3);
    assert_eq!(admitted_count(&desk, "path=/users/1,method=GET,host=api.example.com", 3), 3);
    assert_eq!(admitted_count(&desk, "remote_address=192.0.2.1", 3), 1);
    assert_eq!(admitted_count(&desk, "remote_address=192.0.2.2", 3), 1);
    assert_eq!(admitted_count(&desk, "remote_address=198.51.100.1", 3), 3);
    assert_eq!(admitted_count(&desk, "masked_remote_address=192.0.2.0/24", 3), 3);
    assert_eq!(admitted_count(&desk, "regex=1", 3), 3, "a missing path matches no pattern");
}

#[test]
fn rule_applies_to_proxied_requests_unless_it_reads_descriptors() {
    let desk = fixture(
        r#"
  - { name: both, domain: d, key: client_ip, limit: 2/h }
  - { name: envoy, domain: d, match: { descriptor: { a: "!present" } }, limit: 1/h }
  - { name: key, domain: d, key: { descriptor: a }, on_missing: deny, limit: 1/h }
  - { name: except, domain: d, except: { descriptor: { a: b } }, action: deny }
"#,
    );
    let policy = desk.service.native_policy.as_deref().unwrap();
    let (uri, headers) = (Uri::from_static("/"), HeaderMap::new());
    let peer = [192, 0, 2, 9].into();
    let proxied = identify(&Method::GET, &uri, &headers, peer, &policy.identify, START).unwrap();
    let Selection::Limited(selected, _) = policy.rules.select(&proxied, Headroom::NONE) else { panic!() };
    let rules: Vec<_> = selected.iter().map(|selected| selected.rule).collect();
    assert_eq!(rules, [RuleIndex(0)]);
    assert!(!desk.limiter.check(&[selected[0].check], START).is_rejected());
    assert_eq!(admitted_count(&desk, "remote_address=192.0.2.9,a=b", 3), 1, "both use one counter");
}

#[test]
fn limit_override_replaces_native_rules() {
    let desk = fixture(
        r#"
  - { name: bad, domain: d, match: { descriptor: { a: bad } }, action: deny }
  - { name: one, domain: d, limit: 1/h }
"#,
    );
    let passing = |entries: &str| {
        let ask = || desk.decide("d", vec![with_limit_override(entries, 3, Some(RlsUnit::Hour))]);
        (0..6).filter(|_| ask().overall_code == Code::Ok).count()
    };
    assert_eq!((passing("a=1"), passing("a=bad")), (3, 0));
    assert_eq!(reported_limits(&desk.decide_one("a=1")), [(1, Some(RlsUnit::Hour), "one")]);
}

#[test]
fn yaml_and_native_rules_both_apply_and_the_tighter_limit_is_reported() {
    let desk = fixture(
        r#"
  - { name: low, domain: y, key: { descriptor: a }, limit: 4/h, algorithm: fixed_window }
  - { name: free, domain: y, match: { descriptor: { a: good } }, action: allow }
"#,
    );
    let ask = |entries: &str| desk.decide("y", vec![descriptor(entries)]);
    assert_eq!(reported_limits(&ask("a=1")), [(4, Some(RlsUnit::Hour), "low")]);
    assert_eq!(remaining(&ask("a=1")), [2]);
    assert_eq!(
        reported_limits(&ask("a=good")),
        [(10, Some(RlsUnit::Hour), "")],
        "exempt from native rules only"
    );
    let answers: Vec<_> = (0..4).map(|_| ask("a=1").overall_code).collect();
    assert_eq!(answers, [Code::Ok, Code::Ok, Code::OverLimit, Code::OverLimit]);
    // By default the limits of the reference count rejected requests.
    let answer = desk.decide("y", vec![with_negative_hits("a=1", 4)]);
    assert_eq!(reported_limits(&answer), [(4, Some(RlsUnit::Hour), "low")]);
    assert_eq!(remaining(&answer), [4]);
    let answers: Vec<_> = (0..5).map(|_| ask("a=1").overall_code).collect();
    assert_eq!(answers[..4], [Code::Ok; 4], "two of ten are left, and four were refunded");
    let over = ask("a=1");
    assert_eq!(over.overall_code, Code::OverLimit);
}

#[test]
fn all_or_nothing_counting_spans_yaml_and_native_rules() {
    let settings = RlsSettings {
        counting: Counting::AllOrNothing,
        header_names: Some(HeaderNames::default()),
        ..RlsSettings::default()
    };
    let rules = r#"
  - { name: some, domain: y, match: { descriptor: { b: "*" } }, limit: 3/h, algorithm: fixed_window }
"#;
    let desk = fixture_with_settings(rules, settings);
    let ask = |entries: [&str; 2]| desk.decide("y", entries.map(descriptor).to_vec());
    for _ in 0..3 {
        assert_eq!(ask(["a=1", "b=1"]).overall_code, Code::Ok);
    }
    for _ in 0..5 {
        let answer = ask(["a=1", "b=1"]);
        assert_eq!((codes(&answer), remaining(&answer)), (vec![Code::Ok, Code::OverLimit], vec![7, 0]));
        assert_eq!(answer.headers[0].1, "3", "headers describe the limit that rejects");
    }
    for _ in 0..7 {
        assert_eq!(ask(["a=1", "c=1"]).overall_code, Code::Ok);
    }
    assert_eq!(codes(&ask(["a=1", "c=1"])), [Code::OverLimit, Code::Ok]);
    desk.decide("y", vec![with_negative_hits("b=1", 1)]);
    assert_eq!(ask(["a=1", "b=1"]).overall_code, Code::OverLimit);
    assert_eq!(desk.decide("y", vec![descriptor("b=1")]).overall_code, Code::Ok, "it was not charged");
}

#[test]
fn global_shadow_mode_includes_native_rules() {
    let settings = RlsSettings { shadow_mode: true, ..RlsSettings::default() };
    let desk = fixture_with_settings("  - { name: r, domain: d, limit: 2/h }", settings);
    for _ in 0..2 {
        assert_eq!(codes(&desk.decide_one("a=1")), [Code::Ok]);
    }
    let answer = desk.decide_one("a=1");
    assert_eq!((answer.overall_code, codes(&answer)), (Code::Ok, vec![Code::OverLimit]));
    assert!(answer.stats.global_shadow_mode);
}

#[test]
fn domain_of_native_rules_needs_no_yaml() {
    let mut desk = fixture("  - { name: r, domain: d, limit: 1/h }");
    desk.service.rules = None;
    assert_eq!(admitted_count(&desk, "a=1", 3), 1);
    assert!(
        desk.try_decide(&RlsRequest {
            domain: "z".into(),
            descriptors: vec![descriptor("a=1")],
            hits_addend: 0
        })
        .is_err()
    );
    let answer = desk.decide_one("a=1");
    assert_eq!(answer.stats.domain_not_found, 0);
}

#[test]
fn yaml_and_native_limits_admit_exactly_what_both_admit() {
    let settings = RlsSettings { counting: Counting::AllOrNothing, ..RlsSettings::default() };
    let rules = "  - { name: r, domain: y, key: { descriptor: b }, limit: 6/h, algorithm: fixed_window }";
    for _ in 0..20 {
        let desk = fixture_with_settings(rules, settings.clone());
        let ask = |_: &usize| {
            let both = vec![descriptor("a=1"), descriptor("b=1")];
            desk.decide("y", both).overall_code == Code::Ok
        };
        let passed: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| (0..10_usize).filter(ask).count())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        let look = desk.decide("y", vec![with_hits("a=1", 0), with_hits("b=1", 0)]);
        assert_eq!((passed, remaining(&look)), (6, vec![4, 0]));
    }
}
