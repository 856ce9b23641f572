//! Streaming of bodies: they are neither buffered nor changed, and neither direction waits for the end of the other.

use std::io;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use super::start_proxy;
use crate::support::wire::{Body, Framing};
use crate::support::{AfterResponse, Client, Origin, Request, Weir, config};

/// More bytes than all buffers on the way can hold.
const LARGE: u64 = 64 << 20;
/// Maximum growth of memory, far below that of a proxy which buffers a large body.
const GROWTH_LIMIT_KIB: u64 = 32 << 10;

/// Returns a block in which all words differ, so that a shifted copy is recognised.
pub(super) fn body_block() -> Vec<u8> {
    (0u32..16 << 10).flat_map(u32::to_le_bytes).collect()
}

/// Returns the expected checksum of a body of `length` bytes made of such blocks.
fn expected_body(length: u64) -> Body {
    let (piece, mut body) = (body_block(), Body::default());
    while body.length < length {
        body.push(&piece);
    }
    body
}

fn assert_memory_bounded(weir: &Weir, before: u64) {
    let growth = weir.peak_memory() - before;
    assert!(growth < GROWTH_LIMIT_KIB, "{growth} KiB more than before the body");
}

fn chunked(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

fn upload(weir: &Weir, length: u64, pause: impl FnOnce()) -> Client {
    let client = Client::connect(weir.address());
    client.send(format!("POST /up HTTP/1.1\r\nhost: test.local\r\ncontent-length: {length}\r\n\r\n"));
    let piece = body_block();
    client.send(&piece);
    pause();
    for _ in 1..length / piece.len() as u64 {
        client.send(&piece);
    }
    client
}

#[test]
fn upload_is_streamed() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    let first_bytes = || origin.until_request("the first bytes", |seen| seen.body.length > 0);
    let mut client = upload(&weir, LARGE, first_bytes);
    assert_eq!(client.read_response("POST").status, 200);
    let (seen, expected) = (origin.only_request(), expected_body(LARGE));
    assert_eq!((seen.body.length, seen.body.checksum), (LARGE, expected.checksum));
    assert_eq!(seen.head.get("content-length"), Some(LARGE.to_string().as_str()));
}

#[test]
fn download_is_streamed() {
    let (arrived, proceed) = mpsc::channel();
    let proceed = Mutex::new(proceed);
    let origin = Origin::start(move |turn| {
        turn.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {LARGE}\r\n\r\n"))?;
        let piece = body_block();
        turn.send(&piece)?;
        proceed.lock().unwrap().recv().map_err(io::Error::other)?;
        for _ in 1..LARGE / piece.len() as u64 {
            turn.send(&piece)?;
        }
        Ok(AfterResponse::Keep)
    });
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    client.send(Request::get("/down").to_bytes());
    let head = client.wire.read_head().unwrap().unwrap();
    assert_eq!(head.get("content-length"), Some(LARGE.to_string().as_str()));
    let mut told = false;
    let framing = Framing::from_response(&head, "GET");
    let body = client.wire.read_body(framing, |_| {
        if !std::mem::replace(&mut told, true) {
            arrived.send(()).unwrap();
        }
    });
    assert_eq!(body.unwrap().checksum, expected_body(LARGE).checksum);
}

#[test]
fn large_bodies_are_not_buffered() {
    let length = 4 * LARGE;
    let origin = Origin::start(|turn| {
        let body = turn.body()?;
        turn.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.length))?;
        let piece = body_block();
        for _ in 0..body.length / piece.len() as u64 {
            turn.send(&piece)?;
        }
        Ok(AfterResponse::Keep)
    });
    let weir = start_proxy(&origin);
    let before = weir.peak_memory();
    let mut client = upload(&weir, length, || {});
    let answer = client.read_response("POST");
    assert_eq!((answer.status, answer.body.length), (200, length));
    assert_memory_bounded(&weir, before);
}

#[test]
fn slow_reader_applies_backpressure() {
    let sent = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counter = sent.clone();
    let origin = Origin::start(move |turn| {
        turn.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", 4 * LARGE))?;
        let piece = body_block();
        for _ in 0..4 * LARGE / piece.len() as u64 {
            turn.send(&piece)?;
            counter.fetch_add(piece.len() as u64, std::sync::atomic::Ordering::SeqCst);
        }
        Ok(AfterResponse::Keep)
    });
    let weir = start_proxy(&origin);
    let memory = weir.peak_memory();
    let client = Client::connect(weir.address());
    client.send(Request::get("/down").to_bytes());
    // The buffers on the way are full when nothing moves for 200 ms.
    let mut before = 0;
    crate::support::wait::until_true("the flow to stop", || {
        crate::support::wait::pause(std::time::Duration::from_millis(200));
        let now = sent.load(std::sync::atomic::Ordering::SeqCst);
        now > 0 && std::mem::replace(&mut before, now) == now
    });
    assert!(before < LARGE, "read {before} bytes from the upstream for a client that does not read");
    assert_memory_bounded(&weir, memory);
}

