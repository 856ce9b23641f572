//! Each algorithm by its name: it admits exactly its count, and further requests when units are available again.

use std::time::Duration;

use crate::support::{Client, Request, Weir, config, fetch, get, wait};

use super::{count_admitted, start_with_rules};

/// Names of algorithms, with the options that change their windows.
const ALGORITHMS: [&str; 8] = [
    "algorithm: gcra",
    "algorithm: token_bucket",
    "algorithm: leaky_bucket",
    "algorithm: fixed_window",
    "algorithm: fixed_window, timezone: Pacific/Kiritimati",
    "algorithm: sliding_window",
    "algorithm: sliding_window, precision: 60",
    "algorithm: sliding_log",
];

#[test]
fn each_algorithm_admits_exactly_its_limit() {
    for algorithm in ALGORITHMS {
        // Periods of a year, since a new window during the test would change the result.
        let weir =
            start_with_rules(&format!("  - {{ name: a, key: [client_ip], limit: 20/year, {algorithm} }}"));
        assert_eq!(count_admitted(&weir, 30, &Request::get("/")), 20, "{algorithm}");
        let answer = get(weir.address(), "/");
        assert_eq!((answer.status, answer.header("x-ratelimit-remaining")), (429, "0"), "{algorithm}");
    }
}

#[test]
fn each_algorithm_replenishes() {
    for algorithm in ALGORITHMS {
        let weir = start_with_rules(&format!("  - {{ name: a, key: [], limit: 3/1s, {algorithm} }}"));
        let mut client = Client::connect(weir.address());
        wait::until_true("the limit to be reached", || client.get("/").status == 429);
        wait::until_true("a free unit", || client.get("/").status == 200);
        wait::until_true("the limit to be reached again", || client.get("/").status == 429);
    }
}

#[test]
fn sliding_log_replenishes_each_unit_separately() {
    let weir = start_with_rules("  - { name: a, key: [], limit: 2/h, algorithm: sliding_log }");
    assert_eq!(get(weir.address(), "/").status, 200);
    wait::pause(Duration::from_millis(1100));
    assert_eq!(get(weir.address(), "/").status, 200);
    let refused = get(weir.address(), "/");
    // An hour after the first request and an hour after the second, both rounded up.
    let seconds = |name| refused.header(name).parse::<u64>().unwrap();
    assert_eq!(refused.status, 429);
    assert!((3595..=3599).contains(&seconds("retry-after")), "{}", seconds("retry-after"));
    assert!(seconds("x-ratelimit-reset") > seconds("retry-after"));
}

#[test]
fn token_bucket_refill_adds_all_tokens_at_once() {
    let weir = start_with_rules("  - { name: a, key: [], token_bucket: { refill: 2, every: 1h }, burst: 4 }");
    assert_eq!(count_admitted(&weir, 6, &Request::get("/")), 4);
    let rejected = get(weir.address(), "/");
    let seconds = |name| rejected.header(name).parse::<u64>().unwrap();
    assert!((3590..=3600).contains(&seconds("retry-after")), "{}", seconds("retry-after"));
    assert!((7190..=7200).contains(&seconds("x-ratelimit-reset")), "{}", seconds("x-ratelimit-reset"));
    assert_eq!(rejected.header("x-ratelimit-limit"), "2, 2;w=3600;name=\"a\"");
    let weir = start_with_rules(
        "  - { name: a, key: [], limits: [1000/d, { token_bucket: { refill: 3, every: 1s }, burst: 3 }] }",
    );
    let mut client = Client::connect(weir.address());
    assert_eq!((0..4).filter(|_| client.get("/").status == 200).count(), 3);
    wait::until_true("the refill", || client.get("/").status == 200);
    let refilled: Vec<_> = (0..2).map(|_| client.get("/").status).collect();
    assert_eq!(refilled, [200, 200], "one refill adds three tokens");
}

#[test]
fn charged_rejections_keep_a_hammering_client_limited() {
    for algorithm in ["fixed_window", "sliding_window", "sliding_log", "gcra"] {
        let rule =
            format!("  - {{ name: a, key: [], limit: 3/1s, algorithm: {algorithm}, on_denied: charge }}");
        let weir = start_with_rules(&rule);
        let mut client = Client::connect(weir.address());
        let begun = wait::now();
        while begun.elapsed() < Duration::from_secs(2) {
            client.get("/");
        }
        while begun.elapsed() < Duration::from_secs(5) {
            assert_eq!(client.get("/").status, 429, "{algorithm} after {:?}", begun.elapsed());
        }
    }
}

#[test]
fn daily_window_ends_at_midnight_of_its_timezone() {
    let reset = |zone: &str| {
        let weir = start_with_rules(&format!(
            "  - {{ name: a, key: [], limit: 5/d, algorithm: fixed_window, timezone: {zone} }}"
        ));
        get(weir.address(), "/").header("x-ratelimit-reset").parse::<i64>().unwrap()
    };
    // Neither time zone has daylight saving time. They differ by five hours and three quarters, modulo a day.
    let apart = (reset("UTC") - reset("Asia/Kathmandu")).rem_euclid(86_400);
    assert!((apart - 20_700).abs() <= 60, "{apart}");
}

/// Starts a proxy whose only counter has been charged ten units of `limit`, and reloads it with `then`.
fn start_and_change_limit(algorithm: &str, on_change: &str, limit: &str, then: &str) -> Weir {
    let rules = |limit: &str| {
        format!("rules: [{{ name: a, key: [], limit: {limit}, {algorithm}, on_change: {on_change} }}]")
    };
    let weir = Weir::start(&config("echo", &rules(limit)));
    let mut client = Client::connect(weir.address());
    (0..10).for_each(|_| assert_eq!(client.get("/").status, 200));
    weir.reload(&config("echo", &rules(then)));
    weir
}

#[test]
fn on_change_decides_what_a_changed_limit_does_to_counters() {
    for algorithm in ["algorithm: gcra", "algorithm: fixed_window", "algorithm: sliding_log"] {
        for (on_change, left) in [("keep", "29"), ("proportional", "19"), ("reset", "39")] {
            let weir = start_and_change_limit(algorithm, on_change, "20/year", "40/year");
            let answer = fetch(weir.address(), &Request::get("/"));
            assert_eq!(answer.header("x-ratelimit-remaining"), left, "{algorithm} {on_change}");
        }
    }
}
