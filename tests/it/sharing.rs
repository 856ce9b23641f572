//! Shared limits: several proxies and a real Redis.

mod debts;
mod faults;
mod loaded_fleet;
mod partitions;
mod quotas;
mod regions;
mod slow_store;
mod split;

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::servers::{Cluster, Group, Server};
use crate::support::{
    AfterResponse, Origin, Request, Weir, config, fetch, run_concurrently, slow_link, wait,
};

/// Starts a proxy that shares limits through this store; `rules` is a YAML list.
fn start_sharing(store: &str, rules: &str) -> Weir {
    start_sharing_with_upstream("echo", store, rules)
}

fn start_sharing_with_upstream(upstream: impl Display, store: &str, rules: &str) -> Weir {
    start_with_store(upstream, &format!("{{ redis: {store}, timeout: 2s }}"), rules)
}

/// Starts a proxy with this section `store`, and waits until it is reached.
fn start_with_store(upstream: impl Display, store: &str, rules: &str) -> Weir {
    let weir = Weir::start(&config(upstream, &format!("store: {store}\nrules:\n{rules}")));
    wait::until_true("the store", || weir.metric("weir_store_up", &[]) == 1.0);
    weir
}

fn status_for_key(weir: &Weir, key: &str) -> u16 {
    fetch(weir.address(), &Request::get("/").header("x-key", key)).status
}

/// Returns how many of `requests` requests are admitted, sent one after the other to the proxies in turn.
fn count_admitted(fleet: &[Weir], key: &str, requests: usize) -> usize {
    (0..requests).filter(|turn| status_for_key(&fleet[turn % fleet.len()], key) == 200).count()
}

/// A rule with a period so long that no unit is replenished during a test.
const TEN_A_DAY: &str =
    "  - { name: keyed, key: [{ header: x-key }], limit: 10/d, scope: { shared: lease, wait: 1s } }\n";

#[test]
fn instances_share_one_limit_per_key() {
    let store = Server::start();
    let fleet: Vec<_> = (0..3).map(|_| start_sharing(&store.url(), TEN_A_DAY)).collect();
    let [one, other] = ["a", "b"].map(|key| count_admitted(&fleet, key, 40));
    // A part of the burst is held back for outstanding leases.
    assert!((5..=10).contains(&one) && (5..=10).contains(&other), "{one}, {other}");
}

#[test]
fn exact_mode_admits_exactly_the_limit() {
    let store = Server::start();
    for algorithm in ["gcra", "token_bucket", "fixed_window", "sliding_window", "sliding_log"] {
        let rule = format!(
            "  - {{ name: '{algorithm}', key: [{{ header: x-key }}], limit: 10/d, algorithm: {algorithm}, \
             scope: {{ shared: exact, wait: 1s }} }}\n"
        );
        let fleet: Vec<_> = (0..2).map(|_| start_sharing(&store.url(), &rule)).collect();
        assert_eq!(count_admitted(&fleet, "a", 30), 10, "{algorithm}");
    }
}

#[test]
fn distant_store_is_used_if_requests_wait_long_enough() {
    let store = Server::start();
    for mode in ["lease", "exact"] {
        let link = slow_link::start(([127, 0, 0, 1], store.port()).into(), Duration::from_millis(40));
        let rule = TEN_A_DAY.replace("lease", mode).replace("keyed", mode);
        let fleet: Vec<_> = (0..2).map(|_| start_sharing(&format!("redis://{link}"), &rule)).collect();
        let admitted = count_admitted(&fleet, mode, 14);
        // Grants that came too late go back a little later.
        assert!((7..=10).contains(&admitted), "{mode}: {admitted}");
        assert_eq!(status_for_key(&fleet[0], "another"), 200, "{mode}");
    }
}

#[test]
fn new_instance_sees_units_used_by_others() {
    let store = Server::start();
    let rule = TEN_A_DAY.replace("lease", "exact");
    let first = [start_sharing(&store.url(), &rule)];
    assert_eq!(count_admitted(&first, "a", 10), 10);
    drop(first);
    assert_eq!(count_admitted(&[start_sharing(&store.url(), &rule)], "a", 5), 0);
}

