//! Several upstreams and several endpoints: selection of the endpoint for each request.

mod failover;
mod faults;
mod retries;
mod throttle;

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::h2_origin::H2Origin;
use crate::support::wait::until_true;
use crate::support::{AfterResponse, Client, Origin, Request, Weir, get, run_concurrently};

/// Returns a configuration without rules and with this text for the upstreams.
fn config(upstreams: &str) -> String {
    format!("listeners: 127.0.0.1:0\nworkers: 1\nadmin: {{ address: 127.0.0.1:0 }}\n{upstreams}\nrules: []\n")
}

fn named_upstream(name: &str) -> Origin {
    Origin::responding_with(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{name}", name.len()))
}

/// Returns an upstream that never responds.
fn hanging_upstream() -> Origin {
    Origin::start(|turn| {
        turn.body()?;
        // Waits until the proxy closes the connection.
        let _ = turn.wire.read_head();
        Ok(AfterResponse::Close)
    })
}

#[test]
fn the_first_upstream_that_matches_takes_the_request() {
    let (api, rest) = (named_upstream("api"), named_upstream("rest"));
    let weir = Weir::start(&config(&format!(
        "upstreams:\n  - {{ name: api, match: {{ path: /api/* }}, address: '{}' }}\n  - {{ name: rest, address: '{}' }}",
        api.address(),
        rest.address()
    )));
    let mut client = Client::connect(weir.address());
    for (path, name) in
        [("/api/v1", "api"), ("/", "rest"), ("/a%70i/v1", "api"), ("/x/../api/", "api"), ("/apis", "rest")]
    {
        assert_eq!(client.get(path).body.text(), name, "{path}");
    }
    assert_eq!(api.last_request().head.line, "GET /x/../api/ HTTP/1.1", "the target is forwarded unchanged");
    let answered =
        |name| weir.metric("weir_upstream_requests_total", &[("upstream", name), ("outcome", "answered")]);
    assert_eq!((answered("api"), answered("rest")), (3.0, 2.0));
    let clusters = weir.admin_get("/clusters").body.text();
    assert!(clusters.contains(&format!("api::{}::rq_total::3\n", api.address())), "{clusters}");
}

#[test]
fn no_matching_upstream_is_404() {
    let api = named_upstream("api");
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let weir = Weir::start(&config(&format!(
        "upstreams: {{ match: {{ path: /api/* }}, address: '{}' }}\naccess_log: {}",
        api.address(),
        log.display()
    )));
    assert_eq!(get(weir.address(), "/other").status, 404);
    assert!(api.requests().is_empty());
    until_true("a line of the log", || {
        std::fs::read_to_string(&log).unwrap_or_default().contains(" 404 NR ")
    });
}

#[test]
fn endpoints_are_balanced_round_robin() {
    let origins = [named_upstream("a"), named_upstream("b"), named_upstream("c")];
    let addresses = origins.each_ref().map(|origin| format!("'{}'", origin.address())).join(", ");
    let weir = Weir::start(&config(&format!("upstream: {{ address: [{addresses}] }}")));
    let mut client = Client::connect(weir.address());
    for _ in 0..9 {
        assert_eq!(client.get("/").status, 200);
    }
    assert_eq!(origins.each_ref().map(|origin| origin.requests().len()), [3, 3, 3]);
    assert_eq!(origins.each_ref().map(Origin::connections), [1, 1, 1]);
}

fn addresses(origins: &[Origin]) -> String {
    origins.iter().map(|origin| format!("'{}'", origin.address())).collect::<Vec<_>>().join(", ")
}

/// Returns an upstream that responds with the current value of `status`.
fn upstream_with_status(status: &Arc<AtomicU16>) -> Origin {
    let status = Arc::clone(status);
    Origin::start(move |turn| {
        turn.body()?;
        turn.send(format!("HTTP/1.1 {} X\r\ncontent-length: 0\r\n\r\n", status.load(Ordering::SeqCst)))?;
        Ok(AfterResponse::Keep)
    })
}

#[test]
fn failing_endpoint_is_ejected_and_returns() {
    let status = Arc::new(AtomicU16::new(500));
    let origins = [upstream_with_status(&status), named_upstream("good")];
    let weir = Weir::start(&config(&format!(
        "upstream: {{ address: [{}], outliers: {{ failures: 3, ejection: 1s }} }}",
        addresses(&origins)
    )));
    let mut client = Client::connect(weir.address());
    let bad = (0..20).filter(|_| client.get("/").status == 500).count();
    assert_eq!(bad, 3, "three failures, then the endpoint is ejected");
    let clusters = weir.admin_get("/clusters").body.text();
    let flags = format!("upstream::{}::health_flags::/failed_outlier_check\n", origins[0].address());
    assert!(clusters.contains(&flags), "{clusters}");
    assert_eq!(weir.metric("weir_upstream_endpoints_healthy", &[]), 1.0);
    assert_eq!(weir.metric("weir_upstream_ejections_total", &[]), 1.0);
    status.store(204, Ordering::SeqCst);
    until_true("the endpoint to be readmitted", || client.get("/").status == 204);
    assert_eq!(weir.metric("weir_upstream_endpoints_healthy", &[]), 2.0);
}

#[test]
fn last_endpoint_is_never_ejected() {
    let status = Arc::new(AtomicU16::new(500));
    let origins = [upstream_with_status(&status), upstream_with_status(&status)];
    let weir = Weir::start(&config(&format!(
        "upstream: {{ address: [{}], outliers: {{ failures: 1, max_ejected: 100% }}, panic_threshold: 0% }}",
        addresses(&origins)
    )));
    let mut client = Client::connect(weir.address());
    assert!((0..10).all(|_| client.get("/").status == 500), "the last endpoint is never ejected");
    assert_eq!(weir.metric("weir_upstream_endpoints_healthy", &[]), 1.0);
}

#[test]
fn health_checks_remove_and_restore_endpoints() {
    let status = Arc::new(AtomicU16::new(503));
    let origins = [upstream_with_status(&status), named_upstream("good")];
    let check =
        "{ path: '/health?deep', host: app.test, interval: 50ms, timeout: 1s, healthy: 2, unhealthy: 2 }";
    let weir = Weir::start(&config(&format!(
        "upstream: {{ address: [{}], health_check: {check}, outliers: false }}",
        addresses(&origins)
    )));
    let healthy = || weir.metric("weir_upstream_endpoints_healthy", &[]);
    until_true("the first check", || healthy() == 1.0);
    let mut client = Client::connect(weir.address());
    assert!((0..10).all(|_| client.get("/").status == 200));
    let asked = &origins[0].requests()[0];
    assert_eq!(
        (asked.head.line.as_str(), asked.head.get("host")),
        ("GET /health?deep HTTP/1.1", Some("app.test"))
    );
    assert!(origins[0].requests().iter().all(|seen| seen.head.line.starts_with("GET /health")));
    status.store(200, Ordering::SeqCst);
    until_true("the endpoint to become healthy", || healthy() == 2.0);
    until_true("requests", || client.get("/mark").body.text().is_empty());
    status.store(404, Ordering::SeqCst);
    until_true("the endpoint to become unhealthy", || healthy() == 1.0);
}

#[test]
fn health_check_of_an_http2_upstream_uses_http2() {
    let status = Arc::new(AtomicU16::new(503));
    let answer = Arc::clone(&status);
    let origin = H2Origin::start(None, move |request, mut respond| {
        let is_check = *request.uri() == "http://app.test/health?deep"
            && request.headers()["user-agent"] == "weir-health-check";
        let status = if is_check { answer.load(Ordering::SeqCst) } else { 200 };
        async move {
            let response = http::Response::builder().status(status).body(()).unwrap();
            respond.send_response(response, true).map(drop)
        }
    });
    let check =
        "{ path: '/health?deep', host: app.test, interval: 50ms, timeout: 1s, healthy: 1, unhealthy: 1 }";
    let weir = Weir::start(&config(&format!(
        "upstream: {{ address: '{}', http2: true, health_check: {check} }}",
        origin.address()
    )));
    let healthy = || weir.metric("weir_upstream_endpoints_healthy", &[]);
    until_true("the first check", || healthy() == 0.0);
    status.store(204, Ordering::SeqCst);
    until_true("the endpoint to become healthy", || healthy() == 1.0);
    assert_eq!(get(weir.address(), "/").status, 200);
}

#[test]
fn panic_threshold_uses_all_endpoints() {
    let ill = Arc::new(AtomicU16::new(503));
    let origins = [upstream_with_status(&ill), upstream_with_status(&ill), named_upstream("good")];
    let check = "{ path: /health, interval: 1h }";
    let weir = Weir::start(&config(&format!(
        "upstream: {{ address: [{}], health_check: {check}, outliers: false }}",
        addresses(&origins)
    )));
    until_true("the checks", || weir.metric("weir_upstream_endpoints_healthy", &[]) == 1.0);
    let mut client = Client::connect(weir.address());
    let statuses: Vec<_> = (0..3).map(|_| client.get("/").status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 503).count(), 2, "{statuses:?}");
}

