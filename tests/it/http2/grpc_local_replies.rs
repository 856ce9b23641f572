//! gRPC: rejections and failures in the form that its clients expect.

use std::time::Duration;

use http::StatusCode;

use crate::support::h2::H2Client;
use crate::support::h2_origin::H2Origin;
use crate::support::{AfterResponse, Origin, Weir, config, config_with, origin, wait};

#[test]
fn rate_limited_call_is_trailers_only_with_resource_exhausted() {
    let origin = H2Origin::hello();
    let weir = Weir::start(&config(origin.address(), "rules: [{ name: all, key: [], limit: 1/d }]"));
    let mut client = H2Client::connect(weir.address());
    client.fetch(client.call());
    let answer = client.fetch(client.call());
    assert_eq!(answer.status, StatusCode::OK);
    assert!(answer.is_head_only, "the response is not trailers-only");
    assert_eq!(answer.header("content-type"), "application/grpc");
    assert_eq!(answer.header("grpc-status"), "8");
    assert_eq!(answer.header("grpc-message"), "too many requests");
    assert_eq!(answer.header("x-envoy-ratelimited"), "true");
    assert_eq!(answer.header("x-ratelimit-remaining"), "0");
    assert_eq!(origin.streams(), 1);
    // Plain HTTP requests get plain HTTP status codes.
    assert_eq!(client.fetch(client.request("POST", "/")).status, StatusCode::TOO_MANY_REQUESTS);
}

#[test]
fn denied_call_gets_permission_denied() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), "rules: [{ name: no, action: deny }]"));
    let mut client = H2Client::connect(weir.address());
    let answer = client.fetch(client.call());
    assert_eq!((answer.status, answer.header("grpc-status")), (StatusCode::OK, "7"));
}

#[test]
fn unreachable_upstream_gets_unavailable() {
    let (_socket, address) = origin::refusing_address();
    let weir = Weir::start(&config(address, ""));
    let mut client = H2Client::connect(weir.address());
    let answer = client.fetch(client.call());
    assert_eq!((answer.status, answer.header("grpc-status")), (StatusCode::OK, "14"));
}

#[test]
fn grpc_timeout_is_enforced() {
    let origin = Origin::start(|turn| {
        turn.wire.drain();
        Ok(AfterResponse::Close)
    });
    let upstream = format!("{{ address: \"{}\", timeout: 1h }}", origin.address());
    let weir = Weir::start(&config_with("127.0.0.1:0", &upstream, ""));
    let mut client = H2Client::connect(weir.address());
    let before = wait::now();
    let answer = client.fetch(client.call().header("grpc-timeout", "300m"));
    assert_eq!((answer.status, answer.header("grpc-status")), (StatusCode::OK, "4"));
    assert!(before.elapsed() >= Duration::from_millis(300), "the response came before the deadline");
}
