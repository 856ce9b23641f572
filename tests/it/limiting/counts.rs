//! Exact counts: a rule admits precisely as many requests as its limit.

use crate::support::{Client, Request, get, run_concurrently, wait};

use super::{count_admitted, start_with_rules, start_with_settings};

const CONNECTIONS: usize = 8;
const REQUESTS_PER_CONNECTION: usize = 125;

/// Checks that of 1000 requests, over eight connections and two workers, exactly 100 are admitted.
fn assert_exactly_100_admitted(rule: &str) {
    let weir = start_with_settings("workers: 2", rule);
    let passed: Vec<_> = run_concurrently(CONNECTIONS, |_| {
        let mut client = Client::connect(weir.address());
        let statuses: Vec<_> = (0..REQUESTS_PER_CONNECTION).map(|_| client.get("/").status).collect();
        assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
        statuses.iter().filter(|status| **status == 200).count()
    });
    assert_eq!(passed.iter().sum::<usize>(), 100, "{passed:?}");
    let decided = |outcome| weir.metric("weir_decisions_total", &[("rule", "all"), ("outcome", outcome)]);
    assert_eq!((decided("allowed"), decided("limited")), (100.0, 900.0));
}

#[test]
fn gcra_admits_exactly_its_burst_under_concurrency() {
    assert_exactly_100_admitted("  - { name: all, key: [], limit: 100/d }");
}

#[test]
fn fixed_window_admits_exactly_its_limit_under_concurrency() {
    // With a period of a year, only a run across New Year would see two windows.
    assert_exactly_100_admitted("  - { name: all, key: [], limit: 100/year, algorithm: fixed_window }");
}

#[test]
fn token_bucket_admits_exactly_its_burst_under_concurrency() {
    assert_exactly_100_admitted("  - { name: all, key: [client_ip], limit: 100/d, algorithm: token_bucket }");
}

#[test]
fn clients_are_counted_apart() {
    let weir = start_with_rules("  - { name: per-ip, key: [client_ip], limit: 10/d }");
    let passed = run_concurrently(4, |n| {
        count_admitted(&weir, 15, &Request::get("/").forwarded_for(&format!("192.0.2.{n}")))
    });
    assert_eq!(passed, [10, 10, 10, 10]);
}

#[test]
fn burst_is_the_maximum_admitted_at_once() {
    let weir = start_with_rules("  - { name: a, key: [], limit: 10/d, burst: 3 }");
    assert_eq!(count_admitted(&weir, 6, &Request::get("/")), 3);
    let weir = start_with_rules("  - { name: a, key: [], limit: 2/d, burst: 5 }");
    assert_eq!(count_admitted(&weir, 8, &Request::get("/")), 5);
}

#[test]
fn cost_is_charged_per_request() {
    let weir = start_with_rules("  - { name: a, key: [], limit: 10/d, cost: 4 }");
    assert_eq!(count_admitted(&weir, 5, &Request::get("/")), 2);
}

#[test]
fn all_limits_of_a_rule_must_admit() {
    let weir = start_with_rules("  - { name: a, key: [], limits: [100/d, { limit: 10/d, burst: 4 }] }");
    assert_eq!(count_admitted(&weir, 10, &Request::get("/")), 4);
}

#[test]
fn limit_notations_are_equivalent() {
    for limit in ["3 per day", "3/day", "3/1d"] {
        let weir = start_with_rules(&format!("  - {{ name: a, key: [], limit: {limit} }}"));
        assert_eq!(count_admitted(&weir, 5, &Request::get("/")), 3, "{limit}");
    }
}

#[test]
fn request_rejected_by_one_rule_is_not_charged_to_another() {
    let rules = "  - { name: tight, key: [], limit: 2/d }\n  - { name: wide, key: [], limit: 100/d }";
    let weir = start_with_settings("ietf_headers: true", rules);
    assert_eq!(count_admitted(&weir, 12, &Request::get("/")), 2);
    let refused = get(weir.address(), "/");
    assert!(refused.header("ratelimit").contains("\"wide\";r=98;"), "{}", refused.header("ratelimit"));
}

#[test]
fn request_rejected_by_one_limit_is_not_charged_to_its_siblings() {
    let weir = start_with_settings("ietf_headers: true", "  - { name: a, key: [], limits: [2/d, 100/w] }");
    assert_eq!(count_admitted(&weir, 12, &Request::get("/")), 2);
    let refused = get(weir.address(), "/");
    assert!(refused.header("ratelimit").contains("r=98;"), "{}", refused.header("ratelimit"));
}

#[test]
fn every_matching_rule_applies() {
    let weir = start_with_rules(
        "  - { name: all, key: [], limit: 5/d }\n  - { name: per-ip, key: [client_ip], limit: 2/d }",
    );
    let passed: Vec<_> = (1..=4)
        .map(|n| count_admitted(&weir, 3, &Request::get("/").forwarded_for(&format!("192.0.2.{n}"))))
        .collect();
    assert_eq!(passed, [2, 2, 1, 0]);
}

#[test]
fn shadow_mode_counts_without_rejecting() {
    let weir = start_with_rules("  - { name: trial, key: [], limit: 2/d, throttle: shadow }");
    assert_eq!(count_admitted(&weir, 10, &Request::get("/")), 10);
    let answer = get(weir.address(), "/");
    for header in ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "retry-after"] {
        assert_eq!(answer.head.get(header), None, "the limit in shadow mode is visible in {header}");
    }
    let shadowed = weir.metric("weir_decisions_total", &[("rule", "trial"), ("outcome", "shadow")]);
    assert_eq!(shadowed, 9.0, "two of eleven requests were within the limit");
}

#[test]
fn shadow_mode_does_not_affect_other_rules() {
    let rules =
        "  - { name: trial, key: [], limit: 1/d, throttle: shadow }\n  - { name: real, key: [], limit: 3/d }";
    let weir = start_with_rules(rules);
    assert_eq!(count_admitted(&weir, 6, &Request::get("/")), 3);
}

#[test]
fn fixed_window_admits_again_in_the_next_window() {
    let weir = start_with_rules("  - { name: a, key: [], limit: 5/1s, algorithm: fixed_window }");
    let mut client = Client::connect(weir.address());
    let status = |client: &mut Client| client.get("/").status;
    for _ in 0..2 {
        wait::until_true("the window to be used up", || status(&mut client) == 429);
        wait::until_true("the next window", || status(&mut client) == 200);
    }
}

#[test]
fn gcra_replenishes_over_time() {
    let weir = start_with_rules("  - { name: a, key: [], limit: 10/s, burst: 2 }");
    let mut client = Client::connect(weir.address());
    for _ in 0..2 {
        wait::until_true("the burst to be used up", || client.get("/").status == 429);
        wait::until_true("the next unit", || client.get("/").status == 200);
    }
}
