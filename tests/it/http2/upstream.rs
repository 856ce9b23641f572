//! HTTP/2 to the upstream: conversion between versions, streaming in both directions, and detection of closed
//! connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use crate::support::h2::H2Client;
use crate::support::h2_origin::H2Origin;
use crate::support::wire::Framing;
use crate::support::{
    Client, LISTENER, Origin, Request, Weir, config, config_with, fetch, get, run_concurrently, wait,
};

fn start_with_http2_upstream(origin: &H2Origin, rest: &str) -> Weir {
    let upstream = format!("{{ address: \"{}\", http2: true }}", origin.address());
    Weir::start(&config_with(LISTENER, &upstream, rest))
}

/// Returns an upstream that echoes the body as it arrives, followed by the status of a call.
fn echo_upstream() -> H2Origin {
    H2Origin::start(None, |request, mut respond| async move {
        let mut body = request.into_body();
        let response = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
        let mut answer = respond.send_response(response, false)?;
        while let Some(data) = body.data().await {
            let data = data?;
            body.flow_control().release_capacity(data.len())?;
            answer.send_data(data, false)?;
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        answer.send_trailers(trailers)
    })
}

#[test]
fn http1_request_is_forwarded_over_http2() {
    let origin = H2Origin::start(None, |request, mut respond| async move {
        let seen = format!(
            "{} {} {:?} {:?}",
            request.method(),
            request.uri(),
            request.headers().get("x-forwarded-for"),
            request.headers().get("connection")
        );
        let mut body = request.into_body();
        let mut sum = seen.into_bytes();
        while let Some(data) = body.data().await {
            let data = data?;
            body.flow_control().release_capacity(data.len())?;
            sum.extend_from_slice(&data);
        }
        let response = Response::builder().status(201).header("x-own", "1").body(()).unwrap();
        respond.send_response(response, false)?.send_data(sum.into(), true)
    });
    let weir = start_with_http2_upstream(&origin, "");
    let request = Request::post("/a?b", "body")
        .host("a.test")
        .header("connection", "keep-alive, x-hop")
        .header("x-hop", "1");
    let answer = fetch(weir.address(), &request);
    assert_eq!((answer.status, answer.header("x-own")), (201, "1"));
    assert_eq!(answer.body.text(), "POST http://a.test/a?b Some(\"127.0.0.1\") Nonebody");
}

#[test]
fn concurrent_requests_share_a_connection() {
    let origin = H2Origin::hello();
    let weir = start_with_http2_upstream(&origin, "");
    let statuses =
        run_concurrently(20, |_| (0..10).map(|_| get(weir.address(), "/").status).collect::<Vec<_>>());
    assert_eq!(statuses, vec![vec![200; 10]; 20]);
    assert_eq!((origin.streams(), origin.connections()), (200, 1));
}

#[test]
fn grpc_call_streams_both_ways_concurrently() {
    let origin = echo_upstream();
    // Calls use HTTP/2 without configuration.
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = H2Client::connect(weir.address());
    let (response, mut requests) = client.send_request(client.call(), false);
    requests.send_data(Bytes::from_static(b"one"), false).unwrap();
    let mut answers = client.response_head(response).unwrap().into_body();
    for message in ["one", "two", "three"] {
        if message != "one" {
            requests.send_data(Bytes::from_static(message.as_bytes()), false).unwrap();
        }
        let heard = client.block_on(answers.data()).unwrap().unwrap();
        assert_eq!(heard, message, "each response message arrives before the next request message");
    }
    requests.send_data(Bytes::new(), true).unwrap();
    assert!(client.block_on(answers.data()).is_none());
    let trailers = client.block_on(answers.trailers()).unwrap().unwrap();
    assert_eq!(trailers["grpc-status"], "0");
}

#[test]
fn grpc_calls_use_http2_while_other_requests_use_http1() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = H2Client::connect(weir.address());
    assert_eq!(client.fetch(client.request("GET", "/")).status, StatusCode::OK);
    // This upstream supports only HTTP/1.1, so its response to a call is not valid HTTP/2.
    let answer = client.fetch(client.call());
    assert_eq!((answer.status, answer.header("grpc-status")), (StatusCode::OK, "14"));
    assert_eq!(get(weir.address(), "/").status, 200);
}

