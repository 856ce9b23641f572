//! Clients that leave before the response of a request whose cost is in the response.

use std::io;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use super::start_with_rule;
use crate::support::h2::H2Client;
use crate::support::{AfterResponse, Client, Origin, Request, Weir, config, config_with, get, wait};

const RULE: &str = "{ name: tokens, key: [], limit: 150/d, algorithm: fixed_window, cost: { response_header: x-tokens, estimate: 1, max: 1000 } }";

/// An upstream that responds with a cost of 100 once the test lets it.
fn held_upstream() -> (Origin, Arc<AtomicBool>) {
    let go = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&go);
    let origin = Origin::start(move |turn| {
        wait::until_true("the test's signal", || gate.load(Ordering::SeqCst));
        turn.send("HTTP/1.1 200 OK\r\nx-tokens: 100\r\ncontent-length: 0\r\n\r\n")?;
        Ok(AfterResponse::Keep)
    });
    (origin, go)
}

/// Waits until the limit has no units left, after `go` has let the upstream respond.
fn assert_charged(weir: &Weir, go: &AtomicBool) {
    go.store(true, Ordering::SeqCst);
    wait::until_true("the end of the requests", || weir.metric("weir_requests_in_flight", &[]) == 0.0);
    assert_eq!(get(weir.address(), "/").status, 429);
}

#[test]
fn http1_client_that_leaves_pays_what_the_response_states() {
    let (origin, go) = held_upstream();
    let weir = start_with_rule(&origin, RULE);
    for count in 1..=2 {
        let client = Client::connect(weir.address());
        client.send(Request::get("/").to_bytes());
        wait::until_true("the request", || origin.requests().len() == count);
        drop(client);
    }
    assert_charged(&weir, &go);
}

#[test]
fn stream_that_is_reset_pays_what_the_response_states() {
    let (origin, go) = held_upstream();
    let weir = start_with_rule(&origin, RULE);
    let mut client = H2Client::connect(weir.address());
    for count in 1..=2 {
        let (response, _) = client.send_request(client.request("GET", "/"), true);
        wait::until_true("the request", || origin.requests().len() == count);
        drop(response);
    }
    assert_charged(&weir, &go);
}

#[test]
fn connection_that_resets_more_streams_than_it_may_have_pays_the_maximum_for_them() {
    let (origin, go) = held_upstream();
    let weir = Weir::start(&config_with(
        "{ address: 127.0.0.1:0, limits: { streams: 2 } }",
        &format!("{{ address: '{}' }}", origin.address()),
        &format!("rules:\n  - {RULE}\n"),
    ));
    let mut client = H2Client::connect(weir.address());
    let mut reset_one = |count| {
        let (response, _) = client.send_request(client.request("GET", "/"), true);
        wait::until_true("the request", || origin.requests().len() == count);
        drop(response);
    };
    let in_flight = || weir.metric("weir_requests_in_flight", &[]);
    for count in 1..=2 {
        reset_one(count);
    }
    reset_one(3);
    wait::until_true("two awaited responses", || in_flight() == 2.0);
    assert_eq!(get(weir.address(), "/").status, 429, "the third has cost 1000 at once");
    assert_eq!(origin.requests().len(), 3);
    assert_charged(&weir, &go);
}

#[test]
fn client_that_reconnects_has_no_more_requests_awaited_and_takes_no_place_of_others() {
    let (origin, go) = held_upstream();
    let weir = Weir::start(&config_with(
        "{ address: 127.0.0.1:0, limits: { streams: 2 } }",
        &format!("{{ address: '{}' }}", origin.address()),
        &format!("rules:\n  - {RULE}\n"),
    ));
    let sources = ["127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.1"];
    for (before, source) in sources.into_iter().enumerate() {
        let client = Client::connect_from(source, weir.address());
        client.send(Request::get("/").to_bytes());
        wait::until_true("the request", || origin.requests().len() == before + 1);
    }
    let in_flight = || weir.metric("weir_requests_in_flight", &[]);
    wait::until_true("three awaited responses", || in_flight() == 3.0);
    assert_eq!(get(weir.address(), "/").status, 429, "the last has cost 1000 at once");
    assert_charged(&weir, &go);
}

#[test]
fn drain_does_not_wait_for_responses_whose_clients_have_left() {
    let (_release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let origin = Origin::start(move |_| {
        released.lock().unwrap().recv().map_err(io::Error::other)?;
        Ok(AfterResponse::Close)
    });
    let mut weir = Weir::start(&format!(
        "{}drain: {{ timeout: 1h }}\n",
        config(origin.address(), &format!("rules:\n  - {RULE}\n"))
    ));
    let send = |count| {
        let client = Client::connect(weir.address());
        client.send(Request::get("/").to_bytes());
        wait::until_true("the request", || origin.requests().len() == count);
        client
    };
    drop(send(1));
    let staying = send(2);
    let address = weir.address();
    weir.terminate();
    wait::until_true("new connections to be refused", || TcpStream::connect(address).is_err());
    drop(staying);
    assert!(weir.wait_exit().success());
}

#[test]
fn upgrade_that_is_accepted_after_its_client_has_left_is_discarded() {
    let go = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&go);
    let origin = Origin::start(move |turn| {
        if turn.head.get("upgrade").is_none() {
            turn.send("HTTP/1.1 200 OK\r\nx-tokens: 1\r\ncontent-length: 5\r\n\r\nhello")?;
            return Ok(AfterResponse::Keep);
        }
        wait::until_true("the test's signal", || gate.load(Ordering::SeqCst));
        turn.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")?;
        // Until the proxy closes the tunnel.
        let _ = io::copy(&mut turn.wire.stream(), &mut io::sink());
        Ok(AfterResponse::Close)
    });
    let weir = start_with_rule(&origin, RULE);
    let mut client = H2Client::connect(weir.address());
    client.until_extended_connect_enabled();
    let upgrade = client.request("CONNECT", "/chat").header("sec-websocket-version", "13");
    let (response, stream) =
        client.send_request(upgrade.extension(h2::ext::Protocol::from_static("websocket")), false);
    wait::until_true("the request", || origin.requests().len() == 1);
    drop((response, stream));
    // The reset arrives before the response to a later request.
    assert_eq!(client.fetch(client.request("GET", "/")).status, 200);
    go.store(true, Ordering::SeqCst);
    wait::until_true("the end of the upgrade", || weir.metric("weir_requests_in_flight", &[]) == 0.0);
    let response = client.fetch(client.request("GET", "/"));
    assert_eq!((response.status.as_u16(), &response.body[..]), (200, &b"hello"[..]), "no tunnel");
}

#[test]
fn request_that_costs_less_than_its_estimate_is_refunded_after_its_client_has_left() {
    let (origin, go) = held_upstream();
    let weir = start_with_rule(
        &origin,
        "{ name: tokens, key: [], limit: 250/d, algorithm: fixed_window, cost: { response_header: x-tokens, estimate: 150, max: 1000 } }",
    );
    let client = Client::connect(weir.address());
    client.send(Request::get("/").to_bytes());
    wait::until_true("the request", || origin.requests().len() == 1);
    drop(client);
    go.store(true, Ordering::SeqCst);
    wait::until_true("the end of the request", || weir.metric("weir_requests_in_flight", &[]) == 0.0);
    assert_eq!(get(weir.address(), "/").status, 200, "100 units are used, not 150");
}
