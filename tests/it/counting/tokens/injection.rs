//! Requests that are changed to ask for their usage: over HTTP/2, when they are sent again, and those that stay as they are.

use super::super::start_with_rule;
use super::{chunked, model};
use crate::support::h2::H2Client;
use crate::support::{AfterResponse, Client, Origin, Request, Weir};

const STREAM: &str = r#"{"messages":[{}],"stream":true}"#;
const ASKED: &str = r#"{"stream_options":{"include_usage":true},"messages":[{}],"stream":true}"#;

const RULE: &str = "{ name: tokens, key: [], limit: 10000/d, algorithm: fixed_window, cost: { tokens: openai, \
                    estimate: { default: 100 }, max: 500, inject_usage: true } }";

#[test]
fn stream_over_http2_is_asked_for_its_usage() {
    let origin = model();
    let weir = start_with_rule(&origin, RULE);
    let mut client = H2Client::connect(weir.address());
    for announces in [true, false] {
        let request =
            client.request("POST", "/v1/chat/completions").header("content-type", "application/json");
        let request = if announces { request.header("content-length", STREAM.len()) } else { request };
        let (response, mut body) = client.send_request(request, false);
        let (one, other) = STREAM.split_at(9);
        body.send_data(one.into(), false).expect("open");
        body.send_data(other.into(), true).expect("open");
        assert_eq!(client.read_response(response).expect("a response").status, 200);
        let received = origin.last_request();
        assert_eq!(received.body.text(), ASKED);
        let length = announces.then(|| ASKED.len().to_string());
        assert_eq!(received.head.get("content-length").map(str::to_owned), length);
    }
}

#[test]
fn body_with_a_digest_is_not_changed() {
    let origin = model();
    let weir = start_with_rule(&origin, RULE);
    let digest = "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:";
    let signed = "sig=(\"@method\" \"content-length\")";
    let cases = [
        ("content-digest", digest, "digest"),
        ("repr-digest", digest, "digest"),
        ("digest", "SHA-256=x", "digest"),
        ("content-md5", "x", "digest"),
        ("signature-input", signed, "signature"),
    ];
    for (name, value, reason) in cases {
        let count = || weir.metric("weir_unchanged_streams_total", &[("reason", reason)]);
        let before = count();
        let request = |body: &str| {
            let request = Request::post("/", body).header("content-type", "application/json");
            request
                .header(name, value)
                .header("x-body", "data: [DONE]\\n\\n")
                .header("x-type", "text/event-stream")
        };
        assert_eq!(Client::connect(weir.address()).fetch(&request(STREAM)).status, 200);
        assert_eq!(origin.last_request().body.text(), STREAM, "{name}");
        assert_eq!(origin.last_request().head.get(name), Some(value));
        assert_eq!(count(), before + 1.0, "{name}");
        // These ask for no stream, or for the usage.
        for body in [r#"{"messages":[{}]}"#, ASKED] {
            assert_eq!(Client::connect(weir.address()).fetch(&request(body)).status, 200);
        }
        assert_eq!(count(), before + 1.0, "{name}");
    }
}

#[test]
fn stream_that_is_not_asked_is_charged_the_maximum_unless_it_said_less() {
    let origin = model();
    let charged = |max_tokens: &str, events: &str| {
        let weir = start_with_rule(&origin, RULE);
        let body = format!("{{\"messages\":[{{}}],\"stream\":true{max_tokens}}}");
        let request = Request::post("/", body).header("content-type", "application/json");
        let request = request.header("content-digest", "x").header("x-type", "text/event-stream");
        assert_eq!(Client::connect(weir.address()).fetch(&request.header("x-body", events)).status, 200);
        weir.metric("weir_response_cost_units_total", &[("rule", "tokens")])
    };
    let done = "data: {}\\n\\ndata: [DONE]\\n\\n";
    assert_eq!(charged("", done), 500.0);
    assert_eq!(charged(",\"max_tokens\":60", done), 60.0);
    let usage = "data: {\"usage\":{\"total_tokens\":42}}\\n\\ndata: [DONE]\\n\\n";
    assert_eq!(charged("", usage), 42.0, "the service states it all the same");
}

/// Returns an upstream that fails once, and then streams this number of tokens.
fn unsteady(tokens: u32) -> Origin {
    Origin::start(move |turn| {
        turn.body()?;
        if turn.nth == 0 && turn.head.get("x-envoy-attempt-count") == Some("1") {
            turn.send("HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n")?;
            return Ok(AfterResponse::Keep);
        }
        let event = format!("data: {{\"usage\":{{\"total_tokens\":{tokens}}}}}\n\ndata: [DONE]\n\n");
        chunked(turn, "content-type: text/event-stream\r\n", &[event.as_bytes()], true)
    })
}

#[test]
fn retries_of_both_upstreams_send_the_same_body_and_are_charged_once() {
    let (main, cheap) = (unsteady(42), unsteady(17));
    let retries = "{ retry_on: [503], backoff: 1ms, attempt_count: true }";
    let upstream = |name: &str, origin: &Origin| {
        format!("  - {{ name: {name}, address: '{}', retries: {retries} }}\n", origin.address())
    };
    let weir = Weir::start(&format!(
        "listeners: 127.0.0.1:0\nworkers: 1\nadmin: {{ address: 127.0.0.1:0 }}\nupstreams:\n{}{}rules:\n  \
         - {{ name: models, key: [], limit: 1/d, algorithm: fixed_window, on_limit: {{ upstream: cheap }} }}\n  - {RULE}\n",
        upstream("main", &main),
        upstream("cheap", &cheap),
    ));
    let request = Request::post("/v1/chat/completions", STREAM).header("content-type", "application/json");
    let request = request.header("idempotency-key", "1");
    for (origin, charged) in [(&main, 42.0), (&cheap, 59.0)] {
        assert_eq!(Client::connect(weir.address()).fetch(&request).status, 200);
        let bodies: Vec<_> = origin.requests().iter().map(|request| request.body.text()).collect();
        assert_eq!(bodies, [ASKED, ASKED], "the second after the failure of the first");
        assert_eq!(weir.metric("weir_response_cost_units_total", &[("rule", "tokens")]), charged);
    }
}
