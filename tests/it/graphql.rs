//! The cost of GraphQL requests by their complexity.

use serde_json::json;

use crate::support::h2::H2Client;
use crate::support::{Client, Origin, Request, Weir, config, config_with};

/// A thousand units a day. The second rule has other settings.
const RULES: &str = "\
rules:
  - { name: graphql, match: { path: /graphql }, limit: 1000/d, algorithm: fixed_window, cost: { graphql: complexity, default: 7, max: 400, depth: 4 } }
  - { name: other, match: { path: /other }, limit: 1000/d, algorithm: fixed_window, cost: { graphql: complexity, lists: size } }
";

fn start() -> Weir {
    Weir::start(&config("echo", RULES))
}

#[expect(clippy::needless_pass_by_value, reason = "every caller builds the body in place")]
fn post(target: &str, body: impl ToString) -> Request {
    Request::post(target, body.to_string()).header("content-type", "application/json")
}

fn query(text: &str) -> Request {
    post("/graphql", json!({ "query": text }))
}

fn status(weir: &Weir, request: &Request) -> u16 {
    Client::connect(weir.address()).fetch(request).status
}

/// Returns the units that the requests cost, one after the other.
fn costs<'r>(weir: &Weir, requests: impl IntoIterator<Item = &'r Request>) -> Vec<u32> {
    let mut before = 1000;
    let mut cost = |request: &Request| {
        let response = Client::connect(weir.address()).fetch(request);
        assert_eq!(response.status, 200, "{request:?}: {}", response.body.text());
        let remaining = response.header("x-ratelimit-remaining").parse().unwrap();
        std::mem::replace(&mut before, remaining) - remaining
    };
    requests.into_iter().map(&mut cost).collect()
}

#[test]
fn requests_cost_their_fields_times_the_elements_of_lists() {
    let weir = start();
    let variables = |value: u32| {
        post(
            "/graphql",
            json!({ "query": "query Q($n: Int) { users(first: $n) { name } }", "variables": { "n": value } }),
        )
    };
    let named = post("/graphql", json!({ "query": "query A { a } query B { a b c }", "operationName": "B" }));
    let batch = post("/graphql", json!([{ "query": "{ a b }" }, { "query": "{ c }" }]));
    let requests = [
        query("{ me { name } }"),
        query("{ users(first: 20) { name email } }"),
        query("{ ...F } fragment F on User { a b c }"),
        variables(30),
        named,
        batch,
        post("/graphql", json!({ "extensions": { "persistedQuery": { "sha256Hash": "x" } } })),
        query("{ users(first: 1000) { name } }"),
    ];
    assert_eq!(costs(&weir, &requests), [2, 41, 3, 31, 3, 3, 7, 400]);
    assert_eq!(status(&weir, &query("{ users(first: 1000) { posts(last: 1000) { id } } }")), 200);
    assert_eq!(status(&weir, &query("{ users(first: 1000) { name } }")), 429);
    assert_eq!(status(&weir, &query("{ me { name } }")), 200);
}

#[test]
fn requests_by_url_cost_the_same() {
    let weir = start();
    let gets = [
        Request::get("/graphql?query=%7B+users(first:10)+%7B+name+%7D+%7D"),
        Request::get("/graphql?query=query($n:Int)%7Busers(first:$n)%7Bname%7D%7D&variables=%7B%22n%22:3%7D"),
        Request::get("/graphql"),
        Request::get("/graphql?other=1"),
        post("/graphql?operationName=B", json!({ "query": "query A { a } query B { b c }" })),
    ];
    assert_eq!(costs(&weir, &gets), [11, 4, 7, 7, 2]);
}

/// Requests of which services execute different documents, or none.
fn evasions() -> Vec<(&'static str, Request)> {
    let expensive = "{ users(first: 100) { name } }";
    vec![
        ("no GraphQL", query("nonsense")),
        ("no JSON", post("/graphql", "nonsense")),
        ("two documents", post("/graphql", format!("{{\"query\":\"{{ a }}\",\"query\":\"{expensive}\"}}"))),
        ("in another case", post("/graphql", json!({ "query": "{ a }", "Query": expensive }))),
        ("another in the URL", post("/graphql?query=%7Busers%7D", json!({ "query": "{ a }" }))),
        ("two in the URL", Request::get("/graphql?query=%7Ba%7D&query=%7Bb%7D")),
        (
            "variables in the URL",
            post(
                "/graphql?variables=%7B%22n%22:1%7D",
                json!({ "query": "query($n: Int = 100) { a(first: $n) { b } }" }),
            ),
        ),
        ("no name of two operations", query("query A { a } query B { users(first: 100) { name } }")),
        ("an unknown name", post("/graphql", json!({ "query": "query A { a }", "operationName": "B" }))),
        ("fragments in a circle", query("{ ...F } fragment F on A { ...F }")),
        ("too deep", query("{ a { a { a { a { a } } } } }")),
        ("too long", query(&format!("{{ {} }}", "a ".repeat(20_000)))),
        (
            "a document as the body",
            Request::post("/graphql", expensive).header("content-type", "application/graphql"),
        ),
        (
            "a form",
            Request::post("/graphql", "query=%7Ba%7D")
                .header("content-type", "application/x-www-form-urlencoded"),
        ),
    ]
}

#[test]
fn no_spelling_evades_the_cost() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), RULES));
    for (what, request) in evasions() {
        assert_eq!(status(&weir, &request), 400, "{what}");
    }
    assert!(origin.requests().is_empty(), "the upstream received {:#?}", origin.requests());
    let count = |reason| weir.metric("weir_unreadable_bodies_total", &[("reason", reason)]);
    assert_eq!((count("graphql"), count("graphql_too_large")), (4.0, 2.0));
}

#[test]
fn unreadable_requests_may_cost_the_default() {
    let weir = Weir::start(&config("echo", &format!("bodies: {{ on_unreadable: missing }}\n{RULES}")));
    let requests =
        [query("nonsense"), query("{ a { a { a { a { a } } } } }"), Request::get("/graphql?query=x")];
    assert_eq!(costs(&weir, &requests), [7, 7, 7]);
}

#[test]
fn rules_have_their_own_names_of_lists() {
    let weir = start();
    let sized = post("/other", json!({ "query": "{ a(size: 10, first: 99) { b { c { d { e } } } } }" }));
    assert_eq!(costs(&weir, [&sized]), [41]);
}

#[test]
fn requests_of_http2_without_a_body_are_measured() {
    let weir = Weir::start(&config_with("{ address: 127.0.0.1:0 }", "echo", RULES));
    let mut client = H2Client::connect(weir.address());
    let request = client.request("GET", "/graphql?query=%7Ba%20b%20c%7D");
    assert_eq!(client.fetch(request).header("x-ratelimit-remaining"), "997");
}

#[test]
fn replies_explain_themselves() {
    let weir = start();
    let reply = Client::connect(weir.address()).fetch(&query("nonsense"));
    assert_eq!(reply.body.text(), "bad request: no valid GraphQL operation\n");
    let explained = weir.admin_json(
        "/explain?method=POST&path=/graphql&header.content-type=application/json&body=%7B%22query%22:%22%7Ba(first:9)%7Bb%7D%7D%22%7D",
    );
    assert_eq!(explained["rules"][0]["limits"][0]["cost"], 10, "{explained:#}");
    let by_url = weir.admin_json("/explain?path=/graphql%3Fquery%3D%257Ba%2520b%257D");
    assert_eq!(by_url["rules"][0]["limits"][0]["cost"], 2, "{by_url:#}");
}
