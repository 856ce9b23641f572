//! Delayed requests.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{config_with_rules, decisions, start_with_rules, statuses};
use crate::support::{
    AfterResponse, Client, Origin, Request, Weir, config_with, get, run_concurrently, wait,
};

#[test]
fn requests_over_the_limit_are_delayed_or_rejected_beyond_the_maximum_delay() {
    let origin = Origin::hello();
    let weir =
        start_with_rules(&origin, &["{ name: q, key: [], limit: 4/min, burst: 1, throttle: delay 16s }"]);
    let mut first = Client::connect(weir.address());
    assert_eq!(first.get("/").status, 200);
    let second = Client::connect(weir.address());
    second.send(Request::get("/").to_bytes());
    wait::until_true("the second request to be delayed", || weir.metric("weir_requests_delayed", &[]) == 1.0);
    let refused = get(weir.address(), "/");
    assert_eq!(refused.status, 429);
    // It would be due in 30 s, of which at most 16 s can be spent in the queue.
    assert!(
        (13..=14).contains(&refused.numeric_header("retry-after")),
        "{}",
        refused.numeric_header("retry-after")
    );
    assert_eq!(origin.requests().len(), 1, "the second request still waits");
    let counted = ["allowed", "delayed", "limited"].map(|outcome| decisions(&weir, "q", outcome));
    assert_eq!(counted, [1.0, 1.0, 1.0]);
}

/// Returns an upstream that records the arrival time of each request.
fn arrival_recording_upstream() -> (Origin, Arc<Mutex<Vec<Instant>>>) {
    let times: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let noted = Arc::clone(&times);
    let origin = Origin::start(move |turn| {
        noted.lock().unwrap().push(wait::now());
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        Ok(AfterResponse::Keep)
    });
    (origin, times)
}

/// Checks that request n arrived at least n times `spacing` after `begun`.
fn assert_min_spacing(times: &Mutex<Vec<Instant>>, begun: Instant, spacing: Duration) {
    let mut times = times.lock().unwrap().clone();
    times.sort_unstable();
    for (number, time) in (0_u32..).zip(times) {
        // Delays are rounded to the nearest millisecond.
        let least = (spacing * number).saturating_sub(Duration::from_millis(1));
        assert!(time - begun >= least, "request {number} arrived after {:?}", time - begun);
    }
}

#[test]
fn delayed_requests_are_forwarded_in_order_at_the_limits_rate() {
    let (origin, times) = arrival_recording_upstream();
    let rule = "{ name: q, key: [], limit: 20/s, burst: 1, throttle: { delay: 5s } }";
    let weir = start_with_rules(&origin, &[rule]);
    let begun = wait::now();
    let mut clients: Vec<_> = (0..10).map(|_| Client::connect(weir.address())).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        client.send(Request::get(&format!("/{index}")).to_bytes());
        // Waits for each request to arrive, since sending in order does not guarantee arrival in order.
        let arrived = |weir: &Weir| decisions(weir, "q", "allowed") + decisions(weir, "q", "delayed");
        wait::until_true("the request", || arrived(&weir) == index as f64 + 1.0);
    }
    clients.iter_mut().for_each(|client| assert_eq!(client.read_response("GET").status, 200));
    let order: Vec<_> = origin.requests().iter().map(|seen| seen.head.word(1).to_owned()).collect();
    assert_eq!(order, (0..10).map(|index| format!("/{index}")).collect::<Vec<_>>());
    assert_min_spacing(&times, begun, Duration::from_millis(50));
    let (delayed, waited) = (
        weir.metric("weir_request_delay_seconds_count", &[]),
        weir.metric("weir_request_delay_seconds_sum", &[]),
    );
    assert_eq!(delayed, decisions(&weir, "q", "delayed"));
    assert!(waited > 0.0 && weir.metric("weir_requests_delayed", &[]) == 0.0);
}

#[test]
fn concurrent_requests_are_spread_and_none_is_lost() {
    let (origin, times) = arrival_recording_upstream();
    let weir = start_with_rules(
        &origin,
        &["{ name: q, key: [], limit: 100/s, burst: 1, throttle: { wait: { max: 10s } } }"],
    );
    let (address, begun) = (weir.address(), wait::now());
    let answered = run_concurrently(30, |_| get(address, "/").status);
    assert!(answered.iter().all(|status| *status == 200), "{answered:?}");
    assert_eq!(times.lock().unwrap().len(), 30);
    assert_min_spacing(&times, begun, Duration::from_millis(10));
}

