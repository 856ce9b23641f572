//! Reservations are settled when a request ends, for any reason.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{remaining, scripted_upstream, start_with_rule, start_with_short_timeout, statuses};
use crate::support::{AfterResponse, Client, Origin, Request, get, wait};

const FAILURES: &str = "{ name: login, key: [], limit: 10/year, algorithm: fixed_window, count: { response_status: [401, 403] } }";

#[test]
fn requests_are_limited_by_failed_responses() {
    let origin = scripted_upstream();
    let weir = start_with_rule(&origin, FAILURES);
    for _ in 0..10 {
        assert_eq!(statuses(&weir, &["/200", "/200", "/500", "/401"]), [200, 200, 500, 401]);
    }
    assert_eq!(statuses(&weir, &["/200", "/401", "/200"]), [429, 429, 429]);
    assert_eq!(origin.requests().len(), 40);
}

#[test]
fn uncounted_response_does_not_reduce_remaining() {
    let origin = scripted_upstream();
    let weir = start_with_rule(&origin, FAILURES);
    assert_eq!(remaining(&weir, &Request::get("/200")), 10);
    assert_eq!(remaining(&weir, &Request::get("/403")), 9);
    assert_eq!(remaining(&weir, &Request::get("/200")), 9);
}

#[test]
fn concurrent_requests_reserve_units_until_the_response() {
    const CLIENTS: usize = 300;
    let go = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&go);
    let origin = Origin::start(move |turn| {
        wait::until_true("the test's signal", || gate.load(Ordering::SeqCst));
        turn.send("HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n")?;
        Ok(AfterResponse::Keep)
    });
    let weir = start_with_rule(&origin, FAILURES);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| Client::connect(weir.address())).collect();
    for _ in 0..3 {
        clients.iter().for_each(|client| client.send(Request::get("/login").to_bytes()));
    }
    wait::until_true("ten requests upstream", || origin.requests().len() == 10);
    wait::throughout(Duration::from_millis(300), || assert_eq!(origin.requests().len(), 10));
    go.store(true, Ordering::SeqCst);
    let mut answers: Vec<u16> = Vec::new();
    for client in &mut clients {
        answers.extend((0..3).map(|_| client.read_response("GET").status));
    }
    assert_eq!(answers.iter().filter(|status| **status == 401).count(), 10);
    assert_eq!(answers.iter().filter(|status| **status == 429).count(), 3 * CLIENTS - 10);
    assert_eq!(get(weir.address(), "/login").status, 429);
}

#[test]
fn client_disconnect_before_the_response_is_charged() {
    let origin = Origin::start(|turn| {
        wait::pause(Duration::from_millis(500));
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        Ok(AfterResponse::Keep)
    });
    let weir =
        start_with_rule(&origin, "{ name: login, key: [], limit: 3/d, count: { response_status: 401 } }");
    for tries in 1..=3 {
        let client = Client::connect(weir.address());
        client.send(Request::get("/login").to_bytes());
        wait::until_true("the request", || origin.requests().len() == tries);
        drop(client);
        wait::until_true("the client to be gone", || {
            weir.metric("weir_requests_reset_total", &[]) == tries as f64
        });
    }
    assert_eq!(get(weir.address(), "/login").status, 429);
}

#[test]
fn aborted_upload_is_charged() {
    let origin = scripted_upstream();
    let weir =
        start_with_rule(&origin, "{ name: login, key: [], limit: 2/d, count: { response_status: 401 } }");
    for tries in 1..=2 {
        let client = Client::connect(weir.address());
        client.send("POST /200 HTTP/1.1\r\nhost: test.local\r\ncontent-length: 10\r\n\r\nhalf");
        wait::until_true("the request", || origin.requests().len() == tries);
        drop(client);
        wait::until_true("the end of the request", || weir.metric("weir_requests_in_flight", &[]) == 0.0);
    }
    assert_eq!(get(weir.address(), "/200").status, 429);
}

