//! Retries: requests that are retried, and those that must not be.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{addresses, config, named_upstream};
use crate::support::origin::{ScriptedRequest, refusing_address};
use crate::support::{AfterResponse, Client, Origin, Request, Weir};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const BUSY: &str = "HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy";

/// Returns an upstream that runs `first` for the first `times` requests, and responds normally to the others.
fn failing_upstream(
    times: usize,
    first: impl Fn(&mut ScriptedRequest<'_>) -> io::Result<AfterResponse> + Send + Sync + 'static,
) -> Origin {
    let seen = AtomicUsize::new(0);
    Origin::start(move |turn| {
        if seen.fetch_add(1, Ordering::SeqCst) < times {
            return first(turn);
        }
        turn.body()?;
        turn.send(OK)?;
        Ok(AfterResponse::Keep)
    })
}

fn respond_busy(turn: &mut ScriptedRequest<'_>) -> io::Result<AfterResponse> {
    turn.body()?;
    turn.send(BUSY)?;
    Ok(AfterResponse::Keep)
}

fn start_with_retries(origin: &Origin, retries: &str, rest: &str) -> Weir {
    let address = origin.address();
    Weir::start(&config(&format!(
        "upstream: {{ address: '{address}', retries: {retries}, outliers: false }}\n{rest}"
    )))
}

#[test]
fn request_is_retried_until_it_succeeds() {
    let origin = failing_upstream(2, respond_busy);
    let weir = start_with_retries(&origin, "{ attempt_count: true }", "");
    let answer = Client::connect(weir.address()).get("/");
    assert_eq!((answer.status, answer.body.text().as_str()), (200, "ok"));
    let counts: Vec<_> = origin
        .requests()
        .iter()
        .map(|seen| seen.head.get("x-envoy-attempt-count").unwrap().to_owned())
        .collect();
    assert_eq!(counts, ["1", "2", "3"]);
    assert_eq!(weir.metric("weir_upstream_retries_total", &[]), 2.0);
}

#[test]
fn last_failed_response_is_forwarded_and_flagged_urx() {
    let origin = failing_upstream(usize::MAX, respond_busy);
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let weir = start_with_retries(
        &origin,
        "{ attempts: 1, backoff: 1ms }",
        &format!("access_log: {{ path: {}, format: json }}", log.display()),
    );
    let answer = Client::connect(weir.address()).get("/");
    assert_eq!((answer.status, answer.body.text().as_str()), (503, "busy"));
    assert_eq!(origin.requests().len(), 2);
    crate::support::wait::until_true("a line of the log", || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.contains("\"response_flags\":\"URX\"") && text.contains("\"upstream_attempts\":2")
    });
}

#[test]
fn connection_reset_is_retried_only_for_idempotent_requests() {
    let origin = failing_upstream(1, |turn| {
        turn.body()?;
        Ok(AfterResponse::Close)
    });
    let weir = start_with_retries(&origin, "{}", "");
    assert_eq!(Client::connect(weir.address()).fetch(&Request::new("PUT", "/")).status, 200);
    let origin = failing_upstream(1, |turn| {
        turn.body()?;
        Ok(AfterResponse::Close)
    });
    let weir = start_with_retries(&origin, "{}", "");
    assert_eq!(Client::connect(weir.address()).fetch(&Request::post("/", "order")).status, 503);
    assert_eq!(origin.requests().len(), 1, "a POST is never sent twice");
}

#[test]
fn small_bodies_are_retried_and_large_ones_are_not() {
    for (size, status, times) in [(60 * 1024, 200, 2), (300 * 1024, 503, 1)] {
        let origin = failing_upstream(1, respond_busy);
        let weir = start_with_retries(&origin, "{}", "");
        let body = vec![b'x'; size];
        let mut put = Request::post("/", body);
        put = put.with_method("PUT");
        assert_eq!(Client::connect(weir.address()).fetch(&put).status, status, "{size}");
        assert_eq!(origin.requests().len(), times);
        assert!(origin.requests().iter().all(|seen| seen.complete && seen.body.length == size as u64));
    }
}

#[test]
fn retry_uses_another_endpoint() {
    let origins = [failing_upstream(usize::MAX, respond_busy), named_upstream("good")];
    let weir = Weir::start(&config(&format!(
        "upstream: {{ address: [{}], retries: {{}}, outliers: false }}",
        addresses(&origins)
    )));
    let mut client = Client::connect(weir.address());
    assert!((0..10).all(|_| client.get("/").body.text() == "good"));
    assert_eq!(origins[1].requests().len(), 10);
    let asked = origins[0].requests().len();
    assert!((1..=10).contains(&asked), "each request is sent to this endpoint at most once: {asked}");
}

