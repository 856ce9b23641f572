//! What a refused request gets in place of a refusal: a file, or what the same request was answered before.

use std::fs;

use crate::support::{Client, Origin, Request, Then, Weir, config, wait};

const NUMBERED: &str = "content-type: text/css\r\nage: 5";

/// Answers its nth request with the number n, and with the headers in the request's `x-answer`.
fn counting() -> Origin {
    Origin::start(|turn| {
        turn.body()?;
        let extra = turn
            .head
            .get("x-answer")
            .map_or_else(|| NUMBERED.to_owned(), |extra| format!("{NUMBERED}\r\n{extra}"));
        let number = turn.nth.to_string();
        let length = number.len();
        turn.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n{extra}\r\n\r\n{number}"))?;
        Ok(Then::Keep)
    })
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
        assert_eq!(client.get(path).head.get("warning"), None);
    }
    for (path, body) in [("/a", "0"), ("/b?c=d", "1"), ("/a", "0")] {
        let answer = client.get(path);
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
    let weir = with(&origin, "4/d", "{ fallback: { cached: 1MiB } }");
    let mut client = Client::connect(weir.address());
    let personal = [
        Request::get("/1").header("cookie", "me=1"),
        Request::get("/2").header("authorization", "Bearer x"),
        Request::get("/3").header("x-answer", "set-cookie: a=b"),
        Request::get("/4").header("x-answer", "cache-control: private"),
    ];
    for request in &personal {
        assert_eq!(client.ask(request).status, 200);
    }
    for path in ["/1", "/2", "/3", "/4"] {
        assert_eq!(client.get(path).status, 429, "{path}");
    }
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
