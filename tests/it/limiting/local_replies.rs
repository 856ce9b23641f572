//! Configured local replies: of limits, of `deny` and of missing keys, with placeholders, for browsers and gRPC.

use serde_json::Value;

use crate::support::h2::H2Client;
use crate::support::{Client, Request, Response, Weir, config, config_with, fetch, get};

use super::{start_with_rules, start_with_settings};

/// Sends a request twice, of which the limits of these tests admit one, and returns the second response.
fn second(weir: &Weir, request: &Request) -> Response {
    let mut client = Client::connect(weir.address());
    client.fetch(request);
    client.fetch(request)
}

fn json(response: &Response) -> Value {
    serde_json::from_slice(&response.body.bytes).unwrap()
}

fn text(response: &Response) -> String {
    String::from_utf8(response.body.bytes.clone()).unwrap()
}

#[test]
fn deny_takes_status_headers_and_body() {
    let weir = start_with_rules(
        "  - name: maintenance\n    match: { path: /* }\n    action: deny\n    on_limit: { status: 503, headers: \
         { retry-after: \"600\", x-rule: \"{rule}\" }, body: { text: \"back at noon, in {retry_after} s\" } }",
    );
    let answer = get(weir.address(), "/a");
    assert_eq!((answer.status, text(&answer).as_str()), (503, "back at noon, in 600 s"));
    assert_eq!((answer.header("retry-after"), answer.header("x-rule")), ("600", "maintenance"));
    assert_eq!(answer.head.get("x-envoy-ratelimited"), None);
    assert_eq!(weir.metric("weir_decisions_total", &[("rule", "maintenance"), ("outcome", "denied")]), 1.0);
}

#[test]
fn deny_without_on_limit_is_403() {
    let weir = start_with_rules("  - { name: no, match: { path: /no }, action: deny }");
    let answer = get(weir.address(), "/no");
    assert_eq!((answer.status, text(&answer).as_str()), (403, "forbidden\n"));
}

#[test]
fn missing_key_gets_the_reply_of_on_limit() {
    let rule = |on_limit: &str| {
        format!(
            "  - {{ name: a, key: {{ header: x-key }}, on_missing: deny, limit: 1/d, on_limit: {on_limit} }}"
        )
    };
    let weir = start_with_rules(&rule(
        "{ status: 401, headers: { www-authenticate: Key }, body: { json: { e: \"{rule}\" } } }",
    ));
    let answer = get(weir.address(), "/");
    assert_eq!((answer.status, answer.header("www-authenticate")), (401, "Key"));
    assert_eq!((json(&answer)["e"].as_str(), answer.head.get("retry-after")), (Some("a"), None));
    let limited = second(&weir, &Request::get("/").header("x-key", "1"));
    assert_eq!((limited.status, limited.numeric_header("retry-after") > 0), (401, true));
    // Without a status and a body, those of a denial are kept.
    let weir = start_with_rules(&rule("{ headers: { x-hint: key } }"));
    let answer = get(weir.address(), "/");
    assert_eq!((answer.status, text(&answer).as_str()), (403, "forbidden\n"));
    assert_eq!(answer.header("x-hint"), "key");
    assert_eq!(second(&weir, &Request::get("/").header("x-key", "1")).status, 429);
}

#[test]
fn placeholders_in_bodies_and_headers_stand_for_the_request() {
    let weir = start_with_rules(
        "  - name: a\n    key: client_ip\n    limit: 1/h\n    on_limit:\n      headers: { x-why: \"{rule};{method};{path};{client_ip}\", x-id: \"{request_id}\" }\n      \
         body: { json: { rule: \"{rule}\", wait: \"{retry_after}\", id: \"{request_id}\", at: \"{method} {path}\", from: \"{client_ip}\", literal: \"{{rule}}\" } }",
    );
    let request = Request::new("DELETE", "/a%20b/\"x\\?secret=1")
        .forwarded_for("198.51.100.7")
        .header("x-request-id", "trace-\"1\"");
    let answer = second(&weir, &request);
    assert_eq!(answer.status, 429);
    assert_eq!(answer.header("x-why"), "a;DELETE;/a%20b/\"x\\;198.51.100.7");
    assert_eq!(answer.header("x-id"), "trace-\"1\"");
    let body = json(&answer);
    assert_eq!(body["at"], "DELETE /a%20b/\"x\\");
    assert_eq!((body["id"].as_str(), body["from"].as_str()), (Some("trace-\"1\""), Some("198.51.100.7")));
    assert_eq!(body["wait"].as_str().unwrap(), answer.header("retry-after"));
    assert_eq!((body["rule"].as_str(), body["literal"].as_str()), (Some("a"), Some("{rule}")));
}

