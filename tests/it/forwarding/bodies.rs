//! Streaming of bodies: they are neither buffered nor changed, and neither direction waits for the end of the other.

use std::io;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use super::through;
use crate::support::wire::{Body, Framing};
use crate::support::{Client, Origin, Request, Then, Weir, config};

/// More bytes than all buffers on the way can hold.
const LARGE: u64 = 64 << 20;
/// Maximum growth of memory, far below that of a proxy which buffers a large body.
const GROWTH_LIMIT_KIB: u64 = 32 << 10;

/// Returns a block in which all words differ, so that a shifted copy is recognised.
fn piece() -> Vec<u8> {
    (0u32..16 << 10).flat_map(u32::to_le_bytes).collect()
}

/// Returns the expected checksum of a body of `length` bytes made of such blocks.
fn expected(length: u64) -> Body {
    let (piece, mut body) = (piece(), Body::default());
    while body.length < length {
        body.push(&piece);
    }
    body
}

fn assert_grew_little(weir: &Weir, before: u64) {
    let growth = weir.peak_memory() - before;
    assert!(growth < GROWTH_LIMIT_KIB, "{growth} KiB more than before the body");
}

fn chunked(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

fn upload(weir: &Weir, length: u64, pause: impl FnOnce()) -> Client {
    let client = Client::connect(weir.address());
    client.send(format!("POST /up HTTP/1.1\r\nhost: test.local\r\ncontent-length: {length}\r\n\r\n"));
    let piece = piece();
    client.send(&piece);
    pause();
    for _ in 1..length / piece.len() as u64 {
        client.send(&piece);
    }
    client
}

#[test]
fn an_upload_reaches_the_upstream_while_it_is_still_being_sent() {
    let origin = Origin::hello();
    let weir = through(&origin);
    let first_bytes = || origin.until("the first bytes", |seen| seen.body.length > 0);
    let mut client = upload(&weir, LARGE, first_bytes);
    assert_eq!(client.answer("POST").status, 200);
    let (seen, expected) = (origin.only(), expected(LARGE));
    assert_eq!((seen.body.length, seen.body.checksum), (LARGE, expected.checksum));
    assert_eq!(seen.head.get("content-length"), Some(LARGE.to_string().as_str()));
}

#[test]
fn a_download_reaches_the_client_while_it_is_still_being_sent() {
    let (arrived, proceed) = mpsc::channel();
    let proceed = Mutex::new(proceed);
    let origin = Origin::start(move |turn| {
        turn.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {LARGE}\r\n\r\n"))?;
        let piece = piece();
        turn.send(&piece)?;
        proceed.lock().unwrap().recv().map_err(io::Error::other)?;
        for _ in 1..LARGE / piece.len() as u64 {
            turn.send(&piece)?;
        }
        Ok(Then::Keep)
    });
    let weir = through(&origin);
    let mut client = Client::connect(weir.address());
    client.send(Request::get("/down").bytes());
    let head = client.wire.read_head().unwrap().unwrap();
    assert_eq!(head.get("content-length"), Some(LARGE.to_string().as_str()));
    let mut told = false;
    let framing = Framing::of_answer(&head, "GET");
    let body = client.wire.read_body(framing, |_| {
        if !std::mem::replace(&mut told, true) {
            arrived.send(()).unwrap();
        }
    });
    assert_eq!(body.unwrap().checksum, expected(LARGE).checksum);
}

#[test]
fn a_huge_body_takes_no_memory() {
    let length = 4 * LARGE;
    let origin = Origin::start(|turn| {
        let body = turn.body()?;
        turn.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.length))?;
        let piece = piece();
        for _ in 0..body.length / piece.len() as u64 {
            turn.send(&piece)?;
        }
        Ok(Then::Keep)
    });
    let weir = through(&origin);
    let before = weir.peak_memory();
    let mut client = upload(&weir, length, || {});
    let answer = client.answer("POST");
    assert_eq!((answer.status, answer.body.length), (200, length));
    assert_grew_little(&weir, before);
}

#[test]
fn a_slow_reader_does_not_make_the_proxy_hoard() {
    let sent = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counter = sent.clone();
    let origin = Origin::start(move |turn| {
        turn.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", 4 * LARGE))?;
        let piece = piece();
        for _ in 0..4 * LARGE / piece.len() as u64 {
            turn.send(&piece)?;
            counter.fetch_add(piece.len() as u64, std::sync::atomic::Ordering::SeqCst);
        }
        Ok(Then::Keep)
    });
    let weir = through(&origin);
    let memory = weir.peak_memory();
    let client = Client::connect(weir.address());
    client.send(Request::get("/down").bytes());
    // The buffers on the way are full when nothing moves for 200 ms.
    let mut before = 0;
    crate::support::wait::until_true("the flow to stop", || {
        crate::support::wait::pause(std::time::Duration::from_millis(200));
        let now = sent.load(std::sync::atomic::Ordering::SeqCst);
        now > 0 && std::mem::replace(&mut before, now) == now
    });
    assert!(before < LARGE, "read {before} bytes from the upstream for a client that does not read");
    assert_grew_little(&weir, memory);
}

