//! Header sections, lengths and trailers of requests (RFC 9113 sections 8.1 to 8.3).

use super::Expected::{ConnectionError, Malformed, Served};
use super::{BAD_PATH, Case, Expected, assert_cases, case};
use crate::support::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PROTOCOL_ERROR, block, frame, post_frame,
    request_block,
};

const METHOD: (&str, &str) = (":method", "GET");
const SCHEME: (&str, &str) = (":scheme", "http");
const AUTHORITY: (&str, &str) = (":authority", "a.test");
const PATH: (&str, &str) = (":path", BAD_PATH);

/// Returns a case of a request that consists of exactly these fields.
fn fields(name: &'static str, expected: Expected, fields: &[(&str, &str)]) -> Case {
    let block = block(fields.iter().copied());
    case(name, expected, &[frame(HEADERS, END_HEADERS | END_STREAM, 1, &block)])
}

#[test]
fn pseudo_header_fields_are_complete_unique_known_and_first() {
    let regular = ("x-a", "b");
    assert_cases(&[
        fields("complete", Served, &[METHOD, SCHEME, AUTHORITY, (":path", "/")]),
        fields("in another order", Served, &[(":path", "/"), AUTHORITY, METHOD, SCHEME]),
        fields("without :method", Malformed, &[SCHEME, AUTHORITY, PATH]),
        fields("without :scheme", Malformed, &[METHOD, AUTHORITY, PATH]),
        fields("without :path", Malformed, &[METHOD, SCHEME, AUTHORITY]),
        fields("empty :path", Malformed, &[METHOD, SCHEME, AUTHORITY, (":path", "")]),
        fields("relative :path", Malformed, &[METHOD, SCHEME, AUTHORITY, (":path", "bad")]),
        fields("empty :method", Malformed, &[(":method", ""), SCHEME, AUTHORITY, PATH]),
        fields(":method twice", Malformed, &[METHOD, METHOD, SCHEME, AUTHORITY, PATH]),
        fields(":scheme twice", Malformed, &[METHOD, SCHEME, SCHEME, AUTHORITY, PATH]),
        fields(":authority twice", Malformed, &[METHOD, SCHEME, AUTHORITY, AUTHORITY, PATH]),
        fields(":path twice", Malformed, &[METHOD, SCHEME, AUTHORITY, PATH, PATH]),
        fields("unknown", Malformed, &[METHOD, SCHEME, AUTHORITY, PATH, (":unknown", "x")]),
        fields("empty name", Malformed, &[METHOD, SCHEME, AUTHORITY, PATH, (":", "x")]),
        fields("of a response", Malformed, &[METHOD, SCHEME, AUTHORITY, PATH, (":status", "200")]),
        fields("upper case", Malformed, &[METHOD, SCHEME, AUTHORITY, (":Path", BAD_PATH)]),
        fields(":path after a field", Malformed, &[METHOD, SCHEME, AUTHORITY, regular, PATH]),
        fields(":method after a field", Malformed, &[SCHEME, AUTHORITY, PATH, regular, METHOD]),
        fields(":authority after a field", Malformed, &[METHOD, SCHEME, PATH, regular, AUTHORITY]),
        fields(
            ":protocol without CONNECT",
            Malformed,
            &[METHOD, SCHEME, AUTHORITY, PATH, (":protocol", "websocket")],
        ),
        fields("CONNECT with :path", Malformed, &[(":method", "CONNECT"), SCHEME, AUTHORITY, PATH]),
        fields("no field at all", Malformed, &[]),
    ]);
}

/// Returns the request to [`BAD_PATH`] with one more field.
fn with_field(name: &'static str, expected: Expected, field: (&str, &str)) -> Case {
    fields(name, expected, &[METHOD, SCHEME, AUTHORITY, PATH, field])
}