#[test]
fn least_request_prefers_the_endpoint_with_fewer_in_flight() {
    let (slow, fast) = (hanging_upstream(), named_upstream("fast"));
    let weir = Weir::start(&config(&format!(
        "upstream: {{ address: ['{}', '{}'], balance: least_request }}",
        slow.address(),
        fast.address()
    )));
    let address = weir.address();
    // Until the slow endpoint has one request; from then on the other one always has fewer requests.
    let mut waiting = Vec::new();
    while slow.requests().is_empty() {
        let client = Client::connect(address);
        client.send(Request::get("/").to_bytes());
        until_true("the request", || slow.requests().len() + fast.requests().len() > waiting.len());
        waiting.push(client);
    }
    let mut client = Client::connect(address);
    assert!((0..20).all(|_| client.get("/").body.text() == "fast"));
    assert_eq!(slow.requests().len(), 1);
}

/// Returns an upstream that responds after 5 ms, and stores its maximum number of concurrent requests in `most`.
#[expect(clippy::disallowed_methods, reason = "an upstream that takes its time")]
fn concurrency_recording_upstream(max_concurrent: &Arc<AtomicUsize>) -> Origin {
    let (most, now) = (Arc::clone(max_concurrent), AtomicUsize::new(0));
    Origin::start(move |turn| {
        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        turn.body()?;
        std::thread::sleep(Duration::from_millis(5));
        now.fetch_sub(1, Ordering::SeqCst);
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")?;
        Ok(AfterResponse::Keep)
    })
}

