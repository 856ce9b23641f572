//! States of streams, their identifiers, and their maximum number (RFC 9113 section 5.1).

use super::Expected::{ConnectionError, Ignored, Served, StreamError};
use super::{BAD_PATH, assert_cases, case};
use crate::support::frames::{
    CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, FrameConnection, GOAWAY, HEADERS, NO_ERROR,
    PRIORITY, PROTOCOL_ERROR, REFUSED_STREAM, RST_STREAM, STREAM_CLOSED, frame, get_frame, post_frame,
    request_block, reset, response_status, window_update,
};
use crate::support::{LISTENER, Origin, Weir, config, config_with};

/// Errors that a frame on a closed stream may cause.
const CLOSED: &[u32] = &[STREAM_CLOSED, PROTOCOL_ERROR];

#[test]
fn idle_streams_accept_only_headers_and_priority() {
    let error = ConnectionError(&[PROTOCOL_ERROR]);
    assert_cases(&[
        case("DATA", ConnectionError(&[PROTOCOL_ERROR, STREAM_CLOSED]), &[frame(DATA, END_STREAM, 1, b"x")]),
        case("RST_STREAM", error, &[reset(1, CANCEL)]),
        case("WINDOW_UPDATE", error, &[window_update(1, 1)]),
        case(
            "CONTINUATION",
            error,
            &[frame(CONTINUATION, END_HEADERS, 1, &request_block("GET", BAD_PATH, &[]))],
        ),
        case("stream of the server", error, &[window_update(2, 1)]),
        case("beyond the last stream", error, &[post_frame(1, BAD_PATH), reset(3, CANCEL)]),
        case("PRIORITY", Ignored, &[frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 16])]),
    ]);
}

#[test]
fn identifiers_of_streams_are_odd_and_increase() {
    let decreasing = ConnectionError(&[PROTOCOL_ERROR, STREAM_CLOSED]);
    assert_cases(&[
        case("even", ConnectionError(&[PROTOCOL_ERROR]), &[get_frame(2, BAD_PATH)]),
        case("decreasing", decreasing, &[get_frame(5, "/"), get_frame(3, BAD_PATH)]),
        case("with gaps", Served, &[get_frame(1, "/"), get_frame(7, "/"), get_frame(501, "/")]),
    ]);
}

#[test]
fn stream_that_the_client_has_ended_accepts_no_data() {
    let head = || get_frame(1, "/");
    let closed = StreamError(CLOSED);
    assert_cases(&[
        case("DATA", closed, &[head(), frame(DATA, END_STREAM, 1, b"x")]),
        case("empty DATA", closed, &[head(), frame(DATA, END_STREAM, 1, b"")]),
        case(
            "HEADERS",
            closed,
            &[head(), frame(HEADERS, END_HEADERS | END_STREAM, 1, &request_block("GET", BAD_PATH, &[]))],
        ),
        case("CONTINUATION", ConnectionError(CLOSED), &[head(), frame(CONTINUATION, END_HEADERS, 1, b"")]),
        case(
            "DATA after a body",
            closed,
            &[post_frame(1, "/"), frame(DATA, END_STREAM, 1, b"x"), frame(DATA, 0, 1, b"x")],
        ),
        case(
            "DATA after trailers",
            closed,
            &[
                post_frame(1, "/"),
                frame(HEADERS, END_HEADERS | END_STREAM, 1, &[]),
                frame(DATA, END_STREAM, 1, b"x"),
            ],
        ),
        case("WINDOW_UPDATE", Served, &[head(), window_update(1, 100)]),
        case("PRIORITY", Served, &[head(), frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 16])]),
        case("RST_STREAM", Ignored, &[head(), reset(1, CANCEL)]),
    ]);
}

