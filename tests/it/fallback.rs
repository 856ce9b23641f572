//! Fallback responses for rejected requests: a file, or a stored response to an earlier request.

mod cache_poisoning;

use std::fs;

use crate::support::{AfterResponse, Client, Origin, Request, Weir, config, wait};

const NUMBERED: &str = "content-type: text/css\r\nage: 5";

/// Returns an upstream that responds to its nth request with the number n, and to some paths with further headers.
fn numbered_upstream() -> Origin {
    Origin::start(|turn| {
        turn.body()?;
        let more = match turn.head.word(1) {
            "/with-cookie" => "\r\nset-cookie: a=b",
            "/private" => "\r\ncache-control: private",
            "/public" => "\r\ncache-control: public",
            "/never-stale" => "\r\ncache-control: s-maxage=0",
            _ => "",
        };
        let number = turn.nth.to_string();
        let length = number.len();
        turn.send(format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n{NUMBERED}{more}\r\n\r\n{number}"
        ))?;
        Ok(AfterResponse::Keep)
    })
}

/// Returns a request as a browser sends it, forwarded by a proxy.
fn browser_request(path: &str) -> Request {
    let headers = [
        ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
        ("accept", "text/html,application/xhtml+xml,*/*;q=0.8"),
        ("accept-language", "en-GB,en;q=0.5"),
        ("accept-encoding", "gzip, br"),
        ("referer", "https://example.com/"),
        ("dnt", "1"),
        ("upgrade-insecure-requests", "1"),
        ("sec-fetch-dest", "document"),
        ("sec-fetch-mode", "navigate"),
        ("sec-fetch-site", "same-origin"),
        ("sec-fetch-user", "?1"),
        ("sec-ch-ua-platform", "\"Linux\""),
        ("priority", "u=0, i"),
        ("x-forwarded-for", "192.0.2.1"),
        ("x-forwarded-proto", "https"),
        ("x-request-id", "1"),
    ];
    headers.iter().fold(Request::get(path), |request, (name, value)| request.header(name, value))
}

/// Starts a proxy that trusts the forwarding proxy of [`browser_request`].
fn start_with_fallback(origin: &Origin, limit: &str, on_limit: &str) -> Weir {
    let rule = format!("rules: [{{ name: pages, limit: {limit}, on_limit: {on_limit} }}]");
    Weir::start(&config_behind_proxy(origin, &rule))
}

fn config_behind_proxy(origin: &Origin, rest: &str) -> String {
    config(origin.address(), &format!("client_ip: {{ trusted_proxies: [127.0.0.0/8] }}\n{rest}"))
}

#[test]
fn last_good_response_replaces_a_rejection() {
    let origin = numbered_upstream();
    let weir = start_with_fallback(&origin, "2/d", "{ fallback: { cached: 1MiB } }");
    let mut client = Client::connect(weir.address());
    for path in ["/a", "/b?c=d"] {
        assert_eq!(client.fetch(&browser_request(path)).head.get("warning"), None);
    }
    for (path, body) in [("/a", "0"), ("/b?c=d", "1"), ("/a", "0")] {
        let answer = client.fetch(&browser_request(path));
        assert_eq!((answer.status, &*answer.body.text()), (200, body));
        assert_eq!(answer.header("content-type"), "text/css");
        assert_eq!(answer.header("warning"), "110 - \"Response is Stale\"");
        assert!(answer.numeric_header("age") >= 5 && answer.numeric_header("retry-after") > 0);
        assert_eq!(answer.header("x-envoy-ratelimited"), "true");
        assert_eq!(answer.numeric_header("x-ratelimit-remaining"), 0);
    }
    let head = client.fetch(&browser_request("/a").with_method("HEAD"));
    assert_eq!((head.status, head.numeric_header("content-length"), head.body.length), (200, 1, 0));
    assert_eq!(origin.requests().len(), 2);
    assert!(weir.metric("weir_decisions_total", &[("rule", "pages"), ("outcome", "limited")]) >= 4.0);
}

#[test]
fn cached_response_is_served_only_for_the_same_request() {
    let origin = numbered_upstream();
    let weir = start_with_fallback(&origin, "1/d", "{ fallback: { cached: 1MiB } }");
    let mut client = Client::connect(weir.address());
    assert_eq!(client.get("/a?b=1").status, 200);
    let others = [
        Request::get("/a"),
        Request::get("/a?b=2"),
        Request::get("/a?b=1").host("other.local"),
        Request::post("/a?b=1", "x"),
    ];
    for other in &others {
        assert_eq!(client.fetch(other).status, 429, "{other:?}");
    }
    assert_eq!(client.get("/a?b=1").status, 200);
}

