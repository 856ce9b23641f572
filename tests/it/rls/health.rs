//! Health reporting and graceful shutdown of the service.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;

use super::client::descriptor;
use super::{RlsService, config};
use crate::support::h2::H2Client;
use crate::support::{Weir, get, wait};

const RULES: &str =
    "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: hour, requests_per_unit: 1 }\n";
const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;

#[test]
fn grpc_and_http_health_follow_readiness() {
    let service = RlsService::start(&[("d.yaml", RULES)]);
    let http = service.weir.rls_address("http");
    let says = |status: i32| {
        wait::until_true("health", || {
            ["", "ratelimit"].iter().all(|name| service.client.health(name).unwrap() == status)
        });
    };
    says(SERVING);
    assert_eq!(get(http, "/healthcheck").body.text(), "OK");
    assert_eq!(service.client.health("another").unwrap_err().code(), tonic::Code::NotFound);
    service.weir.admin_post("/healthcheck/fail");
    says(NOT_SERVING);
    let failed = get(http, "/healthcheck");
    assert_eq!((failed.status, failed.body.text().as_str()), (500, ""));
    service.weir.admin_post("/healthcheck/ok");
    says(SERVING);
}

#[test]
fn health_watch_reports_changes() {
    let service = RlsService::start(&[("d.yaml", RULES)]);
    wait::until_true("health", || service.client.health("").unwrap() == SERVING);
    let mut watched = service.client.watch("ratelimit");
    assert_eq!(watched.next(), SERVING);
    service.weir.admin_post("/healthcheck/fail");
    assert_eq!(watched.next(), NOT_SERVING);
    service.weir.admin_post("/healthcheck/ok");
    assert_eq!(watched.next(), SERVING);
}

#[test]
fn drain_reports_not_serving_and_still_serves_calls() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("d.yaml"), RULES).unwrap();
    let text = format!("{}drain: {{ delay: 60s, timeout: 5s }}\n", config(directory.path(), ""));
    let mut weir = Weir::start(&text);
    let client = super::RlsClient::connect(weir.rls_address("grpc"));
    wait::until_true("health", || client.health("").unwrap() == SERVING);
    weir.terminate();
    wait::until_true("the announcement", || client.health("").unwrap() == NOT_SERVING);
    assert_eq!(client.check("d", "k=x").statuses.len(), 1, "calls are served after the announcement");
    weir.admin_post("/drain_listeners");
    assert!(weir.wait_exit().success());
    let log = weir.log().join("\n");
    assert!(log.contains("\"outcome\":\"drained\""), "idle connections are closed gracefully: {log}");
}

#[test]
fn call_sent_with_the_preface_before_sigterm_is_served() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("d.yaml"), RULES).unwrap();
    let mut weir = Weir::start(&format!("{}drain: {{ timeout: 5s }}\n", config(directory.path(), "")));
    let address = weir.rls_address("grpc");
    // Stopped, so that the connections are still in the accept queue when the graceful shutdown begins.
    weir.signal("STOP");
    let mut clients: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    clients.iter_mut().for_each(|client| client.write_all(&call_with_preface()).unwrap());
    weir.terminate();
    weir.signal("CONT");
    for client in &mut clients {
        client.set_read_timeout(Some(wait::DEADLINE)).unwrap();
        let mut received = Vec::new();
        let _ = client.read_to_end(&mut received);
        assert!(has_response(&received), "{received:?}");
    }
    assert!(weir.wait_exit().success());
}

/// The connection preface, SETTINGS, and a call with an empty message (RFC 9113 sections 3.4 and 4.1, RFC 7541).
fn call_with_preface() -> Vec<u8> {
    let path = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    // `:method: POST`, `:scheme: http`, `:path`, `:authority` and `content-type`.
    let mut fields = vec![0x83, 0x86, 0x04, path.len() as u8];
    fields.extend(path);
    fields.extend(b"\x01\x01a\x0f\x10\x10application/grpc");
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        [&[0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream], payload].concat()
    };
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, b""),
        frame(1, 4, 1, &fields),
        frame(0, 1, 1, b"\0\0\0\0\0"),
    ]
    .concat()
}

/// Whether there is a HEADERS frame of the first stream among the frames.
fn has_response(mut frames: &[u8]) -> bool {
    while let [high, middle, low, kind, _, stream @ ..] = frames {
        if *kind == 1 && stream.starts_with(&[0, 0, 0, 1]) {
            return true;
        }
        let length = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
        frames = frames.get(9 + length..).unwrap_or_default();
    }
    false
}

#[test]
fn max_connection_age_closes_gracefully() {
    let service =
        RlsService::start_with(&[("d.yaml", RULES)], "  connections: { max_age: 300ms, grace: 5s }\n");
    let mut first = H2Client::connect(service.weir.rls_address("grpc"));
    assert!(first.until_closed().is_ok(), "closed with GOAWAY and without an error");
    let request =
        RateLimitRequest { domain: "d".to_owned(), descriptors: vec![descriptor("k=x")], hits_addend: 0 };
    let until = wait::now() + Duration::from_secs(1);
    let (mut calls, mut unsent) = (0, 0);
    while wait::now() < until {
        match service.client.try_check(request.clone()) {
            Ok(response) => {
                assert_eq!(response.statuses.len(), 1);
                calls += 1;
            }
            // The client had not sent the call when the connection ended, which happens once per connection at most.
            Err(status) => {
                assert_eq!(status.code(), tonic::Code::Cancelled, "{status}");
                unsent += 1;
            }
        }
    }
    assert!(unsent <= 5, "{unsent} calls were cancelled");
    assert!(calls > 10, "only {calls} calls");
}
