//! `/explain`, `weir explain`, and commands on single keys: reset, boost, ban.

mod audit;
mod bodies;
mod commands;
mod local_replies;
mod overrides;
mod token;
mod units;

use serde_json::Value;

use crate::support::weir::run;
use crate::support::{Client, Request, Weir, config, wait};

const RULES: &str = "\
client_ip: { trusted_proxies: [127.0.0.1] }
rules:
  - { name: health, action: allow, match: { path: /healthz } }
  - { name: per-ip, key: [client_ip], limit: 3/d }
  - { name: posts, match: { method: POST }, key: [{ header: x-key }], limit: 5/d, on_missing: deny }
";

/// Sends a GET of `path` for the client at this address; returns the status.
fn status(weir: &Weir, client: &str) -> u16 {
    Client::connect(weir.address()).fetch(&Request::get("/").forwarded_for(client)).status
}

/// Returns the explanation of a GET of `/` for the client at this address.
fn explain(weir: &Weir, client: &str) -> Value {
    weir.admin_json(&format!("/explain?path=/&host=a.example&header.x-forwarded-for={client}"))
}

/// Waits for this number of lines in the audit log and returns them.
fn audit_lines(weir: &Weir, count: usize) -> Vec<Value> {
    wait::until("lines in the audit log", || {
        let lines = weir.log();
        let lines = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let audit: Vec<_> = lines.filter(|line| line["target"] == "weir::audit").collect();
        (audit.len() >= count).then_some(audit)
    })
}

/// Runs `weir explain` with these arguments; returns its exit code, its output and its error output.
fn weir_explain(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = run(["explain"].iter().chain(arguments).copied());
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn explanation_is_what_then_happens_and_charges_nothing() {
    let weir = Weir::start(&config("echo", RULES));
    for used in 0..3 {
        for _ in 0..5 {
            let explained = explain(&weir, "203.0.113.7");
            assert_eq!(explained["outcome"], "allowed", "{explained:#}");
            assert_eq!(explained["rules"][1]["limits"][0]["used"], used);
        }
        assert_eq!(status(&weir, "203.0.113.7"), 200);
    }
    let explained = explain(&weir, "203.0.113.7");
    assert_eq!((&explained["outcome"], &explained["rule"]), (&"limited".into(), &"per-ip".into()));
    assert_eq!(explained["rules"][1]["key"]["text"], "client_ip=203.0.113.7");
    assert_eq!(explained["rules"][2]["mismatch"]["field"], "method");
    let request = Request::get("/").forwarded_for("203.0.113.7");
    let rejected = Client::connect(weir.address()).fetch(&request);
    assert_eq!(explained["status"], rejected.status);
    let headers = explained["headers"].as_array().unwrap();
    let named =
        |name: &str| headers.iter().find(|line| line["name"] == name).unwrap()["value"].as_str().unwrap();
    for name in ["retry-after", "x-ratelimit-limit", "x-ratelimit-remaining", "x-envoy-ratelimited"] {
        assert_eq!(named(name), rejected.header(name), "{name}");
    }
    let keys = |weir: &Weir| weir.metric("weir_limiter_keys", &[("rule", "per-ip")]);
    assert_eq!(keys(&weir), 1.0);
    assert_eq!(explain(&weir, "203.0.113.8")["outcome"], "allowed");
    assert_eq!(keys(&weir), 1.0, "explaining creates no counter");
}

#[test]
fn explain_endpoint_rejects_hostile_parameters() {
    let weir = Weir::start(&config("echo", RULES));
    for query in [
        "metod=GET",
        "method=G%20T",
        "path=login",
        "client_ip=localhost",
        "header.=x",
        "header.x%0d%0ay=1",
        "header.x=%0d%0a",
        "host=",
        "format=xml",
        "descriptor.a=b",
    ] {
        let response = weir.admin_get(&format!("/explain?{query}"));
        assert_eq!(response.status, 400, "{query}: {}", response.body.text());
    }
    assert_eq!(weir.admin_json("/explain?path=/%2500")["outcome"], "malformed");
    assert_eq!(weir.admin_json("/explain?path=/a%20b")["request"]["path"], "/a b");
    let text = weir.admin_get("/explain?format=text&path=/healthz");
    assert!(
        text.body.text().starts_with("EXEMPT: `health` exempts it from all rules\n"),
        "{}",
        text.body.text()
    );
}

#[test]
fn command_explains_by_the_file_or_by_a_running_instance() {
    let weir = Weir::start(&config("echo", RULES));
    (0..3).for_each(|_| assert_eq!(status(&weir, "203.0.113.7"), 200));
    let file = weir.file().to_str().unwrap();
    let admin = weir.admin_address("full").to_string();
    let forwarded = "x-forwarded-for: 203.0.113.7";
    let (code, text, note) = weir_explain(&["-c", file, "GET", "http://a.example/", "-H", forwarded]);
    assert_eq!(code, Some(0), "{note}");
    assert!(
        text.starts_with("ALLOWED: forwarded\n") && note.contains("all counters are unused"),
        "{text}{note}"
    );
    let live = ["-c", file, "--admin", &admin, "GET", "http://a.example/", "-H", forwarded];
    let (code, text, note) = weir_explain(&live);
    assert_eq!((code, note.as_str()), (Some(0), ""));
    assert!(text.starts_with("LIMITED 429: over the limit of `per-ip`; retry after "), "{text}");
    assert!(text.contains("used 3, remaining 0"), "{text}");
    let (_, json, _) =
        weir_explain(&["--admin", &admin, "--format", "json", "POST", "/x", "--client", "192.0.2.1"]);
    let explained: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&explained["outcome"], &explained["rule"]), (&"denied".into(), &"posts".into()));
    assert_eq!(explained["request"]["client_ip"], "192.0.2.1");
    let other = weir.file().with_extension("other");
    std::fs::write(&other, config("echo", "rules: []")).unwrap();
    let (code, _, note) = weir_explain(&["-c", other.to_str().unwrap(), "--admin", &admin, "GET", "/"]);
    assert!(code == Some(0) && note.contains("differs from the configuration of the instance"), "{note}");
}