#[test]
fn names_and_values_of_fields_are_valid() {
    assert_cases(&[
        with_field("upper case", Malformed, ("X-A", "b")),
        with_field("one upper-case letter", Malformed, ("x-aB", "b")),
        with_field("empty name", Malformed, ("", "b")),
        with_field("space in the name", Malformed, ("x a", "b")),
        with_field("control character in the name", Malformed, ("x\u{1}a", "b")),
        with_field("DEL in the name", Malformed, ("x\u{7f}a", "b")),
        with_field("name beyond ASCII", Malformed, ("x\u{e9}", "b")),
        with_field("colon in the name", Malformed, ("x:a", "b")),
        with_field("CR in the name", Malformed, ("x\r", "b")),
        with_field("LF in the name", Malformed, ("x\ny", "b")),
        with_field("NUL in the value", Malformed, ("x-a", "b\0c")),
        with_field("CR in the value", Malformed, ("x-a", "b\rc")),
        with_field("LF in the value", Malformed, ("x-a", "b\nc")),
        with_field("CRLF and a field in the value", Malformed, ("x-a", "b\r\nhost: c")),
        with_field("space before the value", Malformed, ("x-a", " b")),
        with_field("space after the value", Malformed, ("x-a", "b ")),
        with_field("tab before the value", Malformed, ("x-a", "\tb")),
        with_field("CR in :path", Malformed, (":path", "/a\r\nb")),
    ]);
}

#[test]
fn fields_of_a_connection_are_malformed() {
    assert_cases(&[
        with_field("connection", Malformed, ("connection", "close")),
        with_field("connection that names a field", Malformed, ("connection", "x-a")),
        with_field("keep-alive", Malformed, ("keep-alive", "timeout=5")),
        with_field("proxy-connection", Malformed, ("proxy-connection", "keep-alive")),
        with_field("transfer-encoding", Malformed, ("transfer-encoding", "chunked")),
        with_field("transfer-encoding of identity", Malformed, ("transfer-encoding", "identity")),
        with_field("upgrade", Malformed, ("upgrade", "websocket")),
        with_field("te other than trailers", Malformed, ("te", "gzip")),
        with_field("te with more than trailers", Malformed, ("te", "trailers, gzip")),
        fields("te: trailers", Served, &[METHOD, SCHEME, AUTHORITY, (":path", "/"), ("te", "trailers")]),
    ]);
}

/// Returns a case of a POST with these `content-length` fields and these pieces of a body.
fn with_body(name: &'static str, expected: Expected, lengths: &[&str], pieces: &[&[u8]]) -> Case {
    let path = if matches!(expected, Served) { "/" } else { BAD_PATH };
    let lengths: Vec<_> = lengths.iter().map(|length| ("content-length", *length)).collect();
    let block = request_block("POST", path, &lengths);
    let end = if pieces.is_empty() { END_STREAM } else { 0 };
    let mut frames = vec![frame(HEADERS, END_HEADERS | end, 1, &block)];
    for (index, piece) in pieces.iter().enumerate() {
        let flags = if index + 1 == pieces.len() { END_STREAM } else { 0 };
        frames.push(frame(DATA, flags, 1, piece));
    }
    case(name, expected, &frames)
}

#[test]
fn content_length_equals_the_length_of_the_data() {
    assert_cases(&[
        with_body("equal", Served, &["5"], &[b"hello"]),
        with_body("equal in pieces", Served, &["5"], &[b"he", b"", b"l", b"lo", b""]),
        with_body("zero and empty", Served, &["0"], &[b""]),
        with_body("zero and no DATA", Served, &["0"], &[]),
        with_body("less data", Malformed, &["6"], &[b"hello"]),
        with_body("more data", Malformed, &["4"], &[b"hello"]),
        with_body("more data in pieces", Malformed, &["4"], &[b"he", b"llo"]),
        with_body("no DATA", Malformed, &["1"], &[]),
        with_body("empty DATA", Malformed, &["1"], &[b""]),
        with_body("data after zero", Malformed, &["0"], &[b"x"]),
        with_body("two lengths", Malformed, &["5", "6"], &[b"hello"]),
        with_body("negative", Malformed, &["-5"], &[b"hello"]),
        with_body("no number", Malformed, &["five"], &[b"hello"]),
        with_body("beyond 64 bits", Malformed, &["18446744073709551621"], &[b"hello"]),
    ]);
}

/// Returns a case of a POST with a body and these trailers.
fn with_trailers(name: &'static str, expected: Expected, flags: u8, trailers: &[(&str, &str)]) -> Case {
    let path = if matches!(expected, Served) { "/" } else { BAD_PATH };
    let block = block(trailers.iter().copied());
    case(
        name,
        expected,
        &[post_frame(1, path), frame(DATA, 0, 1, b"hello"), frame(HEADERS, flags, 1, &block)],
    )
}