#[test]
fn personal_responses_are_not_served_to_other_clients() {
    let origin = numbered_upstream();
    let personal = [
        browser_request("/1").header("cookie", "me=1"),
        browser_request("/2").header("authorization", "Bearer x"),
        browser_request("/3").header("x-tenant", "a"),
        browser_request("/5").header("x-customer", "a").header("x-account", "a"),
        browser_request("/6").header("x-ms-client-principal-name", "a"),
        browser_request("/with-cookie"),
        browser_request("/private"),
        browser_request("/never-stale"),
    ];
    let weir =
        start_with_fallback(&origin, &format!("{}/d", personal.len() + 1), "{ fallback: { cached: 1MiB } }");
    let mut client = Client::connect(weir.address());
    for request in &personal {
        assert_eq!(client.fetch(request).status, 200);
    }
    assert_eq!(client.fetch(&browser_request("/public").header("x-tenant", "a")).status, 200);
    for path in ["/1", "/2", "/3", "/5", "/6", "/with-cookie", "/private", "/never-stale"] {
        assert_eq!(client.fetch(&browser_request(path)).status, 429, "{path}");
        assert_eq!(client.fetch(&browser_request(path).header("x-tenant", "b")).status, 429, "{path}");
    }
    // The response is marked public, but it may depend on the header that the request has.
    assert_eq!(client.fetch(&browser_request("/public").header("x-tenant", "a")).status, 200);
    assert_eq!(client.fetch(&browser_request("/public").header("x-tenant", "b")).status, 429);
    assert_eq!(client.fetch(&browser_request("/public")).status, 429);
}

