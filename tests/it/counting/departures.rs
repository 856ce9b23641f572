//! Clients that leave before the response of a request whose cost is in the response.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::start_with_rule;
use crate::support::h2::H2Client;
use crate::support::{AfterResponse, Client, Origin, Request, Weir, get, wait};

const RULE: &str = "{ name: tokens, key: [], limit: 150/d, algorithm: fixed_window, cost: { response_header: x-tokens, estimate: 1, max: 1000 } }";

/// An upstream that responds with a cost of 100 once the test lets it.
fn held_upstream() -> (Origin, Arc<AtomicBool>) {
    let go = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&go);
    let origin = Origin::start(move |turn| {
        wait::until_true("the test's signal", || gate.load(Ordering::SeqCst));
        turn.send("HTTP/1.1 200 OK\r\nx-tokens: 100\r\ncontent-length: 0\r\n\r\n")?;
        Ok(AfterResponse::Keep)
    });
    (origin, go)
}

/// Waits until the limit has no units left, after `go` has let the upstream respond.
fn assert_charged(weir: &Weir, go: &AtomicBool) {
    go.store(true, Ordering::SeqCst);
    wait::until_true("the end of the requests", || weir.metric("weir_requests_in_flight", &[]) == 0.0);
    assert_eq!(get(weir.address(), "/").status, 429);
}

#[test]
fn http1_client_that_leaves_pays_what_the_response_states() {
    let (origin, go) = held_upstream();
    let weir = start_with_rule(&origin, RULE);
    for count in 1..=2 {
        let client = Client::connect(weir.address());
        client.send(Request::get("/").to_bytes());
        wait::until_true("the request", || origin.requests().len() == count);
        drop(client);
    }
    assert_charged(&weir, &go);
}

#[test]
fn stream_that_is_reset_pays_what_the_response_states() {
    let (origin, go) = held_upstream();
    let weir = start_with_rule(&origin, RULE);
    let mut client = H2Client::connect(weir.address());
    for count in 1..=2 {
        let (response, _) = client.send_request(client.request("GET", "/"), true);
        wait::until_true("the request", || origin.requests().len() == count);
        drop(response);
    }
    assert_charged(&weir, &go);
}

#[test]
fn request_that_costs_less_than_its_estimate_is_refunded_after_its_client_has_left() {
    let (origin, go) = held_upstream();
    let weir = start_with_rule(
        &origin,
        "{ name: tokens, key: [], limit: 250/d, algorithm: fixed_window, cost: { response_header: x-tokens, estimate: 150, max: 1000 } }",
    );
    let client = Client::connect(weir.address());
    client.send(Request::get("/").to_bytes());
    wait::until_true("the request", || origin.requests().len() == 1);
    drop(client);
    go.store(true, Ordering::SeqCst);
    wait::until_true("the end of the request", || weir.metric("weir_requests_in_flight", &[]) == 0.0);
    assert_eq!(get(weir.address(), "/").status, 200, "100 units are used, not 150");
}
