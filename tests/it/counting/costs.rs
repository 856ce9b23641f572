//! Costs that the request or the response states.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{remaining, scripted_upstream, start_with_rule, statuses};
use crate::support::{AfterResponse, Client, Origin, Request, get, wait};

#[test]
fn request_header_cost_is_charged_per_key() {
    let origin = scripted_upstream();
    let weir = start_with_rule(
        &origin,
        "{ name: purchases, key: { header: x-account }, limit: 200/year, algorithm: fixed_window, cost: { header: x-amount } }",
    );
    let buy = |account: &str, amount: &str| {
        let request = Request::get("/200").header("x-account", account).header("x-amount", amount);
        Client::connect(weir.address()).fetch(&request).status
    };
    assert_eq!([buy("a", "150"), buy("a", "60"), buy("a", "50"), buy("a", "1")], [200, 429, 200, 429]);
    assert_eq!(buy("b", "200"), 200, "another account");
    assert_eq!(buy("c", "201"), 429, "more than the whole limit");
}

#[test]
fn response_header_cost_is_charged() {
    let origin = scripted_upstream();
    let weir = start_with_rule(
        &origin,
        "{ name: purchases, key: [], limit: 200/year, algorithm: fixed_window, cost: { response_header: x-amount } }",
    );
    let buy = |amount: u32| Request::get("/200").header("x-answer", &format!("x-amount: {amount}"));
    assert_eq!(remaining(&weir, &buy(150)), 50);
    assert_eq!(remaining(&weir, &buy(0)), 50);
    let answer = Client::connect(weir.address()).fetch(&buy(120));
    assert_eq!((answer.status, answer.numeric_header("x-ratelimit-remaining")), (200, 0), "beyond the limit");
    assert_eq!(answer.header("x-amount"), "120", "the header is forwarded to the client");
    assert_eq!(get(weir.address(), "/200").status, 429);
}

#[test]
fn header_cost_has_minimum_default_and_maximum() {
    let origin = scripted_upstream();
    let weir = start_with_rule(
        &origin,
        "{ name: a, key: [], limit: 1000/year, algorithm: fixed_window, cost: { header: x-cost, default: 5, max: 100 } }",
    );
    let cost = |value: &str| {
        let before = remaining(&weir, &Request::get("/200").header("x-cost", "1"));
        before - remaining(&weir, &Request::get("/200").header("x-cost", value))
    };
    let costs = ["0", "-7", "none", "7", "99999999999999999999"].map(cost);
    assert_eq!(costs, [1, 100, 100, 7, 100]);
    assert_eq!(cost(""), 5);
}

#[test]
fn fractional_cost_is_rounded_up_and_invalid_cost_exhausts_the_limit() {
    let origin = scripted_upstream();
    let weir = start_with_rule(
        &origin,
        "{ name: purchases, key: { header: x-account }, limit: 200/year, algorithm: fixed_window, cost: { response_header: x-amount, estimate: 50 } }",
    );
    let buy = |account: &str, amount: &str| {
        Request::get("/200").header("x-account", account).header("x-answer", &format!("x-amount: {amount}"))
    };
    let left = |account: &str, amount: &str| remaining(&weir, &buy(account, amount));
    assert_eq!([left("a", "49.99"), left("a", "49.00"), left("a", "0.01")], [150, 101, 100]);
    assert_eq!(left("b", "a fortune"), 0);
    assert_eq!(left("c", "-5"), 0);
}

#[test]
fn concurrent_requests_reserve_their_estimates() {
    let go = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&go);
    let origin = Origin::start(move |turn| {
        wait::until_true("the word to go", || gate.load(Ordering::SeqCst));
        turn.send("HTTP/1.1 200 OK\r\nx-amount: 49.99\r\ncontent-length: 0\r\n\r\n")?;
        Ok(AfterResponse::Keep)
    });
    let weir = start_with_rule(
        &origin,
        "{ name: a, key: [], limit: 200/year, algorithm: fixed_window, cost: { response_header: x-amount, estimate: 50 } }",
    );
    let mut clients: Vec<_> = (0..30).map(|_| Client::connect(weir.address())).collect();
    clients.iter().for_each(|client| client.send(Request::get("/").to_bytes()));
    let limited = || weir.metric("weir_decisions_total", &[("rule", "a"), ("outcome", "limited")]);
    wait::until_true("the other requests to be rejected", || limited() == 26.0);
    go.store(true, Ordering::SeqCst);
    let statuses: Vec<_> = clients.iter_mut().map(|client| client.read_response("GET").status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 4);
    assert_eq!(get(weir.address(), "/").status, 429);
}

#[test]
fn debt_from_a_response_cost_is_capped_at_one_refill() {
    let origin = scripted_upstream();
    let weir =
        start_with_rule(&origin, "{ name: a, key: [], limit: 10/h, cost: { response_header: x-amount } }");
    let told = Request::get("/200").header("x-answer", "x-amount: 99999999999");
    assert_eq!(remaining(&weir, &told), 0);
    let refused = get(weir.address(), "/200");
    assert_eq!(refused.status, 429);
    // An hour to pay the debt, and the time of one more unit.
    let wait = refused.numeric_header("retry-after");
    assert!((3600..=3600 + 360).contains(&wait), "{wait}");
}

