//! gRPC calls: statuses in trailers and in heads, and pushback.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response};

use super::{rejections, share};
use crate::support::h2::H2Client;
use crate::support::h2_origin::H2Origin;
use crate::support::{Weir, config_with};

/// Returns an upstream that ends each call with these fields: in trailers, or in the head if `is_head_only`.
fn origin(fields: &'static [(&'static str, &'static str)], is_head_only: bool) -> H2Origin {
    H2Origin::start(None, move |_, mut respond| async move {
        let map: HeaderMap = fields
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        let mut head = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
        if is_head_only {
            head.headers_mut().extend(map);
            respond.send_response(head, true)?;
            return Ok(());
        }
        let mut stream = respond.send_response(head, false)?;
        stream.send_data(Bytes::from_static(b"\0\0\0\0\0"), false)?;
        stream.send_trailers(map)
    })
}

fn start(origin: &H2Origin, retries: &str) -> Weir {
    Weir::start(&config_with(
        crate::support::LISTENER,
        &format!("{{ address: '{}', retries: {retries} }}", origin.address()),
        "rules:\n  - { name: provider, limit: 1000/s, feedback: true }\n",
    ))
}

fn call(weir: &Weir) {
    let mut client = H2Client::connect(weir.address());
    let call = client.call();
    client.fetch(call);
}

#[test]
fn resource_exhausted_lowers_the_limit_in_head_and_in_trailers() {
    for is_head_only in [true, false] {
        let origin = origin(&[("grpc-status", "8")], is_head_only);
        let weir = start(&origin, "{ attempts: 0 }");
        call(&weir);
        crate::support::wait::until_true("the decrease", || share(&weir) == 0.7);
        assert_eq!(rejections(&weir), 1.0, "head only: {is_head_only}");
    }
}

#[test]
fn pushback_pauses_the_limit_and_makes_unavailable_a_rejection() {
    for is_head_only in [true, false] {
        let origin = origin(&[("grpc-status", "14"), ("grpc-retry-pushback-ms", "30000")], is_head_only);
        let weir = start(&origin, "{ attempts: 0 }");
        call(&weir);
        let paused = || weir.metric("weir_feedback_paused_seconds", &[("rule", "provider")]);
        crate::support::wait::until_true("the pause", || paused() > 20.0);
        call(&weir);
        assert_eq!(origin.streams(), 1, "a paused limit forwards nothing");
    }
}

#[test]
fn other_statuses_are_no_rejections() {
    for fields in [&[("grpc-status", "0")], &[("grpc-status", "14")], &[("grpc-status", "13")]] {
        let origin = origin(fields, false);
        let weir = start(&origin, "{ attempts: 0 }");
        call(&weir);
        assert_eq!((rejections(&weir), share(&weir)), (0.0, 1.0), "{fields:?}");
    }
}

#[test]
fn calls_are_retried_on_the_configured_statuses() {
    let retries = "{ attempts: 2, retry_on: [unavailable], backoff: 1ms }";
    let unavailable = origin(&[("grpc-status", "14")], true);
    call(&start(&unavailable, retries));
    assert_eq!(unavailable.streams(), 3);
    let exhausted = origin(&[("grpc-status", "8")], true);
    call(&start(&exhausted, retries));
    assert_eq!(exhausted.streams(), 1);
}

#[test]
fn negative_pushback_rules_out_a_retry() {
    for value in ["-1", "soon"] {
        let fields: &'static [_] =
            Box::leak(Box::new([("grpc-status", "14"), ("grpc-retry-pushback-ms", value)]));
        let origin = origin(fields, true);
        call(&start(&origin, "{ attempts: 2, retry_on: [unavailable], backoff: 1ms }"));
        assert_eq!(origin.streams(), 1, "{value}");
    }
}