#[test]
fn stream_that_the_client_has_reset_stays_closed() {
    let reset_stream = || [post_frame(1, BAD_PATH), reset(1, CANCEL)].concat();
    assert_cases(&[
        case("DATA", StreamError(CLOSED), &[reset_stream(), frame(DATA, END_STREAM, 1, b"x")]),
        case(
            "HEADERS",
            StreamError(CLOSED),
            &[reset_stream(), frame(HEADERS, END_HEADERS | END_STREAM, 1, &[])],
        ),
        case(
            "CONTINUATION",
            ConnectionError(CLOSED),
            &[reset_stream(), frame(CONTINUATION, END_HEADERS, 1, &[])],
        ),
        case("RST_STREAM", Ignored, &[reset_stream(), reset(1, CANCEL)]),
        case("WINDOW_UPDATE", Ignored, &[reset_stream(), window_update(1, 1)]),
        case("PRIORITY", Ignored, &[reset_stream(), frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 16])]),
        case("an unknown code", Ignored, &[post_frame(1, BAD_PATH), reset(1, 0xffff_ffff)]),
    ]);
}

/// Completes a request on stream 1, sends `frames`, and returns all frames up to the response on stream 3, if any.
fn after_completion(weir: &Weir, bytes: &[u8]) -> (Vec<u32>, Option<String>) {
    let mut client = FrameConnection::connect(weir.address());
    assert_eq!(client.fetch(1, "/"), "200");
    client.send(bytes);
    client.send(get_frame(3, "/"));
    let frames = client.read_until(|frame| frame.ends(3));
    let errors = frames.iter().filter_map(|frame| match frame.kind {
        RST_STREAM => Some(frame.word(0)),
        GOAWAY => Some(frame.word(4)),
        _ => None,
    });
    (errors.collect(), response_status(&frames, 3))
}

#[test]
fn late_frames_on_a_completed_stream_are_ignored() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let priority = frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 16]);
    for late in [window_update(1, 10), reset(1, CANCEL), reset(1, NO_ERROR), priority] {
        let expected = (vec![], Some("200".to_owned()));
        assert_eq!(after_completion(&weir, &late), expected, "type {}", late[3]);
    }
}

#[test]
fn data_and_headers_on_a_completed_stream_are_errors() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let head = frame(HEADERS, END_HEADERS | END_STREAM, 1, &request_block("GET", BAD_PATH, &[]));
    for late in [frame(DATA, END_STREAM, 1, b"x"), head, frame(CONTINUATION, END_HEADERS, 1, &[])] {
        let (errors, _) = after_completion(&weir, &late);
        assert!(
            !errors.is_empty() && errors.iter().all(|code| CLOSED.contains(code)),
            "{}: {errors:?}",
            late[3]
        );
    }
    assert!(origin.requests().iter().all(|seen| seen.head.word(1) != BAD_PATH));
}

#[test]
fn streams_beyond_the_maximum_are_refused_and_succeed_later() {
    let origin = Origin::hello();
    let listener = LISTENER.replace(" }", ", limits: { streams: 2 } }");
    let weir = Weir::start(&config_with(&listener, &format!("{{ address: \"{}\" }}", origin.address()), ""));
    let mut client = FrameConnection::connect(weir.address());
    assert_eq!(client.peer_settings.get(&3), Some(&2), "the announced maximum");
    client.send([post_frame(1, "/"), post_frame(3, "/"), get_frame(5, "/refused")].concat());
    let frames = client.until_stream_ends(5);
    let code = frames.iter().find(|frame| frame.is(RST_STREAM, 5)).map(|frame| frame.word(0));
    // PROTOCOL_ERROR is allowed too, but a client does not retry then (section 8.7).
    assert_eq!(code, Some(REFUSED_STREAM), "{frames:?}");
    for stream in [1, 3] {
        client.send(frame(DATA, END_STREAM, stream, b"x"));
        assert_eq!(response_status(&client.until_stream_ends(stream), stream).as_deref(), Some("200"));
    }
    assert_eq!(client.fetch(7, "/"), "200");
    assert!(origin.requests().iter().all(|seen| seen.head.word(1) != "/refused"));
}

#[test]
fn goaway_of_the_client_lets_open_streams_complete() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = FrameConnection::connect(weir.address());
    let goaway = frame(GOAWAY, 0, 0, &[&[0; 8][..], b"debug data"].concat());
    client.send([post_frame(1, "/"), goaway, frame(DATA, END_STREAM, 1, b"x")].concat());
    let frames = client.until_stream_ends(1);
    assert_eq!(response_status(&frames, 1).as_deref(), Some("200"));
}