#[test]
fn chunked_bodies_pass_both_ways() {
    let answer = format!(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{}{}0\r\n\r\n",
        chunked("hel"),
        chunked("lo")
    );
    let origin = Origin::answering(answer);
    let weir = through(&origin);
    let mut client = Client::connect(weir.address());
    for _ in 0..2 {
        client.send("POST / HTTP/1.1\r\nhost: test.local\r\nTransfer-Encoding: CHUNKED\r\n\r\n");
        client.send(chunked("some ") + &chunked("pieces") + "0\r\n\r\n");
        let answer = client.answer("POST");
        assert_eq!((answer.status, answer.body.text().as_str()), (200, "hello"));
        let seen = origin.last();
        assert_eq!(seen.body.text(), "some pieces");
        assert_eq!(seen.head.all("transfer-encoding"), ["chunked"]);
        assert_eq!(seen.head.get("content-length"), None);
    }
}

#[test]
fn chunk_extensions_are_not_passed_on() {
    let origin = Origin::hello();
    let weir = through(&origin);
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: test.local\r\ntransfer-encoding: chunked\r\n\r\n");
    client.send("5;name=value\r\nhello\r\n0;last\r\n\r\n");
    assert_eq!(client.answer("POST").status, 200);
    let seen = origin.only();
    assert_eq!((seen.body.text().as_str(), seen.body.extensions.as_str()), ("hello", ""));
}

#[test]
fn request_trailers_pass() {
    let origin = Origin::hello();
    let weir = through(&origin);
    let mut client = Client::connect(weir.address());
    client.send(
        "POST / HTTP/1.1\r\nhost: test.local\r\ntransfer-encoding: chunked\r\ntrailer: x-check\r\n\r\n",
    );
    client.send(chunked("body") + "0\r\nx-check: sum\r\n\r\n");
    assert_eq!(client.answer("POST").status, 200);
    let seen = origin.only();
    assert_eq!(seen.body.trailers.get("x-check"), Some("sum"));
    assert_eq!(seen.head.get("x-check"), None, "a trailer is not a header");
}

#[test]
fn answer_trailers_pass_to_a_client_that_takes_them() {
    let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-check\r\n\r\n4\r\nbody\r\n0\r\nx-check: sum\r\n\r\n";
    let origin = Origin::answering(answer);
    let weir = through(&origin);
    let request = Request::get("/").header("te", "trailers").header("connection", "te");
    let answer = Client::connect(weir.address()).ask(&request);
    assert_eq!(answer.body.text(), "body");
    assert_eq!(answer.body.trailers.get("x-check"), Some("sum"));
}

#[test]
fn trailers_never_carry_framing() {
    let origin = Origin::hello();
    let weir = through(&origin);
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: test.local\r\ntransfer-encoding: chunked\r\ntrailer: content-length, transfer-encoding, host\r\n\r\n");
    client
        .send(chunked("body") + "0\r\ncontent-length: 50\r\ntransfer-encoding: gzip\r\nhost: other\r\n\r\n");
    let answer = client.answer("POST");
    if answer.status == 200 {
        let seen = origin.only();
        assert_eq!(seen.body.trailers.fields, []);
        assert_eq!(seen.head.all("host"), ["test.local"]);
    } else {
        assert_eq!(answer.status, 400);
    }
}

#[test]
fn expect_100_continue_is_answered_before_the_body_is_sent() {
    let origin = Origin::hello();
    let weir = through(&origin);
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: test.local\r\ncontent-length: 4\r\nexpect: 100-continue\r\n\r\n");
    let interim = client.wire.read_head().unwrap().unwrap();
    assert_eq!(interim.word(1), "100");
    client.send("body");
    assert_eq!(client.answer("POST").status, 200);
    assert_eq!(origin.only().body.text(), "body");
}

#[test]
fn a_limited_request_is_refused_instead_of_invited_to_send_its_body() {
    let origin = Origin::hello();
    let rules = "rules: [{ name: all, key: [], limit: 1/h }]";
    let weir = Weir::start(&config(origin.address(), rules));
    assert_eq!(crate::support::get(weir.address(), "/").status, 200);
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: test.local\r\ncontent-length: 4\r\nexpect: 100-continue\r\n\r\n");
    let answer = client.answer("POST");
    assert_eq!((answer.status, answer.interim.len()), (429, 0));
    assert_eq!(origin.seen().len(), 1);
}

#[test]
fn an_early_answer_reaches_a_client_that_is_still_sending() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 413 Content Too Large\r\ncontent-length: 5\r\nconnection: close\r\n\r\nlarge")?;
        turn.wire.finish()?;
        turn.wire.drain();
        Ok(Then::Close)
    });
    let weir = through(&origin);
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: test.local\r\ncontent-length: 10000000\r\n\r\n");
    client.send(piece());
    let answer = client.answer("POST");
    assert_eq!((answer.status, answer.body.text().as_str()), (413, "large"));
}

