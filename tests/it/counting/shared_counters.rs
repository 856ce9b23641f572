//! Several rules that share one counter.

use super::scripted_upstream;
use crate::support::{Origin, Request, Response, Weir, config, fetch};

/// Starts a proxy with these rules.
fn start_with_rules(origin: &Origin, rules: &[&str]) -> Weir {
    Weir::start(&config_with_rules(origin, rules))
}

fn config_with_rules(origin: &Origin, rules: &[&str]) -> String {
    let rules: String = rules.iter().map(|rule| format!("  - {rule}\n")).collect();
    config(origin.address(), &format!("ietf_headers: true\nrules:\n{rules}"))
}

fn get_keyed(weir: &Weir, path: &str) -> Response {
    fetch(weir.address(), &Request::get(path).header("x-key", "7"))
}

fn statuses(weir: &Weir, paths: &[&str]) -> Vec<u16> {
    paths.iter().map(|path| get_keyed(weir, path).status).collect()
}

const LIMIT: &str = "key: { header: x-key }, limit: 100/year, algorithm: fixed_window, counter: budget";

#[test]
fn rules_with_different_costs_share_one_counter() {
    let origin = scripted_upstream();
    let exports = format!("{{ name: exports, match: {{ path: /200 }}, cost: 50, {LIMIT} }}");
    let rest = format!("{{ name: rest, except: {{ path: /200 }}, {LIMIT} }}");
    let weir = start_with_rules(&origin, &[&exports, &rest]);
    assert_eq!(statuses(&weir, &["/200", "/201"]), [200, 201]);
    // 49 units are left.
    assert_eq!(statuses(&weir, &["/200"]), [429]);
    assert_eq!(statuses(&weir, &["/201"; 49]), [201; 49]);
    let rejected = get_keyed(&weir, "/201");
    assert_eq!((rejected.status, rejected.numeric_header("x-ratelimit-remaining")), (429, 0));
    let decisions =
        |rule, outcome| weir.metric("weir_decisions_total", &[("rule", rule), ("outcome", outcome)]);
    assert_eq!((decisions("exports", "allowed"), decisions("exports", "limited")), (1.0, 1.0));
    assert_eq!((decisions("rest", "allowed"), decisions("rest", "limited")), (50.0, 1.0));
    // Another client has a counter of its own.
    assert_eq!(fetch(weir.address(), &Request::get("/200").header("x-key", "8")).status, 200);
    let shown = weir.admin_json("/limits");
    assert_eq!([&shown["rules"][0]["counter"], &shown["rules"][1]["counter"]], ["budget", "budget"]);
    assert_eq!(shown["table"]["live"], 2);
}

#[test]
fn rate_limit_headers_list_a_shared_counter_once_by_name() {
    let origin = scripted_upstream();
    let surcharge = format!("{{ name: surcharge, match: {{ path: /200 }}, cost: 49, {LIMIT} }}");
    let all = format!("{{ name: all, {LIMIT} }}");
    let weir = start_with_rules(&origin, &[&surcharge, &all]);
    // Both rules match, and each charges its cost.
    let both = get_keyed(&weir, "/200");
    assert_eq!(both.head.get("x-ratelimit-limit").unwrap(), "100, 100;w=31536000;name=\"budget\"");
    assert_eq!(both.numeric_header("x-ratelimit-remaining"), 50);
    let members = both.head.get("ratelimit-policy").unwrap().matches("budget").count();
    assert_eq!(members, 1, "{:?}", both.head);
    assert_eq!(get_keyed(&weir, "/201").numeric_header("x-ratelimit-remaining"), 49);
    let rejected = get_keyed(&weir, "/200");
    assert_eq!((rejected.status, rejected.numeric_header("x-ratelimit-remaining")), (429, 49), "not charged");
}

#[test]
fn rate_limit_headers_include_the_cost_from_the_response() {
    let origin = scripted_upstream();
    let tokens = format!(
        "{{ name: tokens, match: {{ path: /200 }}, cost: {{ response_header: x-tokens, max: 90 }}, {LIMIT} }}"
    );
    let all = format!("{{ name: all, {LIMIT} }}");
    let weir = start_with_rules(&origin, &[&tokens, &all]);
    let request = Request::get("/200").header("x-key", "7").header("x-answer", "x-tokens: 40");
    assert_eq!(fetch(weir.address(), &request).numeric_header("x-ratelimit-remaining"), 59);
    assert_eq!(get_keyed(&weir, "/201").numeric_header("x-ratelimit-remaining"), 58);
}