#[test]
fn upstream_failures_are_refunded() {
    let origin = scripted_upstream();
    let weir = start_with_short_timeout(
        &origin,
        "{ name: a, key: [], limit: 2/year, algorithm: fixed_window, refund_on: [5xx, timeout] }",
    );
    let failing = ["/500", "/late", "/503", "/close", "/500"];
    assert_eq!(statuses(&weir, &failing), [500, 504, 503, 503, 500]);
    assert_eq!(statuses(&weir, &["/200", "/404", "/200"]), [200, 404, 429]);
}

#[test]
fn failure_not_listed_in_refund_on_is_charged() {
    let origin = scripted_upstream();
    let weir = start_with_short_timeout(&origin, "{ name: a, key: [], limit: 2/d, refund_on: timeout }");
    assert_eq!(statuses(&weir, &["/late", "/500", "/close", "/200"]), [504, 500, 503, 429]);
}

#[test]
fn refund_never_exceeds_the_charge() {
    let origin = scripted_upstream();
    let weir = start_with_rule(&origin, "{ name: a, key: [], limit: 5/d, cost: 2, refund_on: 5xx }");
    for _ in 0..5 {
        assert_eq!(remaining(&weir, &Request::get("/500")), 5);
    }
    assert_eq!(remaining(&weir, &Request::get("/200")), 3);
}

#[test]
fn shadow_mode_counts_by_response_status() {
    let origin = scripted_upstream();
    let weir = start_with_rule(
        &origin,
        "{ name: a, key: [], limit: 1/d, throttle: shadow, count: { response_status: 4xx } }",
    );
    assert_eq!(statuses(&weir, &["/200", "/404", "/404", "/200"]), [200, 404, 404, 200]);
    assert_eq!(weir.metric("weir_decisions_total", &[("rule", "a"), ("outcome", "shadow")]), 2.0);
}

#[test]
fn reload_during_a_request_keeps_its_reservation() {
    let origin = Origin::start(|turn| {
        if turn.head.word(1) == "/slow" {
            wait::pause(Duration::from_millis(700));
        }
        turn.send("HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n")?;
        Ok(AfterResponse::Keep)
    });
    let rule = |limit: u32| {
        let rule = format!("{{ name: a, key: [], limit: {limit}/d, count: {{ response_status: 401 }} }}");
        crate::support::config(origin.address(), &format!("rules:\n  - {rule}\n"))
    };
    let weir = crate::support::Weir::start(&rule(1));
    let mut slow = Client::connect(weir.address());
    slow.send(Request::get("/slow").to_bytes());
    wait::until_true("the request", || origin.requests().len() == 1);
    weir.reload(&rule(2));
    assert_eq!(slow.read_response("GET").status, 401);
    assert_eq!(statuses(&weir, &["/", "/"]), [401, 429]);
}

#[test]
fn reload_between_hard_and_elastic_refunds_exactly_one_request() {
    let origin = Origin::start(|turn| {
        if turn.head.word(1) == "/slow" {
            wait::pause(Duration::from_millis(700));
            turn.send("HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n")?;
        } else {
            turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        }
        Ok(AfterResponse::Keep)
    });
    let file = |throttle: &str| {
        let rule = "name: a, key: [], limit: 10/year, algorithm: fixed_window, refund_on: 5xx";
        // Without values of its signal, the elastic limit stays at its base.
        let rules =
            format!("elastic: {{ signals: utilization }}\nrules:\n  - {{ {rule}, throttle: {throttle} }}\n");
        crate::support::config(origin.address(), &rules)
    };
    for [before, after] in [["elastic 3x", "hard"], ["hard", "elastic 3x"]] {
        let weir = crate::support::Weir::start(&file(before));
        assert_eq!(statuses(&weir, &["/"; 8]), [200; 8]);
        let (mut slow, seen) = (Client::connect(weir.address()), origin.requests().len());
        slow.send(Request::get("/slow").to_bytes());
        wait::until_true("the request", || origin.requests().len() == seen + 1);
        weir.reload(&file(after));
        assert_eq!(slow.read_response("GET").status, 500);
        assert_eq!(remaining(&weir, &Request::get("/")), 1, "{before} to {after}");
    }
}
