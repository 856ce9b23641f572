//! SETTINGS and PING: acknowledgement, and what the client's settings change (RFC 9113 sections 6.5 and 6.7).

use super::field_blocks::refers_to_dynamic_table;
use super::response_head;
use crate::support::frames::{
    ACK, CONTINUATION, ConnectionEnd, DATA, END_STREAM, Frame, FrameConnection, HEADER_TABLE_SIZE, HEADERS,
    MAX_FRAME_SIZE, PING, PREFACE, PUSH_PROMISE, SETTINGS, body_length, frame, get_frame, post_frame,
    settings,
};
use crate::support::{Origin, Weir, config};

#[test]
fn server_announces_valid_settings() {
    let weir = Weir::start(&config("echo", ""));
    let client = FrameConnection::connect(weir.address());
    let announced = |name| client.peer_settings.get(&name).copied();
    // A server that announces ENABLE_PUSH announces 0.
    assert_eq!(announced(2).unwrap_or(0), 0);
    assert!(announced(3).is_some_and(|streams| streams > 0), "no bound of concurrent streams");
    assert!(announced(4).unwrap_or(65_535) <= 0x7fff_ffff);
    assert!((16_384..=0xff_ffff).contains(&announced(5).unwrap_or(16_384)));
    assert!(announced(6).is_some(), "no bound of header sections");
    assert!(announced(8).unwrap_or(0) <= 1);
}

#[test]
fn each_settings_frame_is_acknowledged_once() {
    let weir = Weir::start(&config("echo", ""));
    // The preface contains the first of four.
    let mut client = FrameConnection::connect(weir.address());
    for _ in 0..3 {
        client.send(settings(&[(3, 10)]));
    }
    let is_acknowledgement = |frame: &Frame| frame.kind == SETTINGS && frame.flags & ACK != 0;
    for number in 1..=4 {
        let last = client.read_until(is_acknowledgement).pop();
        let last = last.unwrap_or_else(|| panic!("no acknowledgement {number}"));
        assert_eq!((last.stream, last.payload.len()), (0, 0));
    }
    assert!(!client.until_processed().iter().any(is_acknowledgement), "a fifth acknowledgement");
}

#[test]
fn pings_are_answered_in_order_with_their_payload() {
    let weir = Weir::start(&config("echo", ""));
    let mut client = FrameConnection::connect(weir.address());
    let payloads: Vec<[u8; 8]> = (0..10_u64).map(|number| (number << 60 | number).to_be_bytes()).collect();
    client.send(payloads.iter().flat_map(|payload| frame(PING, 0, 0, payload)).collect::<Vec<u8>>());
    // A reply to no PING causes no reply.
    client.send(frame(PING, ACK, 0, b"replying"));
    let frames = client.until_processed();
    let replies: Vec<_> = frames.iter().filter(|frame| frame.kind == PING).collect();
    assert!(replies.iter().all(|frame| frame.flags & ACK != 0), "{replies:?}");
    let replies: Vec<_> = replies.iter().map(|frame| frame.payload.clone()).collect();
    assert_eq!(replies, payloads);
}

#[test]
fn ping_is_answered_while_a_request_is_incomplete() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = FrameConnection::connect(weir.address());
    client.send(post_frame(1, "/"));
    client.until_processed();
    client.send(frame(DATA, END_STREAM, 1, b"x"));
    client.until_stream_ends(1);
}

#[test]
fn frames_of_the_server_have_at_most_the_size_that_the_client_accepts() {
    let (value, body) = ("v".repeat(30_000), "b".repeat(100_000));
    let head = format!("HTTP/1.1 200 OK\r\nx-long: {value}\r\ncontent-length: {}\r\n\r\n", body.len());
    let origin = Origin::responding_with(head + &body);
    let weir = Weir::start(&config(origin.address(), ""));
    for size in [None, Some(16_384), Some(20_000), Some(0xff_ffff)] {
        let values: Vec<_> = size.map(|size| (MAX_FRAME_SIZE, size)).into_iter().collect();
        let mut client =
            FrameConnection::connect_with(weir.address(), &[&values[..], &[(4, 1 << 20)]].concat());
        client.send(crate::support::frames::window_update(0, 1 << 20));
        client.until_processed();
        client.send(get_frame(1, "/"));
        let frames = client.until_stream_ends(1);
        let max = usize::try_from(size.unwrap_or(16_384)).unwrap();
        assert!(frames.iter().all(|frame| frame.payload.len() <= max), "more than {max} bytes");
        assert_eq!(body_length(&frames, 1), body.len());
        let field_bytes = frames.iter().filter(|frame| matches!(frame.kind, HEADERS | CONTINUATION));
        assert!(field_bytes.map(|frame| frame.payload.len()).sum::<usize>() > 10_000);
    }
}

#[test]
fn server_does_not_push() {
    let origin = Origin::responding_with(
        "HTTP/1.1 200 OK\r\nlink: </a.css>; rel=preload; as=style\r\ncontent-length: 2\r\n\r\nok",
    );
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = FrameConnection::connect_with(weir.address(), &[(2, 1)]);
    client.send(get_frame(1, "/"));
    let frames = client.until_stream_ends(1);
    assert!(frames.iter().all(|frame| frame.kind != PUSH_PROMISE && frame.stream % 2 == frame.stream.min(1)));
}

#[test]
fn client_without_a_dynamic_table_gets_no_references_to_it() {
    let origin = Origin::responding_with("HTTP/1.1 200 OK\r\nx-same: always\r\ncontent-length: 0\r\n\r\n");
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = FrameConnection::connect_with(weir.address(), &[(HEADER_TABLE_SIZE, 0)]);
    client.until_processed();
    for stream in [1, 3, 5] {
        client.send(get_frame(stream, "/"));
        let frames = client.until_stream_ends(stream);
        let block = &response_head(&frames, stream).payload;
        assert!(!refers_to_dynamic_table(block), "{block:02x?}");
        // The first block confirms the size. Decoders exist that insist on this.
        assert_eq!(block[0] == 0x20, stream == 1, "{block:02x?}");
    }
}

#[test]
fn smaller_dynamic_table_is_confirmed_by_the_next_field_block() {
    let origin = Origin::responding_with("HTTP/1.1 200 OK\r\nx-same: always\r\ncontent-length: 0\r\n\r\n");
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = FrameConnection::connect(weir.address());
    for stream in [1, 3] {
        assert_eq!(client.fetch(stream, "/"), "200");
    }
    // Zero, then larger: the encoder states the smallest size too (RFC 7541 section 4.2).
    client.send([settings(&[(HEADER_TABLE_SIZE, 0)]), settings(&[(HEADER_TABLE_SIZE, 4096)])].concat());
    client.until_processed();
    client.send(get_frame(5, "/"));
    let frames = client.until_stream_ends(5);
    let block = &response_head(&frames, 5).payload;
    assert_eq!(block[0], 0x20, "no size update to 0 in {block:02x?}");
}

#[test]
fn half_a_preface_and_the_end_of_the_connection_are_no_request() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    for length in 1..PREFACE.len() {
        let mut client = FrameConnection::connect_bare(weir.address());
        client.send(&PREFACE[..length]);
        client.stream().shutdown(std::net::Shutdown::Write).unwrap();
        client.read_until(|_| false);
        assert_ne!(client.end(), Some(ConnectionEnd::StillOpen), "{length} bytes");
    }
    assert_eq!(origin.requests().len(), 0);
}
