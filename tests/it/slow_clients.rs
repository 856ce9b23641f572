//! Slow clients: clients that send slowly or do not read must not use up the connections and requests of an upstream.

use std::time::Duration;

use crate::support::h2::H2Client;
use crate::support::wait::{throughout, until_true, within};
use crate::support::{AfterResponse, Client, LISTENER, Origin, Request, Weir, config_with, get};

/// A request with only the first byte of its body.
const SLOW_UPLOAD: &str = "POST /slow HTTP/1.1\r\nhost: a.test\r\ncontent-length: 1000000\r\n\r\nx";

fn start_proxy(origin: &Origin, limits: &str) -> Weir {
    let upstream =
        format!("{{ address: \"{}\", connect_timeout: 500ms, limits: {limits} }}", origin.address());
    Weir::start(&config_with(LISTENER, &upstream, ""))
}

fn get_from(address: &str, weir: &Weir) -> u16 {
    Client::connect_from(address, weir.address()).get("/").status
}

fn overflows(weir: &Weir, limit: &str) -> f64 {
    weir.metric("weir_upstream_overflows_total", &[("limit", limit)])
}

/// Starts `count` slow uploads from 127.0.0.1.
fn start_slow_uploads(weir: &Weir, count: usize) -> Vec<Client> {
    let clients: Vec<_> = (0..count).map(|_| Client::connect_from("127.0.0.1", weir.address())).collect();
    clients.iter().for_each(|client| client.send(SLOW_UPLOAD));
    clients
}

#[test]
fn requests_per_client_leaves_capacity_for_others_by_default() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin, "{ connections: 40 }");
    let slow = start_slow_uploads(&weir, 60);
    until_true("the client to reach its share", || overflows(&weir, "requests_per_client") > 0.0);
    for _ in 0..5 {
        assert_eq!(get_from("127.0.0.2", &weir), 200);
        assert_eq!(get_from("127.0.0.3", &weir), 200);
    }
    drop(slow);
    until_true("the client's permits to be returned", || get_from("127.0.0.1", &weir) == 200);
}

/// Returns an upstream that responds with 404 as soon as it has the header section, and then reads the body.
fn early_responding_upstream() -> Origin {
    Origin::start(|turn| {
        turn.send("HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nno")?;
        turn.body().map(|_| AfterResponse::Keep)
    })
}

/// The response is complete, but the upload still holds the upstream connection.
#[test]
fn uploads_after_an_early_response_count_for_their_client() {
    let origin = early_responding_upstream();
    let weir = start_proxy(&origin, "{ connections: 40 }");
    let mut slow = start_slow_uploads(&weir, 60);
    until_true("the client to reach its share", || overflows(&weir, "requests_per_client") > 0.0);
    assert_eq!(slow[0].read_response("POST").status, 404);
    for _ in 0..5 {
        assert_eq!(get_from("127.0.0.2", &weir), 404);
        assert_eq!(get_from("127.0.0.3", &weir), 404);
    }
    drop(slow);
    until_true("the client's permits to be returned", || get_from("127.0.0.1", &weir) == 404);
}

#[test]
fn slow_uploads_after_an_early_response_are_aborted_under_load() {
    let origin = early_responding_upstream();
    let limits = "{ connections: 5, requests_per_client: false, min_client_rate: 1MiB }";
    let weir = start_proxy(&origin, limits);
    let slow = start_slow_uploads(&weir, 5);
    until_true("five requests", || origin.connections() == 5);
    let freed = within(Duration::from_secs(40), || (get_from("127.0.0.2", &weir) == 404).then_some(()));
    assert!(freed.is_some(), "slow uploads hold all connections");
    drop(slow);
}

/// After the response of an HTTP/2 stream, no task of the server handles the stream any more.
#[test]
fn slow_http2_uploads_after_an_early_response_are_aborted_under_load() {
    let origin = early_responding_upstream();
    let limits = "{ connections: 5, requests_per_client: false, min_client_rate: 1MiB }";
    let weir = start_proxy(&origin, limits);
    let mut client = H2Client::connect(weir.address());
    let slow: Vec<_> = (0..5)
        .map(|_| {
            let (response, mut upload) = client.send_request(client.request("POST", "/slow"), false);
            upload.send_data("x".into(), false).unwrap();
            assert_eq!(client.read_response(response).unwrap().status, 404);
            upload
        })
        .collect();
    assert_eq!(origin.connections(), 5);
    let freed = within(Duration::from_secs(40), || (get_from("127.0.0.2", &weir) == 404).then_some(()));
    assert!(freed.is_some(), "slow uploads hold all connections");
    drop(slow);
}

/// The beginning of each response arrived together with its header section.
#[test]
fn slowly_read_http2_streams_are_aborted_under_load() {
    let origin = Origin::start(|turn| {
        if turn.head.word(1) != "/long" {
            turn.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")?;
            return Ok(AfterResponse::Keep);
        }
        let begun = "x".repeat(1000);
        turn.send(format!("HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n{begun}"))?;
        let piece = [b'x'; 64 << 10];
        while turn.send(piece).is_ok() {}
        Ok(AfterResponse::Close)
    });
    let limits = "{ connections: 5, requests_per_client: false, min_client_rate: 1MiB }";
    let weir = start_proxy(&origin, limits);
    let mut client = H2Client::connect(weir.address());
    let unread: Vec<_> = (0..5)
        .map(|_| {
            let (response, _) = client.send_request(client.request("GET", "/long"), true);
            client.response_head(response).unwrap()
        })
        .collect();
    let freed = within(Duration::from_secs(40), || (get_from("127.0.0.2", &weir) == 200).then_some(()));
    assert!(freed.is_some(), "unread responses hold all requests");
    assert!(overflows(&weir, "min_client_rate") >= 1.0);
    drop(unread);
}

