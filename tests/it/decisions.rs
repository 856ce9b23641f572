//! Listeners that decide for another proxy (`decide`): what they read, what they send, and which peers they trust.

mod envoy;
mod nginx;
mod rules;

use std::fs;

use crate::support::{Client, Request, Response, Weir, wait};

/// Starts Weir with one listener that decides, and these rules and other settings.
fn start(decide: &str, rest: &str) -> Weir {
    Weir::start(&config(decide, rest))
}

fn config(decide: &str, rest: &str) -> String {
    format!(
        "listeners: [{{ name: asked, address: 127.0.0.1:0, decide: {decide} }}]\n\
         admin: {{ address: 127.0.0.1:0 }}\nclient_ip: {{ trusted_proxies: [127.0.0.1] }}\n{rest}\n"
    )
}

/// Returns the configuration of a guide's section, which is in a block of this language.
fn guide_block(heading: &str, language: &str) -> &'static str {
    let page = include_str!("../../docs/guides/decide-for-another-proxy.md");
    let section = page.split("\n## ").find(|section| section.lines().next() == Some(heading)).unwrap();
    let block = section.split(&format!("```{language}\n")).nth(1).unwrap();
    block.split("```").next().unwrap()
}

/// Returns a request as Traefik sends it.
fn forward_auth(client: &str, method: &str, host: &str, uri: &str) -> Request {
    Request::get("/")
        .host("weir.internal")
        .forwarded_for(client)
        .header("x-forwarded-method", method)
        .header("x-forwarded-proto", "https")
        .header("x-forwarded-host", host)
        .header("x-forwarded-uri", uri)
}

/// Returns a request as nginx sends it.
fn auth_request(client: &str, method: &str, host: &str, uri: &str) -> Request {
    Request::get("/weir")
        .host(host)
        .forwarded_for(client)
        .header("x-original-method", method)
        .header("x-original-uri", uri)
}

