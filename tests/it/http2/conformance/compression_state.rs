//! The dynamic table of the server's decoder (RFC 7541 section 2.3): insertion, eviction, and blocks of requests that
//! are not forwarded, which change it too (RFC 9113 section 4.3).

use super::is_one_of;
use crate::support::frames::{
    CANCEL, COMPRESSION_ERROR, ConnectionEnd, DATA, END_HEADERS, END_STREAM, FrameConnection, GOAWAY,
    HEADERS, encode_integer, encode_string, frame, request_block, reset,
};
use crate::support::{LISTENER, Origin, Weir, config, config_with};

/// A request whose header section has more fields at its end, encoded by the test.
fn request(path: &str, more: &[u8]) -> Vec<u8> {
    [&request_block("GET", path, &[])[..], more].concat()
}

/// Returns a field that becomes an entry of the dynamic table (RFC 7541 section 6.2.1).
fn inserted(name: &str, value: &str) -> Vec<u8> {
    [&[0x40][..], &encode_string(name.as_bytes()), &encode_string(value.as_bytes())].concat()
}

/// Returns a field that is the entry at `index` of the dynamic table; 0 is the newest.
fn entry(index: usize) -> Vec<u8> {
    encode_integer(0x80, 7, 62 + index)
}

/// A field block has ended the connection with COMPRESSION_ERROR.
#[derive(Debug, PartialEq, Eq)]
struct Undecodable;

/// Sends these field blocks as requests, one after the other. Returns the fields `x-test*` of the last one, as the
/// upstream received it.
fn fields_after(blocks: &[Vec<u8>]) -> Result<Vec<String>, Undecodable> {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = FrameConnection::connect(weir.address());
    for (stream, block) in (1..).step_by(2).zip(blocks) {
        client.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, block));
        let frames = client.read_until(|frame| frame.ends(stream) || frame.kind == GOAWAY);
        if let Some(goaway) = frames.iter().find(|frame| frame.kind == GOAWAY) {
            assert!(is_one_of(goaway.word(4), &[COMPRESSION_ERROR]), "{goaway:?}");
            return Err(Undecodable);
        }
        // A TCP reset can overtake the GOAWAY.
        if client.end() == Some(ConnectionEnd::Reset) {
            return Err(Undecodable);
        }
    }
    assert_eq!(origin.requests().len(), blocks.len());
    let head = origin.last_request().head;
    let fields = head.fields.iter().filter(|(name, _)| name.starts_with("x-test"));
    Ok(fields.map(|(name, value)| format!("{name}: {value}")).collect())
}

fn fields(expected: &[&str]) -> Result<Vec<String>, Undecodable> {
    Ok(expected.iter().map(|&field| field.to_owned()).collect())
}

#[test]
fn entries_are_available_to_later_requests_the_newest_first() {
    let first = request("/", &[inserted("x-test-a", "1"), inserted("x-test-b", "2")].concat());
    let both = request("/", &[entry(1), entry(0)].concat());
    assert_eq!(fields_after(&[first.clone(), both.clone()]), fields(&["x-test-a: 1", "x-test-b: 2"]));
    // A literal with the name of an entry becomes an entry itself.
    let by_name = request("/", &[&encode_integer(0x40, 6, 63)[..], &encode_string(b"3"), &entry(0)].concat());
    assert_eq!(fields_after(&[first.clone(), by_name]), fields(&["x-test-a: 3", "x-test-a: 3"]));
    assert_eq!(fields_after(&[first, both, request("/", &entry(2))]), Err(Undecodable));
}

#[test]
fn literals_without_indexing_are_no_entries() {
    for pattern in [0x00, 0x10] {
        let literal = [&[pattern][..], &encode_string(b"x-test"), &encode_string(b"1")].concat();
        assert_eq!(fields_after(&[request("/", &literal)]), fields(&["x-test: 1"]));
        assert_eq!(fields_after(&[request("/", &literal), request("/", &entry(0))]), Err(Undecodable));
    }
}

#[test]
fn oldest_entries_are_evicted() {
    // Each entry has a size of 8 + 1 + 32 bytes.
    let two = [inserted("x-test-a", "1"), inserted("x-test-b", "2")].concat();
    let within = |size: usize, index: usize| {
        let first = [&encode_integer(0x20, 5, size)[..], &request("/", &two)].concat();
        fields_after(&[first, request("/", &entry(index))])
    };
    assert_eq!(within(82, 1), fields(&["x-test-a: 1"]));
    assert_eq!(within(81, 0), fields(&["x-test-b: 2"]));
    assert_eq!(within(81, 1), Err(Undecodable));
    assert_eq!(within(40, 0), Err(Undecodable));
}

#[test]
fn size_update_evicts_entries() {
    let two = request("/", &[inserted("x-test-a", "1"), inserted("x-test-b", "2")].concat());
    let after = |sizes: &[usize], index: usize| {
        let updates: Vec<u8> = sizes.iter().flat_map(|size| encode_integer(0x20, 5, *size)).collect();
        fields_after(&[two.clone(), [updates, request("/", &entry(index))].concat()])
    };
    assert_eq!(after(&[82], 1), fields(&["x-test-a: 1"]));
    assert_eq!(after(&[41, 4096], 0), fields(&["x-test-b: 2"]));
    assert_eq!(after(&[41, 4096], 1), Err(Undecodable));
    assert_eq!(after(&[0, 4096], 0), Err(Undecodable));
}