#[test]
fn the_queue_is_bounded() {
    let origin = Origin::hello();
    let weir = start_with_rules(
        &origin,
        &["{ name: q, key: [], limit: 1/min, burst: 1, throttle: { delay: 1h, queue: 2 } }"],
    );
    assert_eq!(statuses(&weir, 1), [200]);
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let client = Client::connect(weir.address());
            client.send(Request::get("/").to_bytes());
            client
        })
        .collect();
    wait::until_true("two delayed requests", || weir.metric("weir_requests_delayed", &[]) == 2.0);
    assert_eq!(statuses(&weir, 2), [429, 429]);
    // A client that leaves has used its place in the schedule, but no longer occupies the queue.
    drop(waiting);
    wait::until_true("no delayed request", || weir.metric("weir_requests_delayed", &[]) == 0.0);
    assert_eq!(statuses(&weir, 1), [429]);
    wait::until_true("no request in flight", || weir.metric("weir_requests_in_flight", &[]) == 0.0);
    assert_eq!(origin.requests().len(), 1);
}

#[test]
fn delay_does_not_count_towards_timeouts() {
    let origin = Origin::hello();
    let upstream = format!("{{ address: \"{}\", timeout: 100ms, idle_timeout: 200ms }}", origin.address());
    let rule = "rules:\n  - { name: q, key: [], limit: 1/s, burst: 1, throttle: delay 3s }\n";
    let weir = Weir::start(&config_with(crate::support::LISTENER, &upstream, rule));
    let mut client = Client::connect(weir.address());
    assert_eq!([client.get("/").status, client.get("/").status], [200, 200]);
    let posted = client.fetch(&Request::post("/", "a body that waits with it"));
    assert_eq!(posted.status, 200);
    assert!(origin.requests().last().is_some_and(|seen| seen.complete));
}

#[test]
fn upstream_duration_excludes_the_delay() {
    let origin = Origin::hello();
    let weir = start_with_rules(&origin, &["{ name: q, key: [], limit: 2/s, burst: 1, throttle: delay 5s }"]);
    assert_eq!(statuses(&weir, 3), [200, 200, 200]);
    let (waited, upstream, whole) = (
        weir.metric("weir_request_delay_seconds_sum", &[]),
        weir.metric("weir_upstream_request_duration_seconds_sum", &[]),
        weir.metric("weir_request_duration_seconds_sum", &[]),
    );
    assert!(waited > 0.5 && whole >= waited && upstream <= whole - waited, "{waited} {upstream} {whole}");
}

#[test]
fn delayed_requests_are_served_during_a_drain() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        Ok(AfterResponse::Keep)
    });
    let weir = start_with_rules(&origin, &["{ name: q, key: [], limit: 1/s, burst: 1, throttle: delay 5s }"]);
    assert_eq!(statuses(&weir, 1), [200]);
    let mut client = Client::connect(weir.address());
    client.send(Request::get("/").to_bytes());
    wait::until_true("the request to be delayed", || weir.metric("weir_requests_delayed", &[]) == 1.0);
    weir.terminate();
    let answer = client.read_response("GET");
    assert_eq!((answer.status, answer.header("connection")), (200, "close"));
}

#[test]
fn reload_does_not_reschedule_delayed_requests() {
    let origin = Origin::hello();
    let rule = |limit: &str| format!("{{ name: q, key: [], limit: {limit}, burst: 1, throttle: delay 1h }}");
    let weir = start_with_rules(&origin, &[&rule("1/s")]);
    assert_eq!(statuses(&weir, 1), [200]);
    let mut client = Client::connect(weir.address());
    client.send(Request::get("/").to_bytes());
    wait::until_true("the request to be delayed", || weir.metric("weir_requests_delayed", &[]) == 1.0);
    weir.reload(&config_with_rules(&origin, &[&rule("1/h")]));
    assert_eq!(client.read_response("GET").status, 200);
    wait::throughout(Duration::from_millis(50), || assert_eq!(origin.requests().len(), 2));
}
