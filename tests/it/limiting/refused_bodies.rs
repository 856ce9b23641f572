//! Rejections are sent before the body is read, and the body must not be parsed as the next request.

use std::io::Write as _;
use std::thread;
use std::time::Duration;

use crate::support::wait::pause;
use crate::support::{Client, Origin, Request, Weir, config, config_with, get};

/// Starts a proxy that has used up the limit of one request below `/up/`.
fn exhausted(origin: &Origin) -> Weir {
    let weir = Weir::start(&config(
        origin.address(),
        "rules: [{ name: all, match: { path: \"/up/*\" }, key: [], limit: 1/d }]",
    ));
    assert_eq!(get(weir.address(), "/up/first").status, 200);
    weir
}

#[test]
fn a_refused_upload_is_answered_and_the_next_request_served() {
    let origin = Origin::hello();
    let weir = exhausted(&origin);
    assert_eq!(Client::connect(weir.address()).ask(&Request::post("/up/x", "body")).status, 429);
    assert_eq!(get(weir.address(), "/free").status, 200);
    assert!(origin.seen().iter().all(|seen| seen.head.word(1) != "/up/x"));
}

#[test]
fn a_refused_small_upload_leaves_the_connection_usable() {
    let origin = Origin::hello();
    let weir = exhausted(&origin);
    let mut client = Client::connect(weir.address());
    for _ in 0..3 {
        let refused = client.ask(&Request::post("/up/x", vec![b'x'; 10_000]));
        assert_eq!(refused.status, 429);
        assert!(!refused.head.lists("connection", "close"));
        assert_eq!(client.get("/free").status, 200);
    }
}

#[test]
fn a_refused_chunked_upload_leaves_the_connection_in_step() {
    let origin = Origin::hello();
    let weir = exhausted(&origin);
    let mut client = Client::connect(weir.address());
    client.send("POST /up/x HTTP/1.1\r\nhost: test.local\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
    let refused = client.answer("POST");
    assert_eq!(refused.status, 429);
    if refused.head.lists("connection", "close") {
        assert!(client.is_closed());
    } else {
        assert_eq!(client.get("/free").status, 200);
    }
}

#[test]
fn what_looks_like_a_request_in_a_refused_body_is_not_one() {
    let origin = Origin::hello();
    let weir = exhausted(&origin);
    let mut client = Client::connect(weir.address());
    let hidden = String::from_utf8(Request::get("/hidden").bytes()).unwrap();
    assert_eq!(client.ask(&Request::post("/up/x", hidden.repeat(100))).status, 429);
    client.send(Request::get("/free").header("connection", "close").bytes());
    client.wire.drain();
    assert!(origin.seen().iter().all(|seen| seen.head.word(1) != "/hidden"));
}

#[test]
fn a_refused_large_upload_is_answered_and_its_connection_closed() {
    let origin = Origin::hello();
    let weir = exhausted(&origin);
    let mut client = Client::connect(weir.address());
    client.send("POST /up/x HTTP/1.1\r\nhost: test.local\r\ncontent-length: 10000000\r\n\r\n");
    // Continues to send, as simple clients do. The upload is expected to be aborted.
    let stream = client.wire.stream().try_clone().unwrap();
    let sender = thread::spawn(move || (0..1000).find_map(|_| (&stream).write_all(&[b'x'; 10_000]).err()));
    let refused = client.answer("POST");
    assert_eq!(refused.status, 429);
    client.wire.drain();
    assert!(client.is_closed());
    sender.join().unwrap();
    assert_eq!(get(weir.address(), "/free").status, 200);
}

#[test]
fn a_client_that_sends_all_before_it_reads_still_gets_its_refusal() {
    let origin = Origin::hello();
    let weir = exhausted(&origin);
    let mut client = Client::connect(weir.address());
    client.send(Request::post("/up/x", vec![b'x'; 40_000]).bytes());
    assert_eq!(client.answer("POST").status, 429);
}

#[test]
fn a_refused_upload_that_never_comes_is_not_waited_for() {
    let origin = Origin::hello();
    let weir = exhausted(&origin);
    let mut client = Client::connect(weir.address());
    client.send("POST /up/x HTTP/1.1\r\nhost: test.local\r\ncontent-length: 1000\r\n\r\n");
    assert_eq!(client.answer("POST").status, 429);
    assert!(client.is_closed(), "the connection of a rejected client stays open while the body is missing");
}

#[test]
fn a_connection_whose_refused_body_came_late_is_idle_not_overdue() {
    let origin = Origin::hello();
    let rules = "rules: [{ name: all, match: { path: \"/up/*\" }, key: [], limit: 1/d }]";
    let listener = "{ address: 127.0.0.1:0, header_timeout: 300ms }";
    let upstream = format!("{{ address: \"{}\" }}", origin.address());
    let weir = Weir::start(&config_with(listener, &upstream, rules));
    assert_eq!(get(weir.address(), "/up/first").status, 200);
    let mut client = Client::connect(weir.address());
    client.send("POST /up/x HTTP/1.1\r\nhost: test.local\r\ncontent-length: 5\r\n\r\n");
    assert_eq!(client.answer("POST").status, 429);
    client.send("hello");
    // Well past the header timeout. An idle client must not receive any response.
    pause(Duration::from_millis(900));
    assert_eq!(client.get("/free").status, 200);
}

#[test]
fn a_head_that_is_far_too_large_is_told_so() {
    let origin = Origin::hello();
    let weir = exhausted(&origin);
    let mut client = Client::connect(weir.address());
    client.send(format!("GET / HTTP/1.1\r\nhost: test.local\r\nx: {}\r\n\r\n", "a".repeat(100_000)));
    assert_eq!(client.answer("GET").status, 431);
}