#[test]
fn chunked_bodies_are_forwarded_both_ways() {
    let answer = format!(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{}{}0\r\n\r\n",
        chunked("hel"),
        chunked("lo")
    );
    let origin = Origin::responding_with(answer);
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    for _ in 0..2 {
        client.send("POST / HTTP/1.1\r\nhost: test.local\r\nTransfer-Encoding: CHUNKED\r\n\r\n");
        client.send(chunked("some ") + &chunked("pieces") + "0\r\n\r\n");
        let answer = client.read_response("POST");
        assert_eq!((answer.status, answer.body.text().as_str()), (200, "hello"));
        let seen = origin.last_request();
        assert_eq!(seen.body.text(), "some pieces");
        assert_eq!(seen.head.get_all("transfer-encoding"), ["chunked"]);
        assert_eq!(seen.head.get("content-length"), None);
    }
}

#[test]
fn chunk_extensions_are_not_forwarded() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: test.local\r\ntransfer-encoding: chunked\r\n\r\n");
    client.send("5;name=value\r\nhello\r\n0;last\r\n\r\n");
    assert_eq!(client.read_response("POST").status, 200);
    let seen = origin.only_request();
    assert_eq!((seen.body.text().as_str(), seen.body.extensions.as_str()), ("hello", ""));
}

#[test]
fn request_trailers_are_forwarded() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    client.send(
        "POST / HTTP/1.1\r\nhost: test.local\r\ntransfer-encoding: chunked\r\ntrailer: x-check\r\n\r\n",
    );
    client.send(chunked("body") + "0\r\nx-check: sum\r\n\r\n");
    assert_eq!(client.read_response("POST").status, 200);
    let seen = origin.only_request();
    assert_eq!(seen.body.trailers.get("x-check"), Some("sum"));
    assert_eq!(seen.head.get("x-check"), None, "a trailer is not a header");
}

#[test]
fn response_trailers_are_forwarded_with_te_trailers() {
    let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-check\r\n\r\n4\r\nbody\r\n0\r\nx-check: sum\r\n\r\n";
    let origin = Origin::responding_with(answer);
    let weir = start_proxy(&origin);
    let request = Request::get("/").header("te", "trailers").header("connection", "te");
    let answer = Client::connect(weir.address()).fetch(&request);
    assert_eq!(answer.body.text(), "body");
    assert_eq!(answer.body.trailers.get("x-check"), Some("sum"));
}

#[test]
fn framing_headers_are_removed_from_trailers() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: test.local\r\ntransfer-encoding: chunked\r\ntrailer: content-length, transfer-encoding, host\r\n\r\n");
    client
        .send(chunked("body") + "0\r\ncontent-length: 50\r\ntransfer-encoding: gzip\r\nhost: other\r\n\r\n");
    let answer = client.read_response("POST");
    if answer.status == 200 {
        let seen = origin.only_request();
        assert_eq!(seen.body.trailers.fields, []);
        assert_eq!(seen.head.get_all("host"), ["test.local"]);
    } else {
        assert_eq!(answer.status, 400);
    }
}

#[test]
fn expect_100_continue_gets_100_before_the_body() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: test.local\r\ncontent-length: 4\r\nexpect: 100-continue\r\n\r\n");
    let interim = client.wire.read_head().unwrap().unwrap();
    assert_eq!(interim.word(1), "100");
    client.send("body");
    assert_eq!(client.read_response("POST").status, 200);
    assert_eq!(origin.only_request().body.text(), "body");
}

#[test]
fn rate_limited_expect_100_continue_gets_429_without_100() {
    let origin = Origin::hello();
    let rules = "rules: [{ name: all, key: [], limit: 1/h }]";
    let weir = Weir::start(&config(origin.address(), rules));
    assert_eq!(crate::support::get(weir.address(), "/").status, 200);
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: test.local\r\ncontent-length: 4\r\nexpect: 100-continue\r\n\r\n");
    let answer = client.read_response("POST");
    assert_eq!((answer.status, answer.interim.len()), (429, 0));
    assert_eq!(origin.requests().len(), 1);
}

#[test]
fn early_response_reaches_a_client_that_is_still_sending() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 413 Content Too Large\r\ncontent-length: 5\r\nconnection: close\r\n\r\nlarge")?;
        turn.wire.shutdown_write()?;
        turn.wire.drain();
        Ok(AfterResponse::Close)
    });
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: test.local\r\ncontent-length: 10000000\r\n\r\n");
    client.send(body_block());
    let answer = client.read_response("POST");
    assert_eq!((answer.status, answer.body.text().as_str()), (413, "large"));
}

