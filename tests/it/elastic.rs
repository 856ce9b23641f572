//! Elastic limits: they grow while the upstream has headroom.
//!
//! The controller is slow, so these tests wait for the state that the admin port reports and not for a fixed time.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crate::support::origin::AfterResponse;
use crate::support::{Client, Origin, Request, Weir, config, run_concurrently, wait};

/// A base limit of 20 per day that grows up to 60. Only `/counted` is counted.
const RULES: &str = "rules:
  - name: per-key
    match: { path: /counted }
    key: { header: x-key }
    limit: 20/d
    algorithm: fixed_window
    throttle: elastic 3x
";

fn start_elastic(origin: &Origin, signal: &str) -> Weir {
    Weir::start(&config(origin.address(), &format!("elastic: {{ signals: {signal} }}\n{RULES}")))
}

fn factor(weir: &Weir) -> f64 {
    weir.admin_json("/limits")["rules"][0]["factor"].as_f64().unwrap_or(1.0)
}

/// Returns how many of 80 requests with this key are admitted.
fn count_admitted(weir: &Weir, key: &str) -> usize {
    let mut client = Client::connect(weir.address());
    let statuses: Vec<_> =
        (0..80).map(|_| client.fetch(&Request::get("/counted").header("x-key", key)).status).collect();
    assert!(statuses.iter().all(|status| matches!(status, 200 | 429)), "{statuses:?}");
    statuses.iter().filter(|status| **status == 200).count()
}

#[test]
fn limit_follows_the_reported_upstream_utilization() {
    let percent = Arc::new(AtomicU32::new(10));
    let reported = Arc::clone(&percent);
    let origin = Origin::start(move |turn| {
        turn.body()?;
        let utilization = f64::from(reported.load(Ordering::SeqCst)) / 100.0;
        turn.send(format!(
            "HTTP/1.1 200 OK\r\nendpoint-load-metrics: TEXT cpu_utilization={utilization}\r\ncontent-length: 0\r\n\r\n"
        ))?;
        Ok(AfterResponse::Keep)
    });
    let weir = start_elastic(&origin, "utilization");
    let mut client = Client::connect(weir.address());
    wait::until_true("the limit to grow", || {
        assert_eq!(client.get("/free").status, 200);
        factor(&weir) >= 1.6
    });
    let grown = count_admitted(&weir, "one");
    assert!((31..=60).contains(&grown), "{grown}");
    let shown = weir.admin_json("/limits");
    assert_eq!(shown["elastic"]["binding"], "utilization", "{shown:#}");
    assert_eq!(shown["elastic"]["signals"]["utilization"]["value"], 0.1, "{shown:#}");

    percent.store(95, Ordering::SeqCst);
    wait::until_true("the limit to shrink", || {
        assert_eq!(client.get("/free").status, 200);
        factor(&weir) <= 1.0
    });
    assert_eq!(count_admitted(&weir, "two"), 20, "exactly the base limit");
    assert_eq!(count_admitted(&weir, "one"), 0, "this key has already used more than the base limit");
    let answer = client.get("/free");
    assert_eq!(
        answer.header("endpoint-load-metrics"),
        "TEXT cpu_utilization=0.95",
        "load reports are forwarded to load balancers downstream"
    );
}

#[test]
fn unresponsive_upstream_contracts_the_limit_to_its_base() {
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let held = Arc::clone(&gate);
    let origin = Origin::start(move |turn| {
        turn.body()?;
        if turn.head.word(1) == "/free/slow" {
            let (open, opened) = &*held;
            drop(opened.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
        }
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        Ok(AfterResponse::Keep)
    });
    let weir = start_elastic(&origin, "in_flight");
    wait::until_true("the limit to grow", || factor(&weir) >= 1.3);
    let contracted = AtomicBool::new(false);
    let statuses = run_concurrently(61, |index| {
        if index > 0 {
            return Client::connect(weir.address()).get("/free/slow").status;
        }
        wait::until_true("the limit to shrink", || factor(&weir) <= 1.0);
        contracted.store(true, Ordering::SeqCst);
        let passed = count_admitted(&weir, "one");
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        assert_eq!(passed, 20);
        200
    });
    assert!(
        contracted.load(Ordering::SeqCst) && statuses.iter().all(|status| *status == 200),
        "{statuses:?}"
    );
    wait::until_true("the limit to recover", || factor(&weir) > 1.0);
}

#[test]
fn headroom_is_tracked_only_while_a_rule_is_elastic() {
    let origin = Origin::hello();
    let hard = config(origin.address(), &RULES.replace("elastic 3x", "hard"));
    let stretchy = config(origin.address(), RULES);
    let weir = Weir::start(&hard);
    assert!(weir.admin_json("/limits")["elastic"].is_null());
    assert!(!weir.admin_get("/metrics").body.text().contains("weir_elastic"));
    assert_eq!(count_admitted(&weir, "one"), 20);

    weir.reload(&stretchy);
    wait::until_true("signals", || weir.admin_json("/limits")["elastic"]["signals"]["in_flight"].is_object());
    assert!(weir.metric("weir_elastic_factor", &[("rule", "per-key")]) >= 1.0);
    assert!(weir.metric("weir_elastic_signal_threshold", &[("signal", "in_flight")]) > 0.0);

    weir.reload(&hard);
    wait::until_true("no elastic state", || weir.admin_json("/limits")["elastic"].is_null());
    assert_eq!(count_admitted(&weir, "two"), 20);
}