#[test]
fn request_id_of_a_reply_is_that_of_the_access_log() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let settings = format!("access_log: {{ path: {}, format: \"%REQ(X-REQUEST-ID)%\" }}", log.display());
    let weir = start_with_settings(
        &settings,
        "  - { name: a, match: { path: /no }, action: deny, on_limit: { body: { text: \"{request_id}\" } } }",
    );
    let id = text(&get(weir.address(), "/no"));
    assert_eq!(id.len(), 36, "{id}");
    let line = crate::support::wait::until("a line in the access log", || {
        std::fs::read_to_string(&log).ok().filter(|text| text.ends_with('\n'))
    });
    assert_eq!(line.trim(), id);
}

#[test]
fn markup_in_a_body_is_escaped() {
    let weir = start_with_rules(
        "  - name: a\n    match: { path: /* }\n    action: deny\n    on_limit:\n      headers: { content-type: text/html }\n      \
         body: { text: \"<p title='{path}'>{method}\" }",
    );
    let answer = get(weir.address(), "/'\"&x");
    assert_eq!(text(&answer), "<p title='/&#39;&quot;&amp;x'>GET");
}

#[test]
fn placeholders_in_files_are_replaced_and_other_braces_kept() {
    let directory = tempfile::tempdir().unwrap();
    let page = directory.path().join("busy.html");
    std::fs::write(&page, "<style>a{color:red}</style><script>const {x} = {};</script>{path} {{path}}")
        .unwrap();
    let weir = start_with_rules(&format!(
        "  - {{ name: a, match: {{ path: /* }}, action: deny, on_limit: {{ body: {{ file: {} }} }} }}",
        page.display()
    ));
    let answer = get(weir.address(), "/a&b");
    let expected = "<style>a{color:red}</style><script>const {x} = {};</script>/a&amp;b {{path}}";
    assert_eq!(text(&answer), expected);
    assert_eq!(answer.header("content-type"), "text/html; charset=utf-8");
}

const CORS: &str = "cors: { origins: [https://app.example, \"https://*.example.com\"], credentials: true }";

fn from_origin(method: &str, origin: &str) -> Request {
    Request::new(method, "/").header("origin", origin)
}

fn preflight(origin: &str) -> Request {
    from_origin("OPTIONS", origin)
        .header("access-control-request-method", "PUT")
        .header("access-control-request-headers", "content-type,x-key")
}

#[test]
fn allowed_origins_may_read_a_rejection() {
    let weir = start_with_rules(&format!(
        "  - {{ name: a, key: client_ip, limit: 1/d, on_limit: {{ {CORS}, headers: {{ x-hint: \"{{origin}}\" }} }} }}"
    ));
    let answer = second(&weir, &from_origin("GET", "https://app.example"));
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (429, "https://app.example"));
    assert_eq!(answer.header("access-control-allow-credentials"), "true");
    assert_eq!((answer.header("vary"), answer.header("x-hint")), ("origin", "https://app.example"));
    for name in ["retry-after", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "x-hint"] {
        assert!(answer.head.has_token("access-control-expose-headers", name), "{name}: {answer:#?}");
    }
    for other in ["https://evil.example", "null", "https://example.com"] {
        let answer = fetch(weir.address(), &from_origin("GET", other));
        assert_eq!((answer.status, answer.header("vary")), (429, "origin"));
        for name in ["access-control-allow-origin", "access-control-expose-headers", "x-hint"] {
            assert_eq!(answer.head.get(name), None, "{other}");
        }
    }
    let below = fetch(weir.address(), &from_origin("GET", "https://a.example.com"));
    assert_eq!(below.header("access-control-allow-origin"), "https://a.example.com");
    let without = get(weir.address(), "/");
    assert_eq!((without.status, without.header("vary")), (429, "origin"));
}

#[test]
fn rejected_preflight_of_an_allowed_origin_lets_the_browser_ask_for_the_rejection() {
    let weir = start_with_rules(&format!(
        "  - {{ name: a, key: client_ip, limit: 1/d, on_limit: {{ {CORS} }} }}\n  \
         - {{ name: b, match: {{ path: /* }}, action: deny, on_limit: {{ {CORS} }} }}"
    ));
    let answer = fetch(weir.address(), &preflight("https://app.example"));
    assert_eq!((answer.status, answer.body.length), (204, 0));
    assert_eq!(answer.header("access-control-allow-origin"), "https://app.example");
    assert_eq!(answer.header("access-control-allow-methods"), "PUT");
    assert_eq!(answer.header("access-control-allow-headers"), "content-type,x-key");
    assert_eq!(answer.header("access-control-max-age"), "0");
    assert_eq!(weir.metric("weir_decisions_total", &[("rule", "b"), ("outcome", "denied")]), 1.0);
    assert_eq!(fetch(weir.address(), &preflight("https://evil.example")).status, 403);
    let plain = fetch(weir.address(), &from_origin("OPTIONS", "https://app.example"));
    assert_eq!((plain.status, plain.header("access-control-allow-origin")), (403, "https://app.example"));
}

