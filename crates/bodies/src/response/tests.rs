use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::fields::FieldName;

const TOTAL: [FieldIndex; 2] = [0, 1];

const TYPE: FieldIndex = 3;

fn names(paths: &[&str]) -> Vec<FieldName> {
    paths.iter().map(|path| FieldName::Json(Arc::new(path.parse().expect("a path")))).collect()
}

fn fields() -> Arc<ResponseFields> {
    let paths = ["usage.total_tokens", "response.usage.total_tokens", "usage.output_tokens", "type"];
    Arc::new(ResponseFields::new(names(&paths), Some(TYPE)))
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
fn fields_are_found_in_events_however_their_keys_are_spelt() {
    let events = |body: &str| total("text/event-stream", body);
    let escaped = r#"{"usage":{"\u0074otal_tokens":4}}"#;
    assert_eq!(events(&format!("data: {escaped}\n\n")).as_deref(), Some("4"));
    assert_eq!(total("application/x-ndjson", &format!("{escaped}\n")).as_deref(), Some("4"));
    let parts = "data: {\"usage\":{\ndata: \"total_tokens\":6}}\n\n";
    assert_eq!(events(parts).as_deref(), Some("6"), "the first of two lines has no key of a field");
    let slash = ResponseFields::new(names(&["a/b", "c"]), None);
    assert!(slash.may_be_in(br#"{"a\/b":1}"#), "a key that is spelt in two ways without a number");
    let plain = ResponseFields::new(names(&["a.b", "a.c[0]"]), None);
    assert!(!plain.may_be_in(br#"{"a":{"d":1}}"#) && plain.may_be_in(br#"{"c":1}"#));
}

#[test]
fn end_of_a_series_is_known() {
    let read = |content_type: &str, body: &[u8], with_connection: bool| {
        let mut reader = ResponseReader::new(&fields(), Some(content_type.as_bytes()), None).expect("a type");
        if with_connection {
            reader.end_with_connection();
        }
        body.chunks(3).for_each(|piece| reader.read(piece));
        let is_cut = reader.is_within_document();
        let so_far = reader.latest().extent();
        (so_far, is_cut, reader.end().map(|latest| (latest.extent(), latest.is_done())))
    };
    let json = |body: &str| read("application/json", body.as_bytes(), true);
    assert_eq!(json("{} "), (Extent::Document, false, Ok((Extent::Document, false))));
    assert_eq!(json("[{},{}]"), (Extent::Series, false, Ok((Extent::Series, false))));
    assert_eq!(json("[{},{}"), (Extent::Part, true, Err(Unreadable::Invalid)));
    let events = |body: &str, close| read("text/event-stream", body.as_bytes(), close);
    assert_eq!(events("data: {}\n\n", false), (Extent::Part, false, Ok((Extent::Series, false))));
    assert_eq!(events("data: {}\n\n", true), (Extent::Part, false, Ok((Extent::Part, false))));
    for last in ["data: [DONE]\n\n", "data:[DONE] \r\r", "data: {}\n\ndata: [DONE]"] {
        assert_eq!(events(last, true).2, Ok((Extent::Part, true)), "{last}");
    }
    for other in ["data: [DONE]x\n\n", "data: [DON\n\n", "data: x[DONE]\n\n", "data: [DONE\ndata: ]\n\n"] {
        assert_eq!(events(other, true).2, Ok((Extent::Part, false)), "{other}");
    }
    let whole = message(b"", b"{}");
    let stream = |body: &[u8]| read("application/vnd.amazon.eventstream", body, false).1;
    assert!(!stream(&whole) && stream(&whole[..whole.len() - 1]) && stream(&[&*whole, b"\0"].concat()));
}

#[test]
fn type_of_the_last_event_is_kept() {
    let kind = |events: &[&str]| {
        let body: String = events.iter().map(|event| format!("data: {{\"type\":\"{event}\"}}\n\n")).collect();
        let of = |size| {
            let latest = read_in_pieces("text/event-stream", body.as_bytes(), size).expect("events");
            latest.last_of([TYPE]).map(str::to_owned)
        };
        assert_eq!(of(4), of(usize::MAX), "{body}");
        of(4)
    };
    assert_eq!(kind(&["message_start", "message_stop", "ping"]).as_deref(), Some("message_stop"));
    assert_eq!(kind(&["message_start", "ping"]), None);
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

    #[test]
    fn skipped_events_have_no_values(
        documents in prop::collection::vec(prop::sample::select(vec![
            "{}", "[]", "[DONE]", r#"{"usage":{"total_tokens":1}}"#, r#"{"usage":{"\u0074otal_tokens":2}}"#,
            r#"{"a":"\"total_tokens\""}"#, r#"{"usage":null}"#, r#"{"type":"message_stop"}"#, r#"{"type":"ping"}"#, "{",
            r#"{"Usage":{},"usage":{"output_tokens":3}}"#,
        ]), 0..8),
        ends in prop::sample::select(vec!["\n\n", "\r\r", "\r\n\r\n", "\nid: 1\n\n", "\n"]),
    ) {
        let body: String = documents.iter().map(|document| format!("data: {document}{ends}")).collect();
        let values = |size| {
            let latest = read_in_pieces("text/event-stream", body.as_bytes(), size).expect("events");
            (latest.values.iter().map(|value| value.as_ref().map(|(_, value)| value.clone())).collect::<Vec<_>>(), latest.is_done())
        };
        prop_assert_eq!(values(1), values(usize::MAX));
    }
}
