//! Runs every file of `tests/hostile` against the real binary and an upstream that records every byte.
//!
//! The response matters less than what the upstream receives: nothing, or a request that has only one interpretation.
//! `WEIR_BLESS=1` writes the results into the files; review the difference before committing it.

mod case;
mod frames;
mod recorder;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use self::case::{CaseInput, ExpectedUpstream, HostileCase, encode_bytes};
use self::recorder::Recorder;
use crate::support::wire::Framing;
use crate::support::{Client, Weir, config_with, wait};

/// Rules that reject the request if they see the target that the upstream would see.
const RULES: &str = "
rules:
  - { name: admin, match: { path: /admin/* }, action: deny }
  - { name: internal, match: { host: internal.test }, action: deny }
  - { name: spoofed, match: { client_ip: 203.0.113.7 }, action: deny }
  - { name: keyed, key: { header: x-key }, limit: 1000/s }
";

/// Holds every request after the first, so nothing reads the body of the second.
const HELD_AFTER_THE_FIRST: &str = "
rules:
  - { name: held, limit: 1/m, throttle: delay 1m }
";

/// Returns the configuration with this name.
fn named_config(name: &str, upstream: SocketAddr) -> String {
    let (listener, client_ip, rules) = match name {
        "plain" => ("", "", RULES),
        "trusted" => ("", "client_ip: { trusted_proxies: 127.0.0.0/8 }", RULES),
        "small" => (", limits: { header_size: 4KiB, headers: 10, streams: 2 }", "", RULES),
        "held" => ("", "", HELD_AFTER_THE_FIRST),
        other => panic!("unknown configuration `{other}`"),
    };
    let listener = format!(
        "{{ address: 127.0.0.1:0, name: inbound, header_timeout: 500ms, idle_timeout: 5s{listener} }}"
    );
    let upstream = format!("{{ address: \"{upstream}\", idle_timeout: 500ms }}");
    config_with(&listener, &upstream, &format!("{client_ip}\n{rules}"))
}

/// Removes the headers that Weir adds to every request, if their values are the expected ones.
fn without_added_headers(recorded: &[u8]) -> Vec<u8> {
    let is_truth = |line: &[u8]| {
        let line = String::from_utf8_lossy(line);
        match line.trim_end().split_once(": ") {
            Some(("x-forwarded-for" | "x-envoy-external-address", value)) => value == "127.0.0.1",
            Some(("x-forwarded-proto", value)) => value == "http",
            Some(("via", value)) => matches!(value, "1.0 weir" | "1.1 weir" | "2 weir"),
            Some(("x-envoy-expected-rq-timeout-ms", value)) => value.parse::<u32>().is_ok(),
            Some(("x-request-id", value)) => {
                value.len() == 36 && value.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
            }
            _ => false,
        }
    };
    let lines = recorded.split_inclusive(|byte| *byte == b'\n');
    lines.filter(|line| !is_truth(line)).flatten().copied().collect()
}

/// Plays a case. Returns the status codes in order, then whether the connection was closed.
fn run_case(pieces: &[Vec<u8>], address: SocketAddr, expected: &[String]) -> Vec<String> {
    let mut client = Client::connect(address);
    let mut got: Vec<String> = Vec::new();
    let method = pieces.first().map_or("", |piece| if piece.starts_with(b"HEAD ") { "HEAD" } else { "GET" });
    let mut pieces = pieces.iter();
    let mut send = |client: &Client| {
        if let Some(piece) = pieces.next() {
            // The response may arrive, and the connection be closed, before all bytes are sent.
            let _ = client.wire.send(piece);
        }
    };
    send(&client);
    let stays = expected.last().is_some_and(|last| last == "open");
    loop {
        if stays && got.len() + 1 >= expected.len() {
            client.send("GET /still-there HTTP/1.1\r\nhost: s.test\r\n\r\n");
            let status = client.try_read_response("GET").map_or(0, |answer| answer.status);
            got.push(if status == 200 { "open".to_owned() } else { format!("then {status}") });
            return got;
        }
        let Ok(Some(head)) = client.wire.read_head() else { break };
        got.push(head.word(1).to_owned());
        let framing = Framing::from_response(&head, method);
        if framing == Framing::Close || client.wire.read_body(framing, |_| {}).is_err() {
            break;
        }
        send(&client);
    }
    client.wire.drain();
    got.push(if client.is_closed() { "close" } else { "open, silent" }.to_owned());
    got
}

fn matches_expectation(case: &HostileCase, answer: &[String], seen: &[u8]) -> bool {
    let answered = match case.input {
        CaseInput::Bytes(_) => case.expected == answer,
        CaseInput::Frames(_) => frames::matches_expectation(&case.expected, answer),
    };
    let is_seen = match &case.upstream {
        ExpectedUpstream::Exactly(expected) => encode_bytes(expected) == encode_bytes(seen),
        ExpectedUpstream::StrictPrefix(whole) => whole.starts_with(seen) && seen.len() < whole.len(),
    };
    answered && is_seen
}

#[test]
fn every_hostile_input_gets_the_expected_response_and_upstream_bytes() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile");
    let cases = HostileCase::all(&directory);
    assert!(cases.len() >= 80, "only {} cases", cases.len());
    let only = std::env::var_os("WEIR_HOSTILE").unwrap_or_default();
    let recorder = Recorder::start();
    let mut running: BTreeMap<String, Weir> = BTreeMap::new();
    let mut wrong = Vec::new();
    for case in cases.iter().filter(|case| case.path.to_string_lossy().contains(&*only.to_string_lossy())) {
        let start = || Weir::start(&named_config(&case.config_name, recorder.address()));
        let weir = running.entry(case.config_name.clone()).or_insert_with(start);
        let answer = match &case.input {
            CaseInput::Bytes(pieces) => run_case(pieces, weir.address(), &case.expected),
            CaseInput::Frames(text) => frames::run_frames(text, weir.address(), &case.expected),
        };
        let is_quiet = || weir.metric("weir_downstream_connections", &[]) == 0.0;
        wait::until_true("the end of the connection", is_quiet);
        let seen = without_added_headers(&recorder.take_recorded());
        let still = b"GET /still-there HTTP/1.1\r\nhost: s.test\r\n\r\n";
        let seen = seen.strip_suffix(still).unwrap_or(&seen);
        if matches_expectation(case, &answer, seen) {
            continue;
        }
        if std::env::var_os("WEIR_BLESS").is_some() {
            case.bless(&answer, seen);
        }
        let name = case.path.strip_prefix(&directory).unwrap().display();
        wrong.push(format!("{name}: {}\n{}", answer.join(", "), encode_bytes(seen)));
    }
    assert!(wrong.is_empty(), "{} of {} cases differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}