#[test]
fn field_larger_than_the_table_is_valid_and_empties_it() {
    let small = request("/", &inserted("x-test-a", "1"));
    let large = request("/", &inserted("x-other", &"v".repeat(5000)));
    assert_eq!(fields_after(&[small.clone(), large.clone()]), fields(&[]));
    assert_eq!(fields_after(&[small, large, request("/", &entry(0))]), Err(Undecodable));
}

#[test]
fn name_of_an_entry_that_its_own_insertion_evicts_is_valid() {
    // The table has room for one entry: the new one takes its name from the one that it replaces.
    let first = [encode_integer(0x20, 5, 60), request("/", &inserted("x-test-a", "1"))].concat();
    let second = request("/", &[encode_integer(0x40, 6, 62), encode_string(b"22"), entry(0)].concat());
    assert_eq!(fields_after(&[first, second]), fields(&["x-test-a: 22", "x-test-a: 22"]));
}

#[test]
fn huffman_coded_examples_of_the_rfc_are_decoded() {
    // RFC 7541, appendix C.4.
    let blocks = [
        &b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff"[..],
        b"\x82\x86\x84\xbe\x58\x86\xa8\xeb\x10\x64\x9c\xbf",
        b"\x82\x87\x85\xbf\x40\x88\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f\x89\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf",
    ];
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = FrameConnection::connect(weir.address());
    for (stream, block) in [1, 3, 5].into_iter().zip(blocks) {
        client.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, block));
        client.until_stream_ends(stream);
    }
    let heads: Vec<_> = origin.requests().into_iter().map(|seen| seen.head).collect();
    assert!(heads.iter().all(|head| head.get("host") == Some("www.example.com")), "{heads:#?}");
    assert_eq!(heads[1].get("cache-control"), Some("no-cache"));
    assert_eq!((heads[2].word(1), heads[2].get("custom-key")), ("/index.html", Some("custom-value")));
}

/// Sends `bytes`, which must insert `x-test: 1` and not end the connection, and returns that field as the next request
/// on stream 99 has it at the upstream.
fn entry_after(listener: &str, rules: &str, bytes: &[u8]) -> Option<String> {
    let origin = Origin::hello();
    let upstream = format!("{{ address: \"{}\" }}", origin.address());
    let weir = Weir::start(&config_with(listener, &upstream, rules));
    let mut client = FrameConnection::connect(weir.address());
    client.send(bytes);
    client.until_processed();
    client.send(frame(HEADERS, END_HEADERS | END_STREAM, 99, &request("/next", &entry(0))));
    client.until_stream_ends(99);
    origin.requests().iter().find(|seen| seen.head.word(1) == "/next")?.head.get("x-test").map(str::to_owned)
}

#[test]
fn blocks_of_requests_that_are_not_forwarded_change_the_table() {
    let end = END_HEADERS | END_STREAM;
    let insertion = inserted("x-test", "1");
    let malformed = request("/", &[&inserted("connection", "close")[..], &insertion].concat());
    let trailers =
        [frame(HEADERS, END_HEADERS, 1, &request("/", &[])), frame(HEADERS, end, 1, &insertion)].concat();
    let after_reset = [frame(HEADERS, END_HEADERS, 1, &request("/", &insertion)), reset(1, CANCEL)].concat();
    let deny = "rules: [{ name: no, match: { path: /denied }, action: deny }]";
    for (name, rules, bytes) in [
        ("malformed", "", frame(HEADERS, end, 1, &malformed)),
        ("denied", deny, frame(HEADERS, end, 1, &request("/denied", &insertion))),
        ("trailers", "", trailers),
        ("reset", "", after_reset),
    ] {
        assert_eq!(entry_after(LISTENER, rules, &bytes).as_deref(), Some("1"), "{name}");
    }
}

#[test]
fn blocks_of_refused_streams_change_the_table() {
    let listener = LISTENER.replace(" }", ", limits: { streams: 1 } }");
    let refused = [
        frame(HEADERS, END_HEADERS, 1, &request("/", &[])),
        frame(HEADERS, END_HEADERS | END_STREAM, 3, &request("/refused", &inserted("x-test", "1"))),
        frame(DATA, END_STREAM, 1, b"x"),
        reset(1, CANCEL),
    ];
    assert_eq!(entry_after(&listener, "", &refused.concat()).as_deref(), Some("1"));
}

#[test]
fn blocks_with_too_many_fields_change_the_table_or_close_the_connection() {
    let origin = Origin::hello();
    let listener = LISTENER.replace(" }", ", limits: { header_size: 4KiB } }");
    let upstream = format!("{{ address: \"{}\" }}", origin.address());
    let weir = Weir::start(&config_with(&listener, &upstream, ""));
    let mut client = FrameConnection::connect(weir.address());
    let large = inserted("x-large", &"v".repeat(1000)).repeat(8);
    let block = request("/large", &[&large[..], &inserted("x-test", "1")].concat());
    client.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, &block));
    client.send(frame(HEADERS, END_HEADERS | END_STREAM, 3, &request("/next", &entry(0))));
    let frames = client.read_until(|frame| frame.ends(3) || frame.kind == GOAWAY);
    let requests = origin.requests();
    assert!(requests.iter().all(|seen| seen.head.word(1) != "/large"));
    match requests.iter().find(|seen| seen.head.word(1) == "/next") {
        Some(next) => assert_eq!(next.head.get("x-test"), Some("1")),
        None => assert!(frames.last().is_some_and(|last| last.kind == GOAWAY), "{frames:?}"),
    }
}
