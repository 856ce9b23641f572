//! The order of events on an upstream connection, and isolation between the requests on it.

use std::io;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use super::start_proxy;
use crate::support::wait::{DEADLINE, pause, until_true};
use crate::support::wire::Framing;
use crate::support::{AfterResponse, Client, LISTENER, Origin, Request, Weir, config_with, get};

const HELLO: &str = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
/// More bytes than all buffers on the way hold together.
const LARGE: usize = 32 << 20;

#[test]
fn response_in_single_bytes_is_parsed() {
    let origin = Origin::start(|turn| {
        let text = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\nx-mark: here\r\n\
                    trailer: x-sum\r\n\r\n5;ext\r\nhello\r\n6\r\n world\r\n0\r\nx-sum: 11\r\n\r\n";
        for byte in text.bytes() {
            turn.send([byte])?;
            // One segment each; bytes sent together would be read together.
            pause(Duration::from_millis(1));
        }
        Ok(AfterResponse::Keep)
    });
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    for _ in 0..2 {
        let answer = client.fetch(&Request::get("/").header("te", "trailers").header("connection", "te"));
        assert_eq!((answer.status, answer.body.text().as_str()), (201, "hello world"));
        assert_eq!((answer.header("x-mark"), answer.body.trailers.get("x-sum")), ("here", Some("11")));
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn unsolicited_response_on_an_idle_connection_is_discarded() {
    let (sent, unasked) = mpsc::channel();
    let sent = Mutex::new(sent);
    let origin = Origin::start(move |turn| {
        turn.send(HELLO)?;
        if turn.head.word(1) == "/first" {
            pause(Duration::from_millis(50));
            turn.send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")?;
            sent.lock().unwrap().send(()).map_err(io::Error::other)?;
        }
        Ok(AfterResponse::Keep)
    });
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    assert_eq!(client.get("/first").body.text(), "hello");
    unasked.recv_timeout(DEADLINE).expect("no unsolicited response was sent");
    for _ in 0..3 {
        assert_eq!(client.get("/next").body.text(), "hello");
    }
    assert_eq!(origin.connections(), 2);
}

#[test]
fn bytes_after_a_chunked_response_are_discarded() {
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    let origin =
        Origin::responding_with(format!("{chunked}HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"));
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    for _ in 0..5 {
        assert_eq!(client.get("/").body.text(), "hello");
    }
    assert_eq!(origin.connections(), 5, "a connection with unread data was reused");
}

#[test]
fn partial_response_head_is_not_retried() {
    let origin = Origin::start(|turn| {
        if turn.nth > 0 {
            turn.send("HTT")?;
            return Ok(AfterResponse::Close);
        }
        turn.send(HELLO)?;
        Ok(AfterResponse::Keep)
    });
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    assert_eq!(client.get("/one").status, 200);
    assert_eq!(client.get("/two").status, 502);
    assert_eq!(origin.requests().len(), 2);
    assert_eq!(weir.metric("weir_upstream_retries_total", &[]), 0.0);
}

#[test]
fn connection_is_not_reused_after_close_or_http_1_0() {
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: Foo, CLOSE\r\n\r\nhello",
        "HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    ] {
        let origin = Origin::responding_with(answer);
        let weir = start_proxy(&origin);
        let mut client = Client::connect(weir.address());
        for _ in 0..3 {
            assert_eq!(client.get("/").body.text(), "hello");
        }
        assert_eq!(origin.connections(), 3, "{answer:?}");
    }
}

#[test]
fn connection_gauge_counts_open_connections() {
    let origin = Origin::start(|turn| {
        turn.send(HELLO)?;
        Ok(if turn.head.word(1) == "/last" { AfterResponse::Close } else { AfterResponse::Keep })
    });
    let weir = start_proxy(&origin);
    let open = || weir.metric("weir_upstream_connections", &[]);
    let mut client = Client::connect(weir.address());
    for _ in 0..3 {
        assert_eq!(client.get("/").status, 200);
    }
    assert_eq!(open(), 1.0);
    assert_eq!(client.get("/last").status, 200);
    // The proxy notices the closed connection without a further request.
    until_true("the closed connection to be noticed", || open() == 0.0);
    assert_eq!(weir.metric("weir_upstream_connections_total", &[]), 1.0);
}

#[test]
fn upload_continues_after_an_early_response() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 202 Accepted\r\ncontent-length: 5\r\n\r\nearly")?;
        turn.body()?;
        Ok(AfterResponse::Keep)
    });
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    for round in 0..3 {
        client.send("POST /up HTTP/1.1\r\nhost: test.local\r\ncontent-length: 60000\r\n\r\n");
        let answer = client.read_response("POST");
        assert_eq!((answer.status, answer.body.text().as_str()), (202, "early"));
        client.send(vec![b'x'; 60_000]);
        until_true("the whole body to arrive", || {
            origin.requests().iter().filter(|seen| seen.complete && seen.body.length == 60_000).count()
                > round
        });
    }
    assert!(origin.connections() <= 2, "{} connections", origin.connections());
}