#[test]
fn preflights_are_charged_as_other_requests() {
    let weir =
        start_with_rules(&format!("  - {{ name: a, key: client_ip, limit: 1/d, on_limit: {{ {CORS} }} }}"));
    let mut client = Client::connect(weir.address());
    assert_eq!(client.fetch(&preflight("https://app.example")).status, 200, "sent to the service");
    assert_eq!(client.fetch(&preflight("https://app.example")).status, 204);
    assert_eq!(client.fetch(&from_origin("PUT", "https://app.example")).status, 429);
}

#[test]
fn ambiguous_requests_are_rejected_readably() {
    let weir = start_with_rules(&format!(
        "  - {{ name: a, key: {{ header: x-key }}, limit: 1/d, on_limit: {{ {CORS} }} }}"
    ));
    let request = from_origin("GET", "https://app.example").header("x-key", "1").header("x-key", "2");
    let answer = fetch(weir.address(), &request);
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (400, "https://app.example"));
}

#[test]
fn limit_headers_have_the_configured_names_and_form() {
    let settings = "header_names: { limit: X-Rate-Limit, remaining: x-rate-left, form: plain }";
    let rule = format!("  - {{ name: a, key: client_ip, limit: 2/d, on_limit: {{ {CORS} }} }}");
    let weir = start_with_settings(settings, &rule);
    let answer = get(weir.address(), "/");
    assert_eq!((answer.header("x-rate-limit"), answer.header("x-rate-left")), ("2", "1"));
    assert!(answer.numeric_header("x-ratelimit-reset") > 0);
    let refused = second(&weir, &from_origin("GET", "https://app.example"));
    assert_eq!((refused.status, refused.header("x-rate-limit")), (429, "2"));
    assert!(refused.head.has_token("access-control-expose-headers", "x-rate-left"));
    for name in ["x-ratelimit-limit", "x-ratelimit-remaining"] {
        assert_eq!((answer.head.get(name), refused.head.get(name)), (None, None));
    }
}

#[test]
fn grpc_calls_receive_the_meaning_of_a_configured_denial() {
    let weir = start_with_rules(
        "  - name: a\n    match: { path: /* }\n    action: deny\n    on_limit: { status: 503, body: { text: \"{method} {path} by {rule}\" }, headers: { x-path: \"{path}\" } }",
    );
    let mut client = H2Client::connect(weir.address());
    let call = client.request("POST", "/s.S/M").header("content-type", "application/grpc");
    let answer = client.fetch(call);
    assert_eq!((answer.status.as_u16(), answer.header("grpc-status")), (200, "14"));
    assert_eq!(answer.header("grpc-message"), "POST /s.S/M by a");
    assert_eq!(answer.header("x-path"), "/s.S/M");
}

#[test]
fn http2_replies_are_the_same() {
    let weir = start_with_rules(&format!(
        "  - {{ name: a, match: {{ path: /* }}, action: deny, on_limit: {{ {CORS}, body: {{ text: \"{{path}}\" }} }} }}"
    ));
    let mut client = H2Client::connect(weir.address());
    let asked = client.request("GET", "/x").header("origin", "https://app.example");
    let answer = client.fetch(asked);
    let allowed = answer.header("access-control-allow-origin");
    assert_eq!((answer.status.as_u16(), allowed), (403, "https://app.example"));
    assert_eq!(answer.body, b"/x");
    let asked = client
        .request("OPTIONS", "/x")
        .header("origin", "https://app.example")
        .header("access-control-request-method", "PUT");
    assert_eq!(client.fetch(asked).status.as_u16(), 204);
}

#[test]
fn forward_proxy_replies_have_placeholders_and_cors_headers() {
    let listener = "{ name: inbound, address: 127.0.0.1:0, forward_proxy: true }";
    let rules = format!(
        "rules: [{{ name: a, match: {{ path: /* }}, action: deny, on_limit: {{ {CORS}, body: {{ text: \"{{path}}\" }} }} }}]"
    );
    let weir = Weir::start(&config_with(listener, "echo", &rules));
    let request = Request::get("http://api.example.com/v1/x?y").header("origin", "https://app.example");
    let answer = fetch(weir.address(), &request);
    assert_eq!((answer.status, text(&answer).as_str()), (403, "/v1/x"));
    assert_eq!(answer.header("access-control-allow-origin"), "https://app.example");
}

