//! Clients that leave while no upstream works on their request: between two attempts, or after an attempt that the upstream
//! has not processed. They pay the estimate, and not the maximum.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::frame_origin::FrameOrigin;
use crate::support::frames::{END_HEADERS, END_STREAM, HEADERS, REFUSED_STREAM, frame, reset};
use crate::support::gated_link::GatedLink;
use crate::support::pki::Authority;
use crate::support::tls_front::TlsFront;
use crate::support::{AfterResponse, Client, LISTENER, Origin, Request, Weir, config_with, get, wait};

const RULES: &str = "rules: [{ name: tokens, key: [], limit: 150/d, algorithm: fixed_window, cost: { response_header: x-tokens, estimate: 1, max: 1000 } }]\n";

/// Waits for the end of the requests, and checks that the limit has room.
fn assert_maximum_not_charged(weir: &Weir) {
    wait::until_true("the end of the requests", || weir.metric("weir_requests_in_flight", &[]) == 0.0);
    assert_eq!(get(weir.address(), "/").status, 200);
}

#[test]
fn client_that_leaves_before_a_retry_does_not_pay_the_maximum() {
    let turns = AtomicUsize::new(0);
    let origin = Origin::start(move |turn| {
        let status = if turns.fetch_add(1, Ordering::SeqCst) == 0 { "503 Busy" } else { "200 OK" };
        turn.send(format!("HTTP/1.1 {status}\r\nx-tokens: 1\r\ncontent-length: 0\r\n\r\n"))?;
        Ok(AfterResponse::Keep)
    });
    // The backoff is random up to this time.
    let retries = "{ attempts: 1, retry_on: 503, backoff: 8000h..8000h }";
    let upstream = format!("{{ address: '{}', timeout: 8000h, retries: {retries} }}", origin.address());
    let weir = Weir::start(&config_with(LISTENER, &upstream, RULES));
    let client = Client::connect(weir.address());
    client.send(Request::get("/").to_bytes());
    let responses = || weir.metric("weir_upstream_responses_total", &[("code_class", "5xx")]);
    wait::until_true("the first response", || responses() == 1.0);
    drop(client);
    assert_maximum_not_charged(&weir);
}

/// Starts a proxy for `backend` behind TLS and a link. After `warm_up`, a client sends a request and leaves once the proxy
/// connects again, in vain.
fn assert_maximum_not_charged_while_connecting(
    backend: SocketAddr,
    protocol: &str,
    settings: &str,
    warm_up: impl FnOnce(&Weir),
) {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new("authority");
    let ca = authority.write(&directory.path().join("ca.crt"));
    let front = TlsFront::start(authority.server("127.0.0.1", &[protocol], false), backend);
    let link = GatedLink::start(SocketAddr::from(([127, 0, 0, 1], front.port())));
    let upstream = format!(
        "{{ address: 'https://127.0.0.1:{}', {settings} timeout: 1h, connect_timeout: 1h, tls: {{ ca: {} }} }}",
        link.port(),
        ca.display()
    );
    let weir = Weir::start(&config_with(LISTENER, &upstream, RULES));
    warm_up(&weir);
    link.set_open(false);
    let client = Client::connect(weir.address());
    client.send(Request::get("/").to_bytes());
    wait::until_true("the second connection", || link.held() == 1);
    link.set_open(true);
    drop(client);
    assert_maximum_not_charged(&weir);
}

#[test]
fn client_that_leaves_while_a_stale_connection_is_replaced_does_not_pay_the_maximum() {
    let turns = AtomicUsize::new(0);
    let origin = Origin::start(move |turn| {
        // The second request arrives on the connection of the first, and gets no response.
        if turns.fetch_add(1, Ordering::SeqCst) == 1 {
            return Ok(AfterResponse::Close);
        }
        turn.send("HTTP/1.1 200 OK\r\nx-tokens: 1\r\ncontent-length: 0\r\n\r\n")?;
        Ok(AfterResponse::Keep)
    });
    assert_maximum_not_charged_while_connecting(origin.address(), "http/1.1", "", |weir| {
        assert_eq!(get(weir.address(), "/").status, 200);
    });
    assert_eq!(origin.requests().len(), 3, "the second was sent before its connection was closed");
}

#[test]
fn client_that_leaves_after_its_stream_was_refused_does_not_pay_the_maximum() {
    let origin = FrameOrigin::start(&[], |received, before| match (received.kind, before) {
        (HEADERS, 1) => reset(received.stream, REFUSED_STREAM),
        (HEADERS, _) => frame(HEADERS, END_HEADERS | END_STREAM, received.stream, &[0x88]),
        _ => Vec::new(),
    });
    assert_maximum_not_charged_while_connecting(origin.address(), "h2", "http2: true,", |weir| {
        assert_eq!(get(weir.address(), "/").status, 200);
    });
}