#[test]
fn debt_from_upload_bytes_is_capped_at_one_refill() {
    let origin = scripted_upstream();
    let weir = start_with_rule(&origin, "{ name: a, key: [], limit: 10/h, cost: { request_bytes: 1KiB } }");
    let mut client = Client::connect(weir.address());
    client.send("POST /200 HTTP/1.1\r\nhost: test.local\r\ntransfer-encoding: chunked\r\n\r\n");
    for _ in 0..500 {
        client.send(format!("400\r\n{}\r\n", "x".repeat(1024)));
    }
    client.send("0\r\n\r\n");
    assert_eq!(client.read_response("POST").status, 200);
    let wait = get(weir.address(), "/200").numeric_header("retry-after");
    assert!((3600 - 60..=3600 + 360).contains(&wait), "{wait}");
}

#[test]
fn debt_up_to_the_maximum_cost_is_charged_in_full() {
    let origin = scripted_upstream();
    let weir = start_with_rule(
        &origin,
        "{ name: a, key: [], limit: 10/h, cost: { response_header: x-amount, max: 100 } }",
    );
    assert_eq!(remaining(&weir, &Request::get("/200").header("x-answer", "x-amount: 5000")), 0);
    let wait = get(weir.address(), "/200").numeric_header("retry-after");
    assert!((9 * 3600..=10 * 3600).contains(&wait), "{wait}");
}

#[test]
fn an_upload_is_charged_by_its_bytes() {
    let origin = scripted_upstream();
    let weir = start_with_rule(
        &origin,
        "{ name: a, key: [], limit: 100/year, algorithm: fixed_window, cost: { request_bytes: 1KiB } }",
    );
    assert_eq!(remaining(&weir, &Request::post("/200", "x")), 99);
    assert_eq!(remaining(&weir, &Request::post("/200", vec![b'x'; 10 * 1024])), 89);
    assert_eq!(remaining(&weir, &Request::get("/200")), 88);
    let refused = Client::connect(weir.address()).fetch(&Request::post("/200", vec![b'x'; 90 * 1024]));
    assert_eq!(refused.status, 429, "the cost on arrival is too large");
}

#[test]
fn a_chunked_upload_is_charged_when_it_has_been_read() {
    let origin = scripted_upstream();
    let weir = start_with_rule(
        &origin,
        "{ name: a, key: [], limit: 100/year, algorithm: fixed_window, cost: { request_bytes: 1KiB } }",
    );
    let mut client = Client::connect(weir.address());
    client.send("POST /200 HTTP/1.1\r\nhost: test.local\r\ntransfer-encoding: chunked\r\n\r\n");
    for _ in 0..20 {
        client.send(format!("400\r\n{}\r\n", "x".repeat(1024)));
    }
    client.send("0\r\n\r\n");
    let answer = client.read_response("POST");
    assert_eq!((answer.status, answer.numeric_header("x-ratelimit-remaining")), (200, 80));
}

#[test]
fn aborted_chunked_upload_is_charged_for_received_bytes() {
    let origin = scripted_upstream();
    let weir = start_with_rule(
        &origin,
        "{ name: a, key: [], limit: 100/year, algorithm: fixed_window, cost: { request_bytes: 1KiB } }",
    );
    let client = Client::connect(weir.address());
    client.send("POST /200 HTTP/1.1\r\nhost: test.local\r\ntransfer-encoding: chunked\r\n\r\n");
    for _ in 0..10 {
        client.send(format!("400\r\n{}\r\n", "x".repeat(1024)));
    }
    origin.until_request("ten kibibytes", |seen| seen.body.length == 10 * 1024);
    drop(client);
    wait::until_true("the end of the request", || weir.metric("weir_requests_in_flight", &[]) == 0.0);
    assert_eq!(remaining(&weir, &Request::get("/200")), 89);
}

#[test]
fn a_download_is_charged_by_its_bytes() {
    let origin = Origin::responding_with(format!(
        "HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n{}",
        "x".repeat(5000)
    ));
    let weir = start_with_rule(
        &origin,
        "{ name: a, key: [], limit: 10/year, algorithm: fixed_window, cost: { response_bytes: 1KiB } }",
    );
    let ask = || Client::connect(weir.address()).get("/").status;
    assert_eq!(ask(), 200);
    wait::until_true("the end of the request", || weir.metric("weir_requests_in_flight", &[]) == 0.0);
    assert_eq!(ask(), 200);
    wait::until_true("the end of the request", || weir.metric("weir_requests_in_flight", &[]) == 0.0);
    assert_eq!(ask(), 429);
}

#[test]
fn estimate_is_reserved_until_the_response() {
    let origin = scripted_upstream();
    let weir = start_with_rule(
        &origin,
        "{ name: a, key: [], limit: 100/year, algorithm: fixed_window, cost: { response_header: x-tokens, estimate: 60 } }",
    );
    let tokens = |header: &str| remaining(&weir, &Request::get("/200").header("x-answer", header));
    assert_eq!(tokens("x-tokens: 30"), 70);
    assert_eq!(tokens("x-tokens: 20"), 50);
    assert_eq!(statuses(&weir, &["/200"]), [429], "fewer units are left than the estimate");
}
