//! `in_flight: auto`: a concurrency limit that follows the latency of the upstream.
//!
//! The upstream of these tests serves as many requests at once as a test allows; all others queue. Each takes a few
//! milliseconds of its time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde_json::Value;

use crate::support::{
    AfterResponse, Client, LISTENER, Origin, Request, Weir, config, config_with, get, run_concurrently, wait,
};

/// Number of clients that send one request after the other.
const CLIENTS: usize = 48;

/// Number of requests that an upstream may serve at once, and is serving.
#[derive(Default)]
pub(crate) struct Capacity {
    servers: AtomicUsize,
    busy: Mutex<usize>,
    changed: Condvar,
    /// Requests that have arrived and not been responded to.
    in_flight: AtomicUsize,
    max_in_flight: AtomicUsize,
}

impl Capacity {
    pub(crate) fn new(servers: usize) -> Arc<Self> {
        Arc::new(Self { servers: AtomicUsize::new(servers), ..Self::default() })
    }

    pub(crate) fn set(&self, servers: usize) {
        self.servers.store(servers, Ordering::SeqCst);
        self.changed.notify_all();
    }

    /// Waits for a free server, and uses it for a while.
    fn serve(&self) {
        let in_flight = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.max_in_flight.fetch_max(in_flight, Ordering::SeqCst);
        let is_full = |busy: &mut usize| *busy >= self.servers.load(Ordering::SeqCst);
        let mut busy = self.changed.wait_while(self.busy.lock().unwrap(), is_full).unwrap();
        *busy += 1;
        drop(busy);
        wait::pause(Duration::from_millis(10));
        *self.busy.lock().unwrap() -= 1;
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        self.changed.notify_one();
    }
}

pub(crate) fn start_upstream(capacity: &Arc<Capacity>) -> Origin {
    let capacity = Arc::clone(capacity);
    Origin::start(move |turn| {
        capacity.serve();
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        Ok(AfterResponse::Keep)
    })
}

fn start_weir(origin: &Origin, rule: &str) -> Weir {
    Weir::start(&config(origin.address(), &format!("rules:\n  - {rule}\n")))
}

fn concurrency(weir: &Weir) -> Value {
    weir.admin_json("/limits")["rules"][0]["concurrency"].clone()
}

fn limit(weir: &Weir) -> u64 {
    concurrency(weir)["limit"].as_u64().unwrap()
}

/// Sends requests from [`CLIENTS`] clients while `observe` runs.
fn with_load<T>(weir: &Weir, observe: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = Client::connect(weir.address());
                while !done.load(Ordering::SeqCst) {
                    match client.get("/").status {
                        200 => {}
                        429 => wait::pause(Duration::from_millis(2)),
                        status => panic!("{status}"),
                    }
                }
            });
        }
        let observed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(observe));
        done.store(true, Ordering::SeqCst);
        observed.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn concurrency_limit_follows_the_capacity_of_the_upstream() {
    let capacity = Capacity::new(32);
    let origin = start_upstream(&capacity);
    let weir = start_weir(&origin, "{ name: a, in_flight: auto }");
    assert_eq!(limit(&weir), 4, "it starts at its minimum");
    with_load(&weir, || {
        wait::until_true("the limit to grow", || limit(&weir) >= 24);
        capacity.set(2);
        wait::until_true("the limit to shrink", || limit(&weir) <= 12);
        let rejected = weir.metric("weir_decisions_total", &[("rule", "a"), ("outcome", "limited")]);
        assert!(rejected > 0.0, "requests above the limit are rejected");
        assert!(weir.metric("weir_concurrency_limit", &[("rule", "a")]) >= 4.0);
        assert!(weir.metric("weir_concurrency_min_latency_seconds", &[("rule", "a")]) > 0.005);
        capacity.set(32);
        wait::until_true("the limit to grow again", || limit(&weir) >= 24);
    });
}

#[test]
fn requests_in_flight_never_exceed_the_maximum() {
    let capacity = Capacity::new(64);
    let origin = start_upstream(&capacity);
    let weir = start_weir(&origin, "{ name: a, in_flight: { auto: { min: 2, max: 8 } } }");
    with_load(&weir, || wait::until_true("the limit to grow", || limit(&weir) == 8));
    assert!(capacity.max_in_flight.load(Ordering::SeqCst) <= 8);
}

