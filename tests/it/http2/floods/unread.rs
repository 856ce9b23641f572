//! Responses that a client requests and never reads: those that wait for a window, and those that wait for the socket.

use std::net::SocketAddr;

use super::{Outcome, assert_memory_is_bounded, flood_unread, while_others_are_served};
use crate::support::frames::{
    ENHANCE_YOUR_CALM, FrameConnection, HEADERS, INITIAL_WINDOW_SIZE, RST_STREAM, get_frame, settings,
    window_update,
};
use crate::support::wait::until_true;
use crate::support::{AfterResponse, Origin, Weir, config, get};

/// Streams per connection, and connections. Their responses together are a gigabyte.
const STREAMS: u32 = 32;
const CONNECTIONS: usize = 8;
const BODY: usize = 4 << 20;

/// An upstream whose responses are large, except for `/`.
fn large_origin() -> Origin {
    Origin::start(|turn| {
        turn.body()?;
        let length = if turn.head.word(1) == "/large" { BODY } else { 5 };
        turn.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n"))?;
        turn.send(vec![b'b'; length])?;
        Ok(AfterResponse::Keep)
    })
}

fn request_all(address: SocketAddr, window: u32) -> FrameConnection {
    let mut client = FrameConnection::connect_with(address, &[(INITIAL_WINDOW_SIZE, window)]);
    client.send(window_update(0, 0x7fff_ffff - 65_535));
    for number in 0..STREAMS {
        client.send(get_frame(2 * number + 1, "/large"));
    }
    client
}

#[test]
fn responses_that_wait_for_a_window_use_bounded_memory() {
    let origin = large_origin();
    let weir = Weir::start(&config(origin.address(), ""));
    let connections = while_others_are_served(&weir, || {
        let clients = (0..CONNECTIONS).map(|_| {
            let mut client = request_all(weir.address(), 0);
            let mut heads = 0;
            client.read_until(|frame| {
                heads += u32::from(frame.kind == HEADERS);
                heads == STREAMS
            });
            client
        });
        clients.collect::<Vec<_>>()
    });
    assert_memory_is_bounded(&weir, "responses without a window");
    drop(connections);
}

#[test]
fn responses_that_wait_for_the_socket_use_bounded_memory() {
    let origin = large_origin();
    let weir = Weir::start(&config(origin.address(), ""));
    let connections = while_others_are_served(&weir, || {
        let clients: Vec<_> = (0..CONNECTIONS).map(|_| request_all(weir.address(), 0x7fff_ffff)).collect();
        let large = CONNECTIONS * STREAMS as usize;
        until_true("all requests", || {
            origin.requests().iter().filter(|seen| seen.head.word(1) == "/large").count() == large
        });
        clients
    });
    assert_memory_is_bounded(&weir, "responses that are not read");
    drop(connections);
}

#[test]
fn requests_whose_responses_are_not_read_are_held_back_or_close_the_connection() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(
        origin.address(),
        "rules: [{ name: no, match: { path: /flood }, action: deny }]",
    ));
    // Local replies need no upstream: only the unread responses can slow the client down.
    let start = settings(&[(INITIAL_WINDOW_SIZE, 0x7fff_ffff)]);
    let (connection, outcome) = while_others_are_served(&weir, || {
        flood_unread(weir.address(), &start, 100_000, |round| get_frame(2 * round + 1, "/flood"))
    });
    assert!(!matches!(outcome, Outcome::Absorbed), "every request was read");
    assert_memory_is_bounded(&weir, &format!("unread responses: {outcome:?}"));
    drop(connection);
}

/// Bytes of the head of each response, and requests on each connection.
const HEAD: usize = 100_000;
const REQUESTS: u32 = 120;

/// An upstream whose responses have large heads, except for `/`.
fn large_head_origin() -> Origin {
    Origin::start(|turn| {
        turn.body()?;
        let field = match turn.head.word(1) {
            "/large" => format!("x-filler: {}\r\n", "f".repeat(HEAD)),
            _ => String::new(),
        };
        turn.send(format!("HTTP/1.1 200 OK\r\n{field}content-length: 0\r\n\r\n"))?;
        Ok(AfterResponse::Keep)
    })
}

fn request_heads(address: SocketAddr) -> FrameConnection {
    let mut client = FrameConnection::connect(address);
    for number in 0..REQUESTS {
        client.send(get_frame(2 * number + 1, "/large"));
    }
    client
}

fn unsent(weir: &Weir) -> f64 {
    weir.metric("weir_overload_turned_away_total", &[("limit", "unsent")])
}

#[test]
fn heads_that_a_client_does_not_read_are_bounded_and_their_streams_reset() {
    let origin = large_head_origin();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = request_heads(weir.address());
    until_true("streams that are reset", || unsent(&weir) > 0.0);
    assert_eq!(get(weir.address(), "/").status, 200);
    until_true("the last stream", || weir.metric("weir_requests_in_flight", &[]) == 0.0);
    let (mut heads, mut resets) = (0, 0);
    client.read_until(|frame| {
        heads += u32::from(frame.kind == HEADERS);
        resets += u32::from(frame.kind == RST_STREAM && frame.word(0) == ENHANCE_YOUR_CALM);
        heads + resets == REQUESTS
    });
    assert!(heads > 8 && resets > 8, "{heads} heads and {resets} resets");
    client.send(get_frame(2 * REQUESTS + 1, "/"));
    client.read_until(|frame| frame.ends(2 * REQUESTS + 1));
    assert_eq!(client.end(), None, "the connection is still usable");
}

#[test]
fn heads_that_clients_do_not_read_share_one_bound() {
    let origin = large_head_origin();
    let weir = Weir::start(&config(origin.address(), "overload: { unsent: 1MiB }"));
    let before = weir.peak_memory();
    let clients: Vec<_> = (0..8).map(|_| request_heads(weir.address())).collect();
    until_true("the last stream", || {
        unsent(&weir) > 0.0 && weir.metric("weir_requests_in_flight", &[]) == 0.0
    });
    let grown = weir.peak_memory() - before;
    assert!(grown < 80_000, "{grown} KiB for heads of 96 MB");
    drop(clients);
    until_true("room", || get(weir.address(), "/large").status == 200);
}
