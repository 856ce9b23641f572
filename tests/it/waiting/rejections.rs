//! Requests that cannot wait: full queues, deadlines, and waits that end without room.

use super::{Gate, decisions, numbered, rejections, send, send_all, start, statuses, waiting};
use crate::support::h2::H2Client;
use crate::support::wait::until_true;
use crate::support::{Client, Origin, Request, fetch, get};

/// One request an hour, and waits of up to an hour.
const HOURLY: &str = "{ name: q, key: [], limit: 1/h, burst: 1, throttle: { wait: { max: 1h } } }";

#[test]
fn request_that_cannot_be_admitted_in_time_is_rejected_at_once() {
    let origin = Origin::hello();
    let weir = start(&origin, &[HOURLY]);
    assert_eq!(get(weir.address(), "/").status, 200);
    let _first = send_all(&weir, "q", &numbered(1));
    // Its turn would come in two hours, of which it can wait for one.
    let rejected = get(weir.address(), "/");
    assert_eq!(rejected.status, 429);
    assert!((3590..=3600).contains(&rejected.numeric_header("retry-after")), "{rejected:?}");
    assert_eq!(rejected.header("x-envoy-ratelimited"), "true");
    assert!(rejected.header("x-ratelimit-remaining").starts_with('0'), "{rejected:?}");
    assert_eq!((rejections(&weir, "q", "no_time"), decisions(&weir, "q", "limited")), (1.0, 1.0));
    assert_eq!(waiting(&weir, "q"), 1.0);
}

#[test]
fn wait_that_ends_without_room_is_a_rejection() {
    for (settings, status) in [("", 429), (", status: 503", 503)] {
        let gate = Gate::start(&format!("throttle: {{ wait: {{ max: 100ms{settings} }} }}"));
        let rejected = get(gate.weir.address(), "/");
        assert_eq!((rejected.status, rejected.numeric_header("retry-after")), (status, 1));
        assert_eq!(rejections(&gate.weir, "q", "expired"), 1.0);
        assert_eq!(decisions(&gate.weir, "q", "limited"), 1.0);
        assert_eq!(waiting(&gate.weir, "q"), 0.0);
    }
}

#[test]
fn full_queue_rejects_the_last_request() {
    let mut gate = Gate::start("throttle: { wait: { max: 1h, queue: 2 } }");
    let clients = send_all(&gate.weir, "q", &numbered(2));
    assert_eq!(get(gate.weir.address(), "/more").status, 429);
    assert_eq!(rejections(&gate.weir, "q", "queue_full"), 1.0);
    gate.open();
    assert_eq!(statuses(clients), [200, 200]);
}

#[test]
fn full_queue_gives_the_place_of_the_last_to_a_request_that_comes_first() {
    let mut gate = Gate::start("throttle: { wait: { max: 1h, queue: 2, priority: { header: priority } } }");
    let mut clients = send_all(&gate.weir, "q", &numbered(2));
    let urgent = send(&gate.weir, &Request::get("/urgent").header("priority", "u=0"));
    let evicted = clients.pop().map(|mut client| client.read_response("GET").status);
    assert_eq!(evicted, Some(429));
    assert_eq!((rejections(&gate.weir, "q", "evicted"), waiting(&gate.weir, "q")), (1.0, 2.0));
    gate.open();
    assert_eq!(statuses(vec![urgent]), [200]);
    assert_eq!(statuses(clients), [200]);
    assert_eq!(super::paths(&gate.origin, 1), ["/urgent", "/0"]);
}

#[test]
fn deadline_of_the_caller_shortens_the_wait() {
    let origin = Origin::hello();
    let rule = |header: &str| {
        format!(
            "{{ name: {header}, match: {{ header: {{ {header}: \"*\" }} }}, key: [], limit: 60/h, burst: 1, \
             throttle: {{ wait: {{ max: 1h, deadline: {{ header: {header} }} }} }} }}"
        )
    };
    let headers = ["x-request-timeout", "x-envoy-expected-rq-timeout-ms", "grpc-timeout"];
    let rules = headers.map(rule);
    let weir = start(&origin, &rules.each_ref().map(|rule| &**rule));
    for (header, value) in headers.into_iter().zip(["2.5", "2500", "2500m"]) {
        let request = Request::get("/").header(header, value);
        assert_eq!(fetch(weir.address(), &request).status, 200);
        assert_eq!(fetch(weir.address(), &request).status, 429, "{header}");
        assert_eq!(rejections(&weir, header, "no_time"), 1.0, "{header}");
    }
    let long = Request::get("/").header("x-request-timeout", "3000");
    let _waiting = send_all(&weir, "x-request-timeout", &[long]);
}

#[test]
fn grpc_call_is_rejected_with_resource_exhausted() {
    let origin = Origin::hello();
    let rule = "{ name: q, key: [], limit: 1/h, burst: 1, \
                throttle: { wait: { max: 1h, deadline: { header: grpc-timeout } } } }";
    let weir = start(&origin, &[rule]);
    assert_eq!(get(weir.address(), "/").status, 200);
    let mut client = H2Client::connect(weir.address());
    let rejected = client.fetch(client.call().header("grpc-timeout", "1S"));
    assert_eq!((rejected.status.as_u16(), rejected.header("grpc-status")), (200, "8"));
    assert_eq!(rejections(&weir, "q", "no_time"), 1.0);
}

#[test]
fn request_that_costs_more_than_the_limit_does_not_wait() {
    let origin = Origin::hello();
    let rule = "{ name: q, key: [], limit: 5/s, cost: { header: x-cost }, throttle: { wait: { max: 1h } } }";
    let weir = start(&origin, &[rule]);
    let rejected = fetch(weir.address(), &Request::get("/").header("x-cost", "6"));
    assert_eq!(rejected.status, 429);
    assert_eq!(rejections(&weir, "q", "no_time"), 1.0);
}

#[test]
fn request_whose_turn_in_the_pace_cannot_come_is_rejected_at_once() {
    for pace in ["even", "pid"] {
        let origin = Origin::hello();
        let rule = format!(
            "{{ name: q, key: [], limit: 60/m, burst: 60, throttle: {{ wait: {{ max: 3s }}, pace: {pace} }} }}"
        );
        let weir = start(&origin, &[&rule]);
        let clients: Vec<Client> = numbered(40).iter().map(|request| send(&weir, request)).collect();
        until_true("all decisions", || {
            let decided = decisions(&weir, "q", "limited")
                + decisions(&weir, "q", "allowed")
                + decisions(&weir, "q", "delayed");
            decided + waiting(&weir, "q") >= 40.0
        });
        assert!(waiting(&weir, "q") <= 20.0, "{pace}: {}", waiting(&weir, "q"));
        let admitted = statuses(clients).iter().filter(|status| **status == 200).count();
        assert!((2..=20).contains(&admitted), "{pace}: {admitted}");
        // None of them was held for the whole time and rejected then.
        assert_eq!(rejections(&weir, "q", "expired"), 0.0, "{pace}");
        assert_eq!(rejections(&weir, "q", "no_time"), (40 - admitted) as f64, "{pace}");
    }
}