#[test]
fn request_and_response_do_not_block_each_other() {
    // The upstream writes while it reads. The client reads nothing before it has written everything.
    let origin = Origin::start(|turn| {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {LARGE}\r\n\r\n");
        let mut writer = turn.wire.stream().try_clone()?;
        let writing = thread::spawn(move || {
            io::Write::write_all(&mut writer, head.as_bytes())?;
            io::Write::write_all(&mut writer, &vec![b'd'; LARGE])
        });
        turn.body()?;
        writing.join().unwrap()?;
        Ok(AfterResponse::Keep)
    });
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    client.send(format!("POST / HTTP/1.1\r\nhost: test.local\r\ncontent-length: {LARGE}\r\n\r\n"));
    let piece = vec![b'u'; 1 << 20];
    client.send(&piece);
    assert_eq!(client.wire.read_head().unwrap().unwrap().word(1), "200");
    for _ in 1..LARGE >> 20 {
        client.send(&piece);
    }
    origin.until_request("the whole request", |seen| seen.complete);
    let body = client.wire.read_body(Framing::Length(LARGE as u64), |_| {}).unwrap();
    assert_eq!(body.length, LARGE as u64);
    assert_eq!(get(weir.address(), "/").status, 200, "the proxy no longer serves requests");
}

#[test]
fn aborted_upload_closes_both_connections() {
    let (ended, outcome) = mpsc::channel();
    let ended = Mutex::new(ended);
    let origin = Origin::start(move |turn| {
        turn.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")?;
        let body = turn.body();
        ended.lock().unwrap().send(body.is_err()).map_err(io::Error::other)?;
        body.map(|_| AfterResponse::Close)
    });
    let weir = start_proxy(&origin);
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: test.local\r\ncontent-length: 1000\r\n\r\nsome");
    assert_eq!(client.wire.read_head().unwrap().unwrap().word(1), "200");
    drop(client);
    assert!(outcome.recv_timeout(DEADLINE).expect("the upstream connection was not closed"));
    until_true("the connection to be closed", || weir.metric("weir_upstream_connections", &[]) == 0.0);
}

#[test]
fn request_timeout_ends_with_the_response_head() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello")?;
        turn.body()?;
        turn.send("world")?;
        Ok(AfterResponse::Keep)
    });
    let upstream = format!("{{ address: \"{}\", timeout: 200ms }}", origin.address());
    let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: test.local\r\ncontent-length: 4\r\n\r\nbo");
    assert_eq!(client.wire.read_head().unwrap().unwrap().word(1), "200");
    pause(Duration::from_millis(500));
    client.send("dy");
    let body = client.wire.read_body(Framing::Length(10), |_| {}).unwrap();
    assert_eq!(body.text(), "helloworld");
}
