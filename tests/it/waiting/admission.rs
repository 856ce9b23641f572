//! What admits a waiting request: room in the limit, of whatever algorithm, and changes of the limit.

use super::{
    Gate, config_with_rules, decisions, numbered, paths, reset, send, send_all, start, statuses,
    until_waiting, waiting,
};
use crate::support::{Client, Origin, Request, Weir, get, wait};

#[test]
fn every_algorithm_admits_waiting_requests_when_it_has_room() {
    const ALGORITHMS: [&str; 6] =
        ["gcra", "token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log"];
    let origin = Origin::hello();
    let rules = ALGORITHMS.map(|algorithm| {
        format!(
            "{{ name: {algorithm}, match: {{ path: /{algorithm} }}, key: [], limit: 10/s, \
             algorithm: {algorithm}, throttle: {{ wait: {{ max: 30s }} }} }}"
        )
    });
    let weir = start(&origin, &rules.each_ref().map(|rule| &**rule));
    let begun = wait::now();
    let clients = ALGORITHMS.map(|algorithm| {
        let request = Request::get(&format!("/{algorithm}"));
        (algorithm, (0..25).map(|_| send(&weir, &request)).collect::<Vec<_>>())
    });
    for (algorithm, clients) in clients {
        assert!(statuses(clients).iter().all(|status| *status == 200), "{algorithm}");
        // At most twenty at the end of one window and at the beginning of the next, and the rest a window later.
        assert!(begun.elapsed().as_millis() >= 1000, "{algorithm}: {:?}", begun.elapsed());
        assert!(decisions(&weir, algorithm, "delayed") >= 5.0, "{algorithm}");
        assert_eq!(decisions(&weir, algorithm, "limited"), 0.0, "{algorithm}");
    }
}

#[test]
fn released_permit_admits_the_first_waiting_request() {
    let mut gate = Gate::start("throttle: { wait: { max: 1h } }");
    let clients = send_all(&gate.weir, "q", &numbered(3));
    gate.open();
    assert_eq!(statuses(clients), [200, 200, 200]);
    // A permit is free again once the response has ended.
    wait::until_true("a free permit", || get(gate.weir.address(), "/").status == 200);
    assert_eq!(decisions(&gate.weir, "q", "delayed"), 3.0);
}

#[test]
fn waiting_request_is_charged_nothing_until_it_is_admitted() {
    let origin = Origin::hello();
    let weir = start(
        &origin,
        &[
            "{ name: q, key: [], limit: 1/h, burst: 1, throttle: { wait: { max: 1h } } }",
            "{ name: wide, key: [], limit: 10/h }",
        ],
    );
    let first = get(weir.address(), "/");
    let remaining = |head: &crate::support::Response| head.header("x-ratelimit-limit").to_owned();
    assert!(!remaining(&first).is_empty());
    let clients = send_all(&weir, "q", &numbered(1));
    let used = || {
        let limits = weir.admin_json("/explain?method=GET&path=/");
        limits.to_string()
    };
    assert!(used().contains("\"remaining\":9"), "{}", used());
    reset(&weir, "q");
    assert_eq!(statuses(clients), [200]);
    assert!(used().contains("\"remaining\":8"), "{}", used());
}

#[test]
fn rule_without_queue_rejects_at_once() {
    let origin = Origin::hello();
    let weir = start(
        &origin,
        &[
            "{ name: q, key: [], limit: 1/h, burst: 1, throttle: { wait: { max: 1h } } }",
            "{ name: hard, key: [], limit: 2/h, burst: 2 }",
        ],
    );
    assert_eq!(get(weir.address(), "/").status, 200);
    let waiting_one = send_all(&weir, "q", &numbered(1));
    reset(&weir, "q");
    assert_eq!(statuses(waiting_one), [200]);
    let rejected = get(weir.address(), "/");
    assert_eq!(rejected.status, 429);
    assert_eq!((decisions(&weir, "hard", "limited"), waiting(&weir, "q")), (1.0, 0.0));
}

