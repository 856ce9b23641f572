//! The end of streams: a cost counts once the stream has shown that it is complete, however its connection ends.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::super::start_with_rule;
use crate::support::wire::Framing;
use crate::support::{AfterResponse, Client, Origin, Request, Weir, wait};

const SSE: &str = "text/event-stream";
const AWS: &str = "application/vnd.amazon.eventstream";

/// How the upstream ends a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyEnd {
    /// With the last chunk.
    Whole,
    /// It has no length, and ends with the connection.
    Close,
    /// The connection closes before the last chunk.
    Cut,
    /// Not before the client leaves.
    Never,
}

/// Returns the rule `tokens` with this cost, `max: 500` apart.
fn rule(cost: &str) -> String {
    format!(
        "{{ name: tokens, key: [], limit: 10000/d, algorithm: fixed_window, cost: {{ {cost}, max: 500 }} }}"
    )
}

/// Returns an upstream that responds with this body.
fn upstream(media_type: &'static str, body: Vec<u8>, end: BodyEnd) -> Origin {
    Origin::start(move |turn| {
        turn.body()?;
        let framing = if end == BodyEnd::Close { "" } else { "transfer-encoding: chunked\r\n" };
        turn.send(format!("HTTP/1.1 200 OK\r\ncontent-type: {media_type}\r\n{framing}\r\n"))?;
        if end == BodyEnd::Close {
            turn.send(&body)?;
            return Ok(AfterResponse::Close);
        }
        turn.send([format!("{:x}\r\n", body.len()).as_bytes(), &body, b"\r\n"].concat())?;
        match end {
            BodyEnd::Whole => turn.send("0\r\n\r\n")?,
            // Until the proxy closes the connection.
            BodyEnd::Never => turn.wire.read_body(Framing::Length(1), |_| {}).map(|_| ())?,
            BodyEnd::Cut | BodyEnd::Close => {}
        }
        Ok(AfterResponse::Close)
    })
}

