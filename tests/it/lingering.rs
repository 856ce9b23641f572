//! Lingering: a rejection reaches its client even if the client writes its whole request before it reads.

use std::time::Duration;

use crate::support::wait::{pause, until_true, within};
use crate::support::{Client, Origin, Request, Weir, config, config_with};

const MEGABYTE: usize = 1_000_000;

fn start_exhausted(origin: &Origin) -> Weir {
    let weir = Weir::start(&config(origin.address(), "rules: [{ name: all, key: [], limit: 1/d }]"));
    assert_eq!(Client::connect(weir.address()).get("/").status, 200);
    weir
}

#[test]
fn upload_written_completely_before_reading_gets_429() {
    let origin = Origin::hello();
    let weir = start_exhausted(&origin);
    for size in [3 * MEGABYTE / 10, MEGABYTE, 5 * MEGABYTE, 20 * MEGABYTE] {
        let mut client = Client::connect(weir.address());
        let written = client.wire.send(Request::post("/", vec![b'x'; size]).to_bytes());
        assert!(written.is_ok(), "{size} bytes: {written:?}");
        let answer = client.try_read_response("POST");
        assert!(answer.as_ref().is_ok_and(|answer| answer.status == 429), "{size} bytes: {answer:?}");
    }
    assert_eq!(origin.requests().len(), 1);
}

#[test]
fn slow_rejected_upload_gets_429() {
    let origin = Origin::hello();
    let weir = start_exhausted(&origin);
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: a.test\r\ncontent-length: 1000000\r\n\r\n");
    for _ in 0..5 {
        pause(Duration::from_millis(500));
        client.send([b'x'; 200_000]);
    }
    assert_eq!(client.read_response("POST").status, 429);
}

#[test]
fn expect_100_continue_gets_429_at_once() {
    let origin = Origin::hello();
    let weir = start_exhausted(&origin);
    let mut client = Client::connect(weir.address());
    client.send("POST / HTTP/1.1\r\nhost: a.test\r\ncontent-length: 1000000\r\nexpect: 100-continue\r\n\r\n");
    let answer = client.read_response("POST");
    assert_eq!((answer.status, answer.interim.len()), (429, 0));
}

/// Rejected clients that never close hold a bounded number of connections.
#[test]
fn lingering_connections_are_bounded_and_the_oldest_closes_first() {
    let origin = Origin::hello();
    let weir = start_exhausted(&origin);
    let unread = "POST / HTTP/1.1\r\nhost: a.test\r\ncontent-length: 1000000\r\n\r\n";
    let mut clients: Vec<_> = (0..150).map(|_| Client::connect(weir.address())).collect();
    for client in &mut clients {
        client.send(unread);
        assert_eq!(client.read_response("POST").status, 429);
    }
    let open = || weir.metric("weir_downstream_connections", &[]);
    until_true("the oldest connections to close", || open() <= 128.0);
    assert!(open() > 100.0, "{} connections linger", open());
    assert!(clients[0].is_closed());
}

/// A client with IPv6 can use more addresses than the maximum number of lingering connections, so its network counts.
#[test]
fn lingering_connections_are_bounded_per_ipv6_network() {
    let origin = Origin::hello();
    let weir = Weir::start(&config_with(
        "{ address: 127.0.0.1:0, proxy_protocol: optional }",
        &format!("{{ address: \"{}\" }}", origin.address()),
        "client_ip: { trusted_proxies: 127.0.0.1 }\nrules: [{ name: all, key: [], limit: 1/d }]\n",
    ));
    assert_eq!(Client::connect(weir.address()).get("/").status, 200);
    let mut clients: Vec<_> = (0..150).map(|_| Client::connect(weir.address())).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(format!("PROXY TCP6 2001:db8::{number:x} ::1 1 2\r\n"));
        client.send("POST / HTTP/1.1\r\nhost: a.test\r\ncontent-length: 1000000\r\n\r\n");
        assert_eq!(client.read_response("POST").status, 429);
    }
    let open = || weir.metric("weir_downstream_connections", &[]);
    // Sooner than the time after which idle lingering connections end.
    let bounded = within(Duration::from_secs(3), || (open() <= 128.0).then_some(()));
    assert!(bounded.is_some() && open() > 100.0, "{} connections linger", open());
}