#[test]
fn soft_limit_marks_within_its_margin_and_rejects_beyond_it() {
    let store = Server::start();
    let rule = "  - { name: soft, key: [{ header: x-key }], limit: 10/d, throttle: { soft: 900% }, \
                scope: { shared: lease, wait: 1s } }\n";
    let weir = start_sharing(&store.url(), rule);
    let respond = |_| {
        let response = fetch(weir.address(), &Request::get("/").header("x-key", "a"));
        (response.status, response.head.get("x-weir-over-limit").is_some())
    };
    let responses: Vec<_> = (0..120).map(respond).collect();
    let admitted = responses.iter().filter(|(status, _)| *status == 200).count();
    let marked = responses.iter().filter(|response| **response == (200, true)).count();
    // No request waits for the mark, and a part of the burst is held back for outstanding leases.
    assert!((70..=100).contains(&admitted), "{admitted} admitted by a limit of 10 with a margin of 90");
    assert!((admitted / 2..=admitted - 5).contains(&marked), "{marked} of {admitted} marked");
}

#[test]
fn shadow_mode_counts_only_requests_over_the_limit() {
    let store = Server::start();
    let rule =
        "  - { name: looks-on, key: [{ header: x-key }], limit: 1000/d, throttle: shadow, scope: shared }\n";
    let fleet = [start_sharing(&store.url(), rule)];
    assert_eq!(count_admitted(&fleet, "a", 100), 100);
    let shadow = fleet[0].metric("weir_decisions_total", &[("rule", "looks-on"), ("outcome", "shadow")]);
    assert_eq!(shadow, 0.0, "a tenth of the limit was used");
    let rule = rule.replace("1000/d", "5/d");
    let fleet = [start_sharing(&store.url(), &rule)];
    let (mut sent, mut shadow) = (0, 0.0);
    // A request for which the store responds too late counts as one without a store, so the share depends on the machine.
    wait::until_true("requests over the limit", || {
        assert_eq!(count_admitted(&fleet, "b", 100), 100);
        sent += 100;
        shadow = fleet[0].metric("weir_decisions_total", &[("rule", "looks-on"), ("outcome", "shadow")]);
        shadow >= 80.0
    });
    assert!(shadow <= f64::from(sent - 2), "{shadow} of {sent} requests over a limit of 5");
}

#[test]
fn shadow_mode_is_within_its_limit_while_an_enforced_rule_waits_for_the_store() {
    let store = Server::start();
    let enforced =
        "  - { name: enforced, key: [{ header: x-key }], limit: 9/d, scope: { shared: lease, wait: 1s } }\n";
    let shadow =
        "  - { name: looks-on, key: [{ header: x-key }], limit: 9/d, throttle: shadow, scope: shared }\n";
    let fleet = [start_sharing(&store.url(), &format!("{enforced}{shadow}"))];
    // The first request of a key finds no leased units of either limit.
    for key in 0..20 {
        assert_eq!(status_for_key(&fleet[0], &format!("key-{key}")), 200);
    }
    let shadow = fleet[0].metric("weir_decisions_total", &[("rule", "looks-on"), ("outcome", "shadow")]);
    assert_eq!(shadow, 0.0, "one of nine units was used");
}

#[test]
fn shared_rule_is_not_limited_if_another_rule_rejects() {
    let store = Server::start();
    let rules = "  - { name: shared, key: [{ header: x-key }], limit: 100/h, scope: shared }\n  \
                 - { name: local, key: [], limit: 1/h }\n  \
                 - { name: looks-on, key: [{ header: x-key }], limit: 50/h, throttle: shadow, scope: shared }\n";
    let weir = start_sharing(&store.url(), rules);
    assert_eq!(status_for_key(&weir, "first"), 200);
    for key in 0..10 {
        let response = fetch(weir.address(), &Request::get("/").header("x-key", &format!("key-{key}")));
        assert_eq!(response.status, 429);
        let limit = response.header("x-ratelimit-limit");
        assert!(limit.starts_with("1, "), "the rule that rejects is shown: {limit}");
    }
    let decisions =
        |rule, outcome| weir.metric("weir_decisions_total", &[("rule", rule), ("outcome", outcome)]);
    assert_eq!(decisions("local", "limited"), 10.0);
    assert_eq!(decisions("shared", "limited"), 0.0);
    assert_eq!(decisions("looks-on", "shadow"), 0.0);
}

