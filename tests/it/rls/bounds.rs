//! Bounds on what a client of the service may use: in one call, on a connection, of the port, and of the statistics.

use std::io::{ErrorKind, Read as _};
use std::net::TcpStream;

use bytes::Bytes;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use h2::SendStream;
use h2::client::ResponseFuture;
use tonic::Code as Status;

use super::{Client, Code, Service, descriptor};
use crate::support::h2::H2;
use crate::support::{Origin, Request, Weir, ask, get, wait};

const RULES: &str =
    "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: hour, requests_per_unit: 1000000 }\n";

fn request(descriptors: usize) -> RateLimitRequest {
    let descriptors = (0..descriptors).map(|index| descriptor(&format!("k={}", index % 7))).collect();
    RateLimitRequest { domain: "d".to_owned(), descriptors, hits_addend: 1 }
}

/// Begins a call without a message.
fn begin(h2: &mut H2, method: &str) -> (ResponseFuture, SendStream<Bytes>) {
    let call = h2.request("POST", method).header("content-type", "application/grpc").header("te", "trailers");
    h2.begin(call, false)
}

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const QUOTAS: &str = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";

#[test]
fn a_call_with_too_many_descriptors_entries_or_bytes_is_rejected_and_counts_nothing() {
    let service = Service::start(&[("rules.yaml", RULES)]);
    let answer = service.client.try_ask(request(256)).unwrap();
    assert_eq!((answer.overall_code(), answer.statuses.len()), (Code::Ok, 256));
    let rejected = service.client.try_ask(request(257)).unwrap_err();
    let message = "too many rate limit descriptors in one request, at most 256: 257";
    assert_eq!((rejected.code(), rejected.message()), (Status::InvalidArgument, message));
    let mut deep = request(2);
    deep.descriptors[1] = descriptor(&vec!["k=v"; 65].join(","));
    let rejected = service.client.try_ask(deep).unwrap_err();
    let message = "too many entries in rate limit descriptor 1, at most 64: 65";
    assert_eq!((rejected.code(), rejected.message()), (Status::InvalidArgument, message));
    let rejected = service.client.try_ask(request(160_000)).unwrap_err();
    assert_eq!(rejected.code(), Status::ResourceExhausted);
    assert!(rejected.message().contains("at most 1048576 bytes"), "{}", rejected.message());
    assert_eq!(service.stat("ratelimit.service.rate_limit.d.k.total_hits"), 256);
}

/// By default Envoy admits a request when the service reports an error, so a client must not be able to cause an error.
#[test]
fn the_longest_header_that_envoy_takes_is_counted_in_sixteen_descriptors() {
    let rules = "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: hour, requests_per_unit: 1 }\n  \
                 - key: client\n    descriptors:\n      - key: route\n";
    let service = Service::start(&[("rules.yaml", rules)]);
    let header = "x".repeat(60 * 1024);
    let mut request = request(1);
    request.descriptors.extend((1..16).map(|index| descriptor(&format!("client={header},route={index}"))));
    assert_eq!(service.client.try_ask(request.clone()).unwrap().overall_code(), Code::Ok);
    assert_eq!(service.client.try_ask(request).unwrap().overall_code(), Code::OverLimit);
}

