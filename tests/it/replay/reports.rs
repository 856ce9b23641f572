//! Whole reports of generated logs, which changes for speed must not alter.
//!
//! The logs have every format, and lines that are malformed, out of order, dated wrongly, or recorded in unusual spellings.
//! `WEIR_BLESS=1` writes the reports into `tests/data/replay/`; review the difference before committing it.

use std::fs;

use serde_json::Value;

use super::{Workplace, read_json, replay, text};
use crate::support::gzip;

const LINES: u32 = 800;

const RULES: &str = "  - { name: health, match: { path: /health }, action: allow }
  - { name: admin, match: { path: /admin/* }, action: deny }
  - { name: per-ip, key: client_ip, limit: 30/min }
  - { name: login, match: { path: /login, method: POST }, key: client_ip, limit: 5/h, count: { response_status: 401 }, on_limit: { ban: 2m } }
  - { name: api, match: { path: /api/* }, key: [client_ip, path], limits: [1/s, 20/min], algorithm: sliding_log }
  - { name: keys, key: { header: x-api-key }, limit: 10/min, on_missing: shared, throttle: shadow }
  - { name: item, match: { path: '/item/{id}' }, key: [route], limit: 2/s, throttle: delay 500ms }
  - { name: flight, key: [host], in_flight: 20 }
";

/// Chooses values; the same ones every time.
struct Choices(u64);

impl Choices {
    fn number(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.number(of.len() as u64) as usize]
    }

    /// Returns `usual`, or one in twenty times another one.
    fn mostly<'a>(&mut self, usual: &'a str, others: &[&'a str]) -> &'a str {
        if self.number(20) == 0 { self.one(others) } else { usual }
    }
}

/// A request as the generators of all formats write it.
struct Request {
    /// Milliseconds since 2026-11-23T20:00:00Z.
    millis: u64,
    address: String,
    line: String,
    status: &'static str,
    bytes: &'static str,
    duration: u64,
    agent: &'static str,
    hops: String,
}

fn address(choices: &mut Choices) -> String {
    let last = choices.number(12) * choices.number(12);
    let v4 = format!("192.0.2.{last}");
    let v6 = format!("2001:db8::{last:x}:1");
    let other = choices.one(&[
        "192.0.2.1:80",
        "[2001:db8::1]:80",
        "::ffff:192.0.2.9",
        "-",
        "host.test",
        "01.2.3.4",
        "1.2.3.256",
    ]);
    choices.mostly(if choices.0 & 4 == 0 { &v6 } else { &v4 }, &[other]).to_owned()
}

fn request(choices: &mut Choices, clock: &mut u64) -> Request {
    *clock += choices.number(1200);
    let path = choices.one(&[
        "/",
        "/login",
        "/login",
        "/health",
        "/admin/x",
        "/api/a",
        "/api/b",
        "/item/7",
        "/item/8?x=1",
        "//api//a",
        "/api/%61",
        "/a/../login",
        "/%zz",
        "/%00",
        "/x#f?y",
        "/x?y#f",
        "*",
        "http://Other.test/api/a",
        "http://other.test",
        "/a b",
        "/é",
        "no",
    ]);
    let method = choices.one(&["GET", "GET", "POST", "POST", "PUT", "M-SEARCH", "G@T"]);
    let usual = format!("{method} {path} HTTP/1.1");
    let line = choices.mostly(
        &usual,
        &["-", "", "GET /", "GET  / HTTP/1.1", "\\x16\\x03", "GET / HTTP/2", "GET /\\x22 HTTP/1.1"],
    );
    let hops = [address(choices), format!("{}, {}", address(choices), address(choices)), "-".to_owned()];
    let late = if choices.number(300) == 0 { 100_000 } else { choices.number(3000) };
    let ahead = if choices.number(400) == 0 { 200_000_000 } else { 0 };
    Request {
        millis: (*clock + ahead).saturating_sub(late),
        address: address(choices),
        line: line.to_owned(),
        status: choices
            .mostly(if choices.0 & 8 == 0 { "200" } else { "401" }, &["0", "503", "-", "2xx", "1000", ""]),
        bytes: choices.mostly("5120", &["0", "-", "", "1.5", "99999999999999999999"]),
        duration: choices.number(4000),
        agent: choices.mostly("curl/8.5", &["-", "", "a \\\"b\\\" c", "bad\\", "\\x1b[31m", "é"]),
        hops: hops[choices.number(3) as usize].clone(),
    }
}

fn rfc3339(choices: &mut Choices, millis: u64) -> String {
    let (hour, rest) = (20 + millis / 3_600_000 % 4, millis % 3_600_000);
    let date =
        format!("2026-11-{}T{hour}:{:02}:{:02}", 23 + millis / 100_000_000, rest / 60_000, rest / 1000 % 60);
    let usual = format!("{date}.{:03}Z", millis % 1000);
    let others =
        [format!("{date}Z"), format!("{date}.5+00:00"), format!("{date},123456-0130"), format!("{date}.1x")];
    let others: Vec<&str> = others.iter().map(String::as_str).chain(["-", "2026-13-01T00:00:00Z"]).collect();
    choices.mostly(&usual, &others).to_owned()
}

fn common(choices: &mut Choices, millis: u64) -> String {
    let (hour, rest) = (20 + millis / 3_600_000 % 4, millis % 3_600_000);
    let date =
        format!("{}/Nov/2026:{hour}:{:02}:{:02}", 23 + millis / 100_000_000, rest / 60_000, rest / 1000 % 60);
    let others = [format!("{date} +0130"), date.clone(), format!("{date} x"), date.to_lowercase() + " +0000"];
    let others: Vec<&str> =
        others.iter().map(String::as_str).chain(["-", "32/Nov/2026:00:00:00 +0000"]).collect();
    choices.mostly(&format!("{date} +0000"), &others).to_owned()
}

fn combined_line(choices: &mut Choices, it: &Request) -> String {
    let host = choices.mostly("", &["www.test "]);
    let tail = choices.mostly("", &[" 0.12", " x"]);
    let head = format!("{host}{} - - [{}] \"{}\"", it.address, common(choices, it.millis), it.line);
    format!("{head} {} {} \"-\" \"{}\" \"{}\"{tail}", it.status, it.bytes, it.agent, it.hops)
}

fn envoy_line(choices: &mut Choices, it: &Request) -> String {
    let flags = choices.mostly("-", &["UF,URX", "DC", "UT", "RL via_upstream - \"-\""]);
    let head = format!("[{}] \"{}\" {} {flags}", rfc3339(choices, it.millis), it.line, it.status);
    let host = choices.mostly("www.test", &["Other.TEST:80", "-"]);
    format!(
        "{head} 12 {} {} 3 \"{}\" \"{}\" \"id\" \"{host}\" \"-\"",
        it.bytes, it.duration, it.hops, it.agent
    )
}

fn quoted(text: &str) -> String {
    Value::from(text.replace("\\x22", "\"")).to_string()
}

/// A line of Weir's format `json`.
fn own_json_line(choices: &mut Choices, it: &Request) -> String {
    let (method, path) =
        it.line.strip_suffix(" HTTP/1.1").and_then(|line| line.split_once(' ')).unwrap_or(("-", "-"));
    let key = choices.one(&[
        "null",
        "\"k1\"",
        "\"k2\"",
        "[\"k1\"]",
        "[\"k1\",\"k2\"]",
        "\"\\u006b1\"",
        "\"a\\nb\"",
    ]);
    let client = choices.mostly("client_ip", &["other"]);
    format!(
        "{{\"start_time\":\"{}\",\"method\":{},\"path\":{},\"response_code\":{},\"response_flags\":\"-\",\"bytes_sent\":{},\"duration\":{},\"{client}\":{},\"x-api-key\":{key},\"shadow_rules\":[\"a\",\"b\"],\"user_agent\":{}}}",
        rfc3339(choices, it.millis),
        quoted(method),
        quoted(path),
        choices.mostly("200", &["null", "\"401\"", "-1", "0"]),
        choices.mostly("17", &["null", "1.5"]),
        it.duration,
        quoted(&it.address),
        quoted(it.agent),
    )
}

/// A line of JSON as nginx and others write it.
fn json_line(choices: &mut Choices, it: &Request) -> String {
    let space = choices.mostly("", &[" "]);
    let time = match choices.number(8) {
        0 => format!("\"time_local\":{space}\"{}\"", common(choices, it.millis)),
        1 => format!("\"ts\":{space}{}.{:03}", 1_795_464_000 + it.millis / 1000, it.millis % 1000),
        _ => format!("\"time\":{space}\"{}\"", rfc3339(choices, it.millis)),
    };
    let peer = format!(
        "\"request\":{{\"remote_ip\":{}}},\"http_x_forwarded_for\":{}",
        quoted(&it.address),
        quoted(&it.hops)
    );
    let request = format!(
        "\"request_line\":0,\"nested\":{{\"request\":[1,{{}}]}},\"status\":{space}{}",
        quoted(it.status)
    );
    let uri = it.line.split(' ').nth(1).map_or_else(|| "null".to_owned(), quoted);
    format!(
        "{{{time},{peer},{space}{request},\"request_uri\":{uri},\"request_time\":\"{}.{:03}\"{space}}}",
        it.duration / 1000,
        it.duration % 1000
    )
}

/// Returns a log, of which some lines are damaged.
fn log(seed: u64, line: fn(&mut Choices, &Request) -> String) -> String {
    let (mut choices, mut clock, mut log) = (Choices(seed), 10_000, String::new());
    for _ in 0..LINES {
        let request = request(&mut choices, &mut clock);
        let line = line(&mut choices, &request);
        let half = line.char_indices().nth(line.chars().count() / 2).map_or("", |(at, _)| &line[..at]);
        let damaged =
            [half.to_owned(), format!(" {line}"), line.replace('"', ""), line.clone() + "\r", String::new()];
        let damaged = damaged[choices.number(5) as usize].clone();
        log += choices.mostly(&line, &[&damaged, "garbage", "{}"]);
        log.push('\n');
    }
    log
}

/// Checks the JSON report of a replay with these arguments against that in the file `name`.
#[track_caller]
fn check_report(place: &Workplace, name: &str, arguments: &[&str]) {
    let json = place.path("report.json");
    let output = replay(&[arguments, &["--top", "3", "--json", json.to_str().unwrap()]].concat());
    assert!(output.status.code().is_some_and(|code| code < 2), "{}", text(&output.stderr));
    let mut report = read_json(&json);
    for field in ["seconds", "version", "config", "against"] {
        report.as_object_mut().unwrap().remove(field);
    }
    let folder = place.path("").to_str().unwrap().to_owned();
    // A line for each field.
    let found = report.to_string().replace(&folder, "").replace(",\"", ",\n\"") + "\n";
    let file = format!("{}/tests/data/replay/{name}.json", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("WEIR_BLESS").is_some() {
        fs::write(&file, &found).unwrap();
    }
    let expected = fs::read_to_string(&file).unwrap();
    let difference = expected.lines().zip(found.lines()).find(|(expected, found)| expected != found);
    assert!(expected == found, "{name}: {difference:?}");
}

#[test]
fn reports_of_every_format_are_as_before() {
    let place = Workplace::new();
    let rules = place.write("weir.yaml", format!("listeners: 127.0.0.1:0\nupstream: echo\nclient_ip: {{ trusted_proxies: [192.0.2.0/29] }}\nrules:\n{RULES}"));
    let all = [
        ("combined", log(1, combined_line)),
        ("envoy", log(2, envoy_line)),
        ("own-json", log(3, own_json_line)),
        ("json", log(4, json_line)),
    ];
    for (name, log) in &all {
        let log = place.write(name, log);
        check_report(&place, name, &["-c", &rules, &log]);
    }
    let compressed = place.write("combined", gzip(&all[0].1));
    check_report(&place, "combined", &["-c", &rules, &compressed]);
    let before = place.rules("before.yaml", "  - { name: per-ip, key: client_ip, limit: 20/min }\n");
    let logs =
        ["combined", "envoy", "own-json", "json"].map(|name| place.path(name).to_str().unwrap().to_owned());
    let arguments = ["-c", &rules, "--against", &before];
    check_report(&place, "compared", &[&arguments[..], &logs.each_ref().map(String::as_str)].concat());
}
