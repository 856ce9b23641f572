//! Requests over a limit that are sent to another upstream (`on_limit.upstream`).

use std::net::TcpStream;

use tungstenite::Message;

use super::{decisions, statuses};
use crate::support::h2::H2Client;
use crate::support::h2_origin::H2Origin;
use crate::support::wait::{until, until_true};
use crate::support::{AfterResponse, Client, Origin, Request, Weir, fetch, get, run_concurrently};
use crate::upgrades::{assert_echoed, echo_server};

const OVER_LIMIT_HEADER: &str = "x-weir-over-limit";

fn named(name: &str) -> Origin {
    Origin::responding_with(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{name}", name.len()))
}

/// Returns a configuration with the upstreams `main`, which takes every request, and `cheap`.
fn config(main: impl std::fmt::Display, cheap: impl std::fmt::Display, rules: &[&str]) -> String {
    let rules: String = rules.iter().map(|rule| format!("  - {rule}\n")).collect();
    format!(
        "listeners: 127.0.0.1:0\nworkers: 2\nadmin: {{ address: 127.0.0.1:0 }}\naccess_log: stdout\nupstreams:\n  - \
         {{ name: main, address: '{main}' }}\n  - {{ name: cheap, address: '{cheap}' }}\nrules:\n{rules}"
    )
}

#[test]
fn requests_over_the_limit_are_sent_to_the_other_upstream_with_a_mark() {
    let (main, cheap) = (named("main"), named("cheap"));
    let rules = [
        "{ name: models, key: [], limit: 3/d, burst: 3, on_limit: { upstream: cheap } }",
        "{ name: all, key: [], limit: 5/d, burst: 5 }",
    ];
    let weir = Weir::start(&config(main.address(), cheap.address(), &rules));
    let request = Request::get("/").header("x-weir-over-limit", "forged");
    let answers: Vec<_> = (0..6).map(|_| fetch(weir.address(), &request)).collect();
    let seen: Vec<_> = answers
        .iter()
        .map(|answer| (answer.status, answer.body.text(), answer.head.get(OVER_LIMIT_HEADER)))
        .map(|(status, body, mark)| (status, if status == 200 { body } else { String::new() }, mark))
        .collect();
    let main_answer = (200, "main".to_owned(), None);
    let cheap_answer = (200, "cheap".to_owned(), Some("models"));
    assert_eq!(seen[..3], [main_answer.clone(), main_answer.clone(), main_answer]);
    assert_eq!(seen[3..5], [cheap_answer.clone(), cheap_answer]);
    assert_eq!((seen[5].0, seen[5].2), (429, None), "the other rule rejects");
    assert!(main.requests().iter().all(|seen| seen.head.get(OVER_LIMIT_HEADER).is_none()));
    assert!(cheap.requests().iter().all(|seen| seen.head.get(OVER_LIMIT_HEADER) == Some("models")));
    let outcomes = ["allowed", "diverted", "limited"];
    assert_eq!(outcomes.map(|outcome| decisions(&weir, "models", outcome)), [3.0, 2.0, 0.0]);
    assert_eq!(outcomes.map(|outcome| decisions(&weir, "all", outcome)), [5.0, 0.0, 1.0]);
}

#[test]
fn diverted_requests_are_in_the_access_log_and_explained() {
    let (main, cheap) = (named("main"), named("cheap"));
    let rule = "{ name: models, key: [], limit: 1/d, burst: 1, on_limit: { upstream: cheap, ban: 10m } }";
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let setting = format!("access_log: {{ path: {}, format: json }}", log.display());
    let yaml = config(main.address(), cheap.address(), &[rule]).replace("access_log: stdout", &setting);
    let weir = Weir::start(&yaml);
    assert_eq!(weir.admin_json("/explain?path=/")["outcome"], "allowed");
    assert_eq!([0, 1, 2].map(|_| get(weir.address(), "/").body.text()), ["main", "cheap", "cheap"]);
    let explained = weir.admin_json("/explain?path=/");
    assert_eq!((&explained["outcome"], &explained["rule"]), (&"diverted".into(), &"models".into()));
    assert_eq!(explained["reason"], "sent to the upstream `cheap`; over the limit of `models`");
    assert_eq!(explained["rules"][0]["outcome"], "diverted");
    assert_eq!(weir.admin_json("/limits")["rules"][0]["upstream"], "cheap");
    let logged = until("three lines of the access log", || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let json = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        Some(json.collect::<Vec<_>>()).filter(|lines| lines.len() >= 3)
    });
    let told: Vec<_> = logged.iter().map(|line| (line["rule"].as_str(), line["outcome"].as_str())).collect();
    assert_eq!(told[1..], [(Some("models"), Some("diverted")); 2]);
}

