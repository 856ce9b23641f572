use std::time::Duration;

use http::{Method, StatusCode, Version};
use proptest::prelude::*;

use super::*;
use crate::collected::CollectedNames;
use crate::record::{ParsedBlock, RecordedEnd};
use crate::stream::parse_block;
use weir_limiter::timestamp::Timestamp;
use weir_policy::identify::recorded::RecordedAddress;
use weir_policy::rules::cost::UpstreamFailure;
use weir_telemetry::access_log::{AccessLogEntry, Format};

fn line_of(entry: &AccessLogEntry<'_>, format: &Format) -> Vec<u8> {
    let mut line = Vec::new();
    format.write(entry, &mut line);
    line
}

fn parse(format: LogFormat, text: &str) -> ParsedBlock {
    let names = FieldNames::new(&CollectedNames::of_headers(["x-api-key"]), &[]).unwrap();
    let mut block = ParsedBlock { data: text.as_bytes().to_vec(), ..ParsedBlock::default() };
    parse_block(&mut block, &mut LineParser::new(format, &names), &mut 0, 0);
    block
}

/// Returns the only request of `text`, with its block.
#[track_caller]
fn only(format: LogFormat, text: &str) -> (LoggedRequest, ParsedBlock) {
    let block = parse(format, text);
    let [request] = *block.requests else { panic!("{text}: {:?}", block.requests) };
    (request, block)
}

fn text(span: TextSpan, block: &ParsedBlock) -> Option<&str> {
    span.text(&block.data).map(|text| str::from_utf8(text).unwrap())
}

const TIME: Timestamp = Timestamp::from_secs(1_795_464_422);

#[test]
fn combined_line_is_parsed() {
    let line = r#"192.0.2.7 - alice [23/Nov/2026:20:07:02 +0000] "GET /a?b=c HTTP/1.1" 404 512 "https://r.test/" "curl/8.5" "198.51.100.1, 10.0.0.1""#;
    let (request, block) = only(LogFormat::Combined, line);
    assert_eq!(request.address, RecordedAddress::Peer([192, 0, 2, 7].into()));
    assert_eq!((request.start, request.end), (TIME, TIME));
    assert_eq!((request.status, request.sent), (404, 512));
    assert_eq!(text(request.method, &block), Some("GET"));
    assert_eq!(text(request.target, &block), Some("/a?b=c"));
    assert_eq!(text(request.referer, &block), Some("https://r.test/"));
    assert_eq!(text(request.user_agent, &block), Some("curl/8.5"));
    assert_eq!(text(request.forwarded_for, &block), Some("198.51.100.1, 10.0.0.1"));
    assert!(!request.host.is_recorded());
}

#[test]
fn variants_of_the_combined_format_are_parsed() {
    let common = r#"2001:db8::1 - - [23/Nov/2026:20:07:02 +0000] "GET / HTTP/1.0" 304 -"#;
    let (request, _) = only(LogFormat::Combined, common);
    assert_eq!((request.sent, request.user_agent), (0, TextSpan::UNRECORDED));
    let with_host = r#"a.test:443 192.0.2.7 - - [23/Nov/2026:20:07:02 +0000] "GET / HTTP/1.1" 200 1 "-" "-""#;
    let (request, block) = only(LogFormat::Combined, with_host);
    assert_eq!(text(request.host, &block), Some("a.test:443"));
    assert_eq!(request.address, RecordedAddress::Peer([192, 0, 2, 7].into()));
    assert_eq!((request.referer, request.user_agent), (TextSpan::NONE, TextSpan::NONE));
    let by_name = r#"client.test - - [23/Nov/2026:20:07:02 +0000] "GET / HTTP/1.1" 200 1"#;
    assert_eq!(only(LogFormat::Combined, by_name).0.address, RecordedAddress::Unknown);
}

#[test]
fn lines_without_a_request_are_distinguished_from_unreadable_ones() {
    let start = "192.0.2.7 - - [23/Nov/2026:20:07:02 +0000]";
    let text =
        format!("{start} \"\\x16\\x03\" 400 0 \"-\" \"-\"\n{start} \"-\" 400 0\nnothing\n\n{start} \"GET /");
    let block = parse(LogFormat::Combined, &text);
    assert_eq!((block.counts.lines, block.counts.no_request, block.counts.unreadable), (4, 2, 2));
    assert_eq!(block.examples.iter().map(|it| it.line).collect::<Vec<_>>(), [3, 5]);
    assert_eq!(block.examples[0].text, "nothing");
}