#[test]
fn large_bodies_are_forwarded_completely() {
    let origin = echo_upstream();
    let weir = start_with_http2_upstream(&origin, "");
    let body: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let answer = fetch(weir.address(), &Request::post("/", body.clone()));
    assert_eq!(answer.status, 200);
    assert_eq!(answer.body.length, body.len() as u64);
}

#[test]
fn goaway_of_the_upstream_loses_no_request() {
    let origin = H2Origin::start(Some(50), |_, mut respond| async move {
        let response = Response::builder().header("content-length", "5").body(()).unwrap();
        respond.send_response(response, false)?.send_data(Bytes::from_static(b"hello"), true)
    });
    let weir = start_with_http2_upstream(&origin, "");
    let statuses = run_concurrently(8, |_| {
        let mut client = Client::connect(weir.address());
        (0..100).map(|_| client.get("/").status).filter(|status| *status != 200).collect::<Vec<_>>()
    });
    assert_eq!(statuses, vec![Vec::<u16>::new(); 8]);
    assert!(origin.connections() >= 10, "only {} connections", origin.connections());
}

#[test]
fn refused_stream_is_retried_once() {
    let refused = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&refused);
    let origin = H2Origin::start(None, move |_, mut respond| {
        let is_first = counted.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if is_first {
                respond.send_reset(Reason::REFUSED_STREAM);
                return Ok(());
            }
            respond.send_response(Response::new(()), true).map(drop)
        }
    });
    let weir = start_with_http2_upstream(&origin, "");
    assert_eq!(get(weir.address(), "/").status, 200);
    assert_eq!(refused.load(Ordering::SeqCst), 2);
}

#[test]
fn reset_response_is_not_delivered_as_complete() {
    let origin = H2Origin::start(None, |_, mut respond| async move {
        let mut answer = respond.send_response(Response::new(()), false)?;
        answer.send_data(Bytes::from_static(b"the beginning"), false)?;
        // A reset sent at once would overtake the data before it.
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        answer.send_reset(Reason::INTERNAL_ERROR);
        Ok(())
    });
    let weir = start_with_http2_upstream(&origin, "");
    let mut client = H2Client::connect(weir.address());
    let (response, _) = client.send_request(client.request("GET", "/"), true);
    assert!(client.read_response(response).unwrap_err().is_reset());
    let mut client = Client::connect(weir.address());
    client.send(Request::get("/").to_bytes());
    let head = client.wire.read_head().unwrap().unwrap();
    assert_eq!(head.get("transfer-encoding"), Some("chunked"));
    let framing = Framing::from_response(&head, "GET");
    assert!(client.wire.read_body(framing, |_| {}).is_err(), "the truncated response looks complete");
}

#[test]
fn client_disconnect_resets_only_its_stream() {
    let origin = H2Origin::start(None, |request, mut respond| async move {
        if request.uri().path() == "/wait" {
            std::future::poll_fn(|cx| respond.poll_reset(cx)).await?;
            return Err(Reason::CANCEL.into());
        }
        respond.send_response(Response::new(()), true).map(drop)
    });
    let weir = start_with_http2_upstream(&origin, "");
    let leaving = Client::connect(weir.address());
    leaving.send(Request::get("/wait").to_bytes());
    wait::until_true("the request", || origin.streams() == 1);
    assert_eq!(get(weir.address(), "/").status, 200);
    drop(leaving);
    wait::until_true("the reset", || origin.resets() == 1);
    assert_eq!(get(weir.address(), "/").status, 200);
    assert_eq!(origin.connections(), 1);
}

#[test]
fn unreachable_upstream_fails_all_waiting_requests() {
    let (_socket, address) = crate::support::origin::refusing_address();
    let upstream = format!("{{ address: \"{address}\", http2: true }}");
    let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
    assert_eq!(run_concurrently(8, |_| get(weir.address(), "/").status), [503; 8]);
}
