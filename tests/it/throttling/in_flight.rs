//! Concurrency limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::{config_with_rules, decisions, start_with_rules, statuses};
use crate::support::{AfterResponse, Client, Origin, Request, Weir, get, run_concurrently, wait};

/// Returns an upstream that holds `/slow` until the flag is set, and responds to all other requests at once.
fn holding_upstream() -> (Origin, Arc<AtomicBool>) {
    let go = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&go);
    let origin = Origin::start(move |turn| {
        if turn.head.word(1) == "/slow" {
            wait::until_true("the test's signal", || gate.load(Ordering::SeqCst));
        }
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        Ok(AfterResponse::Keep)
    });
    (origin, go)
}

/// Sends a request for `/slow`, and returns its client once the request has reached the upstream.
fn start_slow_request(weir: &Weir, origin: &Origin) -> Client {
    let before = origin.requests().len();
    let client = Client::connect(weir.address());
    client.send(Request::get("/slow").to_bytes());
    wait::until_true("the request", || origin.requests().len() > before);
    client
}

fn until_permit_available(weir: &Weir) {
    wait::until_true("a permit", || get(weir.address(), "/").status == 200);
}

#[test]
fn requests_over_the_limit_are_rejected() {
    let (origin, go) = holding_upstream();
    let weir = start_with_rules(&origin, &["{ name: a, key: [], in_flight: 2 }"]);
    let mut first = start_slow_request(&weir, &origin);
    let mut second = start_slow_request(&weir, &origin);
    let refused = get(weir.address(), "/");
    assert_eq!((refused.status, refused.numeric_header("retry-after")), (429, 1));
    assert_eq!(refused.head.get("x-ratelimit-limit"), None);
    go.store(true, Ordering::SeqCst);
    assert_eq!([first.read_response("GET").status, second.read_response("GET").status], [200, 200]);
    until_permit_available(&weir);
    assert_eq!(decisions(&weir, "a", "limited"), 1.0);
}

#[test]
fn client_disconnect_returns_the_permit() {
    let (origin, _go) = holding_upstream();
    let weir = start_with_rules(&origin, &["{ name: a, key: [], in_flight: 1 }"]);
    for _ in 0..3 {
        let client = start_slow_request(&weir, &origin);
        assert_eq!(statuses(&weir, 1), [429]);
        drop(client);
        until_permit_available(&weir);
    }
}

#[test]
fn permit_is_held_until_the_end_of_the_response() {
    let go = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&go);
    let origin = Origin::start(move |turn| {
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nha")?;
        wait::until_true("the test's signal", || gate.load(Ordering::SeqCst));
        turn.send("lf")?;
        Ok(AfterResponse::Keep)
    });
    let weir = start_with_rules(&origin, &["{ name: a, key: [], in_flight: 1 }"]);
    let mut client = Client::connect(weir.address());
    client.send(Request::get("/").to_bytes());
    assert_eq!(client.wire.read_head().unwrap().unwrap().word(1), "200");
    assert_eq!(statuses(&weir, 1), [429]);
    go.store(true, Ordering::SeqCst);
    until_permit_available(&weir);
}

#[test]
fn upstream_failure_returns_the_permit() {
    let origin = Origin::start(|turn| {
        match turn.head.word(1) {
            "/cut" => turn.send("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")?,
            "/close" => {}
            _ => turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")?,
        }
        Ok(AfterResponse::Close)
    });
    let weir = start_with_rules(&origin, &["{ name: a, key: [], in_flight: 1 }"]);
    for path in ["/cut", "/close"] {
        let mut client = Client::connect(weir.address());
        let _ = client.try_fetch(&Request::get(path));
        until_permit_available(&weir);
    }
}

#[test]
fn permits_and_units_are_taken_both_or_neither() {
    let (origin, go) = holding_upstream();
    let weir = start_with_rules(&origin, &["{ name: a, key: [], in_flight: 1, limit: 4/d }"]);
    let mut client = start_slow_request(&weir, &origin);
    // Rejected because there is no permit, and therefore not charged.
    assert_eq!(statuses(&weir, 5), [429; 5]);
    go.store(true, Ordering::SeqCst);
    assert_eq!(client.read_response("GET").numeric_header("x-ratelimit-remaining"), 3);
    wait::until_true("the permit", || weir.metric("weir_requests_in_flight", &[]) == 0.0);
    assert_eq!(statuses(&weir, 5), [200, 200, 200, 429, 429]);
}

#[test]
fn reload_retains_permits_and_applies_a_new_limit_at_once() {
    let (origin, go) = holding_upstream();
    let rule = |most: u32| format!("{{ name: a, key: [], in_flight: {most} }}");
    let weir = start_with_rules(&origin, &[&rule(2)]);
    let mut clients = vec![start_slow_request(&weir, &origin), start_slow_request(&weir, &origin)];
    weir.reload(&config_with_rules(&origin, &[&rule(3)]));
    clients.push(start_slow_request(&weir, &origin));
    assert_eq!(statuses(&weir, 1), [429]);
    weir.reload(&config_with_rules(&origin, &[&rule(1)]));
    go.store(true, Ordering::SeqCst);
    clients.iter_mut().for_each(|client| assert_eq!(client.read_response("GET").status, 200));
    go.store(false, Ordering::SeqCst);
    until_permit_available(&weir);
    let _one = start_slow_request(&weir, &origin);
    assert_eq!(statuses(&weir, 1), [429]);
}

#[test]
fn rule_removed_and_restored_retains_its_permits() {
    let (origin, go) = holding_upstream();
    let with = |rules: &[&str]| config_with_rules(&origin, rules);
    let rule = "{ name: a, key: [], in_flight: 1 }";
    let weir = start_with_rules(&origin, &[rule]);
    let mut client = start_slow_request(&weir, &origin);
    for rules in [&["{ name: b, key: [], limit: 9/s }"][..], &["{ name: c, key: [], limit: 9/s }"], &[rule]] {
        weir.reload(&with(rules));
    }
    go.store(true, Ordering::SeqCst);
    assert_eq!(client.read_response("GET").status, 200);
    go.store(false, Ordering::SeqCst);
    until_permit_available(&weir);
    let _one = start_slow_request(&weir, &origin);
    assert_eq!(statuses(&weir, 2), [429, 429]);
}

#[test]
fn upstream_concurrency_never_exceeds_the_limit() {
    const MAX_IN_FLIGHT: usize = 3;
    let (now, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = (Arc::clone(&now), Arc::clone(&peak));
    let origin = Origin::start(move |turn| {
        let under_way = seen.0.fetch_add(1, Ordering::SeqCst) + 1;
        seen.1.fetch_max(under_way, Ordering::SeqCst);
        wait::pause(Duration::from_millis(5));
        seen.0.fetch_sub(1, Ordering::SeqCst);
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        Ok(AfterResponse::Keep)
    });
    let rules = config_with_rules(&origin, &[&format!("{{ name: a, key: [], in_flight: {MAX_IN_FLIGHT} }}")]);
    let weir = Weir::start(&format!("workers: 4\n{rules}").replace("workers: 1\n", ""));
    let address = weir.address();
    let passed: usize = run_concurrently(12, |_| {
        let mut client = Client::connect(address);
        (0..25).filter(|_| client.get("/").status == 200).count()
    })
    .into_iter()
    .sum();
    assert!(
        passed >= MAX_IN_FLIGHT && peak.load(Ordering::SeqCst) <= MAX_IN_FLIGHT,
        "{passed} passed, peak {peak:?}"
    );
    until_permit_available(&weir);
}
