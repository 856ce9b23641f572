//! Costs that the bodies of responses state: the tokens of language models, in whole documents and in streams.

mod ends;
mod injection;
mod reservations;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::start_with_rule;
use crate::support::origin::ScriptedRequest;
use crate::support::{AfterResponse, Client, Origin, Request, Weir, gzip, wait};

/// 1000 tokens a day. A request reserves its `max_tokens`.
const RULE: &str = "{ name: tokens, key: [], limit: 1000/d, algorithm: fixed_window, cost: { tokens: openai, \
                    estimate: { json: max_tokens, default: 100 }, max: 500 } }";

fn chunked(
    turn: &ScriptedRequest<'_>,
    headers: &str,
    pieces: &[&[u8]],
    ends: bool,
) -> io::Result<AfterResponse> {
    turn.send(format!("HTTP/1.1 200 OK\r\n{headers}transfer-encoding: chunked\r\n\r\n"))?;
    for piece in pieces {
        turn.send(format!("{:x}\r\n", piece.len()))?;
        turn.send(piece)?;
        turn.send("\r\n")?;
    }
    if !ends {
        return Ok(AfterResponse::Close);
    }
    turn.send("0\r\n\r\n")?;
    Ok(AfterResponse::Keep)
}

/// Returns an upstream that responds with the body in the header `x-body`, in pieces of as many bytes as `x-pieces` says. The type is
/// `x-type`, a coding `x-coding`, the status the path. The body breaks off with `x-cut`.
fn model() -> Origin {
    Origin::start(|turn| {
        turn.body()?;
        let field = |name: &str| turn.head.get(name).map(str::to_owned);
        let body = field("x-body").unwrap_or_default().replace("\\n", "\n").into_bytes();
        let media_type = field("x-type").unwrap_or_else(|| "application/json".to_owned());
        let mut headers = format!("content-type: {media_type}\r\n");
        if let Some(coding) = field("x-coding") {
            headers += &format!("content-encoding: {coding}\r\n");
        }
        let size = field("x-pieces").map_or(usize::MAX, |size| size.parse().expect("a number"));
        let pieces: Vec<&[u8]> = body.chunks(size).collect();
        chunked(turn, &headers, &pieces, field("x-cut").is_none())
    })
}

fn chat(max_tokens: u32) -> Request {
    Request::post("/v1/chat/completions", format!("{{\"max_tokens\":{max_tokens}}}"))
        .header("content-type", "application/json")
}

fn stream(max_tokens: u32, body: &str) -> Request {
    chat(max_tokens).header("x-type", "text/event-stream").header("x-body", body)
}

