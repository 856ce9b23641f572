//! The PROXY protocol: client addresses, which peers may state them, and malformed preambles.

use std::net::SocketAddr;

use crate::support::{Client, Origin, Request, Weir, config_with, wait};

const TRUSTED: &str = "client_ip: { trusted_proxies: 127.0.0.1 }\n";
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

fn start(mode: &str, origin: &Origin, rest: &str) -> Weir {
    let listener =
        format!("{{ address: 127.0.0.1:0, name: inbound, header_timeout: 1s, proxy_protocol: {mode} }}");
    Weir::start(&config_with(&listener, &format!("{{ address: \"{}\" }}", origin.address()), rest))
}

/// Returns a preamble of version 2 for a client at 192.0.2.7, with an extension that is ignored.
fn v2_preamble(command: u8) -> Vec<u8> {
    let addresses: &[u8] = &[192, 0, 2, 7, 127, 0, 0, 1, 0x30, 0x39, 0, 80];
    [SIGNATURE, &[command, 0x11, 0, 17], addresses, &[4, 0, 2, 1, 2]].concat()
}

/// Sends a request after `preamble` and returns the status code; `None` if the connection is closed without a response.
fn status(to: SocketAddr, preamble: &[u8]) -> Option<u16> {
    let mut client = Client::connect(to);
    client.send([preamble, &Request::get("/").to_bytes()].concat());
    client.try_read_response("GET").ok().map(|answer| answer.status)
}

fn external_addresses(origin: &Origin) -> Vec<String> {
    let seen = origin.requests();
    seen.iter().map(|seen| seen.head.get("x-envoy-external-address").unwrap_or_default().to_owned()).collect()
}

#[test]
fn preamble_of_a_trusted_proxy_sets_the_client() {
    for mode in ["required", "optional"] {
        let origin = Origin::hello();
        let weir = start(mode, &origin, TRUSTED);
        let v6 = b"PROXY TCP6 2001:db8::1 ::1 1 2\r\n";
        let preambles: [&[u8]; 5] = [
            b"PROXY TCP4 192.0.2.1 10.0.0.1 1 2\r\n",
            v6,
            b"PROXY UNKNOWN\r\n",
            &v2_preamble(0x21),
            &v2_preamble(0x20),
        ];
        for preamble in preambles {
            assert_eq!(status(weir.address(), preamble), Some(200), "{}", preamble.escape_ascii());
        }
        assert_eq!(
            external_addresses(&origin),
            ["192.0.2.1", "2001:db8::1", "127.0.0.1", "192.0.2.7", "127.0.0.1"]
        );
        let count = |outcome| weir.metric("weir_proxy_protocol_connections_total", &[("outcome", outcome)]);
        assert_eq!((count("v1"), count("v2")), (3.0, 2.0));
    }
}

#[test]
fn preamble_applies_to_every_request_of_the_connection() {
    let origin = Origin::hello();
    let rules = format!("{TRUSTED}rules: [{{ name: a, key: client_ip, limit: 1/h }}]\n");
    let weir = start("required", &origin, &rules);
    for client in ["192.0.2.1", "192.0.2.2"] {
        let mut connection = Client::connect(weir.address());
        connection.send(format!("PROXY TCP4 {client} 10.0.0.1 1 2\r\n"));
        let statuses = [(); 2].map(|()| connection.get("/").status);
        assert_eq!(statuses, [200, 429], "{client}");
    }
}

#[test]
fn fragmented_preamble_is_accepted_within_the_header_timeout() {
    let origin = Origin::hello();
    let weir = start("required", &origin, TRUSTED);
    let mut client = Client::connect(weir.address());
    for byte in v2_preamble(0x21) {
        client.send([byte]);
    }
    assert_eq!(client.get("/").status, 200);
    assert_eq!(external_addresses(&origin), ["192.0.2.7"]);
    let mut silent = Client::connect(weir.address());
    silent.send(b"PROXY TCP4 192.0.2.1");
    assert!(silent.is_closed());
}

#[test]
fn required_mode_closes_connections_without_a_valid_preamble() {
    let origin = Origin::hello();
    let weir = start("required", &origin, TRUSTED);
    let cut = b"PROXY TCP4 192.0.2.1 10.0.0.1 1\r\n";
    for preamble in [&b""[..], cut, b"PROXY TCP4 nobody 10.0.0.1 1 2\r\n", &v2_preamble(0x22)] {
        assert_eq!(status(weir.address(), preamble), None, "{}", preamble.escape_ascii());
    }
    assert!(origin.requests().is_empty());
    let count = |outcome| weir.metric("weir_proxy_protocol_connections_total", &[("outcome", outcome)]);
    wait::until_true("all connections to be counted", || (count("absent"), count("malformed")) == (1.0, 3.0));
}

#[test]
fn optional_mode_accepts_requests_without_a_preamble() {
    let origin = Origin::hello();
    let weir = start("optional", &origin, TRUSTED);
    assert_eq!(status(weir.address(), b""), Some(200));
    assert_eq!(external_addresses(&origin), ["127.0.0.1"]);
}

#[test]
fn preamble_of_an_untrusted_peer_is_rejected() {
    let preamble = b"PROXY TCP4 192.0.2.1 10.0.0.1 1 2\r\n";
    for (mode, expected) in [("required", None), ("optional", Some(400)), ("disabled", Some(400))] {
        let origin = Origin::hello();
        let weir = start(mode, &origin, "");
        assert_eq!(status(weir.address(), preamble), expected, "{mode}");
        assert!(origin.requests().is_empty(), "{mode}");
    }
}