#[test]
fn redis_cluster_counts_as_one_store() {
    let store = Cluster::start();
    let urls = format!("[{}]", store.servers.each_ref().map(Server::url).join(", "));
    let fleet: Vec<_> = (0..2).map(|_| start_sharing(&urls, &TEN_A_DAY.replace("lease", "exact"))).collect();
    for key in ["a", "b", "c", "d", "e", "f"] {
        assert_eq!(count_admitted(&fleet, key, 20), 10, "{key}");
    }
}

#[test]
fn failover_does_not_admit_more_than_the_limit() {
    let mut group = Group::start();
    let weir = start_sharing(&group.yaml(), &TEN_A_DAY.replace("lease", "exact"));
    let fleet = [weir];
    assert_eq!(count_admitted(&fleet, "a", 5), 5);
    group.master.kill();
    group.await_master(&group.replica);
    let mut newcomers = 0;
    wait::until_true("the new master", || {
        newcomers += 1;
        // Until the store is back, each instance counts the limit on its own.
        fleet[0].metric("weir_store_up", &[]) == 1.0
            && status_for_key(&fleet[0], &format!("newcomer {newcomers}")) == 429
    });
    assert_eq!(
        count_admitted(&fleet, "a", 10),
        0,
        "the replica may lack the last writes, so buckets start empty"
    );
}

#[test]
fn on_store_loss_decides_without_the_store() {
    let mut store = Server::start();
    let rules: String = ["split", "local", "deny", "allow"]
        .map(|loss| {
            format!(
                "  - {{ name: {loss}, match: {{ path: /{loss} }}, key: [], limit: 10/d, \
                 scope: {{ shared: lease, on_store_loss: {loss} }} }}\n"
            )
        })
        .concat();
    let fleet = [start_sharing(&store.url(), &rules), start_sharing(&store.url(), &rules)];
    wait::until_true("two instances", || {
        fleet.iter().all(|weir| weir.metric("weir_store_instances", &[]) == 2.0)
    });
    store.kill();
    wait::until_true("the loss", || {
        // The loss is only noticed by a call, such as the next heartbeat.
        fleet.iter().all(|weir| weir.metric("weir_store_up", &[]) == 0.0)
    });
    let notices = fleet[0].admin_json("/events?once")["notices"].to_string();
    assert!(notices.contains("The store of shared limits does not respond"), "{notices}");
    let passed = |loss: &str| {
        let path = format!("/{loss}");
        let passes = |turn: &usize| fetch(fleet[turn % 2].address(), &Request::get(&path)).status == 200;
        (0..60).filter(passes).count()
    };
    assert_eq!(passed("split"), 10, "each instance admits half of the limit");
    assert_eq!(passed("local"), 20, "each instance admits the whole limit");
    assert_eq!(passed("deny"), 0);
    assert_eq!(passed("allow"), 60);
    let marked = fetch(fleet[0].address(), &Request::get("/allow"));
    assert_eq!(marked.header("x-weir-over-limit"), "allow");
}

#[test]
fn restarted_store_without_data_begins_with_empty_buckets() {
    let mut store = Server::start();
    let fleet = [start_sharing(&store.url(), &TEN_A_DAY.replace("lease", "exact"))];
    assert_eq!(count_admitted(&fleet, "a", 5), 5);
    store.restart();
    wait::until_true("the store", || {
        fleet[0].metric("weir_store_up", &[]) == 1.0 && status_for_key(&fleet[0], "b") == 429
    });
    assert_eq!(count_admitted(&fleet, "a", 10), 0, "earlier use is unknown, so nothing is admitted");
}

