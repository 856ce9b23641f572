//! Concurrency limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::{decisions, rules_for, statuses, with_rules};
use crate::support::{Client, Origin, Request, Then, Weir, at_once, get, wait};

/// Returns an upstream that holds `/slow` until the flag is set, and responds to all other requests at once.
fn patient() -> (Origin, Arc<AtomicBool>) {
    let go = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&go);
    let origin = Origin::start(move |turn| {
        if turn.head.word(1) == "/slow" {
            wait::until_true("the test's signal", || gate.load(Ordering::SeqCst));
        }
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        Ok(Then::Keep)
    });
    (origin, go)
}

/// Sends a request for `/slow`, and returns its client once the request has reached the upstream.
fn under_way(weir: &Weir, origin: &Origin) -> Client {
    let before = origin.seen().len();
    let client = Client::connect(weir.address());
    client.send(Request::get("/slow").bytes());
    wait::until_true("the request", || origin.seen().len() > before);
    client
}

fn until_free(weir: &Weir) {
    wait::until_true("a permit", || get(weir.address(), "/").status == 200);
}

#[test]
fn so_many_and_no_more() {
    let (origin, go) = patient();
    let weir = with_rules(&origin, &["{ name: a, key: [], in_flight: 2 }"]);
    let mut first = under_way(&weir, &origin);
    let mut second = under_way(&weir, &origin);
    let refused = get(weir.address(), "/");
    assert_eq!((refused.status, refused.number("retry-after")), (429, 1));
    assert_eq!(refused.head.get("x-ratelimit-limit"), None);
    go.store(true, Ordering::SeqCst);
    assert_eq!([first.answer("GET").status, second.answer("GET").status], [200, 200]);
    until_free(&weir);
    assert_eq!(decisions(&weir, "a", "limited"), 1.0);
}

#[test]
fn who_leaves_gives_its_permit_back() {
    let (origin, _go) = patient();
    let weir = with_rules(&origin, &["{ name: a, key: [], in_flight: 1 }"]);
    for _ in 0..3 {
        let client = under_way(&weir, &origin);
        assert_eq!(statuses(&weir, 1), [429]);
        drop(client);
        until_free(&weir);
    }
}

#[test]
fn a_permit_is_out_until_the_last_byte_of_the_answer() {
    let go = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&go);
    let origin = Origin::start(move |turn| {
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nha")?;
        wait::until_true("the test's signal", || gate.load(Ordering::SeqCst));
        turn.send("lf")?;
        Ok(Then::Keep)
    });
    let weir = with_rules(&origin, &["{ name: a, key: [], in_flight: 1 }"]);
    let mut client = Client::connect(weir.address());
    client.send(Request::get("/").bytes());
    assert_eq!(client.wire.read_head().unwrap().unwrap().word(1), "200");
    assert_eq!(statuses(&weir, 1), [429]);
    go.store(true, Ordering::SeqCst);
    until_free(&weir);
}

#[test]
fn a_broken_upstream_gives_its_permit_back() {
    let origin = Origin::start(|turn| {
        match turn.head.word(1) {
            "/cut" => turn.send("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")?,
            "/close" => {}
            _ => turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")?,
        }
        Ok(Then::Close)
    });
    let weir = with_rules(&origin, &["{ name: a, key: [], in_flight: 1 }"]);
    for path in ["/cut", "/close"] {
        let mut client = Client::connect(weir.address());
        let _ = client.try_ask(&Request::get(path));
        until_free(&weir);
    }
}

#[test]
fn permits_and_rates_are_taken_both_or_neither() {
    let (origin, go) = patient();
    let weir = with_rules(&origin, &["{ name: a, key: [], in_flight: 1, limit: 4/d }"]);
    let mut client = under_way(&weir, &origin);
    // Rejected because there is no permit, and therefore not charged.
    assert_eq!(statuses(&weir, 5), [429; 5]);
    go.store(true, Ordering::SeqCst);
    assert_eq!(client.answer("GET").number("x-ratelimit-remaining"), 3);
    wait::until_true("the permit", || weir.metric("weir_requests_in_flight", &[]) == 0.0);
    assert_eq!(statuses(&weir, 5), [200, 200, 200, 429, 429]);
}

#[test]
fn a_reload_keeps_permits_and_another_number_holds_at_once() {
    let (origin, go) = patient();
    let rule = |most: u32| format!("{{ name: a, key: [], in_flight: {most} }}");
    let weir = with_rules(&origin, &[&rule(2)]);
    let mut clients = vec![under_way(&weir, &origin), under_way(&weir, &origin)];
    weir.reload(&rules_for(&origin, &[&rule(3)]));
    clients.push(under_way(&weir, &origin));
    assert_eq!(statuses(&weir, 1), [429]);
    weir.reload(&rules_for(&origin, &[&rule(1)]));
    go.store(true, Ordering::SeqCst);
    clients.iter_mut().for_each(|client| assert_eq!(client.answer("GET").status, 200));
    go.store(false, Ordering::SeqCst);
    until_free(&weir);
    let _one = under_way(&weir, &origin);
    assert_eq!(statuses(&weir, 1), [429]);
}

#[test]
fn a_rule_that_goes_and_comes_back_has_no_permits_to_spare() {
    let (origin, go) = patient();
    let with = |rules: &[&str]| rules_for(&origin, rules);
    let rule = "{ name: a, key: [], in_flight: 1 }";
    let weir = with_rules(&origin, &[rule]);
    let mut client = under_way(&weir, &origin);
    for rules in [&["{ name: b, key: [], limit: 9/s }"][..], &["{ name: c, key: [], limit: 9/s }"], &[rule]] {
        weir.reload(&with(rules));
    }
    go.store(true, Ordering::SeqCst);
    assert_eq!(client.answer("GET").status, 200);
    go.store(false, Ordering::SeqCst);
    until_free(&weir);
    let _one = under_way(&weir, &origin);
    assert_eq!(statuses(&weir, 2), [429, 429]);
}

#[test]
fn the_upstream_never_sees_more_at_once() {
    const MOST: usize = 3;
    let (now, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = (Arc::clone(&now), Arc::clone(&peak));
    let origin = Origin::start(move |turn| {
        let under_way = seen.0.fetch_add(1, Ordering::SeqCst) + 1;
        seen.1.fetch_max(under_way, Ordering::SeqCst);
        wait::pause(Duration::from_millis(5));
        seen.0.fetch_sub(1, Ordering::SeqCst);
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        Ok(Then::Keep)
    });
    let rules = rules_for(&origin, &[&format!("{{ name: a, key: [], in_flight: {MOST} }}")]);
    let weir = Weir::start(&format!("workers: 4\n{rules}").replace("workers: 1\n", ""));
    let address = weir.address();
    let passed: usize = at_once(12, |_| {
        let mut client = Client::connect(address);
        (0..25).filter(|_| client.get("/").status == 200).count()
    })
    .into_iter()
    .sum();
    assert!(passed >= MOST && peak.load(Ordering::SeqCst) <= MOST, "{passed} passed, peak {peak:?}");
    until_free(&weir);
}
