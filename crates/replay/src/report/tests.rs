use std::path::{Path, PathBuf};

use serde_json::Value;

use super::*;
use crate::{ReplayOptions, ReplayRules, run};
use weir_config as config;

/// Replays `log` by `rules`, and compares with `against`.
fn replay_with(rules: &str, against: Option<&str>, headroom: f64, log: &str) -> ReplayReport {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    std::fs::write(&path, log).unwrap();
    let load = |rules: &str| {
        let text = format!(
            "listeners: 127.0.0.1:0\nupstream: echo\nstore: {{ redis: redis://127.0.0.1 }}\nrules:\n{rules}"
        );
        config::from_text(&text, Path::new("weir.yaml"), &|_| None).unwrap()
    };
    let (config, against) = (load(rules), against.map(load));
    let named = |name: &str, policy| ReplayRules { name: name.to_owned(), policy, max_keys: 1000 };
    let options = ReplayOptions { logs: vec![path], format: None, fields: Vec::new(), headroom, top: 5 };
    let against = against.as_ref().map(|old| named("old.yaml", &old.policy));
    run(&named("new.yaml", &config.policy), against.as_ref(), &options).unwrap()
}

fn replay(rules: &str, log: &str) -> ReplayReport {
    replay_with(rules, None, 0.0, log)
}

/// A JSON line of a request to `path` by `client`, `millis` after some full minute.
fn line(millis: u64, client: &str, path: &str) -> String {
    format!(
        "{{\"start_time\":{}.{:03},\"client_ip\":\"{client}\",\"method\":\"GET\",\"path\":\"{path}\",\"status\":200,\"duration\":5}}\n",
        1_800_000_000 + millis / 1000,
        millis % 1000
    )
}

#[test]
fn numbers_have_groups_of_three_digits() {
    for (number, text) in [(0, "0"), (999, "999"), (1000, "1 000"), (1_234_567, "1 234 567")] {
        assert_eq!(grouped(number), text);
    }
}

#[test]
fn page_escapes_what_clients_choose() {
    let log = line(0, "192.0.2.1", "/<script>alert(1)</script>").repeat(3);
    let report = replay("  - { name: a, key: path, limit: 1/h }\n", &log);
    let page = report.to_html();
    assert!(page.contains("/&lt;script&gt;alert(1)&lt;/script&gt;") && !page.contains("<script"), "{page}");
    for tag in ["table", "section", "svg", "div", "ul", "main"] {
        let count = |text: &str| page.matches(text).count();
        assert_eq!(
            count(&format!("<{tag}>")) + count(&format!("<{tag} ")),
            count(&format!("</{tag}>")),
            "{tag}"
        );
    }
}

#[test]
fn text_report_has_no_control_characters_of_clients() {
    let log = line(0, "192.0.2.1", "/%1b[31m").repeat(3) + "\u{1b}[31m\n";
    let report = replay("  - { name: a, key: path, limit: 1/h }\n", &log).to_string();
    assert!(report.contains("limited 2") && !report.contains('\u{1b}'), "{report}");
}

/// Adds the names of all fields in `value`.
fn collect_fields<'v>(value: &'v Value, fields: &mut std::collections::BTreeSet<&'v str>) {
    match value {
        Value::Object(object) => object.iter().for_each(|(name, value)| {
            fields.insert(name);
            collect_fields(value, fields);
        }),
        Value::Array(values) => values.iter().for_each(|value| collect_fields(value, fields)),
        _ => {}
    }
}

