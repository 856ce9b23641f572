//! Rejections are sent before the body is read, and the body must not be parsed as the next request.

use std::io::Write as _;
use std::thread;
use std::time::Duration;

use crate::support::wait::pause;
use crate::support::{Client, Origin, Request, Weir, config, config_with, get};

/// Starts a proxy that has used up the limit of one request below `/up/`.
fn start_exhausted(origin: &Origin) -> Weir {
    let weir = Weir::start(&config(
        origin.address(),
        "rules: [{ name: all, match: { path: \"/up/*\" }, key: [], limit: 1/d }]",
    ));
    assert_eq!(get(weir.address(), "/up/first").status, 200);
    weir
}

#[test]
fn rejected_upload_gets_429_and_the_next_request_is_served() {
    let origin = Origin::hello();
    let weir = start_exhausted(&origin);
    assert_eq!(Client::connect(weir.address()).fetch(&Request::post("/up/x", "body")).status, 429);
    assert_eq!(get(weir.address(), "/free").status, 200);
    assert!(origin.requests().iter().all(|seen| seen.head.word(1) != "/up/x"));
}

#[test]
fn small_rejected_upload_leaves_the_connection_usable() {
    let origin = Origin::hello();
    let weir = start_exhausted(&origin);
    let mut client = Client::connect(weir.address());
    for _ in 0..3 {
        let refused = client.fetch(&Request::post("/up/x", vec![b'x'; 10_000]));
        assert_eq!(refused.status, 429);
        assert!(!refused.head.has_token("connection", "close"));
        assert_eq!(client.get("/free").status, 200);
    }
}

#[test]
fn chunked_rejected_upload_leaves_the_connection_usable_or_closed() {
    let origin = Origin::hello();
    let weir = start_exhausted(&origin);
    let mut client = Client::connect(weir.address());
    client.send("POST /up/x HTTP/1.1\r\nhost: test.local\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
    let refused = client.read_response("POST");
    assert_eq!(refused.status, 429);
    if refused.head.has_token("connection", "close") {
        assert!(client.is_closed());
    } else {
        assert_eq!(client.get("/free").status, 200);
    }
}

#[test]
fn rejected_body_is_not_parsed_as_a_request() {
    let origin = Origin::hello();
    let weir = start_exhausted(&origin);
    let mut client = Client::connect(weir.address());
    let hidden = String::from_utf8(Request::get("/hidden").to_bytes()).unwrap();
    assert_eq!(client.fetch(&Request::post("/up/x", hidden.repeat(100))).status, 429);
    client.send(Request::get("/free").header("connection", "close").to_bytes());
    client.wire.drain();
    assert!(origin.requests().iter().all(|seen| seen.head.word(1) != "/hidden"));
}

#[test]
fn large_rejected_upload_gets_429_and_closes_the_connection() {
    let origin = Origin::hello();
    let weir = start_exhausted(&origin);
    let mut client = Client::connect(weir.address());
    client.send("POST /up/x HTTP/1.1\r\nhost: test.local\r\ncontent-length: 10000000\r\n\r\n");
    // Continues to send, as simple clients do. The upload is expected to be aborted.
    let stream = client.wire.stream().try_clone().unwrap();
    let sender = thread::spawn(move || (0..1000).find_map(|_| (&stream).write_all(&[b'x'; 10_000]).err()));
    let refused = client.read_response("POST");
    assert_eq!(refused.status, 429);
    client.wire.drain();
    assert!(client.is_closed());
    sender.join().unwrap();
    assert_eq!(get(weir.address(), "/free").status, 200);
}

#[test]
fn client_that_writes_everything_before_reading_gets_429() {
    let origin = Origin::hello();
    let weir = start_exhausted(&origin);
    let mut client = Client::connect(weir.address());
    client.send(Request::post("/up/x", vec![b'x'; 40_000]).to_bytes());
    assert_eq!(client.read_response("POST").status, 429);
}

#[test]
fn connection_is_closed_if_the_rejected_body_never_arrives() {
    let origin = Origin::hello();
    let weir = start_exhausted(&origin);
    let mut client = Client::connect(weir.address());
    client.send("POST /up/x HTTP/1.1\r\nhost: test.local\r\ncontent-length: 1000\r\n\r\n");
    assert_eq!(client.read_response("POST").status, 429);
    assert!(client.is_closed(), "the connection of a rejected client stays open while the body is missing");
}

#[test]
fn connection_is_idle_after_a_late_rejected_body() {
    let origin = Origin::hello();
    let rules = "rules: [{ name: all, match: { path: \"/up/*\" }, key: [], limit: 1/d }]";
    let listener = "{ address: 127.0.0.1:0, header_timeout: 300ms }";
    let upstream = format!("{{ address: \"{}\" }}", origin.address());
    let weir = Weir::start(&config_with(listener, &upstream, rules));
    assert_eq!(get(weir.address(), "/up/first").status, 200);
    let mut client = Client::connect(weir.address());
    client.send("POST /up/x HTTP/1.1\r\nhost: test.local\r\ncontent-length: 5\r\n\r\n");
    assert_eq!(client.read_response("POST").status, 429);
    client.send("hello");
    // Well past the header timeout. An idle client must not receive any response.
    pause(Duration::from_millis(900));
    assert_eq!(client.get("/free").status, 200);
}

#[test]
fn oversized_header_section_gets_431() {
    let origin = Origin::hello();
    let weir = start_exhausted(&origin);
    let mut client = Client::connect(weir.address());
    client.send(format!("GET / HTTP/1.1\r\nhost: test.local\r\nx: {}\r\n\r\n", "a".repeat(100_000)));
    assert_eq!(client.read_response("GET").status, 431);
}