#[test]
fn envoy_line_is_parsed() {
    let line = r#"[2026-11-23T20:07:02.000Z] "POST /a HTTP/2" 503 UF,URX 7 91 15 - "198.51.100.1,192.0.2.7" "-" "9c1f" "a.test" "-" rule=x"#;
    let (request, block) = only(LogFormat::Envoy, line);
    assert_eq!((request.start, request.end), (TIME, TIME.saturating_add(Duration::from_millis(15))));
    assert_eq!((request.status, request.received, request.sent), (503, Some(7), 91));
    assert_eq!(request.recorded_end, RecordedEnd::Failure(UpstreamFailure::Connect));
    assert_eq!(text(request.forwarded_for, &block), Some("198.51.100.1,192.0.2.7"));
    assert_eq!((text(request.host, &block), request.user_agent), (Some("a.test"), TextSpan::NONE));
    let istio = r#"[2026-11-23T20:07:02.000Z] "GET / HTTP/1.1" 200 - via_upstream - "-" 1 95 7 6 "192.0.2.7" "-" "-" "a" "b" c"#;
    let (request, _) = only(LogFormat::Envoy, istio);
    assert_eq!((request.received, request.sent, request.status), (Some(1), 95, 200));
}

#[test]
fn json_names_of_several_programs_are_known() {
    let nginx = r#"{"msec":"1795464422.015","remote_addr":"10.0.0.1","http_x_forwarded_for":"192.0.2.7","request":"POST /login HTTP/1.1","status":"401","request_time":"0.015","body_bytes_sent":9,"http_x_api_key":"k"}"#;
    let (request, block) = only(LogFormat::Json, nginx);
    assert_eq!(request.start, TIME);
    assert_eq!(request.address, RecordedAddress::Peer([10, 0, 0, 1].into()));
    assert_eq!((text(request.method, &block), text(request.target, &block)), (Some("POST"), Some("/login")));
    assert_eq!((request.status, request.sent), (401, 9));
    let [header] = block.values_of(&request) else { panic!() };
    assert_eq!((header.name, text(header.value, &block)), (0, Some("k")));
    let caddy = r#"{ "ts": 1795464422.5, "request": { "remote_ip": "192.0.2.9", "method": "GET", "host": "a.test", "uri": "/x", "headers": { "A": ["b", {"c": 1}] } }, "status": 200, "duration": 0.5 }"#;
    let (request, block) = only(LogFormat::Json, caddy);
    assert_eq!((request.start, text(request.target, &block)), (TIME, Some("/x")));
    assert_eq!(text(request.host, &block), Some("a.test"));
}

#[test]
fn json_escapes_are_decoded() {
    let line =
        r#"{"time":"2026-11-23T20:07:02Z","path":"\/k\u00e4\ud83d\ude00\"","user_agent":"a\\b\ud83d"}"#;
    let (request, block) = only(LogFormat::Json, line);
    assert_eq!(text(request.target, &block), Some("/kä😀\""));
    assert_eq!(text(request.user_agent, &block), Some("a\\b\u{fffd}"));
}

#[test]
fn json_lines_may_differ_in_their_fields() {
    let lines = "{\"time\":1,\"path\":\"/a\",\"status\":200}\n{\"path\":\"/b\",\"time\":2}\n{\"time\":3,\"path\":\"/c\"}\n";
    let block = parse(LogFormat::Json, lines);
    let paths: Vec<_> = block.requests.iter().map(|request| text(request.target, &block)).collect();
    assert_eq!(paths, [Some("/a"), Some("/b"), Some("/c")]);
}

#[test]
fn broken_json_is_unreadable() {
    for line in [
        "{",
        "{}",
        "[]",
        "{\"time\":1,\"path\":\"/\"",
        "{\"time\":1 \"path\":\"/\"}",
        "{\"time\":1,\"path\":\"/\"} x",
    ] {
        let block = parse(LogFormat::Json, line);
        assert_eq!((block.counts.unreadable, block.requests.len()), (1, 0), "{line}");
    }
    let deep = format!("{{\"time\":1,\"x\":{}", "[".repeat(100_000));
    assert_eq!(parse(LogFormat::Json, &deep).counts.unreadable, 1);
}

