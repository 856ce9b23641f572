//! The client side: what RFC 9113 demands of a client towards its server, here the upstream.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::field_blocks::refers_to_dynamic_table;
use crate::support::frame_origin::FrameOrigin;
use crate::support::frames::{
    ACK, CONTINUATION, DATA, ENABLE_PUSH, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADER_TABLE_SIZE, HEADERS,
    INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, NO_ERROR, PADDED, PING, PRIORITY, PUSH_PROMISE, SETTINGS, block,
    encode_string, frame, reset, settings, window_update,
};
use crate::support::{Client, LISTENER, Request, Response, Weir, config_with, get};

/// Body of a response that the client must not receive whole, and of one that it must.
const BAD_BODY: &str = "bad!";
const GOOD_BODY: &str = "good";

/// Returns the header section of a response on stream 1.
fn head(flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | flags, 1, &block(fields.iter().copied()))
}

/// Returns the end of a response on stream 1.
fn end(body: &str) -> Vec<u8> {
    frame(DATA, END_STREAM, 1, body.as_bytes())
}

/// Returns a response with these fields and [`BAD_BODY`].
fn bad(fields: &[(&str, &str)]) -> Vec<u8> {
    [head(0, fields), end(BAD_BODY)].concat()
}

fn good() -> Vec<u8> {
    [head(0, &[(":status", "200")]), end(GOOD_BODY)].concat()
}

/// Returns `frames` with those of stream 1 on `stream`.
fn on_stream(stream: u32, frames: &[u8]) -> Vec<u8> {
    let (mut moved, mut at) = (frames.to_vec(), 0);
    while at < moved.len() {
        let length = u32::from_be_bytes([0, moved[at], moved[at + 1], moved[at + 2]]) as usize;
        if moved[at + 5..at + 9] == 1_u32.to_be_bytes() {
            moved[at + 5..at + 9].copy_from_slice(&stream.to_be_bytes());
        }
        at += 9 + length;
    }
    moved
}

fn start_weir(origin: &FrameOrigin) -> Weir {
    let upstream = format!("{{ address: \"{}\", http2: true }}", origin.address());
    Weir::start(&config_with(LISTENER, &upstream, ""))
}

/// Starts an upstream whose first response is `first`. Each other one is [`good`].
fn start_origin(first: Vec<u8>) -> FrameOrigin {
    FrameOrigin::start(&[], move |received, before| match (received.kind, before) {
        (HEADERS, 0) => on_stream(received.stream, &first),
        (HEADERS, _) => on_stream(received.stream, &good()),
        _ => Vec::new(),
    })
}

/// Sends `first` as the first response. Returns what is wrong: the client received it whole, or the next request failed.
fn accepted(name: &str, first: Vec<u8>) -> Option<String> {
    let origin = start_origin(first);
    let weir = start_weir(&origin);
    let is_good = |response: &Response| response.status == 200 && response.body.text() == GOOD_BODY;
    // A retry may have succeeded.
    let response = Client::connect(weir.address()).try_fetch(&Request::get("/"));
    if response.as_ref().is_ok_and(|response| response.status != 502 && !is_good(response)) {
        return Some(format!("{name}: {response:?}"));
    }
    let next = get(weir.address(), "/");
    (!is_good(&next)).then(|| format!("after {name}: {next:?}"))
}