/// Returns the units that are left, by a request that reserves one and is charged nothing.
fn left(weir: &Weir) -> u64 {
    let probe = chat(1).header("x-body", r#"{"usage":{"total_tokens":0}}"#);
    Client::connect(weir.address()).fetch(&probe).numeric_header("x-ratelimit-remaining") + 1
}

/// Returns the units that the response to `request` is charged.
fn charged(weir: &Weir, request: &Request) -> u64 {
    let before = left(weir);
    // A response that breaks off is no response.
    let _ = Client::connect(weir.address()).try_fetch(request);
    before - left(weir)
}

#[test]
fn document_states_the_tokens() {
    let origin = model();
    let weir = start_with_rule(&origin, RULE);
    let answer = |body: &str| chat(200).header("x-body", body);
    assert_eq!(charged(&weir, &answer(r#"{"id":"x","usage":{"prompt_tokens":3,"total_tokens":42}}"#)), 42);
    let in_pieces = answer(r#"{"usage":{"total_tokens":17}}"#).header("x-pieces", "1");
    assert_eq!(charged(&weir, &in_pieces), 17, "byte by byte");
    assert_eq!(charged(&weir, &answer(r#"{"usage":{"total_tokens":9999}}"#)), 500, "the maximum");
    assert_eq!(origin.last_request().head.get("accept-encoding"), Some("identity"));
}

#[test]
fn last_event_states_the_tokens() {
    let origin = model();
    let weir = start_with_rule(&origin, RULE);
    let events = "data: {\"usage\":null}\\n\\ndata: {\"usage\":{\"total_tokens\":7}}\\n\\ndata: {\"usage\":{\"total_tokens\":31}}\\n\\ndata: [DONE]\\n\\n";
    assert_eq!(charged(&weir, &stream(200, events)), 31);
    assert_eq!(charged(&weir, &stream(200, events).header("x-pieces", "3")), 31);
    let completed = "event: response.completed\\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"total_tokens\":12}}}\\n\\n";
    assert_eq!(charged(&weir, &stream(200, completed)), 12, "of the Responses API");
}

#[test]
fn response_without_a_number_is_charged_what_was_reserved() {
    let origin = model();
    let weir = start_with_rule(&origin, RULE);
    let total = r#"{"usage":{"total_tokens":5}}"#;
    for (reason, request) in [
        ("no usage", chat(60).header("x-body", "{}")),
        ("no JSON", chat(60).header("x-body", &total[1..])),
        ("another type", chat(60).header("x-body", total).header("x-type", "text/plain")),
        ("compressed", chat(60).header("x-body", total).header("x-coding", "gzip")),
        ("broken off", stream(60, "data: {\"usage\":{\"total_tokens\":5}}\\n\\n").header("x-cut", "1")),
    ] {
        assert_eq!(charged(&weir, &request), 60, "{reason}");
    }
    let beyond = stream(60, "data: {\"usage\":{\"total_tokens\":80}}\\n\\n").header("x-cut", "1");
    assert_eq!(charged(&weir, &beyond), 80, "what a stream that breaks off has stated beyond it");
    let head = chat(60).with_method("HEAD").header("x-body", total);
    assert!(charged(&weir, &head) > 0);
}

#[test]
fn streams_in_flight_cannot_exceed_the_limit() {
    let may_respond = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&may_respond);
    let origin = Origin::start(move |turn| {
        turn.body()?;
        wait::until_true("the responses", || gate.load(Ordering::SeqCst));
        chunked(turn, "content-type: application/json\r\n", &[b"{}"], true)
    });
    let weir = start_with_rule(&origin, RULE);
    // Two take 500 each until their usage is known.
    let mut clients: Vec<_> = (0..2).map(|_| Client::connect(weir.address())).collect();
    clients.iter_mut().for_each(|client| client.send(chat(500).to_bytes()));
    wait::until_true("both are admitted", || origin.requests().len() == 2);
    assert_eq!(Client::connect(weir.address()).fetch(&chat(1)).status, 429);
    may_respond.store(true, Ordering::SeqCst);
    assert!(clients.iter_mut().all(|client| client.read_response("POST").status == 200));
}

#[test]
fn weights_make_up_the_cost() {
    let origin = model();
    let rule = "{ name: a, key: [], limit: 1000/d, algorithm: fixed_window, cost: { response_json: { usage.input: 1, usage.output: 4, usage.cached: -0.9 }, \
                estimate: { json: max_tokens }, max: 900 } }";
    let weir = start_with_rule(&origin, rule);
    let left = || {
        let probe = chat(1).header("x-body", r#"{"usage":{"input":0}}"#);
        Client::connect(weir.address()).fetch(&probe).numeric_header("x-ratelimit-remaining") + 1
    };
    assert_eq!(left(), 1000);
    let usage = r#"{"usage":{"input":100,"output":20,"cached":30}}"#;
    assert_eq!(Client::connect(weir.address()).fetch(&chat(9).header("x-body", usage)).status, 200);
    assert_eq!(left(), 1000 - 153);
}

#[test]
fn formats_of_providers_are_known() {
    let origin = model();
    let cases = [
        (
            "anthropic",
            "application/json",
            r#"{"usage":{"input_tokens":10,"cache_creation_input_tokens":2,"cache_read_input_tokens":3,"output_tokens":5}}"#,
            20,
        ),
        (
            "anthropic",
            "text/event-stream",
            "event: message_start\\ndata: {\"message\":{\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\\n\\nevent: message_delta\\ndata: {\"usage\":{\"output_tokens\":15}}\\n\\n",
            40,
        ),
        (
            "gemini",
            "application/json",
            r#"[{"usageMetadata":{"totalTokenCount":4}},{"usageMetadata":{"totalTokenCount":19}}]"#,
            19,
        ),
        ("gemini", "text/event-stream", "data: {\"usageMetadata\":{\"totalTokenCount\":8}}\\n\\n", 8),
        (
            "bedrock",
            "application/json",
            r#"{"usage":{"inputTokens":30,"outputTokens":12,"totalTokens":42}}"#,
            42,
        ),
        ("bedrock", "application/json", r#"{"usage":{"input_tokens":30,"output_tokens":12}}"#, 42),
    ];
    for (format, media_type, body, tokens) in cases {
        let rule = format!(
            "{{ name: a, key: [], limit: 1000/d, algorithm: fixed_window, cost: {{ tokens: {format}, estimate: 1, max: 500 }} }}"
        );
        let weir = start_with_rule(&origin, &rule);
        let request = chat(1).header("x-type", media_type).header("x-body", body);
        assert_eq!(Client::connect(weir.address()).fetch(&request).status, 200);
        let probe = Client::connect(weir.address()).fetch(&chat(1));
        assert_eq!(1000 - 1 - probe.numeric_header("x-ratelimit-remaining"), tokens, "{format}: {body}");
    }
}

#[test]
fn reservation_is_derived_from_the_request() {
    let origin = model();
    let rule = "{ name: tokens, key: [], limit: 10000/d, algorithm: fixed_window, cost: { tokens: openai, \
                estimate: { default: 100, prompt: 4 }, max: 5000 } }";
    let weir = start_with_rule(&origin, rule);
    let reserved = |request: Request| {
        let request = request
            .header("content-type", "application/json")
            .header("x-body", r#"{"usage":{"total_tokens":0}}"#);
        10_000 - Client::connect(weir.address()).fetch(&request).numeric_header("x-ratelimit-remaining")
    };
    let post = |body: &str| Request::post("/v1/chat/completions", body);
    assert_eq!(reserved(post("{}  ")), 101, "the default, and four bytes");
    let both = r#"{"messages":[],"max_tokens":50,"max_completion_tokens":60}"#;
    assert_eq!(reserved(post(both)), 60 + 15);
    assert_eq!(reserved(post(r#"{"messages":[],"max_tokens":50,"n":3}"#)), 150 + 10, "three choices");
    assert_eq!(reserved(post(r#"{"messages":[],"max_tokens":90000}"#)), 5000, "at most the maximum");
    let text = format!("{{\"prompt\":\"{}\"}}", "x".repeat(4000));
    let compressed = Request::post("/", gzip(&text)).header("content-encoding", "gzip");
    assert_eq!(reserved(compressed), 100 + u64::try_from(text.len().div_ceil(4)).expect("small"));
}

#[test]
fn request_that_another_rule_pays_is_not_changed() {
    let origin = model();
    let rules = "  - { name: tokens, key: [], limit: 10/d, algorithm: fixed_window, cost: { tokens: openai, estimate: 10, max: 500, inject_usage: true } }\n  \
                 - { name: credits, key: [], limit: 9/d, algorithm: fixed_window }\nany_of: [[tokens, credits]]\n";
    let weir = Weir::start(&crate::support::config(origin.address(), &format!("rules:\n{rules}")));
    let body = r#"{"messages":[],"stream":true}"#;
    let request = Request::post("/v1/chat/completions", body)
        .header("content-type", "application/json")
        .header("accept-encoding", "gzip");
    let received = || {
        assert_eq!(Client::connect(weir.address()).fetch(&request).status, 200);
        let last = origin.last_request();
        (last.body.text(), last.head.get("accept-encoding").map(str::to_owned))
    };
    assert_ne!(received().0, body, "charged by `tokens`");
    assert_eq!(received(), (body.to_owned(), Some("gzip".to_owned())), "charged by `credits`");
}

#[test]
fn requests_without_a_body_reserve_no_prompt() {
    let origin = model();
    let rule = "{ name: tokens, key: [], limit: 10000/d, algorithm: fixed_window, cost: { tokens: openai, \
                estimate: { default: 100, prompt: 4 }, max: 5000, inject_usage: true } }";
    let weir = start_with_rule(&origin, rule);
    let listing = Client::connect(weir.address()).fetch(&Request::get("/v1/models"));
    assert_eq!(listing.numeric_header("x-ratelimit-remaining"), 9900);
}

#[test]
fn client_that_leaves_pays_the_maximum_unless_it_said_less() {
    let origin = Origin::start(|turn| {
        turn.body()?;
        turn.send(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
        )?;
        turn.send("7\r\ndata: {\r\n")?;
        // Until the proxy closes the connection.
        let _ = turn.wire.read_body(crate::support::wire::Framing::Length(1), |_| {});
        Ok(AfterResponse::Close)
    });
    for (body, charged) in [("{}", 500), (r#"{"max_tokens":60}"#, 60)] {
        let weir = start_with_rule(&origin, RULE);
        let request = Request::post("/", body).header("content-type", "application/json");
        let mut client = TcpStream::connect(weir.address()).expect("listening");
        client.write_all(&request.to_bytes()).expect("sent");
        let mut begun = Vec::new();
        while !begun.ends_with(b"data: {") {
            let mut byte = [0];
            client.read_exact(&mut byte).expect("the beginning of a stream");
            begun.push(byte[0]);
        }
        drop(client);
        let units = || weir.metric("weir_response_cost_units_total", &[("rule", "tokens")]);
        wait::until_true("the charge", || units() >= f64::from(charged));
        assert_eq!(units(), f64::from(charged), "{body}");
    }
}

#[test]
fn usage_is_asked_for_in_streams() {
    let origin = model();
    let rule = "{ name: tokens, key: [], limit: 10000/d, algorithm: fixed_window, cost: { tokens: openai, estimate: 100, max: 500, inject_usage: true } }";
    let weir = start_with_rule(&origin, rule);
    let sent = |body: &str| {
        let request = Request::post("/v1/chat/completions", body).header("content-type", "application/json");
        assert_eq!(Client::connect(weir.address()).fetch(&request).status, 200, "{body}");
        let received = origin.last_request();
        assert_eq!(received.head.get("content-length"), Some(&*received.body.length.to_string()));
        received.body.text()
    };
    assert_eq!(
        sent(r#"{"messages":[],"stream":true}"#),
        r#"{"stream_options":{"include_usage":true},"messages":[],"stream":true}"#
    );
    for unchanged in
        [r#"{"messages":[], "stream": false}"#, r#"{"stream":true,"stream_options":{"include_usage":true}}"#]
    {
        assert_eq!(sent(unchanged), unchanged);
    }
}
