//! The same counts as a live run: requests through the proxy, and then its access log through `weir replay`.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use super::Workplace;
use crate::support::{AfterResponse, Client, Origin, Request, Weir, config};

/// Limits whose decisions do not depend on fractions of a millisecond, since the log has none. No unit is refilled while
/// the test runs.
const RULES: &str = "client_ip: { trusted_proxies: 127.0.0.0/8 }
rules:
  - { name: health, match: { path: /health }, action: allow }
  - { name: internal, match: { path: /internal }, action: deny }
  - { name: per-ip, key: client_ip, limit: 30/d, burst: 30 }
  - { name: by-path, key: [client_ip, path], limit: 8/d, algorithm: sliding_log, throttle: shadow }
  - { name: login, match: { path: /login, method: POST }, key: client_ip, limit: 3/d, count: { response_status: 401 } }
  - { name: banned, match: { path: \"/reports/*\" }, key: client_ip, limit: 5/d, algorithm: token_bucket, on_limit: { ban: 1d } }
  - { name: soft, match: { path: /soft }, key: [], limit: 20/d, throttle: soft 50% }
  - { name: canary, key: client_ip, limit: 10/d, enforce: 50% }
  - { name: bytes, match: { path: /soft }, key: client_ip, limit: 8/d, cost: { response_bytes: 1B } }
  - { name: flights, key: client_ip, in_flight: 1 }
";

const OUTCOMES: [&str; 9] =
    ["allowed", "soft", "delayed", "limited", "banned", "denied", "exempt", "shadow", "diverted"];

type Counts = BTreeMap<(String, &'static str), u64>;

/// Sends `number` requests of 40 clients to several paths, in an order that is the same every time.
fn send_requests(weir: &Weir, number: u32) {
    let mut client = Client::connect(weir.address());
    let mut random = 1_u32;
    for _ in 0..number {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (who, what) = (random >> 24, random >> 16 & 0xff);
        let request = match what % 8 {
            0 => Request::get("/health"),
            1 => Request::get("/internal"),
            2 => Request::post("/login", "user=a"),
            3 => Request::get("/reports/%61?page=1"),
            4 => Request::get("/soft"),
            _ => Request::get("/"),
        };
        // Most requests come from few clients.
        let address = format!("192.0.2.{}", who.min(who * who / 700).min(40));
        client.fetch(&request.forwarded_for(&address));
    }
}

fn live_counts(weir: &Weir, names: &[String]) -> Counts {
    let count = |name: &String, outcome| {
        weir.metric("weir_decisions_total", &[("rule", name), ("outcome", outcome)]) as u64
    };
    let pairs =
        names.iter().flat_map(|name| OUTCOMES.map(|outcome| ((name.clone(), outcome), count(name, outcome))));
    pairs.collect()
}

fn replayed_counts(report: &Value) -> Counts {
    let rules = report["rules"].as_array().unwrap().iter();
    let counts = rules.flat_map(|rule| {
        let name = rule["name"].as_str().unwrap().to_owned();
        OUTCOMES.map(|outcome| ((name.clone(), outcome), rule["outcomes"][outcome].as_u64().unwrap()))
    });
    counts.collect()
}

fn assert_same_counts(format: &str, requests: u32) {
    let place = Workplace::new();
    let log = place.path("access.log");
    let origin = Origin::start(|turn| {
        turn.body()?;
        let status = if turn.head.word(1) == "/login" { 401 } else { 200 };
        turn.send(format!("HTTP/1.1 {status} Told\r\ncontent-length: 5\r\n\r\nhello"))?;
        Ok(AfterResponse::Keep)
    });
    let log_setting = format!("access_log: {{ path: {}, format: {format} }}\n", log.display());
    let yaml = config(origin.address(), &format!("{log_setting}{RULES}"));
    let mut weir = Weir::start(&yaml);
    send_requests(&weir, requests);
    let file = place.write("weir.yaml", &yaml);
    let names: Vec<String> = RULES
        .lines()
        .filter_map(|line| Some(line.split_once("name: ")?.1.split_once(',')?.0.to_owned()))
        .collect();
    let live = live_counts(&weir, &names);
    weir.terminate();
    assert_eq!(weir.wait_exit().code(), Some(0));
    assert_eq!(fs::read_to_string(&log).unwrap().lines().count(), requests as usize);
    let report = place.replay(&["-c", &file, log.to_str().unwrap()]);
    assert_eq!(report["requests"], requests);
    let replayed = replayed_counts(&report);
    assert_eq!(replayed, live);
    // Every kind of rule has had an effect.
    for (rule, outcome) in [
        ("health", "exempt"),
        ("internal", "denied"),
        ("per-ip", "limited"),
        ("by-path", "shadow"),
        ("login", "limited"),
        ("banned", "banned"),
        ("soft", "soft"),
        ("canary", "shadow"),
        ("canary", "limited"),
        ("bytes", "limited"),
        ("flights", "allowed"),
    ] {
        assert!(live[&(rule.to_owned(), outcome)] > 0, "{rule} has {outcome} no request: {live:?}");
    }
}

#[test]
fn replayed_json_log_has_the_counts_of_the_live_run() {
    assert_same_counts("json", 4000);
}

#[test]
fn replayed_envoy_log_has_the_counts_of_the_live_run() {
    assert_same_counts("envoy", 3000);
}

#[test]
fn recorded_tokens_are_the_cost() {
    let place = Workplace::new();
    let rule = "  - { name: tokens, key: [], limit: 100/d, algorithm: fixed_window, cost: { tokens: openai, estimate: 30, max: 90 } }\n";
    let rules = place.rules("weir.yaml", rule);
    let line = |second: u32, cost: &str| {
        let start = format!("\"start_time\":\"2026-11-23T20:07:0{second}Z\",\"duration_ms\":5");
        format!("{{{start},\"method\":\"POST\",\"path\":\"/v1/chat/completions\",\"status\":200{cost}}}\n")
    };
    let with = |cost: &str| {
        let log: String = (0..5).map(|second| line(second, cost)).collect();
        place.replay(&["-c", &rules, &place.write("access.json", log)])
    };
    assert_eq!(with(",\"usage\":{\"total_tokens\":10}")["rejected"], 0);
    assert_eq!(with(",\"cost\":60")["rejected"], 3, "two of sixty");
    let unknown = with("");
    assert_eq!(unknown["rejected"], 2, "three of the estimate");
    assert!(unknown.to_string().contains("the body of the response"), "{unknown:#}");
}
