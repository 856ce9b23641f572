//! Explanations of requests with bodies.

use std::fs;

use super::weir_explain;
use crate::support::{Client, Request, Weir, config};

const RULES: &str = "\
rules:
  - { name: chat, match: { path: /chat, json: { model: \"~^gpt-\" } }, key: [{ json: user }], on_missing: shared, limit: 2/d, algorithm: fixed_window }
  - { name: login, match: { path: /login }, key: [{ form: username }], on_missing: deny, limit: 2/d, algorithm: fixed_window }
  - { name: tools, match: { path: /mcp, json: { method: tools/call } }, key: [{ json: params.name }], on_missing: skip, limit: 3/d, algorithm: fixed_window }
";
const JSON: &str = "content-type: application/json";

fn fetch(weir: &Weir, target: &str, body: &str) -> u16 {
    let request = Request::post(target, body).header("content-type", "application/json");
    Client::connect(weir.address()).fetch(&request).status
}

/// Writes a configuration; returns its directory, and its path.
fn file(settings: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.yaml");
    fs::write(&path, config("echo", &format!("{settings}{RULES}"))).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (directory, path)
}

#[test]
fn fields_are_read_from_the_given_body() {
    let (directory, path) = file("");
    let explain = |rest: &[&str]| {
        let (code, output, problem) = weir_explain(&[&["-c", &path, "POST"], rest].concat());
        assert_eq!(code, Some(0), "{problem}");
        output
    };
    let chat = explain(&["/chat", "-H", JSON, "--data", r#"{"model":"gpt-4","user":"ann"}"#]);
    assert!(chat.starts_with("ALLOWED") && chat.contains("json.user=ann"), "{chat}");
    let other = explain(&["/chat", "-H", JSON, "-d", r#"{"model":"claude"}"#]);
    assert!(other.contains("chat: json.model"), "{other}");
    let login = explain(&["/login", "-d", "username=ann", "-d", "password=x"]);
    assert!(login.contains("form.username=ann"), "a form unless stated otherwise: {login}");
    let body = directory.path().join("body.json");
    fs::write(&body, "{\"model\":\n\"gpt-4\"}\n").unwrap();
    let from_file = explain(&["/chat", "-H", JSON, "--data", &format!("@{}", body.display())]);
    assert!(from_file.contains("rules that match: 1"), "{from_file}");
    let batch = r#"[{"method":"tools/list"},{"method":"tools/call","params":{"name":"x"}}]"#;
    let batch = explain(&["/mcp", "-H", JSON, "--data", batch]);
    assert!(batch.contains("json.params.name=x") && batch.contains("rules that match: 1"), "{batch}");
    let (code, _, problem) = weir_explain(&["-c", &path, "POST", "/chat", "-d", "@/missing"]);
    assert_eq!(code, Some(2));
    assert!(problem.contains("--data: /missing: not readable"), "{problem}");
}

#[test]
fn unreadable_bodies_are_explained() {
    let (_directory, path) = file("");
    let arguments = ["POST", "/chat", "-H", JSON, "--data", r#"{"model":1,"model":2}"#];
    let (_, denied, _) = weir_explain(&[&["-c", path.as_str()], &arguments[..]].concat());
    assert!(denied.starts_with("DENIED 400"), "{denied}");
    assert!(
        denied.contains(
            "body:    unreadable: the body has two values of one field; rules that need its fields reject"
        ),
        "{denied}"
    );
    let (_directory, path) = file("bodies: { on_unreadable: missing }\n");
    let (_, missing, _) = weir_explain(&[&["-c", path.as_str()], &arguments[..]].concat());
    assert!(missing.starts_with("ALLOWED"), "{missing}");
    assert!(missing.contains("its fields count as absent"), "{missing}");
}

#[test]
fn instance_reads_the_body_by_its_own_rules() {
    let weir = Weir::start(&config("echo", RULES));
    let body = r#"{"model":"gpt-4","user":"a&b=c +%"}"#;
    assert_eq!(fetch(&weir, "/chat", body), 200);
    let admin = weir.admin_address("full").to_string();
    let explain = || {
        let arguments = ["--admin", &admin, "POST", "/chat", "-H", JSON, "--data", body];
        let (code, output, problem) = weir_explain(&arguments);
        assert_eq!(code, Some(0), "{problem}");
        output
    };
    let text = explain();
    assert!(text.starts_with("ALLOWED") && text.contains("used 1, remaining 1"), "{text}");
    assert_eq!(fetch(&weir, "/chat", body), 200, "an explanation charges nothing");
    assert!(explain().starts_with("LIMITED 429"));
    assert_eq!(fetch(&weir, "/chat", body), 429);
}