#[test]
fn every_field_of_the_json_report_is_documented() {
    let log = line(0, "192.0.2.1", "/a").repeat(3) + "nothing\n";
    let rules = "  - { name: a, key: [client_ip, { header: x-key }], limit: 1/h, on_missing: shared }\n";
    let report = replay_with(rules, Some("  - { name: b, key: client_ip, limit: 9/h }\n"), 0.0, &log);
    let json: Value = serde_json::from_str(&report.to_json()).unwrap();
    let mut fields = std::collections::BTreeSet::new();
    collect_fields(&json, &mut fields);
    assert!(fields.len() > 60, "{fields:?}");
    let page = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("docs/operations/replay.md");
    let page = std::fs::read_to_string(page).unwrap();
    let undocumented: Vec<_> = fields
        .iter()
        .filter(|field| {
            ![format!("`{field}`"), format!("`{field}[]`")].iter().any(|name| page.contains(name))
        })
        .collect();
    assert!(undocumented.is_empty(), "{undocumented:?}");
}

#[test]
fn delayed_requests_are_reported_with_their_delays() {
    let log: String = (0..3).map(|index| line(index, "192.0.2.1", "/")).collect();
    let rule = "  - { name: a, key: client_ip, limit: 1/s, burst: 1, throttle: delay 5s }\n";
    let report = replay(rule, &log);
    let rule = &report.rules[0];
    assert_eq!((rule.outcomes.allowed, rule.outcomes.delayed, report.delayed), (1, 2, 2));
    assert!(
        (rule.max_delay_ms - 1998.0).abs() < 0.1 && (rule.mean_delay_ms - 1498.5).abs() < 0.1,
        "{rule:?}"
    );
}

#[test]
fn elastic_limits_use_the_given_headroom() {
    let log: String = (0..9).map(|index| line(index, "192.0.2.1", "/")).collect();
    let rule = "  - { name: a, key: client_ip, limit: 2/h, throttle: elastic 3x }\n";
    let allowed = |headroom| replay_with(rule, None, headroom, &log).rules[0].outcomes.allowed;
    assert_eq!((allowed(0.0), allowed(1.0)), (2, 6));
    let report = replay(rule, &log);
    assert!(report.notes.iter().any(|note| note.contains("elastic limits was 1.00")), "{:?}", report.notes);
}

#[test]
fn shared_limits_are_counted_by_one_limiter() {
    let log: String = (0..5).map(|index| line(index, "192.0.2.1", "/")).collect();
    let report = replay("  - { name: a, key: client_ip, limit: 3/h, scope: shared }\n", &log);
    assert_eq!((report.rules[0].outcomes.allowed, report.rules[0].outcomes.limited), (3, 2));
    assert!(report.notes.iter().any(|note| note.contains("one limiter")), "{:?}", report.notes);
}

#[test]
fn whole_seconds_are_noted() {
    let has_note = |millis| {
        let report = replay("  - { name: a, key: [], limit: 1/h }\n", &line(millis, "192.0.2.1", "/"));
        report.notes.iter().any(|note| note.contains("whole seconds"))
    };
    assert!(has_note(2000) && !has_note(2001));
}

#[test]
fn requests_out_of_order_are_sorted_within_the_window() {
    let rules = "  - { name: a, key: [], limit: 1/h }\n";
    // Each block of a log is sorted, so the lines must fill several.
    let filler: String = (0..20_000).map(|index| line(100_000 + index, "192.0.2.9", "/filler")).collect();
    let report = replay(rules, &(filler.clone() + &line(60_000, "192.0.2.1", "/first")));
    assert_eq!((report.late, report.rules[0].outcomes.allowed), (0, 1));
    assert_eq!(report.from.as_deref(), Some("2027-01-15T08:01:00.000Z"));
    let report = replay(
        rules,
        &(filler + &line(300_000, "192.0.2.2", "/").repeat(9000) + &line(0, "192.0.2.1", "/late")),
    );
    assert_eq!(report.late, 1);
    assert!(report.notes.iter().any(|note| note.contains("decided late")), "{:?}", report.notes);
}

#[test]
fn candidate_limits_state_what_they_would_affect() {
    let mut log: String = (0..100).map(|client| line(0, &format!("192.0.2.{client}"), "/")).collect();
    log += &line(1, "198.51.100.1", "/").repeat(50);
    let report = replay("  - { name: a, key: client_ip, limit: 10/min }\n", &log);
    let demand = report.rules[0].demand.as_ref().unwrap();
    assert_eq!((demand.p50, demand.p99, demand.max, demand.limit), (1, 1, 50, 10));
    let candidate = |limit, keys_above, requests_above| LimitCandidate { limit, keys_above, requests_above };
    assert_eq!(demand.candidates, [candidate(1, 1, 49), candidate(10, 1, 40), candidate(50, 0, 0)]);
}