#[test]
fn frozen_store_delays_requests_by_at_most_wait() {
    let store = Server::start();
    let rule = "  - { name: all, key: [], limit: 10/d, scope: { shared: lease, wait: 10ms } }\n";
    let weir = start_sharing(&store.url(), rule);
    store.freeze();
    for _ in 0..50 {
        let (status, took) = timed(|| fetch(weir.address(), &Request::get("/")).status);
        assert!([200, 429].contains(&status), "{status}");
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
    store.thaw();
    wait::until_true("the store", || weir.metric("weir_store_up", &[]) == 1.0);
}

#[test]
fn rate_limit_headers_show_what_remains_for_all_instances() {
    let store = Server::start();
    let rules: String =
        [("gcra", ""), ("window", ", algorithm: fixed_window"), ("log", ", algorithm: sliding_log")]
            .map(|(name, algorithm)| {
                format!(
                    "  - {{ name: {name}, match: {{ path: /{name} }}, key: [], limit: 10/d{algorithm}, \
                 scope: {{ shared: exact, wait: 1s }} }}\n"
                )
            })
            .concat();
    let fleet = [start_sharing(&store.url(), &rules), start_sharing(&store.url(), &rules)];
    for (name, reset) in
        [("gcra", 86_400 * 9 / 10..=86_400 * 9 / 10), ("window", 1..=86_400), ("log", 86_400..=86_400)]
    {
        let ask = |turn: usize| fetch(fleet[turn % 2].address(), &Request::get(&format!("/{name}")));
        for turn in 0..8 {
            assert_eq!(ask(turn).numeric_header("x-ratelimit-remaining"), 9 - turn as u64, "{name}, {turn}");
        }
        let ninth = ask(8);
        assert_eq!((ninth.numeric_header("x-ratelimit-remaining"), ninth.status), (1, 200), "{name}");
        assert!(
            reset.contains(&ninth.numeric_header("x-ratelimit-reset")),
            "{name}: {}",
            ninth.numeric_header("x-ratelimit-reset")
        );
        assert_eq!(ask(9).status, 200, "{name}");
        let rejected = ask(10);
        assert_eq!((rejected.numeric_header("x-ratelimit-remaining"), rejected.status), (0, 429), "{name}");
        assert!((1..=90_000).contains(&rejected.numeric_header("retry-after")), "{name}");
    }
}

#[test]
fn ban_applies_on_all_instances() {
    let store = Server::start();
    for algorithm in ["gcra", "sliding_log", "fixed_window"] {
        let rule = format!(
            "  - {{ name: a, key: [{{ header: x-key }}], limit: 1000/s, algorithm: {algorithm}, \
             cost: {{ header: x-cost }}, on_limit: {{ ban: 10m }}, scope: {{ shared: exact, wait: 1s }} }}\n"
        );
        let fleet = [start_sharing(&store.url(), &rule), start_sharing(&store.url(), &rule)];
        let ask = |weir: &Weir, key: &str, cost: &str| {
            fetch(weir.address(), &Request::get("/").header("x-key", key).header("x-cost", cost))
        };
        let is_banned = |weir: &Weir, cost: &str| {
            let response = ask(weir, algorithm, cost);
            response.status == 429 && response.numeric_header("retry-after") > 500
        };
        // Part of the limit is left, so a request with a lower cost does not exceed it on any instance.
        wait::until_true("a ban", || is_banned(&fleet[0], "600"));
        wait::until_true("another key", || ask(&fleet[1], "somebody else", "1").status == 200);
        let newcomer = start_sharing(&store.url(), &rule);
        for weir in [&fleet[1], &newcomer] {
            wait::until_true("the same ban", || is_banned(weir, "1"));
            let banned = [("rule", "a"), ("outcome", "banned")];
            assert!(weir.metric("weir_decisions_total", &banned) > 0.0, "{algorithm}");
        }
    }
}

/// Returns the sharing state of the rule at `index`, from `/limits`.
fn sharing_state(weir: &Weir, index: usize) -> Value {
    weir.admin_json("/limits")["rules"][index]["sharing"].clone()
}

fn error_bound(weir: &Weir, rule: &str) -> f64 {
    weir.metric("weir_shared_error_bound", &[("rule", rule)])
}

#[test]
fn limits_endpoint_shows_sharing_state_and_error_bound() {
    let mut store = Server::start();
    let rules: String = [
        ("one", "key: [], scope: { shared: exact, wait: 1s, on_store_loss: local }"),
        ("each", "key: [{ header: x-key }], scope: { shared: exact, wait: 1s, on_store_loss: allow }"),
        ("parts", "key: [], scope: { instances: 4 }"),
        ("here", "key: []"),
    ]
    .map(|(name, rest)| format!("  - {{ name: {name}, limit: 100/d, {rest} }}\n"))
    .concat();
    let fleet = [start_sharing(&store.url(), &rules), start_sharing(&store.url(), &rules)];
    wait::until_true("two instances", || {
        fleet.iter().all(|weir| weir.metric("weir_store_instances", &[]) == 2.0)
    });
    assert_eq!(count_admitted(&fleet, "a", 10), 10);
    // A counter is listed while requests use it.
    let mut of_b = 0;
    let [one, each, parts, here] = wait::until("the counters", || {
        assert_eq!(count_admitted(&fleet[1..], "b", 1), 1);
        of_b += 1;
        let states = [0, 1, 2, 3].map(|rule| sharing_state(&fleet[1], rule));
        let remaining =
            [0, 1].map(|rule: usize| states[rule]["limits"][0]["busiest"][0]["remaining"].clone());
        (remaining == [Value::from(90 - of_b), Value::from(100 - of_b)]).then_some(states)
    });
    assert_eq!(
        (&one["store"], &one["in_force"], &one["instances"]),
        (&"up".into(), &"exact".into(), &2.into())
    );
    assert_eq!(one["limits"][0]["limit"], "100/d");
    let listed = each["limits"][0]["busiest"].as_array().unwrap().len();
    assert!((1..=2).contains(&listed), "{each}");
    assert_eq!(each["limits"][0]["counters"], listed, "{each}");
    assert_eq!((&parts["instances"], &parts["limits"][0]["limit_here"]), (&4.into(), &"100/4d".into()));
    assert_eq!((&parts["in_force"], &here), (&"split".into(), &Value::Null));
    // A grant may arrive as late as requests wait.
    let late = 100.0 / 86_400.0;
    assert!((error_bound(&fleet[1], "one") - late).abs() < 1e-9);
    store.kill();
    wait::until_true("the loss", || sharing_state(&fleet[1], 0)["store"] == "away");
    let [one, each] = [0, 1].map(|rule| sharing_state(&fleet[1], rule));
    assert_eq!(
        (&one["in_force"], &one["error_bound"]),
        (&"local".into(), &200.0.into()),
        "with one more instance"
    );
    assert_eq!((&each["in_force"], &each["error_bound"]), (&"allow".into(), &"unbounded".into()));
    assert_eq!(error_bound(&fleet[1], "each"), f64::INFINITY);
    assert_eq!(error_bound(&fleet[1], "parts"), 0.0, "the split mode needs no store");
}

#[test]
fn limits_endpoint_shows_the_ten_busiest_counters() {
    let store = Server::start();
    let weir = start_sharing(&store.url(), &TEN_A_DAY.replace("lease", "exact").replace("10/d", "1/d"));
    for key in 0..30 {
        // An exhausted counter is remembered, so that further requests do not call the store.
        assert_eq!(
            [status_for_key(&weir, &key.to_string()), status_for_key(&weir, &key.to_string())],
            [200, 429]
        );
    }
    let limit = &sharing_state(&weir, 0)["limits"][0];
    assert_eq!(limit["counters"], 30);
    assert_eq!(limit["busiest"].as_array().unwrap().len(), 10);
}

#[test]
fn in_flight_limit_spans_all_instances() {
    let go = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&go);
    let origin = Origin::start(move |turn| {
        wait::until_true("the test's signal", || gate.load(Ordering::SeqCst));
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        Ok(AfterResponse::Keep)
    });
    for mode in ["lease", "exact"] {
        let store = Server::start();
        go.store(false, Ordering::SeqCst);
        let rule =
            format!("  - {{ name: a, key: [], in_flight: 3, scope: {{ shared: {mode}, wait: 1s }} }}\n");
        let fleet = [0, 1].map(|_| start_sharing_with_upstream(origin.address(), &store.url(), &rule));
        let (before, rejected) = (origin.requests().len(), AtomicUsize::new(0));
        let statuses = run_concurrently(9, |turn| {
            if turn == 0 {
                wait::until_true("all decisions", || {
                    origin.requests().len() - before + rejected.load(Ordering::SeqCst) == 8
                });
                go.store(true, Ordering::SeqCst);
                return 0;
            }
            let status = fetch(fleet[turn % 2].address(), &Request::get("/")).status;
            rejected.fetch_add(usize::from(status == 429), Ordering::SeqCst);
            status
        });
        let passed = statuses.iter().filter(|status| **status == 200).count();
        assert!((1..=3).contains(&passed), "{mode}: {statuses:?}");
    }
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let began = wait::now();
    let done = work();
    (done, began.elapsed())
}