#[test]
fn connection_limit_spans_all_workers_and_requests_wait() {
    let most = Arc::new(AtomicUsize::new(0));
    let origin = concurrency_recording_upstream(&most);
    let weir = Weir::start(
        &config(&format!(
            "upstream: {{ address: '{}', limits: {{ connections: 3 }}, connect_timeout: 30s, timeout: 30s }}",
            origin.address()
        ))
        .replace("workers: 1", "workers: 2"),
    );
    let statuses = run_concurrently(24, |_| {
        let mut client = Client::connect(weir.address());
        (0..5).map(|_| client.get("/").status).collect::<Vec<_>>()
    });
    assert!(statuses.iter().flatten().all(|status| *status == 200), "{statuses:?}");
    assert!(most.load(Ordering::SeqCst) <= 3, "{most:?}");
    assert!(weir.metric("weir_upstream_connections", &[]) <= 3.0);
}

#[test]
fn circuit_breaker_rejects_at_once_with_503_and_flag_uo() {
    let origin = hanging_upstream();
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    for (limits, place) in [("connections: 1, pending: 0", "pending"), ("requests: 1", "requests")] {
        let weir = Weir::start(&config(&format!(
            "upstream: {{ address: '{}', limits: {{ {limits} }}, outliers: false }}\naccess_log: {}",
            origin.address(),
            log.display()
        )));
        let before = origin.requests().len();
        let holding = Client::connect(weir.address());
        holding.send(Request::get("/").to_bytes());
        until_true("the first request", || origin.requests().len() > before);
        let refused = get(weir.address(), "/");
        assert_eq!((refused.status, refused.header("x-envoy-overloaded")), (503, "true"));
        assert_eq!(weir.metric("weir_upstream_overflows_total", &[("limit", place)]), 1.0);
        assert_eq!(origin.requests().len(), before + 1);
        until_true("a line of the log", || {
            std::fs::read_to_string(&log).unwrap_or_default().contains(" 503 UO ")
        });
        drop(holding);
        let waits = || weir.metric("weir_upstream_requests_in_flight", &[]);
        until_true("the first request to end", || waits() == 0.0);
        std::fs::write(&log, "").unwrap();
    }
}

#[test]
fn an_upstream_may_be_a_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let serving = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        for _ in 0..2 {
            let mut line = String::new();
            while line != "\r\n" {
                line.clear();
                assert!(reader.read_line(&mut line).unwrap() > 0, "connection not reused");
            }
            (&stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").unwrap();
        }
    });
    let weir = Weir::start(&config(&format!("upstream: unix:{}", path.display())));
    let mut client = Client::connect(weir.address());
    assert_eq!(client.get("/").body.text(), "ok");
    assert_eq!(client.get("/").body.text(), "ok");
    serving.join().unwrap();
    drop(std::fs::remove_file(&path));
    assert_eq!(get(weir.address(), "/").status, 503);
}

#[test]
fn reload_changes_routing_and_keeps_connections() {
    let (one, other) = (named_upstream("one"), named_upstream("other"));
    let text = |path: &str| {
        config(&format!(
            "upstreams:\n  - {{ name: one, match: {{ path: {path} }}, address: '{}' }}\n  - {{ name: other, address: '{}' }}",
            one.address(),
            other.address()
        ))
    };
    let weir = Weir::start(&text("/a"));
    let mut client = Client::connect(weir.address());
    assert_eq!((client.get("/a").body.text(), client.get("/b").body.text()), ("one".into(), "other".into()));
    weir.reload(&text("/b"));
    assert_eq!((client.get("/a").body.text(), client.get("/b").body.text()), ("other".into(), "one".into()));
    assert_eq!((one.connections(), other.connections()), (1, 1));
}

#[test]
fn reload_keeps_endpoints_ejected() {
    let origins = [upstream_with_status(&Arc::new(AtomicU16::new(500))), named_upstream("good")];
    let text = |timeout: &str| {
        config(&format!(
            "upstream: {{ address: [{}], timeout: {timeout}, outliers: {{ failures: 2, ejection: 1h }} }}",
            addresses(&origins)
        ))
    };
    let weir = Weir::start(&text("5s"));
    let mut client = Client::connect(weir.address());
    let bad = |client: &mut Client| (0..20).filter(|_| client.get("/").status == 500).count();
    assert_eq!(bad(&mut client), 2);
    weir.reload(&text("6s"));
    assert_eq!(bad(&mut client), 0);
    let healthy = weir.metric("weir_upstream_endpoints_healthy", &[]);
    assert_eq!(healthy, 1.0);
}