#[test]
fn requests_per_client_is_configurable() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin, "{ requests_per_client: 3 }");
    let slow = start_slow_uploads(&weir, 3);
    until_true("three requests", || origin.connections() == 3);
    let rejected = get(weir.address(), "/");
    assert_eq!((rejected.status, rejected.header("x-envoy-overloaded")), (503, "true"));
    assert_eq!(overflows(&weir, "requests_per_client"), 1.0);
    assert_eq!(get_from("127.0.0.2", &weir), 200);
    drop(slow);
    until_true("a free request permit", || get_from("127.0.0.1", &weir) == 200);
}

/// Requests above the client's share wait in the queue for connections.
#[test]
fn request_over_the_clients_share_waits_for_a_permit() {
    let origin = Origin::hello();
    let upstream = format!(
        "{{ address: \"{}\", connect_timeout: 10s, limits: {{ requests_per_client: 1 }} }}",
        origin.address()
    );
    let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
    let slow = start_slow_uploads(&weir, 1);
    until_true("one request", || origin.connections() == 1);
    let mut waiting = Client::connect(weir.address());
    waiting.send(Request::get("/waits").to_bytes());
    assert_eq!(get_from("127.0.0.2", &weir), 200);
    assert!(origin.requests().iter().all(|seen| seen.head.word(1) != "/waits"));
    drop(slow);
    assert_eq!(waiting.read_response("GET").status, 200);
}

#[test]
fn disabled_requests_per_client_lets_one_client_use_all() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin, "{ connections: 10, pending: 0, requests_per_client: false }");
    let _slow = start_slow_uploads(&weir, 10);
    until_true("ten requests", || origin.connections() == 10);
    assert_eq!(get_from("127.0.0.2", &weir), 503);
}

#[test]
fn slow_uploads_are_aborted_under_load() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin, "{ connections: 5, requests_per_client: false, min_client_rate: 1MiB }");
    let mut slow = start_slow_uploads(&weir, 5);
    until_true("five requests", || origin.connections() == 5);
    let freed = within(Duration::from_secs(40), || (get_from("127.0.0.1", &weir) == 200).then_some(()));
    assert!(freed.is_some(), "slow uploads hold all requests");
    let ended = overflows(&weir, "min_client_rate");
    assert!(ended >= 1.0, "{ended}");
    let statuses: Vec<_> =
        slow.iter_mut().filter_map(|client| client.try_read_response("POST").ok()).collect();
    assert!(statuses.iter().any(|answer| answer.status == 408), "{statuses:?}");
}

/// Sends a request over HTTP/2 with a SETTINGS_INITIAL_WINDOW_SIZE of 0, so that no response body can be sent. `method`
/// is in HPACK.
fn send_with_closed_window(weir: &Weir, method: &[u8]) -> Client {
    let client = Client::connect(weir.address());
    client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    client.send(b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00");
    let fields: [&[u8]; 4] = [method, b"\x86", b"\x84", b"\x41\x06a.test"];
    let block = fields.concat();
    let head = [0, 0, u8::try_from(block.len()).unwrap(), 1, 5, 0, 0, 0, 1];
    client.send([&head[..], &block].concat());
    client
}

/// The reply to TRACE cannot be sent. Without a timeout, its permit would never be returned.
#[test]
fn unread_reply_to_a_malformed_http2_request_times_out() {
    let origin = Origin::hello();
    let upstream = format!("{{ address: \"{}\", idle_timeout: 500ms }}", origin.address());
    let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
    let client = send_with_closed_window(&weir, b"\x42\x05TRACE");
    let ended = || weir.metric("weir_requests_reset_total", &[]) == 1.0;
    until_true("the reply to be abandoned", ended);
    assert_eq!(weir.metric("weir_requests_in_flight", &[]), 0.0);
    drop(client);
}

/// The upstream's response is complete. The client does not read it: its HTTP/2 flow-control window is 0.
#[test]
fn fully_received_response_returns_its_permit_before_it_is_read() {
    let origin = Origin::hello();
    let weir = start_proxy(&origin, "{ requests: 1 }");
    let client = send_with_closed_window(&weir, b"\x82");
    until_true("the first request", || origin.requests().len() == 1);
    until_true("its permit to be returned", || get_from("127.0.0.2", &weir) == 200);
    drop(client);
}

/// The upstream sends a response of many megabytes that the client does not read.
#[test]
fn unread_download_uses_little_memory() {
    const CLIENTS: usize = 100;
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n")?;
        let piece = [b'x'; 64 << 10];
        while turn.send(piece).is_ok() {}
        Ok(AfterResponse::Close)
    });
    let weir = Weir::start(&config_with(LISTENER, &format!("{{ address: \"{}\" }}", origin.address()), ""));
    let resident = || weir.metric("process_resident_memory_bytes", &[]);
    // One-time allocations of the first requests are not counted.
    let early: Vec<_> = (0..5).map(|_| Client::connect(weir.address())).collect();
    early.iter().for_each(|client| client.send(Request::get("/").to_bytes()));
    until_true("the first requests", || origin.requests().len() == early.len());
    let before = resident();
    let stalled: Vec<_> = (0..CLIENTS).map(|_| Client::connect(weir.address())).collect();
    stalled.iter().for_each(|client| client.send(Request::get("/").to_bytes()));
    until_true("every response", || origin.requests().len() == early.len() + CLIENTS);
    let mut most: f64 = 0.0;
    throughout(Duration::from_secs(1), || most = most.max(resident()));
    let each = (most - before) / CLIENTS as f64;
    assert!(each < 128.0 * 1024.0, "{each} bytes per stalled download");
}
