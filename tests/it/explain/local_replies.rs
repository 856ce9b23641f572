//! Explanations of local replies, compared with those that the proxy sends.

use serde_json::Value;

use super::weir_explain;
use crate::support::{Client, Request, Weir, config};

/// Returns the value of a header of an explanation.
fn header<'a>(explained: &'a Value, name: &str) -> &'a str {
    let lines = explained["headers"].as_array().unwrap();
    let line = lines.iter().find(|line| line["name"] == name);
    line.unwrap_or_else(|| panic!("no {name} in {explained:#}"))["value"].as_str().unwrap()
}

#[test]
fn rejected_grpc_call_is_explained_as_trailers_only() {
    let rules = "rules:
  - { name: closed, action: deny, match: { path: /closed } }
  - { name: calls, key: client_ip, limit: 1/d }
";
    let weir = Weir::start(&config("echo", rules));
    assert_eq!(Client::connect(weir.address()).fetch(&Request::get("/")).status, 200);
    let explain = |path: &str| {
        weir.admin_json(&format!("/explain?method=POST&path={path}&header.content-type=application/grpc"))
    };
    let limited = explain("/p.S/M");
    assert_eq!((&limited["outcome"], &limited["status"]), (&"limited".into(), &200.into()), "{limited:#}");
    assert_eq!(
        (header(&limited, "grpc-status"), header(&limited, "content-type")),
        ("8", "application/grpc")
    );
    let denied = explain("/closed");
    assert_eq!((&denied["status"], header(&denied, "grpc-status")), (&200.into(), "7"), "{denied:#}");
    let malformed = explain("/%2500");
    assert_eq!((&malformed["status"], header(&malformed, "grpc-status")), (&200.into(), "13"));
}

#[test]
fn degraded_response_is_explained_as_sent() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("busy.html"), "<p>busy</p>").unwrap();
    let file = directory.path().join("weir.yaml");
    let rules =
        "rules: [{ name: r, key: client_ip, limit: 1/d, on_limit: { body: { fallback: busy.html } } }]";
    std::fs::write(&file, config("echo", rules)).unwrap();
    let weir = Weir::start_file(&file);
    let mut client = Client::connect(weir.address());
    assert_eq!(client.fetch(&Request::get("/")).status, 200);
    for (method, request) in [("GET", Request::get("/")), ("POST", Request::post("/", ""))] {
        let (sent, explained) =
            (client.fetch(&request), weir.admin_json(&format!("/explain?method={method}")));
        assert_eq!(explained["status"], sent.status, "{method}: {explained:#}");
        assert_eq!(header(&explained, "content-type"), sent.header("content-type"), "{method}");
    }
    assert_eq!(weir.admin_json("/explain")["status"], 200);
}

#[test]
fn requests_that_the_proxy_rejects_as_malformed_are_explained_as_such() {
    let weir = Weir::start(&config("echo", "rules: []"));
    for host in ["bad host", "user:pw@host", "a/b", "[::1"] {
        let sent = Client::connect(weir.address()).fetch(&Request::get("/").host(host)).status;
        let explained = weir.admin_json(&format!("/explain?host={}", host.replace(' ', "+")));
        assert_eq!(
            (&explained["outcome"], &explained["status"]),
            (&"malformed".into(), &sent.into()),
            "{host}"
        );
        assert_eq!(sent, 400);
    }
    let sent = Client::connect(weir.address()).fetch(&Request::new("TRACE", "/")).status;
    assert_eq!(weir.admin_json("/explain?method=TRACE")["status"], sent);
    let file = weir.file().to_str().unwrap();
    let (_, text, _) = weir_explain(&["-c", file, "GET", "http://user:pw@host/"]);
    assert!(text.starts_with("MALFORMED 400: rejected as malformed: invalid host\n"), "{text}");
}

#[test]
fn rule_that_denies_requests_without_its_key_is_among_those_that_match() {
    let rules = "rules:
  - { name: keyed, key: { header: x-key }, limit: 5/d, on_missing: deny }
  - { name: skipped, key: { header: x-key }, limit: 5/d }
";
    let weir = Weir::start(&config("echo", rules));
    let explained = weir.admin_json("/explain");
    assert_eq!((&explained["rule"], &explained["rules"][0]["applies"]), (&"keyed".into(), &true.into()));
    assert_eq!(explained["rules"][1]["applies"], false);
    let text = weir.admin_get("/explain?format=text").body.text();
    assert!(text.contains("rules that match: 1\n  keyed (limit): denied\n"), "{text}");
}
