//! Bounds on what a client of the service may use: in one call, on a connection, of the port, and of the statistics.

use std::io::{ErrorKind, Read as _};
use std::net::TcpStream;

use bytes::Bytes;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use h2::SendStream;
use h2::client::ResponseFuture;
use tonic::Code as Status;

use super::{Code, RlsClient, RlsService, descriptor};
use crate::support::h2::H2Client;
use crate::support::{Origin, Request, Weir, fetch, get, wait};

const RULES: &str =
    "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: hour, requests_per_unit: 1000000 }\n";

fn request(descriptors: usize) -> RateLimitRequest {
    let descriptors = (0..descriptors).map(|index| descriptor(&format!("k={}", index % 7))).collect();
    RateLimitRequest { domain: "d".to_owned(), descriptors, hits_addend: 1 }
}

/// Begins a call without a message.
fn start_call(h2: &mut H2Client, method: &str) -> (ResponseFuture, SendStream<Bytes>) {
    let call = h2.request("POST", method).header("content-type", "application/grpc").header("te", "trailers");
    h2.send_request(call, false)
}

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const QUOTAS: &str = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";

#[test]
fn oversized_call_is_rejected_and_not_counted() {
    let service = RlsService::start(&[("rules.yaml", RULES)]);
    let answer = service.client.try_check(request(256)).unwrap();
    assert_eq!((answer.overall_code(), answer.statuses.len()), (Code::Ok, 256));
    let rejected = service.client.try_check(request(257)).unwrap_err();
    let message = "too many rate limit descriptors in one request, at most 256: 257";
    assert_eq!((rejected.code(), rejected.message()), (Status::InvalidArgument, message));
    let mut deep = request(2);
    deep.descriptors[1] = descriptor(&vec!["k=v"; 65].join(","));
    let rejected = service.client.try_check(deep).unwrap_err();
    let message = "too many entries in rate limit descriptor 1, at most 64: 65";
    assert_eq!((rejected.code(), rejected.message()), (Status::InvalidArgument, message));
    let rejected = service.client.try_check(request(160_000)).unwrap_err();
    assert_eq!(rejected.code(), Status::ResourceExhausted);
    assert!(rejected.message().contains("at most 1048576 bytes"), "{}", rejected.message());
    assert_eq!(service.stat("ratelimit.service.rate_limit.d.k.total_hits"), 256);
}

/// By default Envoy admits a request when the service reports an error, so a client must not be able to cause an error.
#[test]
fn maximum_envoy_header_in_sixteen_descriptors_is_accepted() {
    let rules = "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: hour, requests_per_unit: 1 }\n  \
                 - key: client\n    descriptors:\n      - key: route\n";
    let service = RlsService::start(&[("rules.yaml", rules)]);
    let header = "x".repeat(60 * 1024);
    let mut request = request(1);
    request.descriptors.extend((1..16).map(|index| descriptor(&format!("client={header},route={index}"))));
    assert_eq!(service.client.try_check(request.clone()).unwrap().overall_code(), Code::Ok);
    assert_eq!(service.client.try_check(request).unwrap().overall_code(), Code::OverLimit);
}