#[test]
fn several_rules_with_queues_admit_together() {
    let origin = Origin::hello();
    let weir = start(
        &origin,
        &[
            "{ name: a, key: [], limit: 1/h, burst: 1, throttle: { wait: { max: 1h } } }",
            "{ name: b, key: [], limit: 1/d, burst: 1, throttle: { wait: { max: 1h } } }",
        ],
    );
    assert_eq!(get(weir.address(), "/").status, 200);
    // A day is more than the rule permits.
    assert_eq!(get(weir.address(), "/").status, 429);
    reset(&weir, "b");
    let clients = send_all(&weir, "a", &numbered(1));
    reset(&weir, "a");
    assert_eq!(statuses(clients), [200]);
    assert_eq!(paths(&origin, 1), ["/0"]);
}

#[test]
fn units_that_are_given_back_admit_a_waiting_request() {
    let origin = Origin::responding_with("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    let rule = "{ name: q, key: [], limit: 1/h, burst: 1, count: { response_status: [500] }, \
                throttle: { wait: { max: 1h } } }";
    let weir = start(&origin, &[rule]);
    // No response counts, so each gives its reservation back to the next request.
    let clients: Vec<Client> = numbered(8).iter().map(|request| send(&weir, request)).collect();
    assert!(statuses(clients).iter().all(|status| *status == 200));
    assert_eq!(decisions(&weir, "q", "limited"), 0.0);
}

#[test]
fn raised_limit_admits_waiting_requests() {
    let origin = Origin::hello();
    let rule = |limit| {
        format!("{{ name: q, key: [], limit: {limit}, throttle: {{ wait: {{ max: 1h, queue: 10 }} }} }}")
    };
    let weir = start(&origin, &[&rule("2/h")]);
    assert_eq!([get(weir.address(), "/").status, get(weir.address(), "/").status], [200, 200]);
    let clients = send_all(&weir, "q", &numbered(2));
    weir.reload(&config_with_rules(&origin, &[&rule("1000/h")]));
    assert_eq!(statuses(clients), [200, 200]);
}

#[test]
fn lowered_limit_rejects_requests_that_can_no_longer_wait() {
    let origin = Origin::hello();
    let rule = |limit| {
        format!("{{ name: q, key: [], limit: {limit}, burst: 1, throttle: {{ wait: {{ max: 1h }} }} }}")
    };
    let weir = start(&origin, &[&rule("2/h")]);
    assert_eq!(get(weir.address(), "/").status, 200);
    let clients = send_all(&weir, "q", &numbered(1));
    weir.reload(&config_with_rules(&origin, &[&rule("1/d")]));
    assert_eq!(statuses(clients), [429]);
    assert_eq!(super::rejections(&weir, "q", "no_time"), 1.0);
}

#[test]
fn boost_of_a_key_admits_its_waiting_requests() {
    let origin = Origin::hello();
    let rule = "{ name: q, key: client_ip, limit: 2/h, burst: 1, throttle: { wait: { max: 1h } } }";
    let weir = start(&origin, &[rule]);
    assert_eq!(get(weir.address(), "/").status, 200);
    let clients = send_all(&weir, "q", &numbered(1));
    let boosted = weir.admin_post("/limits/boost?rule=q&key=client_ip%3D127.0.0.1&factor=100&for=1h");
    assert_eq!(boosted.status, 200);
    assert_eq!(statuses(clients), [200]);
}

#[test]
fn rate_above_the_resolution_of_timers_is_used_fully() {
    let origin = Origin::hello();
    // 250 µs between two requests, which no timer measures.
    let rule = "{ name: q, key: [], limit: 4000/s, burst: 1, throttle: { wait: { max: 30s, queue: 1000 } } }";
    let weir = Weir::start(&config_with_rules(&origin, &[rule]));
    let begun = wait::now();
    let clients: Vec<_> = numbered(400).iter().map(|request| send(&weir, request)).collect();
    assert!(statuses(clients).iter().all(|status| *status == 200));
    assert!(begun.elapsed().as_millis() >= 95, "{:?}", begun.elapsed());
    until_waiting(&weir, "q", 0);
}