#[test]
fn requests_that_waited_are_rejected_with_the_same_reply() {
    let weir = Weir::start(&config(
        "echo",
        &format!(
            "rules: [{{ name: a, key: [], limit: 1/h, throttle: {{ wait: {{ max: 100ms }} }}, \
             on_limit: {{ {CORS}, body: {{ text: \"{{method}} {{path}} {{origin}}\" }} }} }}]"
        ),
    ));
    let answer = second(&weir, &from_origin("GET", "https://app.example"));
    assert_eq!((answer.status, text(&answer).as_str()), (429, "GET / https://app.example"));
    assert_eq!(answer.header("access-control-allow-origin"), "https://app.example");
}

#[test]
fn reload_changes_the_reply_of_a_denial() {
    let rules = |body: &str| {
        config(
            "echo",
            &format!(
                "rules: [{{ name: a, match: {{ path: /* }}, action: deny, on_limit: {{ body: {{ text: {body} }} }} }}]"
            ),
        )
    };
    let weir = Weir::start(&rules("one"));
    assert_eq!(text(&get(weir.address(), "/")), "one");
    weir.reload(&rules("\"{path}\""));
    assert_eq!(text(&get(weir.address(), "/b")), "/b");
    weir.assert_reload_rejected(&rules("\"{pth}\""));
    assert_eq!(text(&get(weir.address(), "/c")), "/c");
}

#[test]
fn problem_details_name_the_violated_policy() {
    let weir = start_with_rules(
        "  - { name: per-ip, match: { path: /a }, limit: 1/d, on_limit: { status: 503, body: problem } }\n  \
         - { name: no, match: { path: /no }, action: deny, on_limit: { body: problem, headers: { x-rule: \"{rule}\" } } }\n  \
         - { name: keyed, match: { path: /k }, key: { header: x }, on_missing: deny, limit: 1/d, on_limit: { body: problem } }",
    );
    let limited = second(&weir, &Request::get("/a"));
    assert_eq!((limited.status, limited.header("content-type")), (503, "application/problem+json"));
    let problem = json(&limited);
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(
        (&problem["status"], &problem["violated-policies"]),
        (&503.into(), &serde_json::json!(["per-ip"]))
    );
    for path in ["/no", "/k"] {
        let denied = get(weir.address(), path);
        assert_eq!(
            (denied.status, denied.header("content-type")),
            (403, "application/problem+json"),
            "{path}"
        );
        let expected = serde_json::json!({ "type": "about:blank", "title": "Forbidden", "status": 403 });
        assert_eq!(json(&denied), expected, "{path}");
    }
}

#[test]
fn problem_of_a_grpc_call_is_in_its_details() {
    use envoy_types::pb::google::rpc::Status;
    use prost::Message as _;

    let weir = start_with_rules("  - { name: per-ip, limit: 2/h, burst: 1, on_limit: { body: problem } }");
    let mut h2 = H2Client::connect(weir.address());
    let call = |h2: &mut H2Client| h2.fetch(h2.call().header("te", "trailers"));
    call(&mut h2);
    let limited = call(&mut h2);
    assert_eq!(limited.header("grpc-status"), "8");
    let encoded = limited.header("grpc-status-details-bin");
    let decoded = base64::Engine::decode(&base64::engine::general_purpose::STANDARD_NO_PAD, encoded).unwrap();
    let status = Status::decode(&decoded[..]).unwrap();
    assert_eq!((status.code, status.details.len()), (8, 2));
    let types: Vec<_> =
        status.details.iter().map(|detail| detail.type_url.rsplit('.').next().unwrap()).collect();
    assert_eq!(types, ["RetryInfo", "QuotaFailure"]);
    // Field 1 of RetryInfo is a duration, whose field 1 are the seconds.
    let retry = &status.details[0].value;
    assert_eq!((&retry[..1], &retry[2..3]), (&[0x0a][..], &[0x08][..]));
    let (seconds, _) = retry[3..]
        .iter()
        .fold((0_u64, 0), |(sum, shift), byte| (sum | u64::from(byte & 0x7f) << shift, shift + 7));
    assert_eq!(seconds.to_string(), limited.header("retry-after"));
    assert!(status.details[1].value.windows(11).any(|part| part == b"rule:per-ip"));
}
