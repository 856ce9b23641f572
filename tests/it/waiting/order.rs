//! The order in which waiting requests are admitted.

use super::{Gate, decisions, numbered, paths, reset, send_all, start, statuses, until_waiting, waiting};
use crate::support::{Origin, Request, get, wait};

#[test]
fn first_request_is_admitted_first() {
    let order = Gate::start("throttle: { wait: { max: 1h } }").order_of(&numbered(6));
    assert_eq!(order, ["/0", "/1", "/2", "/3", "/4", "/5"]);
}

#[test]
fn lifo_admits_the_last_request_first() {
    let order = Gate::start("throttle: { wait: { max: 1h, order: lifo } }").order_of(&numbered(4));
    assert_eq!(order, ["/3", "/2", "/1", "/0"]);
}

#[test]
fn fair_order_gives_flows_turns() {
    for order in ["{ fair: { header: x-tenant } }", "{ fair: [{ header: x-tenant }, method] }"] {
        let gate = Gate::start(&format!("throttle: {{ wait: {{ max: 1h, order: {order} }} }}"));
        let of = |tenant, path| Request::get(path).header("x-tenant", tenant);
        let many = ["/a0", "/a1", "/a2", "/a3"].map(|path| of("a", path));
        let few = ["/b0", "/b1"].map(|path| of("b", path));
        let order = gate.order_of(&[&many[..], &few[..]].concat());
        assert_eq!(order, ["/a0", "/b0", "/a1", "/b1", "/a2", "/a3"]);
    }
}

#[test]
fn fair_order_takes_a_part_of_a_key_in_words() {
    let gate = Gate::start("throttle: { wait: { max: 1h, order: fair by host } }");
    let of = |host, path| Request::get(path).host(host);
    let order = gate.order_of(&[of("a", "/a0"), of("a", "/a1"), of("b", "/b0")]);
    assert_eq!(order, ["/a0", "/b0", "/a1"]);
}

#[test]
fn more_urgent_requests_come_first() {
    let gate = Gate::start("throttle: { wait: { max: 1h, priority: { header: priority } } }");
    let of = |priority, path| Request::get(path).header("priority", priority);
    let order = gate.order_of(&[
        of("u=7", "/7"),
        Request::get("/none"),
        of("u=3", "/3"),
        of("u=9", "/unreadable"),
        of("u=1, i", "/1"),
        of("0", "/0"),
    ]);
    assert_eq!(order, ["/0", "/1", "/none", "/3", "/unreadable", "/7"]);
}

#[test]
fn new_requests_do_not_overtake_the_queue() {
    let origin = Origin::hello();
    let rule = "{ name: q, key: [], limit: 1/h, burst: 1, throttle: { wait: { max: 1h } } }";
    let weir = start(&origin, &[rule, "{ name: other, key: [], limit: 1000/s }"]);
    assert_eq!(get(weir.address(), "/").status, 200);
    // One more than fits into an hour is rejected, so there is one at a time.
    let first = send_all(&weir, "q", &[Request::get("/waiting")]);
    reset(&weir, "q");
    assert_eq!(statuses(first), [200]);
    assert_eq!(paths(&origin, 1), ["/waiting"]);
    assert_eq!(decisions(&weir, "q", "delayed"), 1.0);
}

#[test]
fn requests_are_spaced_by_the_limit_and_keep_their_order() {
    let origin = Origin::hello();
    let rule = "{ name: q, key: [], limit: 20/s, burst: 1, throttle: { wait: { max: 30s } } }";
    let weir = start(&origin, &[rule]);
    let begun = wait::now();
    let clients: Vec<_> = numbered(15).iter().map(|request| super::send(&weir, request)).collect();
    assert!(statuses(clients).iter().all(|status| *status == 200));
    // Fourteen intervals of 50 ms, less the rounding of timers.
    assert!(begun.elapsed().as_millis() >= 690, "{:?}", begun.elapsed());
    assert_eq!(weir.metric("weir_wait_seconds_count", &[("rule", "q")]), decisions(&weir, "q", "delayed"));
    assert!(weir.metric("weir_wait_seconds_sum", &[("rule", "q")]) > 0.6);
    assert_eq!((waiting(&weir, "q"), weir.metric("weir_requests_delayed", &[])), (0.0, 0.0));
}

#[test]
fn queues_of_different_keys_are_separate() {
    let origin = Origin::hello();
    let rule = "{ name: q, key: [{ header: x-key }], limit: 1/h, burst: 1, throttle: { wait: { max: 1h } } }";
    let weir = start(&origin, &[rule]);
    let of = |key| Request::get("/").header("x-key", key);
    assert_eq!(crate::support::fetch(weir.address(), &of("a")).status, 200);
    let _waiting = send_all(&weir, "q", &[of("a")]);
    assert_eq!(crate::support::fetch(weir.address(), &of("b")).status, 200);
    until_waiting(&weir, "q", 1);
}

#[test]
fn paced_requests_are_spread() {
    // Ten requests of a limit that admits twenty at once.
    for (pace, least_millis) in [("even", 440), ("pid", 215)] {
        let origin = Origin::hello();
        let rule = format!(
            "{{ name: q, key: [], limit: 20/s, throttle: {{ wait: {{ max: 30s }}, pace: {pace} }} }}"
        );
        let weir = start(&origin, &[&rule]);
        let begun = wait::now();
        let clients: Vec<_> = numbered(10).iter().map(|request| super::send(&weir, request)).collect();
        assert!(statuses(clients).iter().all(|status| *status == 200), "{pace}");
        assert!(begun.elapsed().as_millis() >= least_millis, "{pace}: {:?}", begun.elapsed());
        assert_eq!((waiting(&weir, "q"), decisions(&weir, "q", "limited")), (0.0, 0.0), "{pace}");
    }
}
