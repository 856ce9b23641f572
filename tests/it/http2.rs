//! HTTP/2 from clients: forwarding of requests, and isolation of streams from each other.

mod conformance;
mod floods;
mod grpc_local_replies;
mod grpc_streaming;
mod incomplete;
mod isolation;
mod third_party_clients;
mod tunnels;
mod upstream;

use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::support::h2::H2Client;
use crate::support::{AfterResponse, LISTENER, Origin, Request, Weir, config, config_with, fetch, wait};

fn rules(limit: &str) -> String {
    format!("rules: [{{ name: all, key: [], limit: {limit} }}]")
}

fn start_with_timeouts(origin: &Origin, listener: &str, upstream: &str) -> Weir {
    let upstream = format!("{{ address: \"{}\", {upstream} }}", origin.address());
    Weir::start(&config_with(&format!("{{ address: 127.0.0.1:0, {listener} }}"), &upstream, ""))
}

#[test]
fn http2_request_is_forwarded_over_http1() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), &rules("10/d")));
    let mut client = H2Client::connect(weir.address());
    let request = client.request("GET", "/a?b=c").header("cookie", "a=1").header("cookie", "b=2");
    let answer = client.fetch(request.header("x-envoy-internal", "true").header("te", "trailers"));
    assert_eq!((answer.status, &*answer.body), (StatusCode::OK, &b"hello"[..]));
    assert_eq!(answer.header("x-ratelimit-remaining"), "9");
    let seen = origin.only_request().head;
    assert_eq!((seen.word(0), seen.word(1), seen.word(2)), ("GET", "/a?b=c", "HTTP/1.1"));
    assert_eq!(seen.get("host"), Some(&*weir.address().to_string()));
    assert_eq!(seen.get("cookie"), Some("a=1; b=2"));
    assert_eq!(seen.get("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(seen.get("x-envoy-internal"), None);
    assert!(seen.get("x-request-id").is_some());
}

#[test]
fn bodies_and_trailers_are_forwarded_both_ways() {
    let origin = Origin::start(|turn| {
        let body = turn.body()?;
        let text = body.text().to_uppercase();
        turn.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n")?;
        turn.send(format!("{:x}\r\n{text}\r\n0\r\nx-sum: 42\r\n\r\n", text.len()))?;
        Ok(AfterResponse::Keep)
    });
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = H2Client::connect(weir.address());
    let request = client.request("POST", "/");
    let (response, mut body) = client.send_request(request, false);
    body.send_data(Bytes::from_static(b"one "), false).unwrap();
    body.send_data(Bytes::from_static(b"two"), false).unwrap();
    let trailers =
        HeaderMap::from_iter([(http::HeaderName::from_static("x-check"), HeaderValue::from_static("7"))]);
    body.send_trailers(trailers).unwrap();
    let answer = client.read_response(response).unwrap();
    assert_eq!(String::from_utf8(answer.body).unwrap(), "ONE TWO");
    assert_eq!(answer.trailers.unwrap()["x-sum"], "42");
    let seen = origin.only_request();
    assert!(seen.complete);
    assert_eq!(seen.head.get("transfer-encoding"), Some("chunked"));
}

#[test]
fn http1_and_http2_share_counters_and_concurrent_streams_are_exact() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), &rules("20/d")));
    for _ in 0..5 {
        assert_eq!(fetch(weir.address(), &Request::get("/")).status, 200);
    }
    let mut client = H2Client::connect(weir.address());
    let in_flight: Vec<_> =
        (0..100).map(|_| client.send_request(client.request("GET", "/"), true).0).collect();
    let statuses: Vec<_> = in_flight
        .into_iter()
        .map(|response| client.read_response(response).unwrap().status.as_u16())
        .collect();
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 15);
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 85);
    assert_eq!(origin.requests().len(), 20);
}

#[test]
fn rejected_stream_leaves_the_connection_usable() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), &rules("1/d")));
    let mut client = H2Client::connect(weir.address());
    assert_eq!(client.fetch(client.request("GET", "/")).status, StatusCode::OK);
    for _ in 0..3 {
        // The body is never sent.
        let (response, _body) =
            client.send_request(client.request("POST", "/").header("content-length", "1000000"), false);
        let answer = client.read_response(response).unwrap();
        assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(answer.header("connection"), "");
    }
    assert_eq!(client.fetch(client.request("GET", "/")).status, StatusCode::TOO_MANY_REQUESTS);
}

#[test]
fn ambiguous_requests_are_rejected() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = H2Client::connect(weir.address());
    let conflict = client.request("GET", "/").header("host", "other.test");
    assert_eq!(client.fetch(conflict).status, StatusCode::BAD_REQUEST);
    let path = client.request("GET", "/%00");
    assert_eq!(client.fetch(path).status, StatusCode::BAD_REQUEST);
    let trace = client.request("TRACE", "/");
    assert_eq!(client.fetch(trace).status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(origin.requests().len(), 0);
    let same = client.request("GET", "/").header("host", &*weir.address().to_string());
    assert_eq!(client.fetch(same).status, StatusCode::OK);
}

