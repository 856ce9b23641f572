//! The preface, sizes of frames, padding, and unknown frames and flags (RFC 9113 sections 3.4, 4 and 5.5).

use super::Expected::{ConnectionError, Ignored, Served, StreamError};
use super::{BAD_PATH, Case, assert_cases, case};
use crate::support::frames::{
    ACK, ConnectionEnd, DATA, END_HEADERS, END_STREAM, FRAME_SIZE_ERROR, FrameConnection, GOAWAY, HEADERS,
    MAX_FRAME_SIZE, PADDED, PING, PREFACE, PRIORITY, PROTOCOL_ERROR, RST_STREAM, SETTINGS, WINDOW_UPDATE,
    WITH_PRIORITY, frame, get_frame, post_frame, request_block, response_status, settings,
};
use crate::support::{Origin, Weir, config};

/// Types that no RFC has assigned, or whose frames a server may ignore (ALTSVC, ORIGIN).
const UNKNOWN_TYPES: [u8; 5] = [0x0a, 0x0c, 0x20, 0x80, 0xff];

fn served_after_preface(pieces: impl Iterator<Item = Vec<u8>>) -> Option<String> {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = FrameConnection::connect_bare(weir.address());
    for piece in pieces {
        client.send(piece);
    }
    response_status(&client.until_stream_ends(1), 1)
}

#[test]
fn client_may_send_a_request_before_it_has_the_settings_of_the_server() {
    let all = [PREFACE, &settings(&[]), &get_frame(1, "/")].concat();
    assert_eq!(served_after_preface(std::iter::once(all)).as_deref(), Some("200"));
}

#[test]
fn boundaries_of_packets_have_no_meaning() {
    let all = [PREFACE, &settings(&[]), &get_frame(1, "/")].concat();
    let bytes = all.into_iter().map(|byte| vec![byte]);
    assert_eq!(served_after_preface(bytes).as_deref(), Some("200"));
}

#[test]
fn frame_other_than_settings_after_the_preface_closes_the_connection() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    for first in [
        get_frame(1, BAD_PATH),
        frame(PING, 0, 0, &[0; 8]),
        frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]),
        frame(GOAWAY, 0, 0, &[0; 8]),
    ] {
        let mut client = FrameConnection::connect_bare(weir.address());
        client.send([PREFACE, &first].concat());
        let frames = client.read_until(|_| false);
        assert!(matches!(client.end(), Some(ConnectionEnd::Closed | ConnectionEnd::Reset)), "{frames:?}");
        // The RFC allows to omit GOAWAY.
        let mut codes = frames.iter().filter(|frame| frame.kind == GOAWAY).map(|frame| frame.word(4));
        assert!(codes.all(|code| code == PROTOCOL_ERROR), "{frames:?}");
    }
    assert_eq!(origin.requests().len(), 0);
}

#[test]
fn frames_of_the_largest_size_are_accepted_and_larger_ones_are_errors() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let announced = FrameConnection::connect(weir.address()).peer_settings.get(&MAX_FRAME_SIZE).copied();
    drop((weir, origin));
    let max = usize::try_from(announced.unwrap_or(16_384)).unwrap();
    let (largest, larger) = (vec![0; max], vec![0; max + 1]);
    let stream_error = StreamError(&[FRAME_SIZE_ERROR]);
    let connection_error = ConnectionError(&[FRAME_SIZE_ERROR]);
    let mut cases = vec![
        case("DATA", stream_error, &[post_frame(1, BAD_PATH), frame(DATA, END_STREAM, 1, &larger)]),
        case("HEADERS", connection_error, &[frame(HEADERS, END_HEADERS | END_STREAM, 1, &larger)]),
        case("SETTINGS", connection_error, &[frame(SETTINGS, 0, 0, &vec![0; max / 6 * 6 + 6])]),
        case("unknown type", connection_error, &[frame(0xff, 0, 0, &larger)]),
        case("largest of unknown type", Ignored, &[frame(0xff, 0, 0, &largest)]),
    ];
    // Within the window that every server has at the start.
    if max < 65_536 {
        cases.push(case("largest DATA", Served, &[post_frame(1, "/"), frame(DATA, END_STREAM, 1, &largest)]));
    }
    assert_cases(&cases);
}

#[test]
fn frames_of_a_wrong_length_are_errors() {
    let wrong = |name, kind, stream, lengths: &[usize]| -> Vec<Case> {
        let one = |length: &usize| {
            let bytes = vec![1; *length];
            case(
                name,
                ConnectionError(&[FRAME_SIZE_ERROR]),
                &[post_frame(1, BAD_PATH), frame(kind, 0, stream, &bytes)],
            )
        };
        lengths.iter().map(one).collect()
    };
    let mut cases: Vec<Case> = [
        wrong("RST_STREAM", RST_STREAM, 1, &[0, 3, 5]),
        wrong("SETTINGS", SETTINGS, 0, &[1, 5, 7]),
        wrong("PING", PING, 0, &[0, 7, 9]),
        wrong("GOAWAY", GOAWAY, 0, &[0, 4, 7]),
        wrong("WINDOW_UPDATE of the connection", WINDOW_UPDATE, 0, &[0, 3, 5]),
        wrong("WINDOW_UPDATE of a stream", WINDOW_UPDATE, 1, &[0, 3, 5]),
    ]
    .into_iter()
    .flatten()
    .collect();
    for length in [0, 4, 6] {
        let priority = frame(PRIORITY, 0, 1, &vec![0; length]);
        cases.push(case("PRIORITY", StreamError(&[FRAME_SIZE_ERROR]), &[post_frame(1, BAD_PATH), priority]));
    }
    let too_short = ConnectionError(&[FRAME_SIZE_ERROR, PROTOCOL_ERROR]);
    cases.extend([
        case(
            "SETTINGS with ACK",
            ConnectionError(&[FRAME_SIZE_ERROR]),
            &[frame(SETTINGS, ACK, 0, &[0, 3, 0, 0, 0, 1])],
        ),
        case("HEADERS with PRIORITY", too_short, &[frame(HEADERS, 0x25, 1, &[0; 4])]),
        case("HEADERS with PADDED", too_short, &[frame(HEADERS, 0xd, 1, &[])]),
        case(
            "DATA with PADDED",
            too_short,
            &[post_frame(1, BAD_PATH), frame(DATA, PADDED | END_STREAM, 1, &[])],
        ),
    ]);
    assert_cases(&cases);
}

