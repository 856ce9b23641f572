//! Clients that disconnect while their requests wait, and graceful shutdown.

use super::{Gate, numbered, reset, send, send_all, start, statuses, until_waiting};
use crate::support::h2::H2Client;
use crate::support::{Origin, Request, get, wait};

const HOURLY: &str = "{ name: q, key: [], limit: 1/h, burst: 1, throttle: { wait: { max: 1h } } }";

#[test]
fn client_that_disconnects_leaves_the_queue_and_is_not_charged() {
    let origin = Origin::hello();
    let weir = start(&origin, &[HOURLY]);
    assert_eq!(get(weir.address(), "/").status, 200);
    for request in [Request::get("/"), Request::post("/", "a body"), Request::post("/", vec![b'x'; 20_000])] {
        let clients = send_all(&weir, "q", &[request]);
        drop(clients);
        until_waiting(&weir, "q", 0);
    }
    reset(&weir, "q");
    assert_eq!(get(weir.address(), "/after").status, 200);
    assert_eq!(origin.requests().len(), 2);
    wait::until_true("no delayed request", || weir.metric("weir_requests_delayed", &[]) == 0.0);
}

#[test]
fn body_that_was_read_while_the_request_waited_is_forwarded() {
    let origin = Origin::hello();
    let weir = start(&origin, &[HOURLY]);
    assert_eq!(get(weir.address(), "/").status, 200);
    let body = vec![b'x'; 100_000];
    let clients = send_all(&weir, "q", &[Request::post("/", body.clone())]);
    reset(&weir, "q");
    assert_eq!(statuses(clients), [200]);
    assert_eq!(origin.last_request().body.bytes, body);
}

#[test]
fn reset_stream_leaves_the_queue() {
    let origin = Origin::hello();
    let weir = start(&origin, &[HOURLY]);
    let mut client = H2Client::connect(weir.address());
    assert_eq!(client.fetch(client.request("GET", "/")).status, 200);
    let (response, _) = client.send_request(client.request("GET", "/waiting"), true);
    until_waiting(&weir, "q", 1);
    drop(response);
    until_waiting(&weir, "q", 0);
    let (response, _) = client.send_request(client.request("GET", "/after"), true);
    until_waiting(&weir, "q", 1);
    reset(&weir, "q");
    assert_eq!(client.read_response(response).unwrap().status, 200);
    assert_eq!(super::paths(&origin, 1), ["/after"]);
}

#[test]
fn first_request_that_leaves_makes_way_for_the_next() {
    let mut gate = Gate::start("throttle: { wait: { max: 1h } }");
    let mut clients = send_all(&gate.weir, "q", &numbered(3));
    drop(clients.remove(0));
    until_waiting(&gate.weir, "q", 2);
    gate.open();
    assert_eq!(statuses(clients), [200, 200]);
    assert_eq!(super::paths(&gate.origin, 1), ["/1", "/2"]);
}

#[test]
fn client_that_leaves_at_any_time_of_its_wait_returns_its_permit() {
    let origin = Origin::hello();
    // A request is charged up to 20 ms ahead of its time, so many of these clients leave when theirs is charged already.
    let queue = "{ name: q, key: [], limit: 20/s, burst: 1, throttle: { wait: { max: 10s } } }";
    let weir = start(&origin, &[queue, "{ name: permits, key: [], in_flight: 2 }"]);
    for elapsed in (0..60).step_by(3) {
        assert_eq!(get(weir.address(), "/").status, 200, "after {elapsed} ms");
        let client = send(&weir, &Request::get("/"));
        let sent = wait::now();
        wait::until_true("the client's time", || sent.elapsed().as_millis() >= elapsed);
        drop(client);
    }
    until_waiting(&weir, "q", 0);
    assert_eq!(get(weir.address(), "/").status, 200);
}

#[test]
fn waiting_requests_are_served_during_a_drain() {
    let origin = Origin::hello();
    let rule = "{ name: q, key: [], limit: 2/s, burst: 1, throttle: { wait: { max: 30s } } }";
    let mut weir = start(&origin, &[rule]);
    assert_eq!(get(weir.address(), "/").status, 200);
    let clients = send_all(&weir, "q", &numbered(2));
    weir.terminate();
    assert_eq!(statuses(clients), [200, 200]);
    assert!(weir.wait_exit().success());
}