#[test]
fn concurrent_requests_over_the_limit_are_diverted_exactly() {
    let (main, cheap) = (named("main"), named("cheap"));
    let rule = "{ name: models, key: [], limit: 70/d, burst: 70, on_limit: { upstream: cheap } }";
    let weir = Weir::start(&config(main.address(), cheap.address(), &[rule]));
    let answers = run_concurrently(20, |_| {
        let mut client = Client::connect(weir.address());
        (0..10).map(|_| client.get("/").status).collect::<Vec<_>>()
    });
    assert!(answers.iter().flatten().all(|status| *status == 200));
    assert_eq!((main.requests().len(), cheap.requests().len()), (70, 130));
}

#[test]
fn requests_beyond_the_permits_are_diverted_while_they_are_held() {
    let main = Origin::start(|turn| {
        turn.body()?;
        // Waits until the proxy closes the connection.
        let _ = turn.wire.read_head();
        Ok(AfterResponse::Close)
    });
    let cheap = named("cheap");
    let rule = "{ name: one, key: [], in_flight: 1, on_limit: { upstream: cheap } }";
    let weir = Weir::start(&config(main.address(), cheap.address(), &[rule]));
    let held = Client::connect(weir.address());
    held.send(Request::get("/held").to_bytes());
    main.until_request("the held request", |seen| seen.head.line.contains("/held"));
    assert_eq!(statuses(&weir, 3), [200; 3]);
    assert_eq!((main.requests().len(), cheap.requests().len()), (1, 3));
    drop(held);
    let in_flight = || weir.admin_json("/explain?path=/")["rules"][0]["limits"][0]["used"].clone();
    until_true("the permit to return", || in_flight() == 0);
    assert_eq!(weir.admin_json("/explain?path=/")["outcome"], "allowed");
}

#[test]
fn grpc_call_over_the_limit_is_sent_to_the_other_upstream() {
    let (main, cheap) = (H2Origin::hello(), H2Origin::hello());
    let rule = "{ name: models, key: [], limit: 1/d, burst: 1, on_limit: { upstream: cheap } }";
    let weir = Weir::start(&config(main.address(), cheap.address(), &[rule]));
    let mut client = H2Client::connect(weir.address());
    for _ in 0..3 {
        let call = client.call();
        assert_eq!(client.fetch(call).status.as_u16(), 200);
    }
    assert_eq!((main.streams(), cheap.streams()), (1, 2));
}

#[test]
fn websocket_over_the_limit_is_opened_to_the_other_upstream() {
    let (main, cheap) = (named("main"), echo_server());
    let rule = "{ name: sockets, key: [], limit: 1/d, burst: 1, on_limit: { upstream: cheap } }";
    let weir = Weir::start(&config(main.address(), cheap, &[rule]));
    assert_eq!(get(weir.address(), "/").body.text(), "main");
    let stream = TcpStream::connect(weir.address()).unwrap();
    let (mut socket, response) = tungstenite::client(format!("ws://{}/", weir.address()), stream).unwrap();
    assert_eq!(response.headers().get(OVER_LIMIT_HEADER).unwrap(), "sockets");
    assert_echoed(&mut socket, "through the other upstream");
    socket.send(Message::Close(None)).unwrap();
}

#[test]
fn request_that_waits_for_another_rule_is_diverted_when_it_is_admitted() {
    let (main, cheap) = (named("main"), named("cheap"));
    let rules = [
        "{ name: pace, key: [], limit: 20/s, burst: 1, throttle: { wait: { max: 30s } } }",
        "{ name: models, key: [], limit: 1/d, burst: 1, on_limit: { upstream: cheap } }",
    ];
    let weir = Weir::start(&config(main.address(), cheap.address(), &rules));
    let mut bodies = run_concurrently(4, |_| get(weir.address(), "/").body.text());
    bodies.sort_unstable();
    assert_eq!(bodies, ["cheap", "cheap", "cheap", "main"]);
    assert!(cheap.requests().iter().all(|seen| seen.head.get(OVER_LIMIT_HEADER) == Some("models")));
}
