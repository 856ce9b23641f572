//! Calls whose pseudo-headers are unusual: Envoy's `:authority` is the name of a cluster unless it is configured, and other
//! clients send the path of a socket or nothing. Each call is served, or counted and logged.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use prost::Message as _;

use super::{RlsService, descriptor};
use crate::support::{Client, wait};

const RULES: &str =
    "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: year, requests_per_unit: 1000 }\n";
const HITS: &str = "ratelimit.service.rate_limit.d.k.total_hits";
const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Name and value of a field.
type Field<'a> = (&'a str, &'a str);

const METHOD: Field<'_> = (":method", "POST");
const SCHEME: Field<'_> = (":scheme", "http");
const CALL: Field<'_> = (":path", PATH);
const GRPC: [Field<'_>; 2] = [("content-type", "application/grpc"), ("te", "trailers")];

/// A connection that sends header sections as they are written.
struct RawClient(TcpStream);

impl RawClient {
    fn connect(address: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(wait::DEADLINE)).unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        let mut client = Self(stream);
        client.send_frame(4, 0, 0, b"");
        client
    }

    fn send_frame(&mut self, kind: u8, flags: u8, stream: u8, payload: &[u8]) {
        let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [0, length[0], length[1], kind, flags, 0, 0, 0, stream];
        self.0.write_all(&[&head[..], payload].concat()).unwrap();
    }

    /// Makes a call with this header block, and returns the kinds of the frames of its stream up to its end.
    fn call(&mut self, stream: u8, block: &[u8]) -> Vec<u8> {
        let request =
            RateLimitRequest { domain: "d".to_owned(), descriptors: vec![descriptor("k=v")], hits_addend: 0 };
        let message = request.encode_to_vec();
        let prefix = [0, 0, 0, 0, u8::try_from(message.len()).unwrap()];
        self.send_frame(1, 4, stream, block);
        self.send_frame(0, 1, stream, &[&prefix[..], &message].concat());
        let mut kinds = Vec::new();
        loop {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).unwrap();
            let [high, middle, low, kind, flags, _, _, _, of] = head;
            let mut payload = vec![0; u32::from_be_bytes([0, high, middle, low]) as usize];
            self.0.read_exact(&mut payload).unwrap();
            if of == stream {
                kinds.push(kind);
                if kind == 3 || flags & 1 == 1 {
                    return kinds;
                }
            }
        }
    }
}

/// HEADERS, DATA and HEADERS: a response with a message and trailers.
const SERVED: [u8; 3] = [1, 0, 1];
/// RST_STREAM.
const RESET: [u8; 1] = [3];