#[test]
fn upstream_connection_with_unfinished_body_is_not_reused() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nearly")?;
        Ok(AfterResponse::Keep)
    });
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    client.send("POST /one HTTP/1.1\r\nhost: test.local\r\ncontent-length: 60\r\n\r\n");
    assert_eq!(client.read_response("POST").status, 200);
    drop(client);
    // The remaining body could be read as a request of its own by the upstream (request smuggling).
    assert_eq!(crate::support::get(weir.address(), "/two").status, 200);
    let lines: Vec<_> = origin.requests().into_iter().map(|seen| (seen.connection, seen.head.line)).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_ne!(lines[0].0, lines[1].0, "a connection with an incomplete body was reused");
}

#[test]
fn client_that_ends_its_upload_early_still_gets_the_response() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 413 Content Too Large\r\ncontent-length: 5\r\n\r\nla")?;
        // The upload breaks off.
        let _ = turn.body();
        turn.send("rge")?;
        Ok(AfterResponse::Close)
    });
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: test.local\r\ncontent-length: 100\r\n\r\nabc");
    assert_eq!(client.wire.read_head().unwrap().unwrap().word(1), "413");
    client.wire.shutdown_write().unwrap();
    let body = client.wire.read_body(Framing::Length(5), |_| ()).expect("the complete response");
    assert_eq!(body.text(), "large");
}

#[test]
fn client_disconnect_is_noticed_while_the_response_streams() {
    let (ended, is_ended) = mpsc::channel();
    let ended = Mutex::new(ended);
    let origin = Origin::start(move |turn| {
        // The response begins before the request has ended.
        turn.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n")?;
        turn.body()?;
        turn.wire.drain();
        ended.lock().unwrap().send(()).map_err(io::Error::other)?;
        Ok(AfterResponse::Close)
    });
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: test.local\r\ncontent-length: 6\r\n\r\nabc");
    assert_eq!(client.wire.read_head().unwrap().unwrap().word(1), "200");
    client.send("def");
    origin.until_request("the whole request", |seen| seen.complete);
    drop(client);
    let deadline = crate::support::wait::DEADLINE;
    is_ended.recv_timeout(deadline).expect("the upstream request was not aborted");
}

#[test]
fn client_disconnect_during_upload_aborts_the_upstream_request() {
    let (ended, outcome) = mpsc::channel();
    let ended = Mutex::new(ended);
    let origin = Origin::start(move |turn| {
        let body = turn.body();
        ended.lock().unwrap().send(body.is_err()).map_err(io::Error::other)?;
        body.map(|_| AfterResponse::Close)
    });
    let weir = start_proxy(&origin);
    let client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: test.local\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n");
    origin.until_request("the first piece", |seen| seen.body.length == 5);
    drop(client);
    let cut = outcome.recv_timeout(crate::support::wait::DEADLINE).expect("upstream connection not closed");
    assert!(cut, "a truncated body was ended as if it were complete");
}

#[test]
fn client_disconnect_during_download_aborts_the_upstream_request() {
    let (ended, outcome) = mpsc::channel();
    let ended = Mutex::new(ended);
    let origin = Origin::start(move |turn| {
        turn.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", u64::MAX >> 8))?;
        let piece = body_block();
        while turn.send(&piece).is_ok() {}
        ended.lock().unwrap().send(()).map_err(io::Error::other)?;
        Ok(AfterResponse::Close)
    });
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    client.send(Request::get("/down").to_bytes());
    assert_eq!(client.wire.read_head().unwrap().unwrap().word(1), "200");
    drop(client);
    outcome.recv_timeout(crate::support::wait::DEADLINE).expect("the upstream response was not aborted");
}

#[test]
fn request_and_response_bodies_stream_concurrently() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
        turn.send(chunked("ready"))?;
        let body = turn.body()?;
        turn.send(chunked(&body.text()) + "0\r\n\r\n")?;
        Ok(AfterResponse::Keep)
    });
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: test.local\r\ntransfer-encoding: chunked\r\n\r\n");
    let head = client.wire.read_head().unwrap().unwrap();
    assert_eq!(head.word(1), "200");
    let writer = thread::spawn({
        let stream = client.wire.stream().try_clone().unwrap();
        move || io::Write::write_all(&mut &stream, (chunked(" steady") + "0\r\n\r\n").as_bytes()).unwrap()
    });
    let body = client.wire.read_body(Framing::Chunked, |_| {}).unwrap();
    writer.join().unwrap();
    assert_eq!(body.text(), "ready steady");
}

#[test]
fn chunked_body_of_a_get_is_forwarded() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    client.send("GET /_search HTTP/1.1\r\nhost: test.local\r\ntransfer-encoding: chunked\r\n\r\n5\r\nquery\r\n0\r\n\r\n");
    assert_eq!(client.read_response("GET").status, 200);
    assert_eq!(origin.only_request().body.text(), "query");
}
