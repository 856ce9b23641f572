//! Classes of requests, which share the slots of an upstream.

use std::fmt::Display;
use std::sync::Arc;

use serde_json::Value;

use crate::adaptive_concurrency::{Capacity, start_upstream};
use crate::observe;
use crate::support::h2::H2Client;
use crate::support::{Client, Origin, Request, Response, Weir, fetch, run_concurrently, wait};

const CLASSES: &str = "
classes:
  - { name: checkout, match: { path: '/checkout/*' }, share: 50, key: [{ header: x-user }] }
  - { name: crawlers, match: { header: { user-agent: '~bot' } }, share: 5, sheddable: true }
";

fn text(upstream: impl Display, rest: &str) -> String {
    format!("listeners: 127.0.0.1:0\nadmin: 127.0.0.1:0\nupstream: {upstream}\n{CLASSES}{rest}")
}

fn start(upstream: impl Display, rest: &str) -> Weir {
    Weir::start(&text(upstream, rest))
}

/// Starts Weir in front of a service that holds every request, with this number of slots.
fn start_held(slots: u32, rest: &str) -> (Arc<Capacity>, Origin, Weir) {
    let capacity = Capacity::new(0);
    let origin = start_upstream(&capacity);
    let upstream = format!("{{ address: '{}', in_flight: {slots} }}", origin.address());
    let weir = start(&upstream, rest);
    (capacity, origin, weir)
}

fn crawler() -> Request {
    Request::get("/").header("user-agent", "searchbot/1")
}

fn count(weir: &Weir, class: &str, outcome: &str) -> f64 {
    let labels = [("upstream", "upstream"), ("class", class), ("outcome", outcome)];
    weir.metric("weir_class_requests_total", &labels)
}

fn gauge(weir: &Weir, family: &str, class: &str) -> f64 {
    weir.metric(family, &[("upstream", "upstream"), ("class", class)])
}

