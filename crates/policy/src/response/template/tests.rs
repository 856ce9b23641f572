use std::net::{IpAddr, Ipv4Addr};

use http::Method;

use super::*;

fn details(path: &str) -> RequestDetails {
    RequestDetails {
        request_id: "4f1c".into(),
        client_ip: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7)),
        method: Method::GET,
        path: path.into(),
        origin: None,
        preflight: None,
    }
}

fn expanded(text: &str, escaping: Escaping, path: &str) -> String {
    let template = Template::parse(text, Syntax::Strict, escaping, Some("per-ip")).unwrap();
    String::from_utf8(template.expand(&details(path), "7", "https://app.example")).unwrap()
}

fn error(text: &str) -> TemplateError {
    Template::parse(text, Syntax::Strict, Escaping::Text, Some("per-ip")).unwrap_err()
}

#[test]
fn every_placeholder_stands_for_its_value() {
    let text = "{rule} {retry_after} {request_id} {client_ip} {method} {path} {origin}";
    assert_eq!(
        expanded(text, Escaping::Text, "/a/b"),
        "per-ip 7 4f1c 192.0.2.7 GET /a/b https://app.example"
    );
}

#[test]
fn braces_of_json_and_programs_are_text() {
    for text in [
        r#"{"error": {"code": 429}}"#,
        "{}",
        "{ }",
        "{0} {2,3} { a: 1 }",
        "a{color:red}",
        "{",
        "}",
        "{{",
        "{{}}",
        "{\"a\":{\"b\":{}}}",
        "unclosed {rule",
        "${rule} ${N}",
    ] {
        assert_eq!(expanded(text, Escaping::Json, "/"), text);
    }
}

#[test]
fn doubled_braces_are_a_literal_name_in_braces() {
    assert_eq!(expanded("{{rule}} {rule} {{no_such}}", Escaping::Text, "/"), "{rule} per-ip {no_such}");
    assert_eq!(expanded("{{{rule}}}", Escaping::Text, "/"), "{{rule}}");
    assert_eq!(expanded(r#"{"a":{"b":"{rule}"}}"#, Escaping::Json, "/"), r#"{"a":{"b":"per-ip"}}"#);
}

#[test]
fn unknown_placeholders_are_errors() {
    assert_eq!(error("a {retry_afer} b"), TemplateError::Unknown("retry_afer".to_owned()));
    assert_eq!(error("{client.ip}"), TemplateError::Unknown("client.ip".to_owned()));
    assert_eq!(error("{RULE}"), TemplateError::Unknown("RULE".to_owned()));
    assert_eq!(error("{ rule }"), TemplateError::Spaces(Placeholder::Rule));
    assert_eq!(error("{{ rule }}"), TemplateError::Spaces(Placeholder::Rule));
    assert_eq!(error("{{ .Values.text }}"), TemplateError::Unrendered("{{ .Values.text }}".to_owned()));
}

#[test]
fn files_keep_all_braces_except_known_placeholders() {
    let text = "const {path, a} = {b}; {{path}} {{ rule }} {retry_afer} {retry_after}";
    let template = Template::parse(text, Syntax::Lenient, Escaping::Markup, Some("per-ip")).unwrap();
    let written = String::from_utf8(template.expand(&details("/"), "7", "")).unwrap();
    assert_eq!(written, "const {path, a} = {b}; {{path}} {{ rule }} {retry_afer} 7");
    let near = |name: &str| (name == "retry_afer").then_some("retry_after");
    assert_eq!(misspellings(text, near).collect::<Vec<_>>(), [("retry_afer", "retry_after")]);
}

#[test]
fn values_are_escaped_for_their_place() {
    let path = "/\"\\<b>&'\u{1}\u{fc}";
    assert_eq!(expanded("{path}", Escaping::Text, path), "/\"\\<b>&' \u{fc}");
    assert_eq!(
        expanded("{path}", Escaping::Json, path),
        "/\\\"\\\\\\u003cb\\u003e\\u0026\\u0027\\u0001\u{fc}"
    );
    assert_eq!(expanded("{path}", Escaping::Markup, path), "/&quot;\\&lt;b&gt;&amp;&#39; \u{fc}");
    assert_eq!(expanded("{path}", Escaping::Header, path), "/\"\\<b>&'%01%C3%BC");
}

#[test]
fn values_are_cut() {
    let long = format!("/{}", "\u{fc}".repeat(MAX_VALUE_LENGTH));
    let written = expanded("{path}", Escaping::Text, &long);
    assert!(written.len() <= MAX_VALUE_LENGTH && written.ends_with('\u{fc}'));
}

#[test]
fn text_without_values_is_fixed() {
    let parse = |text| Template::parse(text, Syntax::Strict, Escaping::Header, Some("a")).unwrap();
    assert_eq!(parse("x-{rule}").fixed_text(), Some(&b"x-a"[..]));
    assert_eq!(parse("").fixed_text(), Some(&b""[..]));
    assert_eq!(parse("{path}").fixed_text(), None);
    assert!(parse("a {origin}").uses(Placeholder::Origin));
}