#[test]
fn slow_stream_does_not_block_other_streams() {
    let origin = Origin::start(|turn| {
        if turn.head.word(1) == "/never" {
            // The timeout expires first.
            turn.body()?;
            wait::pause(Duration::from_secs(60));
        }
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")?;
        Ok(AfterResponse::Keep)
    });
    let weir = start_with_timeouts(&origin, "idle_timeout: 5m", "timeout: 400ms");
    let mut client = H2Client::connect(weir.address());
    let (slow, _) = client.send_request(client.request("GET", "/never"), true);
    for _ in 0..20 {
        assert_eq!(client.fetch(client.request("GET", "/")).status, StatusCode::OK);
    }
    assert_eq!(client.read_response(slow).unwrap().status, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(client.fetch(client.request("GET", "/")).status, StatusCode::OK);
}

#[test]
fn stalled_stream_is_reset_without_affecting_others() {
    let origin = Origin::start(|turn| {
        if turn.head.word(1) != "/endless" {
            turn.send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")?;
            return Ok(AfterResponse::Keep);
        }
        turn.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
        loop {
            turn.send(format!("1000\r\n{}\r\n", "x".repeat(0x1000)))?;
        }
    });
    let weir = start_with_timeouts(&origin, "idle_timeout: 5m", "idle_timeout: 500ms");
    let mut client = H2Client::connect(weir.address());
    let (endless, _) = client.send_request(client.request("GET", "/endless"), true);
    // Reads without ever releasing flow-control capacity, so that the stream's window is not reopened.
    let mut taken = client.response_head(endless).unwrap().into_body();
    let error = client.block_on(async {
        loop {
            match taken.data().await {
                Some(Ok(_)) => {}
                Some(Err(error)) => break error,
                None => panic!("the endless response has ended"),
            }
        }
    });
    assert!(error.is_reset(), "{error}");
    assert_eq!(client.fetch(client.request("GET", "/")).status, StatusCode::OK);
}

#[test]
fn client_reset_aborts_the_upstream_request() {
    let origin = Origin::start(|turn| {
        turn.body()?;
        turn.wire.drain();
        Ok(AfterResponse::Close)
    });
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = H2Client::connect(weir.address());
    let (response, mut stream) = client.send_request(client.request("GET", "/"), true);
    origin.until_request("the request", |seen| seen.head.word(1) == "/");
    stream.send_reset(h2::Reason::CANCEL);
    drop(response);
    wait::until_true("the upstream's connection to be closed", || {
        weir.metric("weir_upstream_connections", &[]) == 0.0
    });
}

#[test]
fn idle_connection_is_closed() {
    let origin = Origin::hello();
    let weir = start_with_timeouts(&origin, "idle_timeout: 300ms", "");
    let mut client = H2Client::connect(weir.address());
    assert_eq!(client.fetch(client.request("GET", "/")).status, StatusCode::OK);
    client.until_closed().unwrap();
}

#[test]
fn drain_completes_streams_in_flight_and_closes_the_connection() {
    let origin = Origin::start(|turn| {
        if turn.head.word(1) == "/slow" {
            wait::pause(Duration::from_millis(700));
        }
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")?;
        Ok(AfterResponse::Keep)
    });
    let mut weir = Weir::start(&config(origin.address(), "drain: { timeout: 20s }"));
    let mut client = H2Client::connect(weir.address());
    let in_flight: Vec<_> =
        (0..10).map(|_| client.send_request(client.request("GET", "/slow"), true).0).collect();
    wait::until_true("ten requests upstream", || origin.requests().len() == 10);
    weir.terminate();
    for response in in_flight {
        assert_eq!(client.read_response(response).unwrap().status, StatusCode::OK);
    }
    client.until_closed().unwrap();
    assert_eq!(weir.wait_exit().code(), Some(0));
}

#[test]
fn drain_loses_no_request() {
    let origin = Origin::hello();
    let mut weir = Weir::start(&config(origin.address(), "drain: { timeout: 20s }"));
    let address = weir.address();
    let (told, asked) = std::sync::mpsc::channel();
    let load = thread::spawn(move || {
        let mut client = H2Client::connect(address);
        for n in 0_u32.. {
            let request = client.request("GET", "/");
            // The request was rejected before it was processed, or the connection had ended: the client may retry it
            // elsewhere.
            let Ok(answer) = client.try_fetch(request) else { return n };
            assert_eq!(answer.status, StatusCode::OK);
            let _ = told.send(());
        }
        0
    });
    for _ in 0..100 {
        asked.recv().unwrap();
    }
    weir.terminate();
    let answered = load.join().unwrap();
    assert_eq!(weir.wait_exit().code(), Some(0));
    assert_eq!(origin.requests().len() as u32, answered, "requests upstream and responses differ");
}

#[test]
fn oversized_header_section_is_rejected() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = H2Client::connect(weir.address());
    let large = client.request("GET", "/").header("x-large", "x".repeat(100_000));
    let (response, _) = client.send_request(large, true);
    if let Ok(answer) = client.read_response(response) {
        assert_eq!(answer.status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    }
    assert_eq!(origin.requests().len(), 0);
    assert_eq!(H2Client::connect(weir.address()).fetch(client.request("GET", "/")).status, StatusCode::OK);
}

#[test]
fn http_1_and_http_2_share_a_port() {
    let weir = Weir::start(&config_with(LISTENER, "{ address: echo }", ""));
    let mut h2 = H2Client::connect(weir.address());
    assert_eq!(h2.fetch(h2.request("GET", "/")).status, StatusCode::OK);
    assert_eq!(fetch(weir.address(), &Request::get("/")).status, 200);
}

#[test]
fn rejection_of_head_has_content_length_without_a_body() {
    let weir = Weir::start(&config("echo", "rules: [{ name: no, action: deny }]"));
    let mut client = H2Client::connect(weir.address());
    let full = client.fetch(client.request("GET", "/"));
    let response = client.fetch(client.request("HEAD", "/"));
    assert_eq!((response.status.as_u16(), response.body.len()), (403, 0));
    assert_eq!(response.header("content-length"), full.body.len().to_string());
}
