use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::fields::FieldName;

const TOTAL: [FieldIndex; 2] = [0, 1];

fn fields() -> Arc<FieldSet> {
    let path = |text: &str| FieldName::Json(Arc::new(text.parse().expect("a path")));
    Arc::new(FieldSet::new([
        path("usage.total_tokens"),
        path("response.usage.total_tokens"),
        path("usage.output_tokens"),
    ]))
}

fn read_in_pieces(content_type: &str, body: &[u8], size: usize) -> Result<LatestValues, Unreadable> {
    let mut reader = ResponseReader::new(&fields(), Some(content_type.as_bytes()), None)?;
    body.chunks(size.max(1)).for_each(|piece| reader.read(piece));
    reader.end().cloned()
}

fn total(content_type: &str, body: &str) -> Option<String> {
    let read = |size| {
        let latest = read_in_pieces(content_type, body.as_bytes(), size).ok()?;
        latest.last_of(TOTAL).map(str::to_owned)
    };
    let whole = read(usize::MAX);
    for size in [1, 2, 3, 7] {
        assert_eq!(read(size), whole, "in pieces of {size} of {body}");
    }
    whole
}

/// Returns a message of AWS's event stream.
fn message(headers: &[u8], payload: &[u8]) -> Vec<u8> {
    let total = u32::try_from(headers.len() + payload.len() + 16).expect("short");
    let mut message = total.to_be_bytes().to_vec();
    message.extend(u32::try_from(headers.len()).expect("short").to_be_bytes());
    message.extend([0; 4]);
    message.extend(headers);
    message.extend(payload);
    message.extend([0; 4]);
    message
}

#[test]
fn document_states_its_number() {
    let json = |body: &str| total("application/json; charset=utf-8", body);
    assert_eq!(json(r#"{"id":"x","usage":{"total_tokens":42,"other":1}}"#).as_deref(), Some("42"));
    assert_eq!(json(r#"{"usage":null}"#), None);
    assert_eq!(json(r#"{"usage":{"total_tokens":42}"#), None, "cut off");
    assert_eq!(total("text/html", r#"{"usage":{"total_tokens":42}}"#), None);
}

#[test]
fn last_element_of_an_array_that_has_the_field_counts() {
    let elements: Vec<String> =
        (0..1000).map(|number| format!(r#"{{"usage":{{"total_tokens":{number}}}}}"#)).collect();
    let body = format!("[{},{{\"other\":1}}]", elements.join(",\n"));
    assert_eq!(total("application/json", &body).as_deref(), Some("999"));
}

#[test]
fn last_event_that_has_the_field_counts() {
    let events = |body: &str| total("text/event-stream", body);
    let stream = "data: {\"usage\":null}\n\ndata: {\"usage\":{\"total_tokens\":5}}\n\n: ping\n\ndata: {\"usage\":{\"total_tokens\":9}}\n\ndata: [DONE]\n\n";
    assert_eq!(events(stream).as_deref(), Some("9"));
    for line_end in ["\r", "\r\n"] {
        assert_eq!(events(&stream.replace('\n', line_end)).as_deref(), Some("9"));
    }
    let named =
        "event: message_start\ndata:{\"response\":{\"usage\":\ndata:{\"total_tokens\":7}}}\nid: 1\n\n";
    assert_eq!(events(named).as_deref(), Some("7"), "data in two lines, without a space");
    assert_eq!(
        events("data: {\"usage\":{\"total_tokens\":3}}").as_deref(),
        Some("3"),
        "without an empty line"
    );
    assert_eq!(events("datax: {\"usage\":{\"total_tokens\":3}}\n\n"), None);
    assert_eq!(events("data: {\"usage\":{\"total_tokens\":3}} x\n\n"), None, "not JSON");
}

#[test]
fn later_of_two_paths_counts() {
    let both =
        "data: {\"usage\":{\"total_tokens\":8}}\n\ndata: {\"response\":{\"usage\":{\"total_tokens\":3}}}\n\n";
    assert_eq!(total("text/event-stream", both).as_deref(), Some("3"));
}

#[test]
fn lines_and_messages_are_documents() {
    let lines = "{\"usage\":{\"total_tokens\":1}}\n\n{\"done\":true,\"usage\":{\"total_tokens\":2}}\n";
    assert_eq!(total("application/x-ndjson", lines).as_deref(), Some("2"));
    let mut stream = message(b"\x0b:event-type\x07\0\x05start", br#"{"role":"assistant"}"#);
    stream.extend(message(b"", b""));
    stream.extend(message(b"h", br#"{"usage":{"total_tokens":31}}"#));
    for size in [1, 5, 12, 13, 1000] {
        let latest = read_in_pieces("application/vnd.amazon.eventstream", &stream, size).expect("messages");
        assert_eq!(latest.last_of(TOTAL), Some("31"), "in pieces of {size}");
    }
    let contradiction = read_in_pieces("application/vnd.amazon.eventstream", &[0; 12], 12);
    assert_eq!(contradiction.err(), Some(Unreadable::Invalid));
}

#[test]
fn compressed_response_is_not_read() {
    let reader = |coding: &str| {
        ResponseReader::new(&fields(), Some(b"application/json"), Some(coding.as_bytes())).map(|_| ())
    };
    assert_eq!(reader("gzip"), Err(Unreadable::Coding));
    assert_eq!(reader("Identity"), Ok(()));
}

#[test]
fn long_values_are_not_kept() {
    let digits = "9".repeat(100_000);
    let value = total("application/json", &format!(r#"{{"usage":{{"total_tokens":{digits}}}}}"#));
    assert!(value.is_some_and(|value| value.len() <= 64));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pieces_do_not_matter(body in prop::collection::vec(prop::sample::select(b"data: {}[]\",\n\r:1\0".to_vec()), 0..80), size in 1_usize..9) {
        for content_type in ["text/event-stream", "application/x-ndjson", "application/json", "application/vnd.amazon.eventstream"] {
            let value = |size| {
                let latest = read_in_pieces(content_type, &body, size).map_err(|reason| reason.to_string())?;
                Ok::<_, String>(latest.last_of([0, 1, 2]).map(str::to_owned))
            };
            prop_assert_eq!(value(size), value(usize::MAX));
        }
    }
}
