//! Rules of single frames: the streams on which they may occur, their order, and their values (RFC 9113 section 6).

use super::Expected::{ConnectionError, Ignored, Served, ServedOrError, StreamError};
use super::{BAD_PATH, assert_cases, case};
use crate::support::frames::{
    CONTINUATION, DATA, ENABLE_PUSH, END_HEADERS, END_STREAM, FLOW_CONTROL_ERROR, GOAWAY, HEADER_TABLE_SIZE,
    HEADERS, INITIAL_WINDOW_SIZE, MAX_CONCURRENT_STREAMS, MAX_FRAME_SIZE, PING, PRIORITY, PROTOCOL_ERROR,
    PUSH_PROMISE, SETTINGS, frame, get_frame, post_frame, request_block, reset, settings, window_update,
};

#[test]
fn frames_on_a_wrong_stream_are_connection_errors() {
    let error = ConnectionError(&[PROTOCOL_ERROR]);
    let block = request_block("GET", BAD_PATH, &[]);
    let open = || post_frame(1, BAD_PATH);
    assert_cases(&[
        case("DATA", error, &[frame(DATA, 0, 0, b"x")]),
        case("HEADERS", error, &[frame(HEADERS, END_HEADERS | END_STREAM, 0, &block)]),
        case("PRIORITY", error, &[frame(PRIORITY, 0, 0, &[0, 0, 0, 1, 16])]),
        case("RST_STREAM", error, &[reset(0, 8)]),
        case("CONTINUATION", error, &[frame(CONTINUATION, END_HEADERS, 0, &block)]),
        case("SETTINGS", error, &[open(), frame(SETTINGS, 0, 1, &[])]),
        case("SETTINGS with ACK", error, &[open(), frame(SETTINGS, 1, 1, &[])]),
        case("PING", error, &[open(), frame(PING, 0, 1, &[0; 8])]),
        case("GOAWAY", error, &[open(), frame(GOAWAY, 0, 1, &[0; 8])]),
        case(
            "PUSH_PROMISE on an open stream",
            error,
            &[open(), frame(PUSH_PROMISE, END_HEADERS, 1, &[&[0, 0, 0, 2][..], &block].concat())],
        ),
        case(
            "PUSH_PROMISE on the connection",
            error,
            &[frame(PUSH_PROMISE, END_HEADERS, 0, &[&[0, 0, 0, 2][..], &block].concat())],
        ),
    ]);
}

#[test]
fn field_blocks_continue_without_interruption() {
    let block = request_block("GET", "/", &[]);
    // The boundaries are in the middle of fields.
    let (start, rest) = block.split_at(7);
    let (middle, last) = rest.split_at(9);
    let head = || frame(HEADERS, END_STREAM, 1, start);
    let more = || frame(CONTINUATION, 0, 1, middle);
    let end = || frame(CONTINUATION, END_HEADERS, 1, last);
    let error = ConnectionError(&[PROTOCOL_ERROR]);
    let interrupted = |name, other: Vec<u8>| case(name, error, &[head(), other, more(), end()]);
    assert_cases(&[
        case("in three parts", Served, &[head(), more(), end()]),
        case(
            "with empty parts",
            Served,
            &[
                frame(HEADERS, END_STREAM, 1, &[]),
                frame(CONTINUATION, 0, 1, &block),
                frame(CONTINUATION, END_HEADERS, 1, &[]),
            ],
        ),
        case(
            "trailers",
            Served,
            &[
                post_frame(1, "/"),
                frame(HEADERS, END_STREAM, 1, &[]),
                frame(CONTINUATION, END_HEADERS, 1, &[]),
            ],
        ),
        case("without HEADERS", error, &[end()]),
        case("after END_HEADERS", error, &[post_frame(1, BAD_PATH), end()]),
        case("after the last CONTINUATION", error, &[head(), more(), end(), end()]),
        case("after DATA", error, &[post_frame(1, BAD_PATH), frame(DATA, 0, 1, b"x"), end()]),
        interrupted("DATA", frame(DATA, 0, 1, b"x")),
        interrupted("HEADERS", get_frame(1, BAD_PATH)),
        interrupted("HEADERS of another stream", get_frame(3, BAD_PATH)),
        interrupted("PRIORITY", frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 16])),
        interrupted("RST_STREAM", reset(1, 8)),
        interrupted("SETTINGS", settings(&[])),
        interrupted("SETTINGS with ACK", frame(SETTINGS, 1, 0, &[])),
        interrupted("PING", frame(PING, 0, 0, &[0; 8])),
        interrupted("GOAWAY", frame(GOAWAY, 0, 0, &[0; 8])),
        interrupted("WINDOW_UPDATE", window_update(1, 1)),
        interrupted("CONTINUATION of another stream", frame(CONTINUATION, 0, 3, middle)),
        interrupted("an unknown type", frame(0xff, 0, 1, b"x")),
    ]);
}

