//! What a refused request gets in place of a refusal: a file, or what the same request was answered before.

use std::fs;

use crate::support::{Client, Origin, Request, Then, Weir, config, wait};

const NUMBERED: &str = "content-type: text/css\r\nage: 5";

/// Answers its nth request with the number n, and some paths with more headers.
fn counting() -> Origin {
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
        Ok(Then::Keep)
    })
}

/// What a browser asks, by way of a proxy.
fn browse(path: &str) -> Request {
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

fn with(origin: &Origin, limit: &str, on_limit: &str) -> Weir {
    let rule = format!("rules: [{{ name: pages, limit: {limit}, on_limit: {on_limit} }}]");
    Weir::start(&config(origin.address(), &rule))
}

#[test]
fn the_last_good_answer_stands_in_for_a_refusal() {
    let origin = counting();
    let weir = with(&origin, "2/d", "{ fallback: { cached: 1MiB } }");
    let mut client = Client::connect(weir.address());
    for path in ["/a", "/b?c=d"] {
        assert_eq!(client.ask(&browse(path)).head.get("warning"), None);
    }
    for (path, body) in [("/a", "0"), ("/b?c=d", "1"), ("/a", "0")] {
        let answer = client.ask(&browse(path));
        assert_eq!((answer.status, &*answer.body.text()), (200, body));
        assert_eq!(answer.header("content-type"), "text/css");
        assert_eq!(answer.header("warning"), "110 - \"Response is Stale\"");
        assert!(answer.number("age") >= 5 && answer.number("retry-after") > 0);
        assert_eq!(answer.header("x-envoy-ratelimited"), "true");
        assert_eq!(answer.number("x-ratelimit-remaining"), 0);
    }
    let head = client.ask(&Request::new("HEAD", "/a"));
    assert_eq!((head.status, head.number("content-length"), head.body.length), (200, 1, 0));
    assert_eq!(origin.seen().len(), 2);
    assert!(weir.metric("weir_decisions_total", &[("rule", "pages"), ("outcome", "limited")]) >= 4.0);
}

#[test]
fn only_the_same_request_gets_it() {
    let origin = counting();
    let weir = with(&origin, "1/d", "{ fallback: { cached: 1MiB } }");
    let mut client = Client::connect(weir.address());
    assert_eq!(client.get("/a?b=1").status, 200);
    let others = [
        Request::get("/a"),
        Request::get("/a?b=2"),
        Request::get("/a?b=1").host("other.local"),
        Request::post("/a?b=1", "x"),
    ];
    for other in &others {
        assert_eq!(client.ask(other).status, 429, "{other:?}");
    }
    assert_eq!(client.get("/a?b=1").status, 200);
}

#[test]
fn what_was_made_for_one_client_is_given_to_no_other() {
    let origin = counting();
    let personal = [
        browse("/1").header("cookie", "me=1"),
        browse("/2").header("authorization", "Bearer x"),
        browse("/3").header("x-tenant", "a"),
        browse("/5").header("x-customer", "a").header("x-account", "a"),
        browse("/6").header("x-ms-client-principal-name", "a"),
        browse("/with-cookie"),
        browse("/private"),
        browse("/never-stale"),
    ];
    let weir = with(&origin, &format!("{}/d", personal.len() + 1), "{ fallback: { cached: 1MiB } }");
    let mut client = Client::connect(weir.address());
    for request in &personal {
        assert_eq!(client.ask(request).status, 200);
    }
    assert_eq!(client.ask(&browse("/public").header("x-tenant", "a")).status, 200);
    for path in ["/1", "/2", "/3", "/5", "/6", "/with-cookie", "/private", "/never-stale"] {
        assert_eq!(client.ask(&browse(path)).status, 429, "{path}");
        assert_eq!(client.ask(&browse(path).header("x-tenant", "b")).status, 429, "{path}");
    }
    assert_eq!(
        client.ask(&browse("/public").header("x-tenant", "b")).status,
        200,
        "it says it is for everybody"
    );
}

#[test]
fn what_a_rule_counts_by_tells_clients_apart() {
    let origin = counting();
    let rule = "rules: [{ name: pages, key: { header: x-real-ip }, limit: 1/d, on_limit: { fallback: { cached: 1MiB } } }]";
    let weir = Weir::start(&config(origin.address(), rule));
    let mut client = Client::connect(weir.address());
    let ask = |path: &str| browse(path).header("x-real-ip", "192.0.2.1");
    assert_eq!([client.ask(&ask("/")).status, client.ask(&ask("/")).status], [200, 429]);
    let other = |path: &str| browse(path).header("x-real-ip", "192.0.2.2");
    assert_eq!([client.ask(&other("/public")).status, client.ask(&other("/public")).status], [200, 200]);
}

#[test]
fn an_answer_that_broke_off_or_is_too_large_is_not_kept() {
    let origin = Origin::start(|turn| {
        let whole = turn.head.word(1) == "/large";
        let length = if whole { 2000 } else { 10 };
        let body = "x".repeat(if whole { 2000 } else { 5 });
        turn.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}"))?;
        Ok(if whole { Then::Keep } else { Then::Close })
    });
    let weir = with(&origin, "2/d", "{ fallback: { cached: 16KiB, largest: 1KiB } }");
    let broken = Client::connect(weir.address()).try_ask(&Request::get("/broken"));
    assert!(broken.is_err());
    assert_eq!(Client::connect(weir.address()).get("/large").status, 200);
    for path in ["/broken", "/large"] {
        assert_eq!(Client::connect(weir.address()).get(path).status, 429, "{path}");
    }
}

#[test]
fn answers_are_kept_across_a_reload() {
    let origin = counting();
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
fn a_file_stands_in_for_the_answer_and_is_followed() {
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
