//! TLS connections to the upstream: in use, idle and closing.

use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use tungstenite::Message;

use super::{H1, TlsUpstream, handshakes};
use crate::support::tls_front::TlsCommand;
use crate::support::{AfterResponse, Client, Origin, Request, Weir, get, wait};
use crate::upgrades;

const CA: &str = "ca: DIR/ca.crt";
const LARGE: usize = 8 << 20;

fn open_connections(weir: &Weir) -> f64 {
    weir.metric("weir_upstream_connections", &[])
}

#[test]
fn sessions_are_resumed_on_any_worker() {
    let origin = Origin::responding_with("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    let beyond = TlsUpstream::new(origin.address(), "localhost", H1, false);
    let weir = beyond.start_proxy("localhost", CA, "", "workers: 2\n");
    for _ in 0..12 {
        assert_eq!(get(weir.address(), "/").status, 200);
    }
    assert_eq!(handshakes(&weir, "full"), 1.0);
    assert_eq!(handshakes(&weir, "resumed"), 11.0);
}

#[test]
fn key_update_on_an_idle_connection_does_not_close_it() {
    let origin = Origin::hello();
    let beyond = TlsUpstream::new(origin.address(), "localhost", H1, false);
    let weir = beyond.start_proxy("localhost", CA, "", "");
    for round in 0..20 {
        assert_eq!(get(weir.address(), "/").status, 200);
        beyond.front.send_command(TlsCommand::Rekey);
        if round == 10 {
            // Long enough for the pool to check the connection.
            wait::throughout(Duration::from_millis(2500), || assert_eq!(open_connections(&weir), 1.0));
        }
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn closed_idle_connection_is_not_reused() {
    let origin = Origin::hello();
    let beyond = TlsUpstream::new(origin.address(), "localhost", H1, false);
    let weir = beyond.start_proxy("localhost", CA, "", "");
    let mut client = Client::connect(weir.address());
    for (round, order) in [TlsCommand::Close, TlsCommand::Abort].into_iter().cycle().take(4).enumerate() {
        // A POST cannot be retried, so it fails if the proxy uses a dead connection.
        assert_eq!(client.fetch(&Request::post("/", "x")).status, 200);
        assert_eq!(origin.connections(), round + 1);
        beyond.front.send_command(order);
        wait::until_true("the end to be noticed", || open_connections(&weir) == 0.0);
    }
    assert_eq!(origin.requests().len(), 4);
}

#[test]
fn large_bodies_are_forwarded_with_backpressure() {
    let origin = Origin::start(|turn| {
        // The upstream reads late, so that what the client sends must be buffered and resumed.
        wait::pause(Duration::from_millis(300));
        let body = turn.body()?;
        turn.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {LARGE}\r\nx-got: {}\r\n\r\n", body.length))?;
        turn.send(vec![b'y'; LARGE])?;
        Ok(AfterResponse::Keep)
    });
    let beyond = TlsUpstream::new(origin.address(), "localhost", H1, false);
    let weir = beyond.start_proxy("localhost", CA, "", "");
    let mut client = Client::connect(weir.address());
    for _ in 0..2 {
        let answer = client.fetch(&Request::post("/", vec![b'x'; LARGE]));
        assert_eq!((answer.numeric_header("x-got"), answer.body.length), (LARGE as u64, LARGE as u64));
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn close_delimited_response_without_close_notify_is_truncated() {
    let origin = Origin::start(|turn| {
        turn.body()?;
        turn.send("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhello")?;
        if turn.head.word(1) == "/whole" {
            return Ok(AfterResponse::Close);
        }
        turn.wire.drain();
        Ok(AfterResponse::Close)
    });
    let beyond = TlsUpstream::new(origin.address(), "localhost", H1, false);
    let weir = beyond.start_proxy("localhost", CA, "", "");
    assert_eq!(get(weir.address(), "/whole").body.text(), "hello");
    let mut client = Client::connect(weir.address());
    client.send(Request::get("/cut").to_bytes());
    origin.until_request("the request", |seen| seen.head.word(1) == "/cut");
    let answer = thread::scope(|scope| {
        let answer = scope.spawn(|| client.try_read_response("GET"));
        wait::throughout(Duration::from_millis(200), || {});
        beyond.front.send_command(TlsCommand::Abort);
        answer.join().unwrap()
    });
    assert!(answer.is_err(), "the truncated response looks complete: {answer:?}");
}

#[test]
fn websocket_is_forwarded_over_tls() {
    let backend = upgrades::echo_server();
    let beyond = TlsUpstream::new(backend, "localhost", H1, false);
    let weir = beyond.start_proxy("localhost", CA, "", "");
    let stream = TcpStream::connect(weir.address()).unwrap();
    stream.set_read_timeout(Some(wait::DEADLINE)).unwrap();
    let (mut socket, _) = tungstenite::client(format!("ws://{}/chat", weir.address()), stream).unwrap();
    for text in ["one", &"two".repeat(200_000)] {
        socket.send(Message::text(text)).unwrap();
        assert_eq!(socket.read().unwrap(), Message::text(text));
    }
    beyond.front.send_command(TlsCommand::Rekey);
    socket.send(Message::text("three")).unwrap();
    assert_eq!(socket.read().unwrap(), Message::text("three"));
}

#[test]
fn health_checks_use_tls() {
    let origin = Origin::hello();
    for (path, certified, healthy) in [
        ("path: /healthz, ", "localhost", 1.0),
        ("", "localhost", 1.0),
        ("path: /healthz, ", "app.example", 0.0),
        ("", "app.example", 0.0),
    ] {
        let beyond = TlsUpstream::new(origin.address(), certified, H1, false);
        let check = format!(", health_check: {{ {path}interval: 50ms }}");
        let weir = beyond.start_proxy("localhost", CA, &check, "");
        let outcomes: &[_] = if healthy > 0.0 { &["full", "resumed"] } else { &["untrusted"] };
        let shaken = || outcomes.iter().map(|outcome| handshakes(&weir, outcome)).sum::<f64>();
        wait::until_true("three checks", || shaken() >= 3.0);
        assert_eq!(weir.metric("weir_upstream_endpoints_healthy", &[]), healthy, "{path} {certified}");
    }
    assert!(origin.requests().iter().all(|seen| seen.head.word(1) == "/healthz"));
}