/// Returns `payload` with padding (RFC 9113 section 6.1).
fn padded(payload: &[u8], length: u8) -> Vec<u8> {
    [&[length][..], payload, &vec![0; usize::from(length)]].concat()
}

#[test]
fn padding_is_removed_and_must_fit_the_frame() {
    let block = request_block("POST", "/", &[]);
    let bad = request_block("POST", BAD_PATH, &[]);
    let too_long = u8::try_from(bad.len() + 1).unwrap();
    let prioritised = [&[0, 0, 0, 0, 16][..], &block].concat();
    let protocol_error = ConnectionError(&[PROTOCOL_ERROR]);
    let end = END_STREAM | PADDED;
    assert_cases(&[
        case("DATA", Served, &[post_frame(1, "/"), frame(DATA, end, 1, &padded(b"hello", 200))]),
        case("DATA of padding only", Served, &[post_frame(1, "/"), frame(DATA, end, 1, &padded(b"", 255))]),
        case("length of 0", Served, &[post_frame(1, "/"), frame(DATA, end, 1, &padded(b"hello", 0))]),
        case("HEADERS", Served, &[frame(HEADERS, end | END_HEADERS, 1, &padded(&block, 255))]),
        case(
            "HEADERS with a priority",
            Served,
            &[frame(HEADERS, end | END_HEADERS | WITH_PRIORITY, 1, &padded(&prioritised, 9))],
        ),
        case(
            "as long as DATA",
            protocol_error,
            &[post_frame(1, BAD_PATH), frame(DATA, end, 1, &[5, 0, 0, 0, 0])],
        ),
        case("longer than DATA", protocol_error, &[post_frame(1, BAD_PATH), frame(DATA, end, 1, &[255, 0])]),
        case(
            "as long as HEADERS",
            protocol_error,
            &[frame(HEADERS, end | END_HEADERS, 1, &[&[too_long][..], &bad].concat())],
        ),
        case(
            "longer than HEADERS",
            protocol_error,
            &[frame(HEADERS, end | END_HEADERS, 1, &[&[255][..], &bad].concat())],
        ),
    ]);
}

#[test]
fn unknown_frames_and_flags_and_reserved_bits_are_ignored() {
    let reserved = |mut frame: Vec<u8>| {
        frame[5] |= 0x80;
        frame
    };
    let with_flags = |mut frame: Vec<u8>, flags: u8| {
        frame[4] |= flags;
        frame
    };
    let mut cases: Vec<Case> = UNKNOWN_TYPES
        .into_iter()
        .flat_map(|kind| {
            let unknown = |stream| frame(kind, 0xff, stream, b"abc");
            [
                case("on the connection", Ignored, &[unknown(0)]),
                case("on an idle stream", Ignored, &[unknown(1), unknown(2), unknown(501)]),
                case(
                    "on an open stream",
                    Served,
                    &[
                        post_frame(1, "/"),
                        unknown(1),
                        frame(DATA, 0, 1, b"a"),
                        unknown(1),
                        frame(DATA, END_STREAM, 1, b"b"),
                        unknown(1),
                    ],
                ),
            ]
        })
        .collect();
    cases.extend([
        case("reserved bit of PING", Ignored, &[reserved(frame(PING, 0, 0, &[0; 8]))]),
        case("reserved bit of HEADERS", Served, &[reserved(get_frame(1, "/"))]),
        case(
            "reserved bit of DATA",
            Served,
            &[post_frame(1, "/"), reserved(frame(DATA, END_STREAM, 1, b"a"))],
        ),
        case(
            "reserved bit of an increment",
            Served,
            &[frame(WINDOW_UPDATE, 0, 0, &[0x80, 0, 0, 1]), get_frame(1, "/")],
        ),
        case("flags of HEADERS", Served, &[with_flags(get_frame(1, "/"), 0xd2)]),
        case("flags of DATA", Served, &[post_frame(1, "/"), frame(DATA, 0xf6 | END_STREAM, 1, b"a")]),
        case("flags of SETTINGS", Ignored, &[frame(SETTINGS, 0xfe, 0, &[])]),
        case("flags of PING", Ignored, &[frame(PING, 0xfe, 0, &[0; 8])]),
        case("flags of WINDOW_UPDATE", Ignored, &[frame(WINDOW_UPDATE, 0xff, 0, &[0, 0, 0, 1])]),
        case("flags of PRIORITY", Ignored, &[frame(PRIORITY, 0xff, 1, &[0, 0, 0, 0, 16])]),
    ]);
    assert_cases(&cases);
}
