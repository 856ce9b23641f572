//! Overrides of rules that share counters, of keys in any notation, and of keys that must not be shown.

use serde_json::Value;

use super::{explain, status};
use crate::support::{Client, Request, Weir, config};

const PROXIES: &str = "client_ip: { trusted_proxies: [127.0.0.1] }\n";

fn start(rules: &str) -> Weir {
    Weir::start(&with_rules(rules))
}

fn with_rules(rules: &str) -> String {
    config("echo", &format!("{PROXIES}{rules}"))
}

/// Adds a rule that no request matches, so that a reload changes something.
fn changed(rules: &str, name: &str) -> String {
    with_rules(&format!("{rules}  - {{ name: {name}, key: path, limit: 9/d, match: {{ path: /none }} }}\n"))
}

/// Sends a POST; returns the status and the JSON of the response, or its text as a JSON string.
fn command(weir: &Weir, target: &str) -> (u16, Value) {
    let response = weir.admin_post(target);
    let text = response.body.text();
    (response.status, serde_json::from_str(&text).unwrap_or_else(|_| text.into()))
}

fn post(weir: &Weir, target: &str) -> Value {
    let (status, body) = command(weir, target);
    assert_eq!(status, 200, "{target}: {body}");
    body
}

const SHARED: &str = "rules:
  - { name: ca, key: client_ip, limit: 3/d, counter: budget, match: { path: /a }, on_limit: { ban: 1h } }
  - { name: cb, key: client_ip, limit: 3/d, counter: budget, except: { path: /a } }
";

#[test]
fn unban_through_a_rule_with_the_same_counter_survives_a_reload() {
    let weir = start(SHARED);
    let (ca, cb) = ("rule=ca&key=client_ip=203.0.113.7", "rule=cb&key=client_ip=203.0.113.7");
    for (set, cleared) in [(ca, cb), (cb, ca)] {
        post(&weir, &format!("/limits/ban?{set}&for=1h"));
        assert_eq!(status(&weir, "203.0.113.7"), 429);
        let list = weir.admin_json("/limits/overrides");
        assert_eq!(list["overrides"][0]["rules"], serde_json::json!(["ca", "cb"]), "{list:#}");
        assert_eq!(explain(&weir, "203.0.113.7")["rules"][1]["overrides"][0]["action"], "ban");
        assert_eq!(post(&weir, &format!("/limits/unban?{cleared}"))["was_in_force"], true);
        assert_eq!(weir.admin_json("/limits/overrides")["overrides"], Value::Array(Vec::new()));
        weir.reload(&changed(SHARED, &set[5..7].to_uppercase()));
        assert_eq!(status(&weir, "203.0.113.7"), 200, "{set}");
    }
    post(&weir, &format!("/limits/boost?{ca}&factor=2&for=1h"));
    assert_eq!(post(&weir, &format!("/limits/boost?{cb}&factor=1"))["was_in_force"], true);
    weir.reload(&changed(SHARED, "third"));
    assert_eq!((status(&weir, "203.0.113.7"), status(&weir, "203.0.113.7")), (200, 429));
}

#[test]
fn commands_say_that_the_key_is_still_banned() {
    let rules = "rules: [{ name: per-ip, key: client_ip, limit: 1/d, on_limit: { ban: 1h } }]";
    let weir = start(rules);
    let key = "rule=per-ip&key=client_ip=203.0.113.7";
    let is_noted = |body: &Value| {
        let notes = body["notes"].as_array().unwrap();
        let is_noted = notes.iter().any(|note| note == "still banned, POST /limits/unban lifts it");
        assert_eq!(is_noted, body["banned_until"].is_string(), "{body:#}");
        is_noted
    };
    assert!(!is_noted(&post(&weir, &format!("/limits/boost?{key}&factor=2&for=1h"))));
    post(&weir, &format!("/limits/boost?{key}&factor=1"));
    assert_eq!((status(&weir, "203.0.113.7"), status(&weir, "203.0.113.7")), (200, 429));
    assert!(is_noted(&post(&weir, &format!("/limits/boost?{key}&factor=9&for=1h"))), "the rule's ban");
    assert_eq!(status(&weir, "203.0.113.7"), 429);
    assert!(!is_noted(&post(&weir, &format!("/limits/reset?{key}"))), "a reset ends the rule's ban");
    let banned = post(&weir, &format!("/limits/ban?{key}&for=1h"));
    assert!(banned["banned_until"].is_string(), "{banned:#}");
    assert!(is_noted(&post(&weir, &format!("/limits/reset?{key}"))), "the operator's ban");
    assert!(!is_noted(&post(&weir, &format!("/limits/unban?{key}"))));
    assert_eq!(status(&weir, "203.0.113.7"), 200);
}