#[test]
fn pseudo_header_fields_in_trailers_are_malformed() {
    let with_trailer =
        |name, trailer| with_trailers(name, Malformed, END_HEADERS | END_STREAM, &[("x-a", "b"), trailer]);
    let first = with_trailers("first", Malformed, END_HEADERS | END_STREAM, &[(":path", "/"), ("x-a", "b")]);
    assert_cases(&[
        first,
        with_trailer(":path", (":path", "/")),
        with_trailer(":status", (":status", "200")),
    ]);
}

#[test]
fn trailers_end_the_stream_and_contain_valid_fields() {
    let end = END_HEADERS | END_STREAM;
    let short_body = request_block("POST", BAD_PATH, &[("content-length", "6")]);
    let three_sections = block([("x-a", "b")]);
    assert_cases(&[
        with_trailers("valid", Served, end, &[("x-a", "b"), ("x-c", "")]),
        with_trailers("empty", Served, end, &[]),
        case("without DATA", Served, &[post_frame(1, "/"), frame(HEADERS, end, 1, &block([("x-a", "b")]))]),
        with_trailers("without END_STREAM", Malformed, END_HEADERS, &[("x-a", "b")]),
        with_trailers("unknown pseudo-header field", Malformed, end, &[("x-a", "b"), (":x", "y")]),
        with_trailers("upper case", Malformed, end, &[("X-A", "b")]),
        with_trailers("field of a connection", Malformed, end, &[("connection", "x-a")]),
        with_trailers("transfer-encoding", Malformed, end, &[("transfer-encoding", "chunked")]),
        with_trailers("LF in the value", Malformed, end, &[("x-a", "b\nc")]),
        case(
            "less data than the length",
            Malformed,
            &[
                frame(HEADERS, END_HEADERS, 1, &short_body),
                frame(DATA, 0, 1, b"hello"),
                frame(HEADERS, end, 1, &block([("x-a", "b")])),
            ],
        ),
        case(
            "two sections",
            Malformed,
            &[
                post_frame(1, BAD_PATH),
                frame(HEADERS, END_HEADERS, 1, &three_sections),
                frame(HEADERS, end, 1, &three_sections),
            ],
        ),
        case(
            "interrupted",
            ConnectionError(&[PROTOCOL_ERROR]),
            &[
                post_frame(1, BAD_PATH),
                frame(HEADERS, END_STREAM, 1, &three_sections),
                frame(DATA, 0, 1, b"x"),
                frame(CONTINUATION, END_HEADERS, 1, &[]),
            ],
        ),
    ]);
}

#[test]
fn valid_requests_of_every_form_are_served() {
    let served = |name, method, more: &[(&str, &str)]| {
        case(name, Served, &[frame(HEADERS, END_HEADERS | END_STREAM, 1, &request_block(method, "/", more))])
    };
    let every_character = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz";
    assert_cases(&[
        served("GET", "GET", &[]),
        served("HEAD", "HEAD", &[]),
        served("DELETE", "DELETE", &[]),
        served("OPTIONS", "OPTIONS", &[]),
        served("an unknown method", "PURGE", &[]),
        served("an empty value", "GET", &[("x-a", "")]),
        served("a value beyond ASCII", "GET", &[("x-a", "\u{e9}\u{20ac}")]),
        served("spaces and tabs inside a value", "GET", &[("x-a", "b \t c")]),
        served("every character of names", "GET", &[(every_character, "b")]),
        served("a name twice", "GET", &[("x-a", "b"), ("x-a", "c")]),
        served("crumbs of cookies", "GET", &[("cookie", "a=1"), ("cookie", "b=2"), ("cookie", "c=3")]),
        served("a long value", "GET", &[("x-a", &"b".repeat(10_000))]),
        served("the authority as host too", "GET", &[("host", "a.test")]),
        fields(
            "host in place of the authority",
            Served,
            &[METHOD, SCHEME, (":path", "/"), ("host", "a.test")],
        ),
        fields("https", Served, &[METHOD, (":scheme", "https"), AUTHORITY, (":path", "/")]),
    ]);
}