/// Returns the units that the response is charged whose request has this body. The client leaves after the last byte.
fn charged(cost: &str, request: &str, response: (&'static str, &[u8]), end: BodyEnd) -> f64 {
    let (media_type, body) = response;
    let origin = upstream(media_type, body.to_vec(), end);
    let weir = start_with_rule(&origin, &rule(cost));
    let request =
        Request::post("/model/m/converse-stream", request).header("content-type", "application/json");
    if end == BodyEnd::Never {
        let mut client = TcpStream::connect(weir.address()).expect("listening");
        client.write_all(&request.to_bytes()).expect("sent");
        let mut begun = Vec::new();
        while !begun.ends_with(body) {
            let mut byte = [0];
            client.read_exact(&mut byte).expect("more of the stream");
            begun.push(byte[0]);
        }
    } else {
        let _ = Client::connect(weir.address()).try_fetch(&request);
    }
    let settled = || weir.metric("weir_response_costs_total", &[("rule", "tokens")]);
    wait::until_true("the charge", || settled() >= 1.0);
    units(&weir)
}

fn units(weir: &Weir) -> f64 {
    weir.metric("weir_response_cost_units_total", &[("rule", "tokens")])
}

fn events(data: &[&str]) -> Vec<u8> {
    data.iter().map(|data| format!("data: {data}\n\n")).collect::<String>().into_bytes()
}

/// Returns messages of AWS's event stream with these payloads.
fn messages(payloads: &[&str]) -> Vec<u8> {
    let message = |payload: &&str| {
        let headers = b"\x0b:event-type\x07\0\x05event";
        let word = |number: usize| u32::try_from(number).expect("short").to_be_bytes();
        let total = headers.len() + payload.len() + 16;
        [&word(total)[..], &word(headers.len()), &[0; 4], headers, payload.as_bytes(), &[0; 4]].concat()
    };
    payloads.iter().flat_map(message).collect()
}

/// Streams whose last event has arrived: they cost 42 tokens.
fn complete_streams() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let usage = r#"{"choices":[],"usage":{"total_tokens":42}}"#;
    let completed = r#"{"type":"response.completed","response":{"usage":{"total_tokens":42}}}"#;
    let start = r#"{"type":"message_start","message":{"usage":{"input_tokens":11,"output_tokens":1}}}"#;
    let delta = r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":31}}"#;
    let bare_delta = r#"{"type":"message_delta","usage":{"output_tokens":31}}"#;
    let stop = r#"{"type":"message_stop"}"#;
    let candidate =
        r#"{"candidates":[{"content":{},"finishReason":"STOP"}],"usageMetadata":{"totalTokenCount":42}}"#;
    let metadata = r#"{"metrics":{},"usage":{"inputTokens":30,"outputTokens":12,"totalTokens":42}}"#;
    let weights = "response_json: { message.usage.input_tokens: 1, usage.output_tokens: 1 }";
    vec![
        ("tokens: openai", SSE, events(&[r#"{"usage":null}"#, usage, "[DONE]"])),
        (
            "tokens: openai",
            SSE,
            events(&[r#"{"type":"response.created","response":{"usage":null}}"#, completed]),
        ),
        ("tokens: anthropic", SSE, events(&[start, delta])),
        ("tokens: anthropic", SSE, events(&[start, bare_delta, stop])),
        ("tokens: gemini", SSE, events(&[r#"{"usageMetadata":{"totalTokenCount":7}}"#, candidate])),
        ("tokens: bedrock", AWS, messages(&[r#"{"role":"assistant"}"#, metadata])),
        ("response_json: usage.total_tokens", SSE, events(&[usage, "[DONE]"])),
        (weights, SSE, events(&[start, bare_delta, stop])),
    ]
}

/// Streams that have stated 42 tokens and are not complete.
fn partial_streams() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let usage = r#"{"choices":[{}],"usage":{"total_tokens":42}}"#;
    let start = r#"{"type":"message_start","message":{"usage":{"input_tokens":41,"output_tokens":1}}}"#;
    let error = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    let candidate = r#"{"candidates":[{"content":{}}],"usageMetadata":{"totalTokenCount":42}}"#;
    let array = format!("[{candidate},{{\"error\":{{\"code\":503,\"message\":\"overloaded\"}}}}]");
    vec![
        ("tokens: openai", SSE, events(&[usage])),
        ("tokens: openai", SSE, events(&[usage, r#"{"error":{"message":"x"}}"#, "[DONE]"])),
        ("tokens: anthropic", SSE, events(&[start, error])),
        ("tokens: anthropic", SSE, events(&[start, r#"{"type":"ping"}"#])),
        ("tokens: gemini", SSE, events(&[candidate])),
        ("tokens: gemini", "application/json", array.into_bytes()),
        ("response_json: message.usage.input_tokens", SSE, events(&[start, error])),
    ]
}

/// A request that says what it costs at most, to every endpoint.
const STATED: &str = r#"{"messages":[{}],"max_tokens":300,"contents":[{}],"generationConfig":{"maxOutputTokens":300},
    "inferenceConfig":{"maxTokens":300}}"#;

const ESTIMATE: &str = ", estimate: { default: 100 }";

#[test]
fn stream_with_its_last_event_is_charged_what_it_states() {
    for (cost, media_type, body) in complete_streams() {
        let cost = format!("{cost}{ESTIMATE}");
        for end in [BodyEnd::Whole, BodyEnd::Close, BodyEnd::Cut, BodyEnd::Never] {
            for request in ["{}", STATED] {
                let text = String::from_utf8_lossy(&body);
                assert_eq!(charged(&cost, request, (media_type, &body), end), 42.0, "{cost} {end:?} {text}");
            }
        }
    }
}

#[test]
fn stream_without_its_last_event_is_charged_what_was_reserved() {
    for (cost, media_type, body) in partial_streams() {
        let json =
            if cost.starts_with("response_json") { ", estimate: { json: max_tokens }" } else { ESTIMATE };
        let cost = format!("{cost}{json}");
        for end in [BodyEnd::Whole, BodyEnd::Close, BodyEnd::Cut, BodyEnd::Never] {
            let text = String::from_utf8_lossy(&body);
            assert_eq!(charged(&cost, STATED, (media_type, &body), end), 300.0, "{cost} {end:?} {text}");
        }
        let left = charged(&cost, "{}", (media_type, &body), BodyEnd::Never);
        assert_eq!(left, 500.0, "the maximum of a request that does not say what it costs: {cost}");
    }
}

#[test]
fn partial_stream_that_states_more_than_its_reservation_is_charged_that() {
    let start = events(&[r#"{"message":{"usage":{"input_tokens":400,"output_tokens":1}}}"#]);
    assert_eq!(
        charged(&format!("tokens: anthropic{ESTIMATE}"), STATED, (SSE, &start), BodyEnd::Whole),
        401.0
    );
}

#[test]
fn stream_of_an_unknown_format_is_complete_with_its_body() {
    let body = events(&[r#"{"cost":7}"#, r#"{"cost":42}"#, "{}"]);
    let cost = "response_json: cost, estimate: { json: max_tokens }";
    for (end, units) in [(BodyEnd::Whole, 42.0), (BodyEnd::Close, 300.0), (BodyEnd::Cut, 300.0)] {
        assert_eq!(charged(cost, STATED, (SSE, &body), end), units, "{end:?}");
    }
    let messages = messages(&[r#"{"cost":42}"#, "{}"]);
    assert_eq!(charged(cost, STATED, (AWS, &messages), BodyEnd::Whole), 42.0);
    let cut = &messages[..messages.len() - 1];
    assert_eq!(charged(cost, STATED, (AWS, cut), BodyEnd::Whole), 300.0, "within a message");
}

#[test]
fn document_is_complete_with_its_last_brace() {
    let (whole, cost) = (br#"{"usage":{"total_tokens":42}}"#, format!("tokens: openai{ESTIMATE}"));
    let part = &whole[..whole.len() - 1];
    let stated = |body: &[u8], end| charged(&cost, STATED, ("application/json", body), end);
    for end in [BodyEnd::Whole, BodyEnd::Close, BodyEnd::Cut, BodyEnd::Never] {
        assert_eq!(stated(whole, end), 42.0, "{end:?}");
        assert_eq!(stated(part, end), 300.0, "{end:?}");
    }
    let more = br#"{"usage":{"total_tokens":400}"#;
    assert_eq!(stated(more, BodyEnd::Close), 400.0, "what a document that is cut off has stated beyond it");
}

#[test]
fn number_of_another_endpoint_is_no_promise() {
    let cost = format!("tokens: openai{ESTIMATE}");
    let body = events(&["{}"]);
    for (request, units) in [
        (r#"{"messages":[{}],"max_tokens":60}"#, 60.0),
        (r#"{"messages":[{}],"max_output_tokens":1}"#, 500.0),
        (r#"{"messages":[{}],"max_tokens":0}"#, 500.0),
        (r#"{"messages":[{}],"input":"x","max_output_tokens":1}"#, 500.0),
    ] {
        assert_eq!(charged(&cost, request, (SSE, &body), BodyEnd::Never), units, "{request}");
    }
}
