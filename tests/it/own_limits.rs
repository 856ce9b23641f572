//! Callers read their own limits at `quota.path` of a listener.

use serde_json::Value;

use crate::support::{Request, Response, Weir, fetch};

const RULES: &str = "
rules:
  - { name: per-key, key: [{ header: x-key }], limit: 5/h }
  - { name: searches, match: { path: '/search/*', method: POST }, key: [client_ip], limit: 2/h }
  - { name: others, match: { header: { x-key: other } }, limit: 9/h }
  - { name: dry, key: client_ip, limit: 3/h, throttle: shadow }
  - { name: at-once, key: [{ header: x-key }], in_flight: 4 }
  - { name: blocked, match: { header: { x-key: blocked } }, action: deny }
";

fn start(quota: &str, rules: &str) -> Weir {
    Weir::start(&format!(
        "listeners: {{ address: '127.0.0.1:0', quota: {quota} }}\nadmin: 127.0.0.1:0\nupstream: echo\n{rules}"
    ))
}

fn read(weir: &Weir, key: &str) -> Response {
    fetch(weir.address(), &Request::get("/rate_limit").header("x-key", key))
}

/// Returns what is left of each limit, by its rule.
fn left(response: &Response) -> Vec<(String, u64)> {
    let body: Value = serde_json::from_slice(&response.body.bytes).unwrap();
    let limits = body["limits"].as_array().unwrap().iter();
    limits
        .map(|limit| (limit["rule"].as_str().unwrap().to_owned(), limit["remaining"].as_u64().unwrap()))
        .collect()
}

fn expected(left: &[(&str, u64)]) -> Vec<(String, u64)> {
    left.iter().map(|(rule, left)| ((*rule).to_owned(), *left)).collect()
}

#[test]
fn own_limits_are_shown_and_not_charged() {
    let weir = start("{ path: /rate_limit }", RULES);
    for _ in 0..2 {
        assert_eq!(fetch(weir.address(), &Request::get("/a").header("x-key", "a")).status, 200);
    }
    assert_eq!(fetch(weir.address(), &Request::post("/search/x", "").header("x-key", "b")).status, 200);
    for _ in 0..3 {
        let response = read(&weir, "a");
        assert_eq!((response.status, response.header("content-type")), (200, "application/json"));
        assert_eq!(response.header("cache-control"), "no-store");
        assert_eq!(left(&response), expected(&[("per-key", 3), ("searches", 1), ("at-once", 4)]));
    }
    assert_eq!(
        left(&read(&weir, "other")),
        expected(&[("per-key", 5), ("searches", 1), ("others", 9), ("at-once", 4)])
    );
    // The headers are those of the limit of which least is left.
    assert!(read(&weir, "other").header("x-ratelimit-limit").contains("searches"));
}

#[test]
fn own_limits_describe_each_limit() {
    let weir = start("{ path: /rate_limit }", RULES);
    assert_eq!(fetch(weir.address(), &Request::post("/search/x", "").header("x-key", "a")).status, 200);
    let body: Value = serde_json::from_slice(&read(&weir, "a").body.bytes).unwrap();
    let searches = &body["limits"][1];
    assert_eq!(searches["limit"], "2/h");
    assert_eq!((&searches["used"], &searches["unit"]), (&1.into(), &"requests".into()));
    assert_eq!(searches["methods"], serde_json::json!(["POST"]));
    assert_eq!(searches["paths"], serde_json::json!(["/search/*"]));
    assert!((1..=1800).contains(&searches["reset_seconds"].as_u64().unwrap()), "{searches}");
    assert_eq!((&body["complete"], &searches["banned"]), (&true.into(), &false.into()));
}

#[test]
fn own_limits_are_themselves_limited_and_denied() {
    let weir = start("{ path: /rate_limit, limit: 2/h }", RULES);
    assert_eq!(read(&weir, "blocked").status, 403);
    assert_eq!([read(&weir, "a").status, read(&weir, "b").status], [200, 200]);
    let refused = read(&weir, "a");
    assert_eq!((refused.status, refused.header("retry-after").is_empty()), (429, false));
    let other = fetch(weir.address(), &Request::post("/rate_limit", "").header("x-key", "a"));
    assert_eq!((other.status, other.header("allow")), (405, "GET, HEAD"));
    assert_eq!(fetch(weir.address(), &Request::get("/rate_limits").header("x-key", "a")).status, 200);
}

#[test]
fn limits_without_a_counter_are_left_out_and_said_to_be_missing() {
    for rule in [
        "{ name: pages, key: [client_ip, path], limit: 3/h }",
        "{ name: numbers, match: { path: '~^/[0-9]' }, key: client_ip, limit: 3/h }",
    ] {
        let weir = start("{ path: /rate_limit }", &format!("rules:\n  - {rule}\n"));
        let body: Value = serde_json::from_slice(&read(&weir, "a").body.bytes).unwrap();
        assert_eq!(body, serde_json::json!({ "limits": [], "complete": false }));
    }
}

#[test]
fn ban_leaves_nothing_of_a_limit() {
    let rules = "rules:\n  - { name: strict, key: client_ip, limit: 1/h, on_limit: { ban: 10m } }\n";
    let weir = start("{ path: /rate_limit }", rules);
    let statuses = [(); 2].map(|()| fetch(weir.address(), &Request::get("/")).status);
    assert_eq!(statuses, [200, 429]);
    let body: Value = serde_json::from_slice(&read(&weir, "a").body.bytes).unwrap();
    assert_eq!((&body["limits"][0]["banned"], &body["limits"][0]["remaining"]), (&true.into(), &0.into()));
    assert!(body["limits"][0]["reset_seconds"].as_u64().unwrap() > 590);
}