#[test]
fn json_has_the_same_bounds_and_says_which() {
    let service = Service::start(&[("rules.yaml", RULES)]);
    let http = service.weir.door("http");
    let json = |count: usize| {
        let one = r#"{"entries":[{"key":"k","value":"v"}]}"#;
        format!(r#"{{"domain":"d","descriptors":[{}]}}"#, vec![one; count].join(","))
    };
    assert_eq!(ask(http, &Request::post("/json", json(256))).status, 200);
    let over = ask(http, &Request::post("/json", json(257)));
    let message = "too many rate limit descriptors in one request, at most 256: 257\n";
    assert_eq!((over.status, over.body.text().as_str()), (400, message));
    let large = ask(http, &Request::post("/json", json(20_000)));
    let message = "request too large, at most 262144 bytes\n";
    assert_eq!((large.status, large.body.text().as_str()), (413, message));
}

#[test]
fn a_call_whose_message_stays_incomplete_ends_with_deadline_exceeded() {
    let service = Service::start(&[("rules.yaml", RULES)]);
    let mut h2 = H2::connect(service.weir.door("grpc"));
    let (unary, mut sending) = begin(&mut h2, SHOULD_RATE_LIMIT);
    sending.send_data(Bytes::from_static(&[0, 0, 0, 1]), false).unwrap();
    let (stream, mut reporting) = begin(&mut h2, QUOTAS);
    reporting.send_data(Bytes::from_static(&[0, 0, 0, 1, 0, 1, 2, 3]), false).unwrap();
    assert_eq!(h2.whole(unary).unwrap().header("grpc-status"), "4");
    let ended = h2.whole(stream).unwrap();
    assert_eq!(ended.trailers.unwrap()["grpc-status"], "4");
}

#[test]
fn incomplete_calls_hold_so_many_bytes_and_the_oldest_gives_way() {
    let service = Service::start(&[("rules.yaml", RULES)]);
    let mut h2 = H2::connect(service.weir.door("grpc"));
    let part = Bytes::from(vec![0; 255 * 1024]);
    let mut calls: Vec<_> = (0..80)
        .map(|_| {
            let (response, mut sending) = begin(&mut h2, SHOULD_RATE_LIMIT);
            sending.send_data(part.clone(), false).unwrap();
            (response, sending)
        })
        .collect();
    let (first, _sending) = calls.remove(0);
    let displaced = h2.whole(first).unwrap();
    assert_eq!(displaced.header("grpc-status"), "8", "{displaced:?}");
    assert!(displaced.header("grpc-message").contains("incomplete"), "{displaced:?}");
    assert_eq!(service.client.ask("d", "k=v").overall_code(), Code::Ok, "complete calls are not displaced");
}

#[test]
fn silent_connections_take_no_place_from_envoy_nor_from_clients_of_the_proxy() {
    let origin = Origin::hello();
    let upstream = origin.address();
    let weir = Weir::start(&format!(
        "admin: {{ address: 127.0.0.1:0 }}\nworkers: 1\nlisteners: [{{ address: 127.0.0.1:0 }}]\n\
         upstream: {{ address: '{upstream}' }}\noverload: {{ connections: 8 }}\n\
         rls: {{ address: 127.0.0.1:0, connections: {{ max: 8 }} }}\n\
         rules: [{{ name: all, domain: d, key: [{{ descriptor: k }}], limit: 1000/h }}]\n"
    ));
    let envoy = Client::connect(weir.door("grpc"));
    assert_eq!(envoy.ask("d", "k=v").overall_code(), Code::Ok);
    let silent: Vec<_> = (0..60).map(|_| TcpStream::connect(weir.door("grpc")).unwrap()).collect();
    assert_eq!(get(weir.address(), "/").status, 200, "the proxy has its own connection limit");
    assert_eq!(envoy.ask("d", "k=v").overall_code(), Code::Ok);
    let other = Client::connect(weir.door("grpc"));
    assert_eq!(other.ask("d", "k=v").overall_code(), Code::Ok);
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
fn statistics_stay_small_whatever_values_clients_send() {
    let rules = "domain: d\ndescriptors:\n  - key: k\n    detailed_metric: true\n    \
                 rate_limit: { unit: hour, requests_per_unit: 5 }\n";
    let service = Service::start(&[("rules.yaml", rules)]);
    for index in 0..20 {
        let value = format!("{index}{}", "x".repeat(30_000));
        assert_eq!(service.client.ask("d", &format!("k={value}")).overall_code(), Code::Ok);
    }
    service.client.ask("d", "k=short");
    let metrics = service.weir.admin_get("/metrics").body.text();
    assert!(metrics.len() < 100_000, "{} bytes", metrics.len());
    let hits = "ratelimit_service_rate_limit_total_hits";
    assert_eq!(service.weir.metric(hits, &[("domain", "other_names")]), 20.0);
    assert_eq!(service.weir.metric(hits, &[("domain", "d"), ("key1", "k_short")]), 1.0);
    assert_eq!(service.weir.metric("weir_rate_limit_stat_overflows_total", &[]), 20.0);
    let warned = service.weir.log().iter().filter(|line| line.contains("too long names")).count();
    assert_eq!(warned, 1, "logged once");
}
