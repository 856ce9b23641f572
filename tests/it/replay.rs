//! `weir replay`: recorded logs through the rules, the reports, and the same counts as live traffic.

mod alternatives;
mod damaged;
mod disorder;
mod fields;
mod formats;
mod live;
mod reports;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::gzip;
use crate::support::weir::run;

const SERVICE: &str = "listeners: 127.0.0.1:0\nupstream: echo\n";

/// A folder with configurations and logs.
struct Workplace(TempDir);

impl Workplace {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> String {
        fs::write(self.path(name), contents).unwrap();
        self.path(name).to_str().unwrap().to_owned()
    }

    fn rules(&self, name: &str, rules: &str) -> String {
        self.write(name, format!("{SERVICE}rules:\n{rules}"))
    }

    /// Replays with these arguments; returns the JSON report.
    #[track_caller]
    fn replay(&self, arguments: &[&str]) -> Value {
        let json = self.path("report.json");
        let output = replay(&[arguments, &["--json", json.to_str().unwrap()]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        read_json(&json)
    }
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn replay(arguments: &[&str]) -> Output {
    run(["replay"].iter().chain(arguments).copied())
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

/// Returns a line of the combined format: a request at `second` of a minute.
fn line(second: u32, client: &str, request: &str, status: u16) -> String {
    format!(
        "{client} - - [23/Nov/2026:20:{:02}:{:02} +0000] \"{request} HTTP/1.1\" {status} 10 \"-\" \"curl/8.5\"\n",
        second / 60,
        second % 60
    )
}

/// Five requests of one client within a second, and one of another.
fn burst() -> String {
    let burst = (0..5).map(|_| line(1, "192.0.2.1", "GET /a", 200));
    burst.chain([line(2, "192.0.2.2", "GET /a", 200)]).collect()
}

#[test]
fn replay_reports_limited_clients_by_rule() {
    let place = Workplace::new();
    let rules = place.rules("weir.yaml", "  - { name: per-ip, key: client_ip, limit: 3/min }\n");
    let log = place.write("access.log", burst() + "not a line\n");
    let page = place.path("report.html");
    let report = place.replay(&["-c", &rules, "--html", page.to_str().unwrap(), &log]);
    assert_eq!((&report["requests"], &report["rejected"]), (&6.into(), &2.into()));
    assert_eq!(report["counts"]["unreadable"], 1);
    assert_eq!(report["logs"][0]["unreadable_examples"][0]["line"], 7);
    let rule = &report["rules"][0];
    assert_eq!((&rule["outcomes"]["allowed"], &rule["outcomes"]["limited"]), (&4.into(), &2.into()));
    assert_eq!(rule["top"][0]["key"], "192.0.2.1");
    assert_eq!(rule["top"][0]["first"], "2026-11-23T20:00:01.000Z");
    assert_eq!((&rule["demand"]["max"], &rule["demand"]["limit"]), (&5.into(), &3.into()));
    assert_eq!(report["clients"]["top"][0]["client"], "192.0.2.1");
    let page = fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("<svg ") && page.contains("192.0.2.1"));
    assert!(!page.contains("http://") && !page.contains("https://"), "an outside resource");
    let output = replay(&["-c", &rules, &log]);
    for expected in ["limited 2", "192.0.2.1", "access.log:7: not a line", "a limit of 5/min"] {
        assert!(text(&output.stdout).contains(expected), "no {expected} in {}", text(&output.stdout));
    }
}

#[test]
fn several_compressed_logs_are_merged_by_time() {
    let place = Workplace::new();
    let rules =
        place.rules("weir.yaml", "  - { name: all, key: [], limit: 2/min, algorithm: fixed_window }\n");
    // Each minute has a request of one log and two of the other.
    let one: String = (0..60).map(|minute| line(minute * 60 + 30, "192.0.2.1", "GET /", 200)).collect();
    let two: String = (0..60)
        .flat_map(|minute| [10, 40].map(|second| line(minute * 60 + second, "192.0.2.2", "GET /", 200)))
        .collect();
    let (one, two) = (place.write("one.gz", gzip(one)), place.write("two", two));
    let report = place.replay(&["-c", &rules, &one, &two]);
    let rejected = report["clients"]["top"].as_array().unwrap();
    assert_eq!(
        (rejected.len(), &rejected[0]["client"], &rejected[0]["rejected"]),
        (1, &"192.0.2.2".into(), &60.into())
    );
    assert_eq!(report["late"], 0);
}

#[test]
fn responses_settle_at_the_end_of_their_requests() {
    let place = Workplace::new();
    let rules = place.rules(
        "weir.yaml",
        "  - { name: failures, key: client_ip, limit: 2/h, count: { response_status: 401 } }\n",
    );
    let request = |second: f64, status: u16, duration: f64| {
        format!(
            "{{\"ts\":{:.1},\"remote_addr\":\"192.0.2.1\",\"path\":\"/login\",\"status\":{status},\"request_time\":{duration:.1}}}\n",
            1.8e9 + second + duration
        )
    };
    // The third one comes while two may still fail. The fifth one comes after two that have failed.
    let log = [
        (0.0, 200, 5.0),
        (1.0, 200, 5.0),
        (2.0, 200, 1.0),
        (10.0, 401, 1.0),
        (12.0, 401, 1.0),
        (14.0, 200, 1.0),
    ];
    let mut log: Vec<(f64, u16, f64)> = log.into_iter().collect();
    log.sort_by(|one, other| (one.0 + one.2).total_cmp(&(other.0 + other.2)));
    let log: String =
        log.into_iter().map(|(second, status, duration)| request(second, status, duration)).collect();
    let log = place.write("log", log);
    let report = place.replay(&["-c", &rules, &log]);
    let outcomes = &report["rules"][0]["outcomes"];
    assert_eq!((&outcomes["allowed"], &outcomes["limited"]), (&4.into(), &2.into()), "{outcomes}");
}

#[test]
fn attributes_that_the_log_lacks_are_counted() {
    let place = Workplace::new();
    let rules = place.rules(
        "weir.yaml",
        "  - { name: per-key, match: { path: /a }, key: { header: x-api-key }, limit: 1/h }
  - { name: agents, match: { header: { user-agent: \"~^curl/\" } }, key: [], limit: 1/h }
  - { name: other, key: [], limit: 1/h, scope: { rls: 127.0.0.1:1, domain: d, on_error: local } }\n",
    );
    let log = place.write("log", burst() + &line(3, "192.0.2.3", "GET /b", 200));
    let report = place.replay(&["-c", &rules, &log]);
    let missing = &report["rules"][0]["undecidable"][0];
    assert_eq!((&missing["attribute"], &missing["requests"]), (&"header x-api-key".into(), &6.into()));
    assert!(missing["consequence"].as_str().unwrap().contains("on_missing: skip"));
    assert_eq!(report["rules"][1]["undecidable"], Value::Array(Vec::new()));
    assert_eq!(report["rules"][1]["outcomes"]["limited"], 6);
    assert_eq!(report["rules"][2]["not_simulated"], 7);
    let json = "{\"time\":1800000000,\"path\":\"/a\",\"key\":\"k\"}\n".repeat(3);
    let json = place.write("json", json);
    let report = place.replay(&["-c", &rules, "--field", "header:x-api-key=key", &json]);
    assert_eq!(report["rules"][0]["outcomes"]["limited"], 2);
    assert_eq!(report["rules"][0]["undecidable"], Value::Array(Vec::new()));
    assert_eq!(report["rules"][1]["undecidable"][0]["attribute"], "header user-agent");
}

#[test]
fn header_values_of_json_logs_may_be_lists() {
    let place = Workplace::new();
    let rules = place.rules("weir.yaml", "  - { name: per-key, key: { header: x-api-key }, limit: 1/h }\n");
    let field = ["-c", &rules, "--field", "header:x-api-key=request.headers.X-Api-Key"];
    for (value, limited, missing) in [
        (r#"["k1"]"#, 2, 0),
        (r#" [ "k\u0031" ] "#, 2, 0),
        (r#""k1""#, 2, 0),
        (r#"["k1","k2"]"#, 0, 3),
        ("[]", 0, 3),
        (r#"{"a":"k1"}"#, 0, 3),
        (r#""k\u0000""#, 0, 3),
        (r#""k\n1""#, 0, 3),
        ("null", 0, 0),
    ] {
        let line = format!(
            "{{\"ts\":1800000000,\"request\":{{\"uri\":\"/a\",\"headers\":{{\"X-Api-Key\":{value}}}}}}}\n"
        );
        let log = place.write("log", line.repeat(3));
        let report = place.replay(&[&field[..], &[&log]].concat());
        let rule = &report["rules"][0];
        assert_eq!(rule["outcomes"]["limited"], limited, "{value}");
        assert_eq!(rule["undecidable"][0]["requests"].as_u64().unwrap_or(0), missing, "{value}");
    }
}

#[test]
fn load_balancer_that_is_not_trusted_is_noted() {
    let place = Workplace::new();
    let rule = "  - { name: a, key: client_ip, limit: 1/h }\n";
    let untrusted = place.rules("weir.yaml", rule);
    let trusted = format!("{SERVICE}client_ip: {{ trusted_proxies: 10.0.0.0/8 }}\nrules:\n{rule}");
    let trusted = place.write("trusted.yaml", trusted);
    let request = |client: u32| {
        line(client, "10.0.0.1", "GET /", 200).replace('\n', &format!(" \"192.0.2.{client}\"\n"))
    };
    let log = place.write("log", (0..50).map(request).collect::<String>());
    let notes = |rules: &str| {
        let report = place.replay(&["-c", rules, &log]);
        report["notes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|note| note.as_str().unwrap().to_owned())
            .collect::<String>()
    };
    let note = notes(&untrusted);
    assert!(
        note.contains("1 peer (10.0.0.1) sent 100.00 %") && note.contains("client_ip.trusted_proxies"),
        "{note}"
    );
    assert!(!notes(&trusted).contains("trusted_proxies"));
}

#[test]
fn two_rule_files_are_compared() {
    let place = Workplace::new();
    let old = place.rules("old.yaml", "  - { name: per-ip, key: client_ip, limit: 4/min }\n");
    let new = place.rules(
        "new.yaml",
        "  - { name: per-ip, key: client_ip, limit: 9/min }\n  - { name: no, match: { client_ip: 192.0.2.2 }, action: deny }\n",
    );
    let log = place.write("log", burst());
    let report = place.replay(&["-c", &new, "--against", &old, &log]);
    let comparison = &report["comparison"];
    assert_eq!((&comparison["newly_rejected"], &comparison["no_longer_rejected"]), (&1.into(), &1.into()));
    assert_eq!(comparison["top_newly"][0]["client"], "192.0.2.2");
    assert_eq!(comparison["top_no_longer"][0]["client"], "192.0.2.1");
    let rules = comparison["rules"].as_array().unwrap();
    assert_eq!(rules[0]["before"], Value::Null);
    assert_eq!(
        (&rules[1]["name"], &rules[1]["before"], &rules[1]["after"]),
        (&"per-ip".into(), &1.into(), &0.into())
    );
}

#[test]
fn exit_code_tells_a_bad_configuration_from_a_bad_log() {
    let place = Workplace::new();
    let good = place.rules("weir.yaml", "  - { name: a, key: [], limit: 1/s }\n");
    let bad = place.rules("bad.yaml", "  - { name: a, key: [], limit: 1/fortnight }\n");
    let log = place.write("log", burst());
    let odd = place.write("odd", "nothing\nto see\n");
    let empty = place.write("empty", "");
    let missing = place.path("missing");
    for (arguments, code, message) in [
        (["-c", &bad, &log], 2, "fortnight"),
        (["-c", &good, missing.to_str().unwrap()], 1, "cannot be read"),
        (["-c", &good, &odd], 1, "unknown format"),
        (["-c", &good, &empty], 0, ""),
    ] {
        let output = replay(&arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(message), "{}", text(&output.stderr));
    }
    for option in ["--json", "--html"] {
        let nowhere = place.path("nowhere/report");
        // The log is missing, too, but it is not opened.
        let output = replay(&["-c", &good, option, nowhere.to_str().unwrap(), missing.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1));
        assert!(
            text(&output.stderr).contains("nowhere/report: cannot be written"),
            "{}",
            text(&output.stderr)
        );
    }
    let output = replay(&["-c", &good, "--field", "client=x", &log]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}
