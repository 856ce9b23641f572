//! Retries that respect what the provider states, and that are charged to its limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{OK, origin_with_first, response};
use crate::support::{Client, Origin, Request, Weir, config_with, wait};

fn start(origin: &Origin, retries: &str, rule: &str) -> Weir {
    Weir::start(&config_with(
        crate::support::LISTENER,
        &format!("{{ address: '{}', retries: {retries} }}", origin.address()),
        &format!("rules:\n  - {rule}\n"),
    ))
}

const RETRIES: &str = "{ attempts: 2, retry_on: [429, 503], backoff: 1ms }";
const RULE: &str = "{ name: provider, limit: 10/d, feedback: true }";

fn busy() -> String {
    response("503 Busy", "")
}

fn payment() -> Request {
    Request::post("/charges", "amount=100")
}

#[test]
fn request_with_an_idempotency_key_is_retried_whatever_its_method_is() {
    let origin = origin_with_first(busy(), 1);
    let weir = start(&origin, RETRIES, RULE);
    let request = payment().header("idempotency-key", "\"8e03978e-40d5-43dd-bc93-6894a57f9324\"");
    assert_eq!(Client::connect(weir.address()).fetch(&request).status, 200);
    let seen = origin.requests();
    assert_eq!(seen.len(), 2);
    let keys: Vec<_> = seen.iter().map(|seen| seen.head.get("idempotency-key").unwrap().to_owned()).collect();
    assert_eq!(keys[0], keys[1], "the upstream detects the repetition");
    assert!(seen.iter().all(|seen| seen.body.length == 10));
}

#[test]
fn request_without_a_key_is_not_retried_nor_if_keys_are_turned_off() {
    let origin = origin_with_first(busy(), 10);
    let weir = start(&origin, RETRIES, RULE);
    assert_eq!(Client::connect(weir.address()).fetch(&payment()).status, 503);
    assert_eq!(Client::connect(weir.address()).fetch(&payment().header("idempotency-key", " ")).status, 503);
    let off = RETRIES.replace("attempts", "idempotency_key: false, attempts");
    let weir = start(&origin, &off, RULE);
    let request = payment().header("idempotency-key", "one");
    assert_eq!(Client::connect(weir.address()).fetch(&request).status, 503);
    assert_eq!(origin.requests().len(), 3);
}

#[test]
fn retry_is_charged_to_the_limit_that_follows_the_provider() {
    let origin = origin_with_first(busy(), 2);
    let weir = start(&origin, RETRIES, RULE);
    assert_eq!(Client::connect(weir.address()).get("/").status, 200);
    let shown = Client::connect(weir.address()).get("/");
    assert_eq!(shown.header("x-ratelimit-remaining"), "6", "three attempts, and this request: {shown:?}");
    let origin = origin_with_first(busy(), 2);
    let weir = start(&origin, RETRIES, "{ name: inbound, limit: 10/d }");
    assert_eq!(Client::connect(weir.address()).get("/").status, 200);
    let shown = Client::connect(weir.address()).get("/");
    assert_eq!(shown.header("x-ratelimit-remaining"), "8", "a limit of clients counts requests: {shown:?}");
}

#[test]
fn retry_waits_for_the_time_that_the_provider_states() {
    let origin = origin_with_first(response("429 Too Many Requests", "retry-after: 1\r\n"), 1);
    let weir = start(&origin, RETRIES, RULE);
    let before = wait::now();
    assert_eq!(Client::connect(weir.address()).get("/").status, 200);
    assert!(before.elapsed() >= Duration::from_secs(1), "not before the provider accepts it");
    assert_eq!(weir.metric("weir_feedback_delayed_retries_total", &[("rule", "provider")]), 1.0);
    // Also without a limit that follows.
    let origin = origin_with_first(response("503 Busy", "retry-after: 1\r\n"), 1);
    let weir = start(&origin, RETRIES, "{ name: inbound, limit: 10/d }");
    let before = wait::now();
    assert_eq!(Client::connect(weir.address()).get("/").status, 200);
    assert!(before.elapsed() >= Duration::from_secs(1));
}

#[test]
fn there_is_no_retry_if_the_stated_time_is_too_long() {
    for retries in [RETRIES.to_owned(), RETRIES.replace("attempts", "max_wait: 1m, attempts")] {
        let origin = origin_with_first(response("429 Too Many Requests", "retry-after: 20\r\n"), 10);
        let weir = start(&origin, &retries, RULE);
        let response = Client::connect(weir.address()).get("/");
        assert_eq!((response.status, response.header("retry-after")), (429, "20"), "{retries}");
        assert_eq!(origin.requests().len(), 1);
    }
}