#[test]
fn cold_service_gets_as_many_requests_as_the_minimum_allows() {
    let go = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&go);
    let origin = Origin::start(move |turn| {
        wait::until_true("the test's signal", || gate.load(Ordering::SeqCst));
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        Ok(AfterResponse::Keep)
    });
    let weir = start_weir(&origin, "{ name: a, key: [], in_flight: { auto: { min: 3 } } }");
    let mut held: Vec<Client> = (1..=3)
        .map(|count| {
            let client = Client::connect(weir.address());
            client.send(Request::get("/").to_bytes());
            wait::until_true("the request", || origin.requests().len() == count);
            client
        })
        .collect();
    let rejected = get(weir.address(), "/");
    assert_eq!((rejected.status, rejected.numeric_header("retry-after")), (429, 1));
    let explained = weir.admin_json("/explain?method=GET&path=/");
    let shown = &explained["rules"][0]["limits"][0];
    assert_eq!(
        (&shown["limit"], &shown["used"], &shown["remaining"]),
        (&"3".into(), &3.into(), &0.into()),
        "{explained:#}"
    );
    go.store(true, Ordering::SeqCst);
    assert!(held.iter_mut().all(|client| client.read_response("GET").status == 200));
}

#[test]
fn each_key_has_a_limit_of_its_own() {
    let capacity = Capacity::new(64);
    let origin = start_upstream(&capacity);
    let weir =
        start_weir(&origin, "{ name: a, key: { header: x-key }, on_missing: shared, in_flight: auto }");
    with_load(&weir, || wait::until_true("the limit to grow", || limit(&weir) >= 16));
    let other = Request::get("/").header("x-key", "other");
    let statuses = run_concurrently(4, |_| Client::connect(weir.address()).fetch(&other).status);
    assert_eq!(statuses, [200; 4]);
    wait::until_true("the other key", || concurrency(&weir)["keys"] == 2);
    assert_eq!(limit(&weir), 4, "the lowest limit is shown");
}

#[test]
fn failures_lower_the_limit() {
    let capacity = Capacity::new(64);
    let fails = Arc::new(AtomicBool::new(false));
    let (served, failing) = (Arc::clone(&capacity), Arc::clone(&fails));
    let origin = Origin::start(move |turn| {
        served.serve();
        let status = if failing.load(Ordering::SeqCst) { "503 Busy" } else { "200 OK" };
        turn.send(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n"))?;
        Ok(AfterResponse::Keep)
    });
    let weir = start_weir(&origin, "{ name: a, in_flight: auto }");
    with_load(&weir, || wait::until_true("the limit to grow", || limit(&weir) >= 16));
    fails.store(true, Ordering::SeqCst);
    let mut client = Client::connect(weir.address());
    wait::until_true("the limit to fall to its minimum", || {
        assert_eq!(client.get("/").status, 503);
        limit(&weir) == 4
    });
}

/// Every first attempt fails, and every second one succeeds, so that clients see no failure.
#[test]
fn failures_that_retries_hide_lower_the_limit() {
    let capacity = Capacity::new(64);
    let fails = Arc::new(AtomicBool::new(false));
    let (served, failing) = (Arc::clone(&capacity), Arc::clone(&fails));
    let origin = Origin::start(move |turn| {
        served.serve();
        let is_first = turn.head.get("x-envoy-attempt-count") == Some("1");
        let status = if is_first && failing.load(Ordering::SeqCst) { "503 Busy" } else { "200 OK" };
        turn.send(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n"))?;
        Ok(AfterResponse::Keep)
    });
    let retries = "{ attempts: 1, retry_on: 503, backoff: 1ms, attempt_count: true }";
    let upstream = format!("{{ address: \"{}\", retries: {retries} }}", origin.address());
    let rules = "rules: [{ name: a, in_flight: auto }]";
    let weir = Weir::start(&config_with(LISTENER, &upstream, rules));
    with_load(&weir, || wait::until_true("the limit to grow", || limit(&weir) >= 16));
    fails.store(true, Ordering::SeqCst);
    let mut client = Client::connect(weir.address());
    wait::until_true("the limit to fall to its minimum", || {
        assert_eq!(client.get("/").status, 200);
        limit(&weir) == 4
    });
}

#[test]
fn reload_keeps_what_was_learned() {
    let capacity = Capacity::new(64);
    let origin = start_upstream(&capacity);
    let yaml =
        |auto: &str| config(origin.address(), &format!("rules:\n  - {{ name: a, in_flight: {auto} }}\n"));
    let weir = Weir::start(&yaml("auto"));
    with_load(&weir, || wait::until_true("the limit to grow", || limit(&weir) >= 16));
    // On a busy machine, the last responses of the load may lower it again, but not to 4, at which a new limit begins.
    weir.reload(&yaml("{ auto: { max: 500 } }"));
    let kept = limit(&weir);
    assert!(kept > 4, "{kept}");
    weir.reload(&yaml("{ auto: { max: 10 } }"));
    let bounded = limit(&weir);
    assert!((5..=10).contains(&bounded), "{bounded}: new bounds apply at once");
}