#[test]
fn command_without_an_explanation_exits_2() {
    let weir = Weir::start(&config("echo", RULES));
    let file = weir.file().to_str().unwrap();
    let address = weir.address().to_string();
    for (arguments, problem) in [
        (&["-c", "/nonexistent/weir.yaml", "GET", "/"][..], "/nonexistent/weir.yaml"),
        (&["-c", file, "GET", "login"], "URL: expected a path"),
        (&["-c", file, "GET", "/", "-H", "nocolon"], "header: expected `name: value`"),
        (&["--admin", "127.0.0.1:1", "GET", "/"], "cannot reach the admin port at 127.0.0.1:1"),
        // The echo server is not the admin port.
        (&["--admin", &address, "GET", "/"], ": "),
        (&["-c", file, "GET"], "required"),
    ] {
        let (code, _, error) = weir_explain(arguments);
        assert!(code == Some(2) && error.contains(problem), "{arguments:?}: {code:?} {error}");
    }
}

#[test]
fn descriptors_of_a_domain_are_explained() {
    let rules = "rules: [{ name: a, domain: api, match: { descriptor: { tier: gold } }, key: [{ descriptor: user }], limit: 2/d }]";
    let weir = Weir::start(&config("echo", rules));
    let explained = weir.admin_json("/explain?domain=api&descriptor.tier=gold&descriptor.user=ann");
    assert_eq!(explained["rules"][0]["key"]["text"], "descriptor.user=ann", "{explained:#}");
    let explained = weir.admin_json("/explain?domain=api&descriptor.tier=iron&descriptor.user=ann");
    assert_eq!(explained["rules"][0]["mismatch"]["field"], "descriptor.tier", "{explained:#}");
    assert_eq!(weir.admin_json("/explain")["rules"][0]["applies"], false);
}