fn assert_none_accepted<'a>(responses: impl IntoIterator<Item = (&'a str, Vec<u8>)>) {
    let wrong: Vec<String> =
        responses.into_iter().filter_map(|(name, first)| accepted(name, first)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn malformed_responses_are_not_forwarded() {
    let ok = (":status", "200");
    assert_none_accepted([
        ("no :status", bad(&[("x-a", "b")])),
        ("no field", bad(&[])),
        (":status twice", bad(&[ok, ok])),
        (":status of letters", bad(&[(":status", "abc")])),
        (":status of two digits", bad(&[(":status", "20")])),
        (":status of four digits", bad(&[(":status", "2000")])),
        ("empty :status", bad(&[(":status", "")])),
        ("unknown pseudo-header field", bad(&[ok, (":unknown", "x")])),
        (":status after a field", bad(&[("x-a", "b"), ok])),
        ("upper case", bad(&[ok, ("X-A", "b")])),
        ("empty name", bad(&[ok, ("", "b")])),
        ("LF in a value", bad(&[ok, ("x-a", "b\nc")])),
        ("CRLF in a value", bad(&[ok, ("x-a", "b\r\nc: d")])),
        ("connection", bad(&[ok, ("connection", "close")])),
        ("transfer-encoding", bad(&[ok, ("transfer-encoding", "chunked")])),
        ("less data than the length", bad(&[ok, ("content-length", "5")])),
        ("101", bad(&[(":status", "101")])),
        ("interim response that ends the stream", head(END_STREAM, &[(":status", "103")])),
        ("DATA before HEADERS", end(BAD_BODY)),
        ("trailers without END_STREAM", {
            [head(0, &[ok]), frame(DATA, 0, 1, b"bad"), head(0, &[("x-a", "b")]), end("!")].concat()
        }),
        ("upper case in trailers", {
            [head(0, &[ok]), frame(DATA, 0, 1, b"bad!"), head(END_STREAM, &[("X-A", "b")])].concat()
        }),
        ("reset", [head(0, &[ok, ("content-length", "4")]), reset(1, 2)].concat()),
    ]);
}

#[test]
fn pseudo_header_fields_out_of_place_make_a_response_malformed() {
    let ok = (":status", "200");
    let trailers = |field| [head(0, &[ok]), frame(DATA, 0, 1, b"bad!"), head(END_STREAM, &[field])].concat();
    assert_none_accepted([
        (":path", bad(&[ok, (":path", "/")])),
        (":method", bad(&[(":method", "GET"), ok])),
        (":protocol", bad(&[ok, (":protocol", "websocket")])),
        (":status in trailers", trailers(ok)),
        (":path in trailers", trailers((":path", "/"))),
    ]);
}

#[test]
fn connection_errors_of_the_upstream_end_the_connection() {
    let ok = [(":status", "200")];
    let block = block(ok);
    let promise = [&[0, 0, 0, 2][..], &block].concat();
    let mut frames = Vec::new();
    for (name, error) in [
        ("PUSH_PROMISE", frame(PUSH_PROMISE, END_HEADERS, 1, &promise)),
        ("index 0", frame(HEADERS, END_HEADERS, 1, &[0x88, 0x80])),
        ("empty dynamic table", frame(HEADERS, END_HEADERS, 1, &[0x88, 0xbe])),
        ("interrupted field block", [frame(HEADERS, 0, 1, &block), frame(DATA, 0, 1, b"x")].concat()),
        ("CONTINUATION alone", frame(CONTINUATION, END_HEADERS, 1, &block)),
        ("HEADERS on an even stream", frame(HEADERS, END_HEADERS, 2, &block)),
        ("DATA on an idle stream", frame(DATA, 0, 9001, b"x")),
        ("WINDOW_UPDATE of an idle stream", window_update(9001, 1)),
        ("RST_STREAM of an idle stream", reset(9001, 8)),
        ("DATA on the connection", frame(DATA, 0, 0, b"x")),
        ("padding", [head(0, &ok), frame(DATA, PADDED, 1, &[9, 0])].concat()),
        ("PING of seven bytes", frame(PING, 0, 0, &[0; 7])),
        ("SETTINGS of five bytes", frame(SETTINGS, 0, 0, &[0; 5])),
        ("frame size too small", settings(&[(MAX_FRAME_SIZE, 1)])),
        ("window too large", settings(&[(INITIAL_WINDOW_SIZE, 0x8000_0000)])),
        ("increment of 0", window_update(0, 0)),
        ("overflow of the window", [window_update(0, 0x7fff_ffff), window_update(0, 0x7fff_ffff)].concat()),
    ] {
        frames.push((name, [error, bad(&ok)].concat()));
    }
    assert_none_accepted(frames);
}

#[test]
fn valid_responses_of_every_form_are_forwarded() {
    let ok = [(":status", "200")];
    let coded = block([(":status", "200"), ("x-a", "b")]);
    let (first_half, second_half) = coded.split_at(9);
    let insertion = [&[0x88, 0x40][..], &encode_string(b"x-a"), &encode_string(b"b"), &[0xbe]].concat();
    let data = |text: &str| frame(DATA, 0, 1, text.as_bytes());
    for (name, response) in [
        ("plain", good()),
        ("after interim responses", [head(0, &[(":status", "103"), ("link", "</a>")]), good()].concat()),
        ("in pieces", [head(0, &ok), data("g"), data(""), data("oo"), end("d")].concat()),
        ("empty DATA at the end", [head(0, &ok), data("good"), end("")].concat()),
        ("trailers", [head(0, &ok), data("good"), head(END_STREAM, &[("x-a", "b")])].concat()),
        ("empty trailers", [head(0, &ok), data("good"), head(END_STREAM, &[])].concat()),
        ("CONTINUATION", {
            let rest = frame(CONTINUATION, END_HEADERS, 1, second_half);
            [frame(HEADERS, 0, 1, first_half), rest, end("good")].concat()
        }),
        ("dynamic table", [frame(HEADERS, END_HEADERS, 1, &insertion), end("good")].concat()),
        ("size update", [frame(HEADERS, END_HEADERS, 1, &[0x20, 0x88]), end("good")].concat()),
        ("padding", [head(0, &ok), frame(DATA, PADDED | END_STREAM, 1, b"\x02good\0\0")].concat()),
        ("priority", {
            let prioritised = [&[0, 0, 0, 0, 16][..], &coded].concat();
            [frame(HEADERS, 0x24, 1, &prioritised), frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1]), end("good")]
                .concat()
        }),
        ("unknown frames", {
            let unknown =
                [frame(0x0a, 0, 0, b"x"), frame(0xff, 0xff, 1, b"y"), frame(0x10, 0, 0, &[0; 5])].concat();
            [&unknown[..], &head(0, &ok), &unknown, &end("good"), &unknown].concat()
        }),
        ("frames of the connection", {
            let frames = [frame(PING, 0, 0, &[7; 8]), settings(&[(3, 10)]), window_update(0, 9)].concat();
            [&frames[..], &head(0, &ok), &frames, &end("good")].concat()
        }),
        ("reset without an error after the end", [good(), reset(1, NO_ERROR)].concat()),
        ("late WINDOW_UPDATE", [good(), window_update(1, 1)].concat()),
        ("GOAWAY that includes the stream", {
            [frame(GOAWAY, 0, 0, &[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]), good()].concat()
        }),
    ] {
        let origin = start_origin(response);
        let weir = start_weir(&origin);
        for _ in 0..2 {
            let response = get(weir.address(), "/");
            assert_eq!((response.status, response.body.text().as_str()), (200, "good"), "{name}");
        }
    }
}