#[test]
fn counter_defaults_to_the_rule_name_and_survives_splitting_the_rule() {
    let origin = scripted_upstream();
    let rule = |name: &str, path: &str, more: &str| {
        format!(
            "{{ name: {name}, match: {{ path: {path} }}, key: {{ header: x-key }}, limit: 4/year, algorithm: fixed_window{more} }}"
        )
    };
    let weir = start_with_rules(&origin, &[&rule("api", "[/200, /201]", "")]);
    assert_eq!(statuses(&weir, &["/200", "/201"]), [200, 201]);
    weir.reload(&config_with_rules(
        &origin,
        &[&rule("api", "/201", ""), &rule("exports", "/200", ", counter: api")],
    ));
    assert_eq!(statuses(&weir, &["/200", "/201", "/200", "/201"]), [200, 201, 429, 429]);
    weir.reload(&config_with_rules(&origin, &[&rule("all", "[/200, /201]", ", counter: api")]));
    assert_eq!(statuses(&weir, &["/200", "/201"]), [429, 429]);
}

#[test]
fn reservation_applies_to_every_rule_of_the_counter() {
    let origin = Origin::start(|turn| {
        if turn.head.word(1) == "/tokens" {
            turn.wire.drain();
        }
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        Ok(crate::support::AfterResponse::Keep)
    });
    let limit = "key: { header: x-key }, limit: 10/year, algorithm: fixed_window, counter: tokens";
    let tokens = format!(
        "{{ name: tokens, match: {{ path: /tokens }}, cost: {{ response_header: x-tokens, estimate: 7, max: 100 }}, {limit} }}"
    );
    let rest = format!("{{ name: rest, except: {{ path: /tokens }}, {limit} }}");
    let weir = start_with_rules(&origin, &[&tokens, &rest]);
    let client = crate::support::Client::connect(weir.address());
    client.send(Request::get("/tokens").header("x-key", "7").to_bytes());
    crate::support::wait::until_true("the request", || origin.requests().len() == 1);
    assert_eq!(statuses(&weir, &["/"; 4]), [200, 200, 200, 429]);
}

#[test]
fn permits_are_shared_and_bans_are_not() {
    let origin = Origin::start(|turn| {
        if turn.head.word(1) == "/slow" {
            turn.wire.drain();
        }
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        Ok(crate::support::AfterResponse::Keep)
    });
    let rule = |name: &str, path: &str| {
        format!(
            "{{ name: {name}, match: {{ path: {path} }}, key: {{ header: x-key }}, in_flight: 1, counter: heavy }}"
        )
    };
    let weir = start_with_rules(&origin, &[&rule("exports", "/slow"), &rule("reports", "/reports")]);
    let client = crate::support::Client::connect(weir.address());
    client.send(Request::get("/slow").header("x-key", "7").to_bytes());
    crate::support::wait::until_true("the request", || origin.requests().len() == 1);
    assert_eq!(statuses(&weir, &["/reports"]), [429]);
    drop(client);
    crate::support::wait::until_true("the permit", || statuses(&weir, &["/reports"]) == [200]);

    let origin = scripted_upstream();
    let rule = |name: &str, path: &str, more: &str| {
        format!(
            "{{ name: {name}, match: {{ path: {path} }}, cost: 2, key: {{ header: x-key }}, limit: 3/s, burst: 3, counter: c{more} }}"
        )
    };
    let banning = rule("banning", "/200", ", on_limit: { ban: 1h }");
    let weir = start_with_rules(&origin, &[&banning, &rule("other", "/201", "")]);
    crate::support::wait::until_true("the ban", || statuses(&weir, &["/200"]) == [429]);
    crate::support::wait::until_true("a refund", || statuses(&weir, &["/201"]) == [201]);
    assert!(get_keyed(&weir, "/200").numeric_header("retry-after") > 3000);
}