#[test]
fn a_connection_whose_body_was_left_unread_is_not_used_again() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nearly")?;
        Ok(Then::Keep)
    });
    let weir = through(&origin);
    let mut client = Client::connect(weir.address());
    client.send("POST /one HTTP/1.1\r\nhost: test.local\r\ncontent-length: 60\r\n\r\n");
    assert_eq!(client.answer("POST").status, 200);
    drop(client);
    // The remaining body could be read as a request of its own by the upstream (request smuggling).
    assert_eq!(crate::support::get(weir.address(), "/two").status, 200);
    let lines: Vec<_> = origin.seen().into_iter().map(|seen| (seen.connection, seen.head.line)).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_ne!(lines[0].0, lines[1].0, "a connection with an incomplete body was reused");
}

#[test]
fn a_client_that_stops_in_the_middle_of_its_upload_still_gets_the_answer_that_has_begun() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 413 Content Too Large\r\ncontent-length: 5\r\n\r\nla")?;
        // The upload breaks off.
        let _ = turn.body();
        turn.send("rge")?;
        Ok(Then::Close)
    });
    let weir = through(&origin);
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: test.local\r\ncontent-length: 100\r\n\r\nabc");
    assert_eq!(client.wire.read_head().unwrap().unwrap().word(1), "413");
    client.wire.finish().unwrap();
    let body = client.wire.read_body(Framing::Length(5), |_| ()).expect("the complete response");
    assert_eq!(body.text(), "large");
}

#[test]
fn a_client_that_goes_away_after_its_upload_is_noticed_while_the_answer_streams() {
    let (ended, is_ended) = mpsc::channel();
    let ended = Mutex::new(ended);
    let origin = Origin::start(move |turn| {
        // The response begins before the request has ended.
        turn.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n")?;
        turn.body()?;
        turn.wire.drain();
        ended.lock().unwrap().send(()).map_err(io::Error::other)?;
        Ok(Then::Close)
    });
    let weir = through(&origin);
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: test.local\r\ncontent-length: 6\r\n\r\nabc");
    assert_eq!(client.wire.read_head().unwrap().unwrap().word(1), "200");
    client.send("def");
    origin.until("the whole request", |seen| seen.complete);
    drop(client);
    let deadline = crate::support::wait::DEADLINE;
    is_ended.recv_timeout(deadline).expect("the upstream request was not aborted");
}

#[test]
fn a_client_that_goes_away_takes_its_upstream_request_with_it() {
    let (ended, outcome) = mpsc::channel();
    let ended = Mutex::new(ended);
    let origin = Origin::start(move |turn| {
        let body = turn.body();
        ended.lock().unwrap().send(body.is_err()).map_err(io::Error::other)?;
        body.map(|_| Then::Close)
    });
    let weir = through(&origin);
    let client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: test.local\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n");
    origin.until("the first piece", |seen| seen.body.length == 5);
    drop(client);
    let cut = outcome.recv_timeout(crate::support::wait::DEADLINE).expect("upstream connection not closed");
    assert!(cut, "a truncated body was ended as if it were complete");
}

#[test]
fn a_client_that_leaves_in_the_middle_of_a_download_frees_the_upstream() {
    let (ended, outcome) = mpsc::channel();
    let ended = Mutex::new(ended);
    let origin = Origin::start(move |turn| {
        turn.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", u64::MAX >> 8))?;
        let piece = piece();
        while turn.send(&piece).is_ok() {}
        ended.lock().unwrap().send(()).map_err(io::Error::other)?;
        Ok(Then::Close)
    });
    let weir = through(&origin);
    let mut client = Client::connect(weir.address());
    client.send(Request::get("/down").bytes());
    assert_eq!(client.wire.read_head().unwrap().unwrap().word(1), "200");
    drop(client);
    outcome.recv_timeout(crate::support::wait::DEADLINE).expect("the upstream response was not aborted");
}

#[test]
fn both_directions_flow_at_once() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
        turn.send(chunked("ready"))?;
        let body = turn.body()?;
        turn.send(chunked(&body.text()) + "0\r\n\r\n")?;
        Ok(Then::Keep)
    });
    let weir = through(&origin);
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
fn a_chunked_body_of_a_get_is_passed_on() {
    let origin = Origin::hello();
    let weir = through(&origin);
    let mut client = Client::connect(weir.address());
    client.send("GET /_search HTTP/1.1\r\nhost: test.local\r\ntransfer-encoding: chunked\r\n\r\n5\r\nquery\r\n0\r\n\r\n");
    assert_eq!(client.answer("GET").status, 200);
    assert_eq!(origin.only().body.text(), "query");
}
