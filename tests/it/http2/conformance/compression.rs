//! Field blocks that cannot be decoded (RFC 7541): each is a connection error of type COMPRESSION_ERROR, because the
//! state of the decoder is unknown afterwards (RFC 9113 section 4.3).

use super::Expected::{ConnectionError, Served};
use super::{BAD_PATH, Case, Expected, assert_cases, case};
use crate::support::frames::{
    COMPRESSION_ERROR, DATA, END_HEADERS, END_STREAM, FrameConnection, HEADER_TABLE_SIZE, HEADERS,
    encode_integer, frame, post_frame, request_block,
};
use crate::support::{Weir, config};

const ERROR: Expected = ConnectionError(&[COMPRESSION_ERROR]);

/// Returns a case of a request to [`BAD_PATH`] whose field block ends in these bytes.
fn bad(name: &'static str, end: &[u8]) -> Case {
    let block = [&request_block("GET", BAD_PATH, &[])[..], end].concat();
    case(name, ERROR, &[frame(HEADERS, END_HEADERS | END_STREAM, 1, &block)])
}

/// Returns a case of a valid request whose field block ends in these bytes.
fn good(name: &'static str, end: &[u8]) -> Case {
    let block = [&request_block("GET", "/", &[])[..], end].concat();
    case(name, Served, &[frame(HEADERS, END_HEADERS | END_STREAM, 1, &block)])
}

#[test]
fn indices_refer_to_entries() {
    assert_cases(&[
        good("last entry of the static table", &[0x7d, 1, b'a']),
        bad("index 0", &[0x80]),
        bad("empty dynamic table", &[0xbe]),
        bad("far beyond", &encode_integer(0x80, 7, 10_000)),
        bad("largest index of 32 bits", &encode_integer(0x80, 7, 0xffff_ffff)),
        bad("name beyond, indexed", &[0x7e, 1, b'a']),
        bad("name beyond, not indexed", &[&encode_integer(0, 4, 62)[..], &[1, b'a']].concat()),
        bad("name beyond, never indexed", &[&encode_integer(0x10, 4, 62)[..], &[1, b'a']].concat()),
        case(
            "in trailers",
            ERROR,
            &[
                post_frame(1, BAD_PATH),
                frame(DATA, 0, 1, b"x"),
                frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0xbe]),
            ],
        ),
        case("before everything else", ERROR, &[frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0x80])]),
    ]);
}

#[test]
fn integers_and_strings_end_within_the_block() {
    assert_cases(&[
        good(
            "integer in more bytes than needed",
            &[0x00, 0x03, b'x', b'-', b'a', 0x7f, 0x80, 0x00]
                .iter()
                .copied()
                .chain([b'b'; 127])
                .collect::<Vec<_>>(),
        ),
        bad("no name", &[0x00]),
        bad("no value", &[0x00, 1, b'x']),
        bad("name cut off", &[0x00, 5, b'x']),
        bad("value cut off", &[0x00, 1, b'x', 5, b'v']),
        bad("length cut off", &[0x00, 0x7f]),
        bad("length cut off later", &[0x00, 0x7f, 0x80]),
        bad("index cut off", &[0xff]),
        bad("endless integer", &[&[0xff][..], &[0x80; 40], &[1]].concat()),
        bad("integer beyond 64 bits", &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]),
        bad("length beyond 32 bits", &[0x00, 0x7f, 0xff, 0xff, 0xff, 0xff, 0x7f]),
        bad("Huffman string cut off", &[0x00, 1, b'x', 0x85, 0x1f]),
    ]);
}

#[test]
fn huffman_strings_are_padded_by_less_than_a_byte_of_ones() {
    // The code of `a` is 00011.
    let value = |coded: &[u8]| {
        [&[0x00, 3, b'x', b'-', b'a', 0x80 | u8::try_from(coded.len()).unwrap()], coded].concat()
    };
    assert_cases(&[
        good("a", &value(&[0x1f])),
        good("empty", &value(&[])),
        good("eight symbols without padding", &value(&[0x18, 0xc6, 0x31, 0x8c, 0x63])),
        bad("padding of zeros", &value(&[0x18])),
        bad("padding with one zero", &value(&[0x1e])),
        bad("padding of eight bits", &value(&[0x18, 0xc6, 0x31, 0x8c, 0x63, 0xff])),
        bad("padding of eleven bits", &value(&[0x1f, 0xff])),
        bad("padding of three bytes", &value(&[0x1f, 0xff, 0xff])),
        bad("only padding", &value(&[0xff])),
        bad("end-of-string symbol", &value(&[0xff, 0xff, 0xff, 0xff])),
        bad("end-of-string symbol after a", &value(&[0x1f, 0xff, 0xff, 0xff, 0xff])),
        bad("in a name", &[0x00, 0x81, 0x18, 1, b'v']),
    ]);
}

#[test]
fn size_updates_are_first_and_within_the_announced_size() {
    let weir = Weir::start(&config("echo", ""));
    let announced = FrameConnection::connect(weir.address()).peer_settings.get(&HEADER_TABLE_SIZE).copied();
    drop(weir);
    let max = announced.unwrap_or(4096) as usize;
    let update = |size| encode_integer(0x20, 5, size);
    let after = |name, expected, start: &[u8]| {
        let path = if matches!(expected, Served) { "/" } else { BAD_PATH };
        let block = [start, &request_block("GET", path, &[])].concat();
        case(name, expected, &[frame(HEADERS, END_HEADERS | END_STREAM, 1, &block)])
    };
    assert_cases(&[
        after("to 0", Served, &update(0)),
        after("to the largest size", Served, &update(max)),
        after("twice", Served, &[update(0), update(max)].concat()),
        after("too large", ERROR, &update(max + 1)),
        after("far too large", ERROR, &update(0xffff_ffff)),
        after("too large after a valid one", ERROR, &[update(0), update(max + 1)].concat()),
        after("cut off", ERROR, &[0x3f]),
        bad("after a field", &update(0)),
        after("between fields", ERROR, &[&[0x82][..], &update(0)].concat()),
        case(
            "at the end of trailers",
            ERROR,
            &[
                post_frame(1, BAD_PATH),
                frame(
                    HEADERS,
                    END_HEADERS | END_STREAM,
                    1,
                    &[&[0x00, 1, b'x', 1, b'y'][..], &update(0)].concat(),
                ),
            ],
        ),
        case(
            "alone in trailers",
            Served,
            &[post_frame(1, "/"), frame(HEADERS, END_HEADERS | END_STREAM, 1, &update(0))],
        ),
    ]);
}