#[test]
fn impersonal_responses_are_served_to_all_clients() {
    let origin = numbered_upstream();
    let weir = start_with_fallback(&origin, "1/d", "{ fallback: { cached: 1MiB } }");
    let mut client = Client::connect(weir.address());
    assert_eq!(client.fetch(&browser_request("/")).status, 200);
    for (name, value) in [
        ("cookie", "me=1"),
        ("x-tenant", "a"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("cache-control", "max-age=0"),
        ("pragma", "no-cache"),
        ("if-none-match", "\"1\""),
        ("range", "bytes=0-0"),
        ("x-real-ip", "192.0.2.1"),
        ("connection", "keep-alive"),
    ] {
        assert_eq!(client.fetch(&browser_request("/").header(name, value)).status, 200, "{name}");
    }
    let elsewhere = Request::get("/").forwarded_for("198.51.100.7").header("x-request-id", "2");
    assert_eq!(client.fetch(&elsewhere).status, 429, "other browser headers select another variant");
}

/// Returns a request as an ingress forwards it for a browser; the addresses and IDs are unique to the request.
fn ingress_request(client: &str, id: &str) -> Request {
    let headers = [
        ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
        ("accept-language", "en-GB,en;q=0.5"),
        ("x-forwarded-for", client),
        ("x-forwarded-host", "test.local"),
        ("x-forwarded-port", "443"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-scheme", "https"),
        ("x-scheme", "https"),
        ("x-real-ip", client),
        ("x-request-id", id),
        ("x-b3-traceid", id),
        ("tracestate", ""),
    ];
    headers.iter().fold(Request::get("/"), |request, (name, value)| request.header(name, value))
}

#[test]
fn forwarding_headers_are_not_part_of_the_cache_key() {
    let origin = numbered_upstream();
    let weir = start_with_fallback(&origin, "1/d", "{ fallback: { cached: 1MiB } }");
    let mut client = Client::connect(weir.address());
    assert_eq!(client.fetch(&ingress_request("192.0.2.1", "0af7651916cd43dd8448eb211c80319c")).status, 200);
    let other = ingress_request("198.51.100.7", "b7ad6b716920333100000000000000aa");
    assert_eq!(client.fetch(&other).status, 200);
}

#[test]
fn ignored_headers_are_not_part_of_the_cache_key() {
    let origin = numbered_upstream();
    let fallback = "{ cached: 1MiB, ignore_headers: [User-Agent, referer, x-build] }";
    let weir = start_with_fallback(&origin, "1/d", &format!("{{ fallback: {fallback} }}"));
    let mut client = Client::connect(weir.address());
    let by = |agent| Request::get("/").header("user-agent", agent).header("referer", agent);
    assert_eq!(client.fetch(&by("one").header("x-build", "7")).status, 200);
    assert_eq!(client.fetch(&by("another")).status, 200);
    assert_eq!(client.fetch(&by("another").header("accept-language", "de")).status, 429);
}

#[test]
fn rule_key_is_part_of_the_cache_key() {
    let origin = numbered_upstream();
    let rule = "rules: [{ name: pages, key: { header: x-real-ip }, limit: 1/d, on_limit: { fallback: { cached: 1MiB } } }]";
    let weir = Weir::start(&config_behind_proxy(&origin, rule));
    let mut client = Client::connect(weir.address());
    let ask = |path: &str| browser_request(path).header("x-real-ip", "192.0.2.1");
    assert_eq!([client.fetch(&ask("/")).status, client.fetch(&ask("/")).status], [200, 429]);
    let other = |path: &str| browser_request(path).header("x-real-ip", "192.0.2.2");
    assert_eq!([client.fetch(&other("/public")).status, client.fetch(&other("/public")).status], [200, 200]);
    assert_eq!(client.fetch(&ask("/public")).status, 429);
}

#[test]
fn unsafe_methods_are_rejected_without_a_fallback() {
    let directory = tempfile::tempdir().unwrap();
    let (file, page) = (directory.path().join("weir.yaml"), directory.path().join("busy.html"));
    fs::write(&page, "<p>busy").unwrap();
    let rules = "rules:\n  - { name: a, match: { path: /a }, limit: 1/d, on_limit: { body: { fallback: busy.html } } }\n  \
                 - { name: b, match: { path: /b }, limit: 1/d, on_limit: { status: 503, body: { text: wait }, \
                 headers: { x-rule: \"{rule}\" }, fallback: { cached: 1MiB, file: busy.html, status: 203 } } }\n  \
                 - { name: c, match: { path: /c }, limit: 1/d, on_limit: { fallback: { file: busy.html, methods: [GET, POST] } } }";
    fs::write(&file, config("echo", rules)).unwrap();
    let weir = Weir::start_file(&file);
    let mut client = Client::connect(weir.address());
    for path in ["/a", "/b", "/c"] {
        assert_eq!(client.fetch(&Request::post(path, "x")).status, 200);
    }
    for (path, method, status, body) in [
        ("/a", "GET", 200, "<p>busy"),
        ("/a", "HEAD", 200, ""),
        ("/a", "POST", 429, "too many requests\n"),
        ("/a", "PUT", 429, "too many requests\n"),
        ("/a", "DELETE", 429, "too many requests\n"),
        ("/b", "GET", 203, "<p>busy"),
        ("/b", "POST", 503, "wait"),
        ("/c", "POST", 200, "<p>busy"),
        ("/c", "PUT", 429, "too many requests\n"),
    ] {
        let response = client.fetch(&Request::new(method, path));
        assert_eq!((response.status, &*response.body.text()), (status, body), "{method} {path}");
        assert!(response.numeric_header("retry-after") > 0, "{method} {path}");
        assert_eq!(response.header("x-envoy-ratelimited"), "true");
        let warning = response.head.get("warning").is_some();
        assert_eq!(warning, status < 300, "{method} {path}");
        assert_eq!(response.head.get("x-rule"), (path == "/b").then_some("b"));
    }
    assert_eq!(client.fetch(&Request::new("HEAD", "/a")).numeric_header("content-length"), 7);
}

#[test]
fn truncated_or_oversized_responses_are_not_cached() {
    let origin = Origin::start(|turn| {
        let whole = turn.head.word(1) == "/large";
        let length = if whole { 2000 } else { 10 };
        let body = "x".repeat(if whole { 2000 } else { 5 });
        turn.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}"))?;
        Ok(if whole { AfterResponse::Keep } else { AfterResponse::Close })
    });
    let weir = start_with_fallback(&origin, "2/d", "{ fallback: { cached: 16KiB, largest: 1KiB } }");
    // The response breaks off, either before any of it was sent to the client or afterwards.
    let broken = Client::connect(weir.address()).try_fetch(&Request::get("/broken"));
    assert!(broken.map_or(true, |response| response.status == 502));
    assert_eq!(Client::connect(weir.address()).get("/large").status, 200);
    for path in ["/broken", "/large"] {
        assert_eq!(Client::connect(weir.address()).get(path).status, 429, "{path}");
    }
}

#[test]
fn cached_responses_survive_a_reload() {
    let origin = numbered_upstream();
    let yaml = |limit| {
        let rule = format!(
            "rules: [{{ name: pages, limit: {limit}, on_limit: {{ fallback: {{ cached: 1MiB }} }} }}]"
        );
        config(origin.address(), &rule)
    };
    let weir = Weir::start(&yaml("1/d"));
    let mut client = Client::connect(weir.address());
    assert_eq!(client.get("/").body.text(), "0");
    weir.reload(&yaml("1/w"));
    let answer = client.get("/");
    assert_eq!((answer.status, &*answer.body.text()), (200, "0"));
    assert!(answer.head.get("warning").is_some());
}

#[test]
fn fallback_file_is_served_and_reloaded() {
    let directory = tempfile::tempdir().unwrap();
    let (file, page) = (directory.path().join("weir.yaml"), directory.path().join("busy.html"));
    fs::write(&page, "<p>busy").unwrap();
    let rules = "rules:\n  - { name: a, match: { path: /a }, limit: 1/d, on_limit: { body: { fallback: busy.html } } }\n  \
                 - { name: b, match: { path: /b }, limit: 1/d, on_limit: { body: { file: busy.html } } }";
    fs::write(&file, config("echo", rules)).unwrap();
    let weir = Weir::start_file(&file);
    let mut client = Client::connect(weir.address());
    for path in ["/a", "/b"] {
        assert_eq!(client.get(path).status, 200);
    }
    let (degraded, refused) = (client.get("/a"), client.get("/b"));
    assert_eq!((degraded.status, &*degraded.body.text()), (200, "<p>busy"));
    assert_eq!(degraded.header("warning"), "199 - \"Degraded Response\"");
    assert_eq!((refused.status, refused.head.get("warning")), (429, None));
    assert_eq!(refused.header("content-type"), "text/html; charset=utf-8");
    let next = directory.path().join("next");
    fs::write(&next, "<p>soon").unwrap();
    fs::rename(&next, &page).unwrap();
    wait::until_true("the new page", || client.get("/a").body.text() == "<p>soon");
}
