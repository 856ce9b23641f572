//! The ports of the service other than gRPC: JSON, health, rules, statistics, Prometheus and statsd.

use std::net::UdpSocket;

use super::RlsService;
use crate::support::{Client, Request, fetch, get, wait};

const RULES: &str =
    "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: hour, requests_per_unit: 1 }\n";

#[test]
fn json_response_matches_grpc_and_sets_the_status_code() {
    let service = RlsService::start(&[("rules.yaml", RULES)]);
    let http = service.weir.rls_address("http");
    let question = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#;
    let first = fetch(http, &Request::post("/json", question));
    assert_eq!((first.status, first.header("content-type")), (200, "application/json"));
    let answer: serde_json::Value = serde_json::from_slice(&first.body.bytes).unwrap();
    assert_eq!(answer["overallCode"], "OK");
    assert_eq!(answer["statuses"][0]["currentLimit"]["requestsPerUnit"], 1);
    assert_eq!(answer["statuses"][0]["currentLimit"]["unit"], "HOUR");
    assert!(answer["statuses"][0].get("limitRemaining").is_none(), "zero remaining units are omitted");
    let second = fetch(http, &Request::post("/json", question));
    assert_eq!(second.status, 429);
    let answer: serde_json::Value = serde_json::from_slice(&second.body.bytes).unwrap();
    assert_eq!(answer["statuses"][0]["code"], "OVER_LIMIT");
}

#[test]
fn silent_connections_block_neither_health_checks_nor_json_requests() {
    let service = RlsService::start(&[("rules.yaml", RULES)]);
    let http = service.weir.rls_address("http");
    let question = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#;
    let mut asking = Client::connect(http);
    let (half, rest) = question.split_at(10);
    let head = format!("POST /json HTTP/1.1\r\nhost: a.test\r\ncontent-length: {}\r\n\r\n", question.len());
    asking.send(format!("{head}{half}"));
    let silent: Vec<_> = (0..600).map(|_| Client::connect(http)).collect();
    assert_eq!(get(http, "/healthcheck").status, 200);
    asking.send(rest);
    assert_eq!(asking.read_response("POST").status, 200);
    drop(silent);
}

#[test]
fn invalid_json_request_is_400() {
    let service = RlsService::start(&[("rules.yaml", RULES)]);
    let http = service.weir.rls_address("http");
    for text in ["", "{", "[]", r#"{"domain":"d"}"#, r#"{"descriptors":[{}]}"#, r#"{"unknown":1}"#] {
        let answer = fetch(http, &Request::post("/json", text));
        assert_eq!((answer.status, answer.body.text().as_str()), (400, "Bad Request\n"), "{text}");
        assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
    }
    let huge = format!("{{\"domain\":\"{}\"}}", "x".repeat(2 << 20));
    assert_eq!(fetch(http, &Request::post("/json", huge)).status, 413);
    assert_eq!(get(http, "/elsewhere").status, 404);
}

#[test]
fn debug_port_shows_rules_and_statistics() {
    let service = RlsService::start(&[("rules.yaml", RULES)]);
    service.client.check("d", "k=v");
    service.client.check("other", "k=v");
    let debug = service.weir.rls_address("debug");
    let line = "d.k: unit=HOUR requests_per_unit=1, shadow_mode: false, quota_mode: false\n";
    assert_eq!(get(debug, "/rlconfig").body.text(), line);
    assert_eq!(service.stat("ratelimit.service.rate_limit.d.k.total_hits"), 1);
    assert_eq!(service.stat("ratelimit.service.rate_limit.other.domain_not_found"), 1);
    assert_eq!(service.stat("ratelimit_server.ShouldRateLimit.total_requests"), 2);
    assert_eq!(service.stat("ratelimit.service.config_load_success"), 1);
    let labels = [("domain", "d"), ("key1", "k")];
    assert_eq!(service.weir.metric("ratelimit_service_rate_limit_total_hits", &labels), 1.0);
    assert_eq!(service.weir.metric("ratelimit_service_response_time_seconds_count", &[]), 2.0);
}

#[test]
fn prometheus_port_serves_statistics() {
    let service = RlsService::start_with(
        &[("rules.yaml", RULES)],
        "  prometheus: { address: 127.0.0.1:0, path: /numbers }\n",
    );
    service.client.check("d", "k=v");
    let door = service.weir.rls_address("prometheus");
    let text = get(door, "/numbers").body.text();
    assert!(text.contains("ratelimit_service_rate_limit_total_hits{domain=\"d\",key1=\"k\"} 1\n"), "{text}");
    assert_eq!(get(door, "/metrics").status, 404);
}

#[test]
fn statistics_are_sent_to_statsd() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(wait::DEADLINE)).unwrap();
    let address = socket.local_addr().unwrap();
    let statsd = format!("  statsd: {{ address: '{address}', interval: 50ms, tags: {{ zone: a }} }}\n");
    let service = RlsService::start_with(&[("rules.yaml", RULES)], &statsd);
    (0..3).for_each(|_| drop(service.client.check("d", "k=v")));
    let mut counted = 0;
    while counted < 3 {
        let mut packet = [0; 2048];
        let length = socket.recv(&mut packet).unwrap();
        let text = std::str::from_utf8(&packet[..length]).unwrap();
        let name = "ratelimit.service.rate_limit.d.k.total_hits.__zone=a:";
        let counts = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_suffix("|c"));
        counted += counts.map(|count| count.parse::<u64>().unwrap()).sum::<u64>();
    }
    assert_eq!(counted, 3, "each count is sent once");
}