#[test]
fn connection_to_the_upstream_follows_the_rules_of_a_client() {
    let origin = start_origin([frame(PING, 0, 0, b"question"), settings(&[(3, 10)]), good()].concat());
    let weir = start_weir(&origin);
    for _ in 0..5 {
        assert_eq!(get(weir.address(), "/").status, 200);
    }
    let received = &origin.received()[0];
    assert_eq!((received[0].kind, received[0].flags & ACK), (SETTINGS, 0), "the first frame");
    let pairs: Vec<_> = received[0].payload.chunks(6).map(|pair| (pair[1], pair[5])).collect();
    let push = u8::try_from(ENABLE_PUSH).unwrap();
    assert!(pairs.contains(&(push, 0)), "push is disabled: {pairs:?}");
    let streams: Vec<u32> =
        received.iter().filter(|frame| frame.kind == HEADERS).map(|frame| frame.stream).collect();
    assert_eq!(streams.len(), 5);
    assert!(streams.iter().all(|stream| stream % 2 == 1) && streams.is_sorted(), "{streams:?}");
    let acknowledged =
        |kind| received.iter().filter(|frame| frame.kind == kind && frame.flags & ACK != 0).count();
    assert_eq!((acknowledged(SETTINGS), acknowledged(PING)), (2, 1));
}