#[test]
fn connect_failure_is_retried_by_default() {
    let (_socket, nowhere) = refusing_address();
    let good = named_upstream("good");
    let weir = Weir::start(&config(&format!(
        "upstream: {{ address: ['{nowhere}', '{}'], outliers: false }}",
        good.address()
    )));
    let mut client = Client::connect(weir.address());
    for _ in 0..6 {
        let answer = client.fetch(&Request::post("/", "order"));
        assert_eq!((answer.status, answer.body.text().as_str()), (200, "good"));
    }
    assert!(good.requests().iter().all(|seen| seen.body.text() == "order"));
}

#[test]
fn concurrent_retries_are_bounded() {
    let most = Arc::new(AtomicUsize::new(0));
    let (peak, now) = (Arc::clone(&most), AtomicUsize::new(0));
    let origin = Origin::start(move |turn| {
        let attempt = turn.head.get("x-envoy-attempt-count").unwrap().to_owned();
        turn.body()?;
        if attempt != "1" {
            peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        }
        let sent = turn.send(BUSY);
        if attempt != "1" {
            now.fetch_sub(1, Ordering::SeqCst);
        }
        sent.map(|()| AfterResponse::Keep)
    });
    let address = origin.address();
    let weir = Weir::start(&config(&format!(
        "upstream: {{ address: '{address}', limits: {{ retries: 1 }}, retries: {{ attempt_count: true, budget: 0%, backoff: 20ms }} }}"
    )));
    let statuses = crate::support::run_concurrently(16, |_| Client::connect(weir.address()).get("/").status);
    assert!(statuses.iter().all(|status| *status == 503));
    assert_eq!(most.load(Ordering::SeqCst), 1);
    assert!(weir.metric("weir_upstream_overflows_total", &[("limit", "retries")]) > 0.0);
}

#[test]
fn envoy_override_headers_apply_only_from_trusted_peers() {
    let steered = |trusted: &str| {
        let origin = failing_upstream(1, respond_busy);
        let weir = Weir::start(&config(&format!(
            "upstream: '{}'\nclient_ip: {{ trusted_proxies: {trusted} }}",
            origin.address()
        )));
        let request = Request::get("/")
            .header("x-envoy-retry-on", "gateway-error")
            .header("x-envoy-max-retries", "1")
            .header("x-envoy-upstream-rq-timeout-ms", "5000")
            .header("x-envoy-upstream-rq-per-try-timeout-ms", "4000");
        let answer = Client::connect(weir.address()).fetch(&request);
        assert!(answer.numeric_header("x-envoy-upstream-service-time") < 5000);
        let seen = origin.requests();
        let left = |name: &str| seen.iter().any(|seen| seen.head.get(name).is_some());
        assert!(!left("x-envoy-retry-on") && !left("x-envoy-max-retries"));
        assert!(!left("x-envoy-upstream-rq-timeout-ms") && !left("x-envoy-upstream-rq-per-try-timeout-ms"));
        let expected = seen[0].head.get("x-envoy-expected-rq-timeout-ms").unwrap().to_owned();
        (answer.status, seen.len(), expected)
    };
    assert_eq!(steered("127.0.0.0/8"), (200, 2, "5000".to_owned()));
    assert_eq!(steered("192.0.2.0/24"), (503, 1, "15000".to_owned()));
}

#[test]
fn per_try_timeout_triggers_a_retry() {
    let origin = failing_upstream(1, |turn| {
        turn.body()?;
        // Waits until the proxy closes the connection.
        let _ = turn.wire.read_head();
        Ok(AfterResponse::Close)
    });
    let weir = start_with_retries(&origin, "{ retry_on: timeout, per_try_timeout: 100ms }", "");
    assert_eq!(Client::connect(weir.address()).get("/").status, 200);
    assert_eq!(origin.requests().len(), 2);
}

#[test]
fn retried_request_is_charged_once() {
    let origin = failing_upstream(1, respond_busy);
    let address = origin.address();
    let weir = Weir::start(&format!(
        "listeners: 127.0.0.1:0\nworkers: 1\nadmin: {{ address: 127.0.0.1:0 }}\nupstream: {{ address: '{address}', retries: {{}} }}\nrules: [{{ name: all, key: [], limit: 2/d }}]\n"
    ));
    let mut client = Client::connect(weir.address());
    let statuses = [(); 3].map(|()| client.get("/").status);
    assert_eq!(statuses, [200, 200, 429]);
}
