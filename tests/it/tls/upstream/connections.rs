//! TLS connections to the upstream: in use, idle and closing.

use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use tungstenite::Message;

use super::{Beyond, H1, handshakes};
use crate::support::tls_front::Order;
use crate::support::{Client, Origin, Request, Then, Weir, get, wait};
use crate::upgrades;

const CA: &str = "ca: DIR/ca.crt";
const LARGE: usize = 8 << 20;

fn kept(weir: &Weir) -> f64 {
    weir.metric("weir_upstream_connections", &[])
}

#[test]
fn sessions_are_resumed_whichever_worker_connects() {
    let origin = Origin::answering("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    let beyond = Beyond::new(origin.address(), "localhost", H1, false);
    let weir = beyond.weir("localhost", CA, "", "workers: 2\n");
    for _ in 0..12 {
        assert_eq!(get(weir.address(), "/").status, 200);
    }
    assert_eq!(handshakes(&weir, "full"), 1.0);
    assert_eq!(handshakes(&weir, "resumed"), 11.0);
}

#[test]
fn new_keys_on_a_resting_connection_are_no_reason_to_close_it() {
    let origin = Origin::hello();
    let beyond = Beyond::new(origin.address(), "localhost", H1, false);
    let weir = beyond.weir("localhost", CA, "", "");
    for round in 0..20 {
        assert_eq!(get(weir.address(), "/").status, 200);
        beyond.front.order(Order::Rekey);
        if round == 10 {
            // Long enough for the pool to check the connection.
            wait::throughout(Duration::from_millis(2500), || assert_eq!(kept(&weir), 1.0));
        }
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn a_connection_that_has_ended_while_it_rested_is_not_used() {
    let origin = Origin::hello();
    let beyond = Beyond::new(origin.address(), "localhost", H1, false);
    let weir = beyond.weir("localhost", CA, "", "");
    let mut client = Client::connect(weir.address());
    for (round, order) in [Order::Close, Order::Cut].into_iter().cycle().take(4).enumerate() {
        // A POST cannot be retried, so it fails if the proxy uses a dead connection.
        assert_eq!(client.ask(&Request::post("/", "x")).status, 200);
        assert_eq!(origin.connections(), round + 1);
        beyond.front.order(order);
        wait::until_true("the end to be noticed", || kept(&weir) == 0.0);
    }
    assert_eq!(origin.seen().len(), 4);
}

#[test]
fn large_bodies_go_both_ways_at_the_pace_of_who_reads() {
    let origin = Origin::start(|turn| {
        // The upstream reads late, so that what the client sends must be buffered and resumed.
        wait::pause(Duration::from_millis(300));
        let body = turn.body()?;
        turn.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {LARGE}\r\nx-got: {}\r\n\r\n", body.length))?;
        turn.send(vec![b'y'; LARGE])?;
        Ok(Then::Keep)
    });
    let beyond = Beyond::new(origin.address(), "localhost", H1, false);
    let weir = beyond.weir("localhost", CA, "", "");
    let mut client = Client::connect(weir.address());
    for _ in 0..2 {
        let answer = client.ask(&Request::post("/", vec![b'x'; LARGE]));
        assert_eq!((answer.number("x-got"), answer.body.length), (LARGE as u64, LARGE as u64));
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn an_answer_without_a_length_ends_as_tls_ends_or_is_cut_off() {
    let origin = Origin::start(|turn| {
        turn.body()?;
        turn.send("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhello")?;
        if turn.head.word(1) == "/whole" {
            return Ok(Then::Close);
        }
        turn.wire.drain();
        Ok(Then::Close)
    });
    let beyond = Beyond::new(origin.address(), "localhost", H1, false);
    let weir = beyond.weir("localhost", CA, "", "");
    assert_eq!(get(weir.address(), "/whole").body.text(), "hello");
    let mut client = Client::connect(weir.address());
    client.send(Request::get("/cut").bytes());
    origin.until("the request", |seen| seen.head.word(1) == "/cut");
    let answer = thread::scope(|scope| {
        let answer = scope.spawn(|| client.try_answer("GET"));
        wait::throughout(Duration::from_millis(200), || {});
        beyond.front.order(Order::Cut);
        answer.join().unwrap()
    });
    assert!(answer.is_err(), "the truncated response looks complete: {answer:?}");
}

#[test]
fn a_websocket_is_carried_over_tls() {
    let backend = upgrades::echo_server();
    let beyond = Beyond::new(backend, "localhost", H1, false);
    let weir = beyond.weir("localhost", CA, "", "");
    let stream = TcpStream::connect(weir.address()).unwrap();
    stream.set_read_timeout(Some(wait::DEADLINE)).unwrap();
    let (mut socket, _) = tungstenite::client(format!("ws://{}/chat", weir.address()), stream).unwrap();
    for text in ["one", &"two".repeat(200_000)] {
        socket.send(Message::text(text)).unwrap();
        assert_eq!(socket.read().unwrap(), Message::text(text));
    }
    beyond.front.order(Order::Rekey);
    socket.send(Message::text("three")).unwrap();
    assert_eq!(socket.read().unwrap(), Message::text("three"));
}

#[test]
fn health_is_asked_for_over_tls() {
    let origin = Origin::hello();
    for (path, certified, healthy) in [
        ("path: /healthz, ", "localhost", 1.0),
        ("", "localhost", 1.0),
        ("path: /healthz, ", "app.example", 0.0),
        ("", "app.example", 0.0),
    ] {
        let beyond = Beyond::new(origin.address(), certified, H1, false);
        let check = format!(", health_check: {{ {path}interval: 50ms }}");
        let weir = beyond.weir("localhost", CA, &check, "");
        let outcomes: &[_] = if healthy > 0.0 { &["full", "resumed"] } else { &["untrusted"] };
        let shaken = || outcomes.iter().map(|outcome| handshakes(&weir, outcome)).sum::<f64>();
        wait::until_true("three checks", || shaken() >= 3.0);
        assert_eq!(weir.metric("weir_upstream_endpoints_healthy", &[]), healthy, "{path} {certified}");
    }
    assert!(origin.seen().iter().all(|seen| seen.head.word(1) == "/healthz"));
}