const LIMITS: &str = r#"
rules:
  - name: writes
    match: { path: /api/*, method: POST, host: shop.test }
    key: [client_ip]
    limit: 2/h
    on_limit: { body: { json: { error: "slow down", path: "{path}" } }, headers: { x-by: "{rule}" } }
  - name: closed
    match: { path: /closed }
    action: deny
    on_limit: { status: 503, body: { text: "back at noon" }, headers: { retry-after: "600" } }
"#;

fn fetch_all(weir: &Weir, requests: &[Request]) -> Vec<Response> {
    let mut client = Client::connect(weir.address());
    requests.iter().map(|request| client.fetch(request)).collect()
}

#[test]
fn forward_auth_admits_with_headers_and_rejects_with_the_local_reply() {
    let weir = start("forward_auth", LIMITS);
    let post = forward_auth("192.0.2.1", "POST", "shop.test", "/api/orders?a=b");
    let responses = fetch_all(&weir, &[post.clone(), post.clone(), post]);
    assert_eq!((responses[0].status, responses[0].numeric_header("x-ratelimit-remaining")), (200, 1));
    assert_eq!(responses[0].body.text(), "");
    let rejected = &responses[2];
    assert_eq!((rejected.status, rejected.header("x-envoy-ratelimited")), (429, "true"));
    assert!((1..=3600).contains(&rejected.numeric_header("retry-after")));
    assert_eq!((rejected.header("x-by"), rejected.header("content-type")), ("writes", "application/json"));
    assert!(rejected.body.text().contains(r#""path":"/api/orders""#), "{}", rejected.body.text());
    let others = [
        forward_auth("192.0.2.2", "POST", "shop.test", "/api/orders"),
        forward_auth("192.0.2.1", "GET", "shop.test", "/api/orders"),
        forward_auth("192.0.2.1", "POST", "other.test", "/api/orders"),
        forward_auth("192.0.2.1", "POST", "shop.test", "/other"),
    ];
    assert!(fetch_all(&weir, &others).iter().all(|response| response.status == 200));
    let closed = &fetch_all(&weir, &[forward_auth("192.0.2.1", "GET", "shop.test", "/closed")])[0];
    assert_eq!((closed.status, closed.header("retry-after")), (503, "600"));
    assert_eq!(closed.body.text(), "back at noon");
}

#[test]
fn auth_request_rejects_with_403_and_the_status_for_the_client() {
    let weir = start("auth_request", LIMITS);
    let post = auth_request("192.0.2.1", "POST", "shop.test", "/api/orders");
    let by_url = auth_request("192.0.2.1", "POST", "weir.internal", "https://shop.test/api/orders");
    let responses = fetch_all(&weir, &[post.clone(), by_url, post]);
    assert_eq!((responses[0].status, responses[1].status), (200, 200));
    let rejected = &responses[2];
    assert_eq!((rejected.status, rejected.header("x-weir-status")), (403, "429"));
    assert!((1..=3600).contains(&rejected.numeric_header("retry-after")));
    let denied = &fetch_all(&weir, &[auth_request("192.0.2.1", "GET", "shop.test", "/closed")])[0];
    assert_eq!((denied.status, denied.header("x-weir-status")), (403, "503"));
    let malformed = &fetch_all(&weir, &[auth_request("192.0.2.1", "TRACE", "shop.test", "/")])[0];
    assert_eq!((malformed.status, malformed.header("x-weir-status")), (403, "405"), "of the client");
}

#[test]
fn requests_that_do_not_say_what_to_decide_get_an_explanation() {
    let weir = start("auth_request", LIMITS);
    let refused = |request: Request| {
        let response = &fetch_all(&weir, &[request])[0];
        (response.status, response.body.text())
    };
    let whole = || Request::get("/").host("a.test");
    let missing = |name: &str| (400, format!("missing header {name}: the proxy that asks must set it\n"));
    assert_eq!(refused(whole()), missing("x-original-method"));
    assert_eq!(refused(whole().header("x-original-method", "GET")), missing("x-original-uri"));
    let unnamed = whole().header("x-original-method", "GET").header("x-original-uri", "/");
    assert_eq!(refused(unnamed), missing("x-forwarded-for"));
    let invalid = auth_request("192.0.2.1", "GET", "a.test", "no path");
    assert_eq!(refused(invalid), (400, "invalid value of header x-original-uri\n".to_owned()));
    let twice = auth_request("192.0.2.1", "GET", "a.test", "/").header("x-original-uri", "/other");
    assert_eq!(refused(twice).0, 400);
    let warnings = || weir.log().iter().filter(|line| line.contains("no decision for another proxy")).count();
    assert_eq!(warnings(), 1, "at each tenfold");
}

#[test]
fn untrusted_peer_gets_no_decision() {
    for (decide, request) in [
        ("forward_auth", forward_auth("192.0.2.1", "POST", "shop.test", "/api/orders")),
        ("auth_request", auth_request("192.0.2.1", "POST", "shop.test", "/api/orders")),
        ("ext_authz", Request::post("/api/orders", "").host("shop.test").forwarded_for("192.0.2.1")),
    ] {
        let weir = start(decide, LIMITS);
        let mut stranger = Client::connect_from("127.0.0.2", weir.address());
        for _ in 0..3 {
            let response = stranger.fetch(&request);
            assert_eq!(response.status, 403, "{decide}");
            assert_eq!(response.body.text(), "this peer is not in client_ip.trusted_proxies\n");
            assert!(response.head.get("x-ratelimit-remaining").is_none());
        }
        let first = &fetch_all(&weir, &[request])[0];
        assert_eq!((first.status, first.numeric_header("x-ratelimit-remaining")), (200, 1), "{decide}");
    }
}

#[test]
fn decisions_are_counted_and_logged_as_the_requests() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("access.log");
    let weir = start("auth_request", &format!("access_log: {}\n{LIMITS}", file.display()));
    let post = auth_request("192.0.2.1", "POST", "shop.test", "/api/orders?x");
    fetch_all(&weir, &[post.clone(), post.clone(), post]);
    let listener = ("listener", "asked");
    assert_eq!(weir.metric("weir_requests_total", &[listener, ("code_class", "2xx")]), 2.0);
    assert_eq!(weir.metric("weir_requests_total", &[listener, ("code_class", "4xx")]), 1.0);
    assert_eq!(weir.metric("weir_decisions_total", &[("rule", "writes"), ("outcome", "limited")]), 1.0);
    let top = weir.admin_json("/limits/top?rule=writes&n=1").to_string();
    assert!(top.contains("192.0.2.1"), "{top}");
    let logged = || {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let lines: Vec<_> = text.lines().map(str::to_owned).collect();
        (lines.len() == 3).then_some(lines)
    };
    let lines = wait::until("the access log", logged);
    assert!(lines[2].contains("\"POST /api/orders?x HTTP/1.1\" 429 RL "), "{}", lines[2]);
}

#[test]
fn delay_holds_the_decision_back() {
    let rules = "rules: [{ name: slow, limit: 1/200ms, burst: 1, throttle: { delay: 10s } }]";
    let weir = start("forward_auth", rules);
    let ask = forward_auth("192.0.2.1", "GET", "a.test", "/");
    assert!(fetch_all(&weir, &[ask.clone(), ask.clone(), ask]).iter().all(|response| response.status == 200));
    assert_eq!(weir.metric("weir_decisions_total", &[("rule", "slow"), ("outcome", "delayed")]), 2.0);
}
