//! Different values are counted in place of requests.

use serde_json::{Value, json};

use super::start_with_rule;
use crate::support::{Client, Request, Weir, config, fetch};

const BY_ADDRESS: &str = "client_ip: { trusted_proxies: 127.0.0.1 }\nrules:\n";

fn start(rules: &str) -> Weir {
    Weir::start(&config("echo", &format!("{BY_ADDRESS}{rules}")))
}

fn login(username: &str) -> Request {
    let body = json!({ "username": username, "password": "x" }).to_string();
    Request::post("/login", body).header("content-type", "application/json").forwarded_for("203.0.113.1")
}

fn statuses<'r>(weir: &Weir, requests: impl IntoIterator<Item = &'r Request>) -> Vec<u16> {
    let mut client = Client::connect(weir.address());
    requests.into_iter().map(|request| client.fetch(request).status).collect()
}

#[test]
fn an_address_may_try_some_usernames_any_number_of_times() {
    let weir = start(
        "  - { name: stuffing, match: { path: /login }, key: client_ip, distinct: { json: username }, limit: 2/h }\n",
    );
    let tried = ["ann", "bob", "ann", "eve", "bob", "eve"].map(login);
    assert_eq!(statuses(&weir, &tried), [200, 200, 200, 429, 200, 429]);
    let rejected = fetch(weir.address(), &login("eve"));
    assert!(rejected.numeric_header("retry-after") > 0);
    // Another address has tried nothing.
    let other = Request::post("/login", json!({ "username": "eve" }).to_string())
        .header("content-type", "application/json")
        .forwarded_for("203.0.113.2");
    assert_eq!(fetch(weir.address(), &other).status, 200);
    let decisions =
        |outcome| weir.metric("weir_decisions_total", &[("rule", "stuffing"), ("outcome", outcome)]);
    assert_eq!((decisions("allowed"), decisions("limited")), (3.0, 3.0), "known values are not counted");
}

#[test]
fn request_without_a_value_is_treated_as_one_without_a_key() {
    let rule = |rest: &str| {
        start(&format!(
            "  - {{ name: a, key: client_ip, distinct: {{ header: x-user }}, limit: 1/h{rest} }}\n"
        ))
    };
    let [without, ann, bob] = [None, Some("ann"), Some("bob")].map(|user| {
        let request = Request::get("/");
        user.map_or_else(|| Request::get("/"), |user| request.header("x-user", user))
    });
    assert_eq!(statuses(&rule(""), [&ann, &without, &bob, &without]), [200, 200, 429, 200]);
    assert_eq!(statuses(&rule(", on_missing: deny"), [&without, &ann]), [403, 200]);
    assert_eq!(statuses(&rule(", on_missing: shared"), [&without, &without, &ann]), [200, 200, 200]);
}

#[test]
fn only_failed_logins_count_if_the_response_decides() {
    let origin = super::scripted_upstream();
    let weir = start_with_rule(
        &origin,
        "{ name: a, key: [], distinct: { header: x-user }, limit: 1/h, count: { response_status: 401 } }",
    );
    let attempt = |path: &str, user: &str| Request::get(path).header("x-user", user);
    let requests = [
        attempt("/200", "ann"),
        attempt("/401", "bob"),
        attempt("/401", "bob"),
        attempt("/200", "eve"),
        attempt("/200", "bob"),
    ];
    assert_eq!(statuses(&weir, &requests), [200, 401, 401, 429, 200]);
}

#[test]
fn value_whose_first_request_is_still_open_is_not_known() {
    let origin = super::scripted_upstream();
    let weir = start_with_rule(
        &origin,
        "{ name: a, key: [], distinct: { header: x-user }, limit: 2/h, count: { response_status: 401 } }",
    );
    let attempt = |path: &str, user: &str| Request::get(path).header("x-user", user);
    // The first of two requests at once does not count, the second does.
    let mut first = Client::connect(weir.address());
    first.send(attempt("/late", "ann").to_bytes());
    origin.until_request("the first one", |request| request.head.word(1) == "/late");
    assert_eq!(fetch(weir.address(), &attempt("/401", "ann")).status, 401);
    assert_ne!(first.read_response("GET").status, 401);
    assert_eq!(fetch(weir.address(), &attempt("/401", "bob")).status, 401);
    assert_eq!(fetch(weir.address(), &attempt("/401", "eve")).status, 429, "`ann` has been counted");
}

#[test]
fn values_of_a_batch_are_counted_together() {
    let weir = start("  - { name: a, key: [], distinct: { json: username }, limit: 3/h }\n");
    let batch = |names: &[&str]| {
        let elements: Vec<Value> = names.iter().map(|name| json!({ "username": name })).collect();
        Request::post("/", json!(elements).to_string()).header("content-type", "application/json")
    };
    let requests =
        [batch(&["ann", "bob", "ann"]), batch(&["eve", "dan"]), batch(&["ann", "eve"]), batch(&["dan"])];
    assert_eq!(statuses(&weir, &requests), [200, 429, 200, 429]);
}

#[test]
fn explanation_says_that_a_value_is_known() {
    let weir = start("  - { name: a, key: [], distinct: { header: x-user }, limit: 1/h }\n");
    assert_eq!(fetch(weir.address(), &Request::get("/").header("x-user", "ann")).status, 200);
    let explain =
        |user: &str| weir.admin_json(&format!("/explain?path=/&host=a.example&header.x-user={user}"));
    let known = explain("ann");
    let note = known["rules"][0]["note"].as_str().unwrap();
    assert!(note.contains("has been counted before"), "{known:#}");
    assert_eq!(explain("bob")["outcome"], "limited");
}