#[test]
fn request_bodies_stay_within_the_windows_and_frame_sizes_of_the_upstream() {
    const WINDOW: u32 = 10_000;
    const BODY: u64 = 200_000;
    let (sent, granted) = (AtomicU64::new(0), AtomicU64::new(u64::from(WINDOW)));
    let is_exceeded = Arc::new(AtomicBool::new(false));
    let violation = is_exceeded.clone();
    let origin = FrameOrigin::start(&[(INITIAL_WINDOW_SIZE, WINDOW)], move |received, requests| {
        if received.kind != DATA {
            return Vec::new();
        }
        if requests == 1 {
            return on_stream(received.stream, &good());
        }
        let length = received.payload.len() as u64;
        let total = sent.fetch_add(length, Ordering::SeqCst) + length;
        if total > granted.load(Ordering::SeqCst) || length > 16_384 {
            violation.store(true, Ordering::SeqCst);
        }
        if received.flags & END_STREAM != 0 {
            return on_stream(received.stream, &good());
        }
        if total < granted.load(Ordering::SeqCst) {
            return Vec::new();
        }
        granted.fetch_add(7001, Ordering::SeqCst);
        [window_update(0, 7001), window_update(received.stream, 7001)].concat()
    });
    let weir = start_weir(&origin);
    // The settings of the upstream can arrive after the first request: its window is the default one then.
    let body = vec![b'b'; usize::try_from(BODY).unwrap()];
    let preparation = Request::post("/", "x");
    assert_eq!(crate::support::fetch(weir.address(), &preparation).status, 200);
    let response = crate::support::fetch(weir.address(), &Request::post("/", body));
    assert_eq!(response.body.text(), GOOD_BODY);
    assert!(!is_exceeded.load(Ordering::SeqCst), "a window or the size of frames is exceeded");
    let received = origin.received().concat();
    let data = received.iter().filter(|frame| frame.kind == DATA);
    assert_eq!(data.map(|frame| frame.payload.len() as u64).sum::<u64>(), BODY + 1);
}

#[test]
fn upstream_without_a_dynamic_table_gets_no_references_to_it() {
    let origin = FrameOrigin::start(&[(HEADER_TABLE_SIZE, 0)], |received, _| match received.kind {
        HEADERS => on_stream(received.stream, &good()),
        _ => Vec::new(),
    });
    let weir = start_weir(&origin);
    let request = Request::get("/").header("x-same", "always");
    for _ in 0..4 {
        assert_eq!(crate::support::fetch(weir.address(), &request).status, 200);
    }
    let received = origin.received().concat();
    let is_acknowledgement = |frame: &&Frame| frame.kind == SETTINGS && frame.flags & ACK != 0;
    let later: Vec<_> = received.iter().skip_while(|frame| !is_acknowledgement(frame)).collect();
    let requests: Vec<_> = later.iter().filter(|frame| frame.kind == HEADERS).collect();
    assert!(requests.len() >= 3, "{} requests after the acknowledgement", requests.len());
    assert!(requests.iter().all(|frame| !refers_to_dynamic_table(&frame.payload)), "{requests:?}");
    assert_eq!(requests[0].payload[0], 0x20, "no size update in the first field block");
}