/// Runs `observe` while the service holds as many requests of crawlers as there are slots. Afterwards it serves all.
fn with_slots_taken<T>(capacity: &Capacity, weir: &Weir, slots: u32, observe: impl FnOnce() -> T) -> T {
    capacity.set(0);
    std::thread::scope(|scope| {
        for _ in 0..slots {
            scope.spawn(|| fetch(weir.address(), &crawler()));
        }
        let taken = || gauge(weir, "weir_class_in_flight", "crawlers") >= f64::from(slots);
        wait::until_true("the slots to be taken", taken);
        let observed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(observe));
        capacity.set(100);
        observed.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn sheddable_request_that_waits_too_long_is_rejected_and_not_charged() {
    let rules = "rules: [{ name: hourly, key: client_ip, limit: 100/h }]\n";
    let (capacity, _origin, weir) = start_held(2, rules);
    let rejected = with_slots_taken(&capacity, &weir, 2, || fetch(weir.address(), &crawler()));
    assert_eq!((rejected.status, rejected.header("retry-after")), (503, "1"));
    assert_eq!(rejected.header("x-envoy-overloaded"), "true");
    assert_eq!(count(&weir, "crawlers", "shed"), 1.0);
    assert!(gauge(&weir, "weir_class_shed_seconds", "crawlers") >= 0.0);

    let next = fetch(weir.address(), &Request::get("/checkout/a"));
    assert_eq!((next.status, next.header("x-ratelimit-remaining")), (200, "97"), "two were served");
    let notices = observe::notices(&weir);
    assert!(notices[0].starts_with("Requests of class crawlers are rejected"), "{notices:?}");
}

#[test]
fn shed_request_is_refunded_once_beside_a_rate_limit_service() {
    // Nothing listens there, so that the rule admits every request.
    let (_socket, nowhere) = crate::support::origin::refusing_address();
    let rules = format!(
        "rules:\n  - {{ name: hourly, key: client_ip, limit: 100/h }}\n  - {{ name: other, scope: {{ rls: '{nowhere}', \
         domain: a, on_error: allow }} }}\n"
    );
    let (capacity, _origin, weir) = start_held(1, &rules);
    let rejected = with_slots_taken(&capacity, &weir, 1, || fetch(weir.address(), &crawler()));
    assert_eq!(rejected.status, 503);
    let next = fetch(weir.address(), &Request::get("/checkout/a"));
    assert_eq!((next.status, next.header("x-ratelimit-remaining")), (200, "98"));
}

#[test]
fn grpc_call_waits_no_longer_than_its_deadline() {
    let (capacity, _origin, weir) = start_held(1, "rules: []\n");
    with_slots_taken(&capacity, &weir, 1, || {
        let mut client = H2Client::connect(weir.address());
        let call = client.call().header("grpc-timeout", "1m");
        let response = client.fetch(call);
        assert_ne!(response.header("grpc-status"), "0");
    });
    assert_eq!((count(&weir, "default", "shed"), count(&weir, "default", "abandoned")), (0.0, 1.0));
    assert_eq!(gauge(&weir, "weir_class_shed_seconds", "default"), 0.0);
}

#[test]
fn critical_request_waits_for_a_slot() {
    let (capacity, _origin, weir) = start_held(1, "rules: []\n");
    // On a busy machine the wait may end before the slot is free.
    wait::until_true("a request to wait and be served", || {
        let waiting = with_slots_taken(&capacity, &weir, 1, || {
            let address = weir.address();
            let waiting = std::thread::spawn(move || fetch(address, &Request::get("/checkout/a")).status);
            wait::until_true("the request to wait", || {
                gauge(&weir, "weir_class_waiting", "checkout") == 1.0 || waiting.is_finished()
            });
            waiting
        });
        waiting.join().unwrap() == 200
    });
    assert!(count(&weir, "checkout", "waited") >= 1.0);
}

#[test]
fn client_that_leaves_no_longer_waits() {
    let (capacity, _origin, weir) = start_held(1, "rules: []\n");
    wait::until_true("a request to be abandoned while it waits", || {
        with_slots_taken(&capacity, &weir, 1, || {
            let client = Client::connect(weir.address());
            client.send(Request::get("/checkout/a").to_bytes());
            wait::until_true("the request to wait or end", || {
                gauge(&weir, "weir_class_waiting", "checkout") == 1.0
                    || count(&weir, "checkout", "shed") > 0.0
            });
            drop(client);
            wait::until_true("its place to be free", || {
                gauge(&weir, "weir_class_waiting", "checkout") == 0.0
            });
        });
        count(&weir, "checkout", "abandoned") >= 1.0
    });
}

#[test]
fn critical_requests_are_served_beside_a_flood_of_sheddable_ones() {
    let capacity = Capacity::new(4);
    let origin = start_upstream(&capacity);
    let weir = start(origin.address(), "rules: []\n");
    let served = |responses: Vec<Response>| {
        let all = responses.len() as f64;
        responses.iter().filter(|response| response.status == 200).count() as f64 / all
    };
    let (mut checkouts, mut crawlers) = (0.0, 1.0);
    wait::until_true("crawlers to be shed", || {
        std::thread::scope(|scope| {
            let flood = scope.spawn(|| served(run_concurrently(64, |_| fetch(weir.address(), &crawler()))));
            let critical = (0..8).map(|user| {
                fetch(weir.address(), &Request::get("/checkout/a").header("x-user", &user.to_string()))
            });
            checkouts = served(critical.collect());
            crawlers = flood.join().unwrap();
        });
        count(&weir, "crawlers", "shed") > 0.0 && crawlers < 1.0
    });
    assert!(checkouts > crawlers, "{checkouts} and {crawlers}");
    let clusters = weir.admin_json("/clusters?format=json");
    let concurrency = &clusters["cluster_statuses"][0]["weir_concurrency"];
    let names: Vec<_> =
        concurrency["classes"].as_array().unwrap().iter().map(|class| &class["name"]).collect();
    assert_eq!(names, ["checkout", "crawlers", "default"]);
    assert!(concurrency["min_latency_ms"].as_f64().unwrap() > 5.0, "{concurrency}");
}

/// Returns a header of the request as the upstream has received it.
fn received(weir: &Weir, request: &Request, header: &str) -> String {
    let echoed = fetch(weir.address(), request).body.text();
    let line = echoed.lines().find_map(|line| line.strip_prefix(header)?.strip_prefix(": "));
    line.unwrap_or_default().to_owned()
}

#[test]
fn class_that_a_trusted_peer_names_travels_upstream() {
    let weir = start("echo", "client_ip: { trusted_proxies: 127.0.0.1 }\nrules: []\n");
    let class = |request: Request| received(&weir, &request, "x-weir-criticality");
    assert_eq!(class(crawler().header("x-weir-criticality", "checkout")), "checkout");
    assert_eq!(class(crawler()), "crawlers");
    assert_eq!(class(Request::get("/")), "default");
    assert_eq!(count(&weir, "checkout", "admitted"), 1.0);

    assert_eq!(class(crawler().header("x-weir-criticality", "admin")), "crawlers");
    assert_eq!(weir.metric("weir_unknown_classes_total", &[]), 1.0);
}

#[test]
fn untrusted_peer_cannot_name_its_class() {
    let weir = start("echo", "rules: []\n");
    let request = crawler().header("x-weir-criticality", "checkout");
    assert_eq!(received(&weir, &request, "x-weir-criticality"), "crawlers");
    let request = crawler().header("x_weir_criticality", "checkout");
    assert_eq!(received(&weir, &request, "x-weir-criticality"), "crawlers");
    assert_eq!(count(&weir, "checkout", "admitted"), 0.0);
    assert_eq!(weir.metric("weir_untrusted_headers_removed_total", &[]), 1.0);

    let other = "criticality_header: x-class\nrules: []\n";
    let weir = start("echo", other);
    let request = crawler().header("x-class", "checkout");
    assert_eq!(received(&weir, &request, "x-class"), "crawlers");
}

#[test]
fn explanation_and_access_log_name_the_class() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let weir =
        start("echo", &format!("access_log: {{ path: '{}', format: json }}\nrules: []\n", log.display()));
    fetch(weir.address(), &crawler());
    let line =
        wait::until("the line", || std::fs::read_to_string(&log).ok().filter(|text| text.ends_with('\n')));
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["class"], "crawlers");
    let explained = weir.admin_json("/explain?path=/checkout/a&host=a.example");
    assert_eq!(explained["class"]["name"], "checkout");
    assert_eq!(
        (explained["class"]["share"].as_u64(), explained["class"]["of"].as_u64()),
        (Some(50), Some(100))
    );
}

#[test]
fn counts_of_a_class_survive_a_reload_that_changes_its_share() {
    let weir = start("echo", "rules: []\n");
    fetch(weir.address(), &crawler());
    weir.reload(&text("echo", "rules: []\n").replace("share: 5,", "share: 7,"));
    assert_eq!(count(&weir, "crawlers", "admitted"), 1.0);
    fetch(weir.address(), &crawler());
    assert_eq!(count(&weir, "crawlers", "admitted"), 2.0);
}