#[test]
fn retry_waits_while_another_response_has_paused_the_limit() {
    let origin = Origin::start(|turn| {
        turn.body()?;
        let text = match (turn.head.word(1), turn.head.get("x-envoy-attempt-count")) {
            ("/last", _) => response("200 OK", "x-ratelimit-remaining: 0\r\nx-ratelimit-reset: 3\r\n"),
            ("/busy", Some("1")) => busy(),
            _ => OK.to_owned(),
        };
        turn.send(text)?;
        Ok(crate::support::AfterResponse::Keep)
    });
    let retries = RETRIES.replace("attempts", "attempt_count: true, attempts");
    let rule = "{ name: provider, limit: 10/s, feedback: true, throttle: delay 5s }";
    let weir = start(&origin, &retries, rule);
    let before = wait::now();
    assert_eq!(Client::connect(weir.address()).get("/last").status, 200);
    assert_eq!(Client::connect(weir.address()).get("/busy").status, 200);
    assert!(before.elapsed() >= Duration::from_secs(3), "not before the provider accepts it");
}

/// Returns an upstream that fails the first attempt of `/busy`, and holds its response to `/last` until the gate opens. That
/// response states that the quota is used up for `reset` seconds.
fn origin_that_pauses_later(gate: &Arc<AtomicBool>, reset: u32) -> Origin {
    let gate = Arc::clone(gate);
    Origin::start(move |turn| {
        turn.body()?;
        let text = match (turn.head.word(1), turn.head.get("x-envoy-attempt-count")) {
            ("/last", _) => {
                wait::until_true("the gate", || gate.load(Ordering::SeqCst));
                response("200 OK", &format!("x-ratelimit-remaining: 0\r\nx-ratelimit-reset: {reset}\r\n"))
            }
            ("/busy", Some("1")) => response("503 Busy", "retry-after: 1\r\n"),
            _ => OK.to_owned(),
        };
        turn.send(text)?;
        Ok(crate::support::AfterResponse::Keep)
    })
}

#[test]
fn pause_that_begins_while_a_retry_waits_is_respected() {
    for (reset, status, sent) in [(3, 200, 3), (60, 503, 2)] {
        let gate = Arc::default();
        let origin = origin_that_pauses_later(&gate, reset);
        let retries = RETRIES.replace("attempts", "attempt_count: true, attempts");
        // A quota that is used up pauses for longer than a period of the limit.
        let weir = start(&origin, &retries, "{ name: provider, limit: 10/s, feedback: true }");
        let [mut last, mut busy] = [(); 2].map(|()| Client::connect(weir.address()));
        last.send(Request::get("/last").to_bytes());
        wait::until_true("the last request of the quota", || origin.requests().len() == 1);
        busy.send(Request::get("/busy").to_bytes());
        let delayed = || weir.metric("weir_feedback_delayed_retries_total", &[("rule", "provider")]);
        wait::until_true("the retry to wait", || delayed() == 1.0);
        let before = wait::now();
        gate.store(true, Ordering::SeqCst);
        assert_eq!(last.read_response("GET").status, 200);
        assert_eq!(busy.read_response("GET").status, status, "{reset}");
        assert_eq!(origin.requests().len(), sent, "{reset}");
        assert!(
            status == 503 || before.elapsed() >= Duration::from_secs(3),
            "not before the quota has units"
        );
    }
}

#[test]
fn retry_that_waits_for_the_upstream_occupies_no_permit() {
    let origin = Origin::start(|turn| {
        turn.body()?;
        let text = match (turn.head.word(1), turn.head.get("x-envoy-attempt-count")) {
            ("/waits", Some("1")) => response("503 Busy", "retry-after: 2\r\n"),
            ("/busy", Some("1")) => busy(),
            _ => OK.to_owned(),
        };
        turn.send(text)?;
        Ok(crate::support::AfterResponse::Keep)
    });
    let retries = RETRIES.replace("attempts", "attempt_count: true, attempts");
    let retries = format!("{retries}, limits: {{ retries: 1 }}");
    let weir = start(&origin, &retries, "{ name: inbound, limit: 10/d }");
    let mut waits = Client::connect(weir.address());
    waits.send(Request::get("/waits").to_bytes());
    wait::until_true("the request that waits", || origin.requests().len() == 1);
    assert_eq!(Client::connect(weir.address()).get("/busy").status, 200);
    assert_eq!(origin.requests().len(), 3, "the first retry still waits");
    assert_eq!(waits.read_response("GET").status, 200);
}