#[test]
fn keys_are_read_in_any_notation_and_written_in_one() {
    let weir = start(
        "rules:
  - { name: per-ip, key: client_ip, limit: 3/d }
  - { name: per-host, key: host, limit: 3/d }
  - { name: per-page, key: [client_ip, path], limit: 3/d }
  - { name: all, key: [], limit: 99/d }
",
    );
    for (query, key) in [
        ("rule=per-ip&key=client_ip=198.51.100.7/32", "client_ip=198.51.100.7"),
        ("rule=per-host&key=host=A.Example:80", "host=a.example"),
        ("rule=per-page&key=client_ip=198.51.100.7,+path=/x/../b", "client_ip=198.51.100.7, path=/b"),
        ("rule=per-page&key=client_ip=198.51.100.7,path=/b", "client_ip=198.51.100.7, path=/b"),
    ] {
        assert_eq!(post(&weir, &format!("/limits/ban?{query}&for=1h"))["key"], key, "{query}");
    }
    let request = Request::get("/").host("A.example.:80").forwarded_for("203.0.113.9");
    assert_eq!(Client::connect(weir.address()).fetch(&request).status, 429, "the host is banned");
    assert_eq!(weir.admin_json("/limits/overrides")["overrides"].as_array().unwrap().len(), 3);
    for (query, problem) in [
        ("rule=per-ip&key=client_ip=198.51.100.0/8", "expected an address, or a network with the prefix /32"),
        ("rule=per-ip&key=client_ip=2001:db8::/32", "expected an address, or a network with the prefix /64"),
        ("rule=per-host&key=host=bad+host", "not a value of `host`: bad host"),
        ("rule=all&key=client_ip=1.2.3.4", "the rule counts all requests together (`key: []`)"),
    ] {
        let (status, body) = command(&weir, &format!("/limits/ban?{query}&for=1h"));
        assert!(status == 400 && body.as_str().is_some_and(|text| text.contains(problem)), "{query}: {body}");
    }
}

#[test]
fn log_keys_applies_to_commands_and_no_fingerprint_contains_an_address() {
    let rules = "log_keys: MODE\nrules: [{ name: per-ip, key: client_ip, limit: 3/d }]";
    // 203.0.113.7 in hexadecimal is cb007107.
    for mode in ["hash", "off"] {
        let weir = start(&rules.replace("MODE", mode));
        assert_eq!(status(&weir, "203.0.113.7"), 200);
        let banned = post(&weir, "/limits/ban?rule=per-ip&key=client_ip=203.0.113.7&for=1h");
        let shown = [
            banned.to_string(),
            weir.admin_json("/limits/overrides").to_string(),
            weir.admin_json("/limits/top").to_string(),
            super::audit_lines(&weir, 1)[0].to_string(),
        ];
        for text in shown {
            assert!(!text.contains("203.0.113.7") && !text.contains("cb007107"), "{mode}: {text}");
        }
        let top = weir.admin_json("/limits/top");
        let fingerprint = top["rules"][0]["keys"][0]["fingerprint"].as_str().unwrap();
        assert_eq!(banned["fingerprint"], fingerprint);
        assert_eq!(explain(&weir, "203.0.113.7")["rules"][0]["key"]["fingerprint"], fingerprint);
        assert_eq!(
            post(&weir, &format!("/limits/unban?rule=per-ip&fingerprint={fingerprint}"))["was_in_force"],
            true
        );
        assert_eq!(status(&weir, "203.0.113.7"), 200);
    }
}

#[test]
fn operators_ban_is_shown_among_the_heaviest_keys() {
    let weir = start("rules: [{ name: per-ip, key: client_ip, limit: 3/d }]");
    assert_eq!(status(&weir, "203.0.113.7"), 200);
    let is_banned = || weir.admin_json("/limits/top")["rules"][0]["keys"][0]["banned"].clone();
    assert_eq!(is_banned(), false);
    post(&weir, "/limits/ban?rule=per-ip&key=client_ip=203.0.113.7&for=1h");
    assert_eq!(is_banned(), true);
    assert_eq!(weir.admin_json("/events?once")["top"][0]["keys"][0]["banned"], true);
}

#[test]
fn headers_of_a_boosted_key_have_the_window_in_force() {
    let weir = start("ietf_headers: true\nrules: [{ name: per-ip, key: client_ip, limit: 5/min }]");
    post(&weir, "/limits/boost?rule=per-ip&key=client_ip=203.0.113.7&limit=500/s&for=1h");
    let response = Client::connect(weir.address()).fetch(&Request::get("/").forwarded_for("203.0.113.7"));
    assert_eq!(response.header("x-ratelimit-limit"), "500, 500;w=1;name=\"per-ip\"");
    let policy = response.header("ratelimit-policy");
    assert!(policy.starts_with("\"per-ip\";q=500;w=1;"), "{policy}");
}

#[test]
fn boost_that_would_lower_a_limit_is_rejected() {
    let weir = start("rules: [{ name: per-ip, key: client_ip, limit: 5/min }]");
    let (status, body) =
        command(&weir, "/limits/boost?rule=per-ip&key=client_ip=203.0.113.7&limit=1/h&for=1h");
    let is_named = body.as_str().is_some_and(|text| text.contains("the limit of the rule, which is 5/min"));
    assert!(status == 400 && is_named, "{status} {body}");
    assert_eq!(weir.admin_json("/limits/overrides")["overrides"], Value::Array(Vec::new()));
}