#[test]
fn format_of_a_log_is_detected() {
    let names = FieldNames::new(&CollectedNames::default(), &[]).unwrap();
    for format in LogFormat::ALL {
        let seeds = format!(
            "{}/fuzz/corpus/{}_log/lines",
            concat!(env!("CARGO_MANIFEST_DIR"), "/../.."),
            format.as_str()
        );
        let seeds = std::fs::read(seeds).unwrap();
        assert_eq!(LogFormat::detect(&seeds, &names), Some(format));
    }
    assert_eq!(LogFormat::detect(b"first\nsecond\n", &names), None);
}

/// Parts of a log entry that Weir writes.
#[derive(Clone, Debug)]
struct Entry {
    millis: u64,
    method: Method,
    path: String,
    status: u16,
    duration: u64,
    sent: u64,
    agent: Option<Vec<u8>>,
    client: std::net::IpAddr,
}

fn entries() -> impl Strategy<Value = Entry> {
    let method =
        prop_oneof![Just(Method::GET), Just(Method::POST), Just(Method::from_bytes(b"PURGE").unwrap())];
    let path = "/[!-~]{0,60}".prop_filter("a fragment is no part of a target", |path| !path.contains('#'));
    let agent = proptest::option::of(proptest::collection::vec(b' '..=255_u8, 2..40));
    let client = any::<u32>().prop_map(|bits| std::net::Ipv4Addr::from_bits(bits).into());
    (0..18_000_000_000_000_u64, method, path, 100..600_u16, 0..100_000_u64, any::<u32>(), agent, client)
        .prop_map(|(millis, method, path, status, duration, sent, agent, client)| Entry {
            millis,
            method,
            path,
            status,
            duration,
            sent: sent.into(),
            agent,
            client,
        })
}

impl Entry {
    fn line(&self, format: &Format) -> String {
        let client = self.client.to_string();
        let entry = AccessLogEntry {
            start: Timestamp::from_nanos(self.millis * 1_000_000),
            method: &self.method,
            path: &self.path,
            protocol: Version::HTTP_11,
            status: StatusCode::from_u16(self.status).ok(),
            response_flags: "",
            bytes_received: 5,
            bytes_sent: self.sent,
            duration: Duration::from_millis(self.duration),
            class: None,
            upstream_time: None,
            x_forwarded_for: Some(client.as_bytes()),
            user_agent: self.agent.as_deref(),
            request_id: Some(b"id"),
            authority: Some(b"a.test"),
            upstream_host: None,
            attempts: 1,
            client_ip: self.client,
            other_headers: &[],
            decision: None,
        };
        String::from_utf8(line_of(&entry, format)).unwrap()
    }
}

proptest! {
    #[test]
    fn own_access_log_is_parsed_back(entry in entries()) {
        for (format, written) in [(LogFormat::Envoy, Format::Envoy), (LogFormat::Json, Format::Json)] {
            let (request, block) = only(format, &entry.line(&written));
            let start = Timestamp::from_nanos(entry.millis * 1_000_000);
            prop_assert_eq!(request.start, start);
            prop_assert_eq!(request.end, start.saturating_add(Duration::from_millis(entry.duration)));
            prop_assert_eq!(text(request.method, &block), Some(entry.method.as_str()));
            prop_assert_eq!(text(request.target, &block), Some(&*entry.path));
            prop_assert_eq!(text(request.host, &block), Some("a.test"));
            prop_assert_eq!((request.status, request.received, request.sent), (entry.status, Some(5), entry.sent));
            let client = entry.client.to_string();
            prop_assert_eq!(text(request.forwarded_for, &block), Some(&*client));
            if format == LogFormat::Json {
                prop_assert_eq!(request.address, RecordedAddress::Client(entry.client));
            } else {
                let agent = entry.agent.as_deref();
                prop_assert_eq!(request.user_agent.text(&block.data), agent);
            }
        }
    }

    #[test]
    fn parsers_of_any_bytes_do_not_panic(data in proptest::collection::vec(any::<u8>(), 0..300)) {
        crate::fuzzing::envoy_log(&data);
        crate::fuzzing::combined_log(&data);
        crate::fuzzing::json_log(&data);
    }

    #[test]
    fn parsers_of_almost_valid_lines_do_not_panic(at in 0_usize..900, byte: u8, target in 0_usize..3) {
        let name = ["envoy_log", "combined_log", "json_log"][target];
        let seeds = format!("{}/fuzz/corpus/{name}/lines", concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let mut data = std::fs::read(seeds).unwrap();
        let at = at % data.len();
        data[at] = byte;
        [crate::fuzzing::envoy_log, crate::fuzzing::combined_log, crate::fuzzing::json_log][target](&data);
    }
}