#[test]
fn values_of_settings_have_limits() {
    let error = ConnectionError(&[PROTOCOL_ERROR]);
    let window_error = ConnectionError(&[FLOW_CONTROL_ERROR]);
    let set = |values: &[(u16, u32)]| [settings(values), get_frame(1, "/")];
    assert_cases(&[
        case("ENABLE_PUSH of 0", Served, &set(&[(ENABLE_PUSH, 0)])),
        case("ENABLE_PUSH of 1", Served, &set(&[(ENABLE_PUSH, 1)])),
        case("ENABLE_PUSH of 2", error, &set(&[(ENABLE_PUSH, 2)])[..1]),
        case("largest window", Served, &set(&[(INITIAL_WINDOW_SIZE, 0x7fff_ffff)])),
        case("window too large", window_error, &set(&[(INITIAL_WINDOW_SIZE, 0x8000_0000)])[..1]),
        case("smallest frame size", Served, &set(&[(MAX_FRAME_SIZE, 16_384)])),
        case("largest frame size", Served, &set(&[(MAX_FRAME_SIZE, 0xff_ffff)])),
        case("frame size too small", error, &set(&[(MAX_FRAME_SIZE, 16_383)])[..1]),
        case("frame size of 0", error, &set(&[(MAX_FRAME_SIZE, 0)])[..1]),
        case("frame size too large", error, &set(&[(MAX_FRAME_SIZE, 0x100_0000)])[..1]),
        case("header table of 0", Served, &set(&[(HEADER_TABLE_SIZE, 0)])),
        case("largest header table", Served, &set(&[(HEADER_TABLE_SIZE, u32::MAX)])),
        case("streams of 0", Served, &set(&[(MAX_CONCURRENT_STREAMS, 0)])),
        case("unknown", Served, &set(&[(0, 1), (7, 1), (0xff00, u32::MAX)])),
        case(
            "the last of several counts",
            Served,
            &set(&[(INITIAL_WINDOW_SIZE, 0), (INITIAL_WINDOW_SIZE, 65_535)]),
        ),
        case(
            "each of several is checked",
            error,
            &set(&[(MAX_FRAME_SIZE, 1), (MAX_FRAME_SIZE, 16_384)])[..1],
        ),
        case("many", Served, &set(&[(MAX_CONCURRENT_STREAMS, 100); 100])),
    ]);
}

#[test]
fn window_increments_have_limits() {
    let max = 0x7fff_ffff;
    let open = || post_frame(1, BAD_PATH);
    let below_max = max - 65_535;
    assert_cases(&[
        case("0 on the connection", ConnectionError(&[PROTOCOL_ERROR]), &[window_update(0, 0)]),
        case("0 on a stream", StreamError(&[PROTOCOL_ERROR]), &[open(), window_update(1, 0)]),
        case(
            "largest window",
            Served,
            &[
                window_update(0, below_max),
                post_frame(1, "/"),
                window_update(1, below_max),
                frame(DATA, END_STREAM, 1, b"x"),
            ],
        ),
        case("overflow of the connection", ConnectionError(&[FLOW_CONTROL_ERROR]), &[window_update(0, max)]),
        case(
            "overflow of the connection in steps",
            ConnectionError(&[FLOW_CONTROL_ERROR]),
            &[window_update(0, below_max), window_update(0, 1)],
        ),
        case("overflow of a stream", StreamError(&[FLOW_CONTROL_ERROR]), &[open(), window_update(1, max)]),
        case(
            "overflow of a stream by settings",
            ConnectionError(&[FLOW_CONTROL_ERROR]),
            &[open(), window_update(1, below_max), settings(&[(INITIAL_WINDOW_SIZE, 65_536)])],
        ),
    ]);
}

#[test]
fn priorities_are_ignored() {
    let priority = |stream: u32, dependency: u32| {
        frame(PRIORITY, 0, stream, &[&dependency.to_be_bytes()[..], &[16]].concat())
    };
    let block = request_block("GET", "/", &[]);
    let prioritised = frame(HEADERS, 0x25, 1, &[&[0x80, 0, 0, 99, 255][..], &block].concat());
    assert_cases(&[
        case("of an idle stream", Ignored, &[priority(1, 0), priority(7, 3), priority(2, 1)]),
        case("before the request", Served, &[priority(1, 0), get_frame(1, "/")]),
        case("after the request", Served, &[get_frame(1, "/"), priority(1, 0)]),
        case(
            "in the middle",
            Served,
            &[post_frame(1, "/"), priority(1, 7), frame(DATA, END_STREAM, 1, b"x")],
        ),
        case("with the request", Served, &[prioritised]),
        // RFC 9113 deprecates priorities: this is an error only in RFC 7540.
        case("dependency on itself", ServedOrError(&[PROTOCOL_ERROR]), &[get_frame(1, "/"), priority(1, 1)]),
    ]);
}