#[test]
fn oversized_json_request_is_rejected_with_the_limit() {
    let service = RlsService::start(&[("rules.yaml", RULES)]);
    let http = service.weir.rls_address("http");
    let json = |count: usize| {
        let one = r#"{"entries":[{"key":"k","value":"v"}]}"#;
        format!(r#"{{"domain":"d","descriptors":[{}]}}"#, vec![one; count].join(","))
    };
    assert_eq!(fetch(http, &Request::post("/json", json(256))).status, 200);
    let over = fetch(http, &Request::post("/json", json(257)));
    let message = "too many rate limit descriptors in one request, at most 256: 257\n";
    assert_eq!((over.status, over.body.text().as_str()), (400, message));
    let large = fetch(http, &Request::post("/json", json(20_000)));
    let message = "request too large, at most 262144 bytes\n";
    assert_eq!((large.status, large.body.text().as_str()), (413, message));
}

#[test]
fn incomplete_message_ends_with_deadline_exceeded() {
    let service = RlsService::start(&[("rules.yaml", RULES)]);
    let mut h2 = H2Client::connect(service.weir.rls_address("grpc"));
    let (unary, mut sending) = start_call(&mut h2, SHOULD_RATE_LIMIT);
    sending.send_data(Bytes::from_static(&[0, 0, 0, 1]), false).unwrap();
    let (stream, mut reporting) = start_call(&mut h2, QUOTAS);
    reporting.send_data(Bytes::from_static(&[0, 0, 0, 1, 0, 1, 2, 3]), false).unwrap();
    assert_eq!(h2.read_response(unary).unwrap().header("grpc-status"), "4");
    let ended = h2.read_response(stream).unwrap();
    assert_eq!(ended.trailers.unwrap()["grpc-status"], "4");
}

#[test]
fn buffered_bytes_of_incomplete_calls_are_bounded_and_the_oldest_is_shed() {
    let service = RlsService::start(&[("rules.yaml", RULES)]);
    let mut h2 = H2Client::connect(service.weir.rls_address("grpc"));
    let part = Bytes::from(vec![0; 255 * 1024]);
    let mut calls: Vec<_> = (0..80)
        .map(|_| {
            let (response, mut sending) = start_call(&mut h2, SHOULD_RATE_LIMIT);
            sending.send_data(part.clone(), false).unwrap();
            (response, sending)
        })
        .collect();
    let (first, _sending) = calls.remove(0);
    let displaced = h2.read_response(first).unwrap();
    assert_eq!(displaced.header("grpc-status"), "8", "{displaced:?}");
    assert!(displaced.header("grpc-message").contains("incomplete"), "{displaced:?}");
    assert_eq!(service.client.check("d", "k=v").overall_code(), Code::Ok, "complete calls are not displaced");
}

#[test]
fn silent_connections_do_not_displace_active_ones() {
    let origin = Origin::hello();
    let upstream = origin.address();
    let weir = Weir::start(&format!(
        "admin: {{ address: 127.0.0.1:0 }}\nworkers: 1\nlisteners: [{{ address: 127.0.0.1:0 }}]\n\
         upstream: {{ address: '{upstream}' }}\noverload: {{ connections: 8 }}\n\
         rls: {{ address: 127.0.0.1:0, connections: {{ max: 8 }} }}\n\
         rules: [{{ name: all, domain: d, key: [{{ descriptor: k }}], limit: 1000/h }}]\n"
    ));
    let envoy = RlsClient::connect(weir.rls_address("grpc"));
    assert_eq!(envoy.check("d", "k=v").overall_code(), Code::Ok);
    let silent: Vec<_> = (0..60).map(|_| TcpStream::connect(weir.rls_address("grpc")).unwrap()).collect();
    assert_eq!(get(weir.address(), "/").status, 200, "the proxy has its own connection limit");
    assert_eq!(envoy.check("d", "k=v").overall_code(), Code::Ok);
    let other = RlsClient::connect(weir.rls_address("grpc"));
    assert_eq!(other.check("d", "k=v").overall_code(), Code::Ok);
    let is_closed = |mut stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        // The server's own first frames are read before the end.
        let end = std::iter::repeat_with(|| stream.read(&mut [0; 256])).find(|read| !matches!(read, Ok(1..)));
        !matches!(end, Some(Err(error)) if error.kind() == ErrorKind::WouldBlock)
    };
    wait::until_true("the oldest connections to close", || silent[..50].iter().all(is_closed));
    let open = silent.iter().filter(|stream| !is_closed(stream)).count();
    assert!((1..=8).contains(&open), "the newest connections stay: {open}");
}

#[test]
fn statistics_with_too_long_names_are_merged() {
    let rules = "domain: d\ndescriptors:\n  - key: k\n    detailed_metric: true\n    \
                 rate_limit: { unit: hour, requests_per_unit: 5 }\n";
    let service = RlsService::start(&[("rules.yaml", rules)]);
    for index in 0..20 {
        let value = format!("{index}{}", "x".repeat(30_000));
        assert_eq!(service.client.check("d", &format!("k={value}")).overall_code(), Code::Ok);
    }
    service.client.check("d", "k=short");
    let metrics = service.weir.admin_get("/metrics").body.text();
    assert!(metrics.len() < 100_000, "{} bytes", metrics.len());
    let hits = "ratelimit_service_rate_limit_total_hits";
    assert_eq!(service.weir.metric(hits, &[("domain", "other_names")]), 20.0);
    assert_eq!(service.weir.metric(hits, &[("domain", "d"), ("key1", "k_short")]), 1.0);
    assert_eq!(service.weir.metric("weir_rate_limit_stat_overflows_total", &[]), 20.0);
    let warned = service.weir.log().iter().filter(|line| line.contains("too long names")).count();
    assert_eq!(warned, 1, "logged once");
}