/// A JSON line of a request with this status at `time`.
fn line_with_status(time: &str, client: &str, status: u16) -> String {
    format!("{{\"time\":\"{time}\",\"client_ip\":\"{client}\",\"path\":\"/\",\"status\":{status}}}\n")
}

#[test]
fn demand_has_only_what_a_rule_counts() {
    let mut log = line_with_status("2026-11-23T10:00:00Z", "192.0.2.1", 200).repeat(50);
    log += &line_with_status("2026-11-23T10:00:01Z", "192.0.2.1", 401).repeat(2);
    log += &line_with_status("2026-11-23T10:00:02Z", "192.0.2.2", 503);
    let rules = "  - { name: counted, key: client_ip, limit: 100/h, count: { response_status: 401 } }
  - { name: refunded, key: client_ip, limit: 100/h, refund_on: [503] }\n";
    let report = replay(rules, &log);
    let demand = |rule: usize| report.rules[rule].demand.as_ref().unwrap();
    assert_eq!((demand(0).max, demand(0).requests, demand(0).keys), (2, 2, 1));
    assert_eq!((demand(1).max, demand(1).requests, demand(1).keys), (52, 52, 1));
    assert!(report.to_string().contains("exceeded by 0 of 1 keys and 0 of 2 requests"), "{report}");
}

#[test]
fn demand_has_the_windows_of_the_limiter() {
    // A Sunday and a Monday in Berlin, of which all are Sunday in UTC, and a Wednesday and a Thursday.
    let times =
        ["2026-11-18T12:00:00Z", "2026-11-19T12:00:00Z", "2026-11-22T22:30:00Z", "2026-11-22T23:30:00Z"];
    let log: String = times.iter().map(|time| line_with_status(time, "192.0.2.1", 200)).collect();
    let max = |limit: &str| {
        let rules = format!("  - {{ name: a, key: client_ip, limit: {limit} }}\n");
        replay(&rules, &log).rules[0].demand.as_ref().unwrap().max
    };
    assert_eq!(max("9/w, algorithm: fixed_window"), 4);
    assert_eq!(max("9/w, algorithm: fixed_window, timezone: Europe/Berlin"), 3);
    assert_eq!(max("9/d, algorithm: fixed_window, timezone: Europe/Berlin"), 1);
    assert_eq!(max("9/month, algorithm: fixed_window"), 4);
}

#[test]
fn demand_is_reported_for_every_limit() {
    let mut log: String = (0..3).map(|index| line(index * 30_000, "192.0.2.1", "/")).collect();
    log += &line(100_000, "2001:db8::1", "/").repeat(4);
    let report = replay("  - { name: a, key: client_ip, limits: [1/s, 3/min] }\n", &log);
    let rule = &report.rules[0];
    let first = rule.demand.as_ref().unwrap();
    let [second] = &rule.further_demand[..] else { panic!("{rule:?}") };
    assert_eq!((first.period.as_str(), first.max, first.p50), ("s", 4, 1));
    assert_eq!((second.period.as_str(), second.max, second.p50), ("min", 4, 2));
    let text = report.to_string();
    assert!(text.contains("a limit of 3/min") && text.contains("a limit of 1/s"), "{text}");
    assert!(report.to_html().contains("demand-0-1"));
}

#[test]
fn long_keys_are_shortened_in_lists() {
    let log = line(0, "192.0.2.1", &format!("/{}", "x".repeat(9000))).repeat(3);
    let report = replay("  - { name: a, key: path, limit: 1/h }\n", &log);
    assert_eq!(report.rules[0].top[0].key, format!("/{}…", "x".repeat(199)));
}