/// Encodes fields as literals: 0 is not indexed, 0x40 is (RFC 7541 section 6.2).
fn block(first: u8, fields: &[Field<'_>]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(first);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

fn with_authority(authority: &str) -> Vec<u8> {
    block(0, &[&[METHOD, SCHEME, (":authority", authority), CALL], &GRPC[..]].concat())
}

#[test]
fn call_is_served_whatever_its_authority() {
    let service = RlsService::start(&[("d.yaml", RULES)]);
    let address = service.weir.rls_address("grpc");
    let authorities = [
        "outbound|8081||ratelimit.default.svc.cluster.local",
        "outbound_.8081_._.ratelimit.default.svc.cluster.local",
        "rate_limit_cluster",
        "ratelimit:8081",
        "",
        "localhost",
        "unix:/run/rls.sock",
        "/run/rls.sock",
        "%2Frun%2Frls.sock",
        "[::1]:8081",
        "::1",
        "ratelimit:port",
        "dns:///ratelimit:8081",
        "rate limit",
        "r\u{e4}te",
    ];
    for authority in authorities {
        assert_eq!(RawClient::connect(address).call(1, &with_authority(authority)), SERVED, "{authority}");
    }
    let others = [
        vec![METHOD, SCHEME, CALL],
        vec![METHOD, SCHEME, CALL, ("host", "outbound|8081||ratelimit")],
        vec![METHOD, SCHEME, (":authority", "a|b"), CALL, ("host", "c|d")],
        vec![METHOD, CALL],
        vec![METHOD, (":scheme", ""), CALL],
        vec![(":authority", "a"), CALL, METHOD],
    ];
    for fields in &others {
        let fields = [&fields[..], &GRPC].concat();
        assert_eq!(RawClient::connect(address).call(1, &block(0, &fields)), SERVED, "{fields:?}");
    }
    assert_eq!(service.stat(HITS), (authorities.len() + others.len()) as u64);
}

#[test]
fn unusual_authority_may_be_indexed() {
    let service = RlsService::start(&[("d.yaml", RULES)]);
    let mut client = RawClient::connect(service.weir.rls_address("grpc"));
    let authority = (":authority", "outbound|8081||ratelimit.default.svc.cluster.local");
    assert_eq!(client.call(1, &block(0x40, &[METHOD, SCHEME, authority, CALL])), SERVED);
    // The entries of the dynamic table, the newest first.
    assert_eq!(client.call(3, &[0x80 | 65, 0x80 | 64, 0x80 | 63, 0x80 | 62]), SERVED);
    // The name of the entry, with another value.
    let other = [&[0x80 | 65, 0x80 | 64, 0x0f, 63 - 15, 3][..], b"a|b", &[0x80 | 62]].concat();
    assert_eq!(client.call(5, &other), SERVED);
    assert_eq!(service.stat(HITS), 3);
}

#[test]
fn calls_that_are_not_served_are_counted_and_logged() {
    let service = RlsService::start(&[("d.yaml", RULES)]);
    let address = service.weir.rls_address("grpc");
    let authority = (":authority", "a|b");
    let malformed = [
        vec![METHOD, SCHEME, authority, authority, CALL],
        vec![METHOD, SCHEME, authority, (":path", "relative")],
        vec![METHOD, SCHEME, authority, CALL, (":unknown", "x")],
        vec![METHOD, SCHEME, authority, CALL, ("connection", "close")],
    ];
    let mut client = RawClient::connect(address);
    for (stream, fields) in (1..).step_by(2).zip(&malformed) {
        assert_eq!(client.call(stream, &block(0, fields)), RESET, "{fields:?}");
    }
    let unserved =
        |reason| service.weir.metric("weir_rate_limit_calls_not_served_total", &[("reason", reason)]);
    // A call is counted after its reset has been sent.
    wait::until_true("the count", || unserved("reset") == 4.0);
    let mut other = block(0, &[METHOD, SCHEME, authority, (":path", "/other.Service/Method")]);
    assert_eq!(client.call(9, &other), [1]);
    other = block(
        0,
        &[
            METHOD,
            SCHEME,
            authority,
            (":path", "/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit"),
        ],
    );
    assert_eq!(client.call(11, &other), [1]);
    wait::until_true("the count", || unserved("unimplemented") == 2.0);
    let mut plain = TcpStream::connect(address).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    wait::until_true("the count", || unserved("protocol") == 1.0);
    service.client.try_check(RateLimitRequest::default()).unwrap_err();
    assert_eq!(unserved("undecided"), 1.0);
    let log = service.weir.log().join("\n");
    for reason in ["reset", "unimplemented", "protocol", "undecided"] {
        let line = log.lines().find(|line| line.contains(&format!("\"reason\":\"{reason}\"")));
        let line = line.unwrap_or_else(|| panic!("{reason}: {log}"));
        assert!(line.contains("calls not served") && line.contains("\"client\":\"127.0.0.1:"), "{line}");
    }
}

#[test]
fn http_port_serves_any_host_and_logs_the_reason_of_a_400() {
    let service = RlsService::start(&[("d.yaml", RULES)]);
    let http = service.weir.rls_address("http");
    let question = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#;
    for host in ["host: outbound|8080||ratelimit.default.svc\r\n", "host:\r\n", "host: a_b:8080\r\n", ""] {
        let version = if host.is_empty() { "1.0" } else { "1.1" };
        let mut client = Client::connect(http);
        client.send(format!(
            "POST /json HTTP/{version}\r\n{host}content-length: {}\r\n\r\n{question}",
            question.len()
        ));
        assert_eq!(client.read_response("POST").status, 200, "{host}");
        let mut client = Client::connect(http);
        client.send(format!("GET /healthcheck HTTP/{version}\r\n{host}\r\n"));
        assert_eq!(client.read_response("GET").status, 200, "{host}");
    }
    let mut client = Client::connect(http);
    client.send("POST /json HTTP/1.1\r\nhost: a\r\ncontent-length: 14\r\n\r\n{\"domein\":\"d\"}");
    assert_eq!(client.read_response("POST").status, 400);
    let is_logged = |line: &String| line.contains("/json: unknown field `domein`");
    wait::until_true("the log", || service.weir.log().iter().any(is_logged));
    let counted = service.weir.metric("weir_rate_limit_calls_not_served_total", &[("reason", "message")]);
    assert_eq!(counted, 1.0);
}
