//! Shared limits: several proxies and a real Redis.

mod divided;

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::servers::{Cluster, Group, Server};
use crate::support::{Origin, Request, Then, Weir, ask, at_once, config, wait};

/// Starts a proxy that shares limits through this store; `rules` is a YAML list.
fn sharing(store: &str, rules: &str) -> Weir {
    sharing_to("echo", store, rules)
}

fn sharing_to(upstream: impl Display, store: &str, rules: &str) -> Weir {
    let weir =
        Weir::start(&config(upstream, &format!("store: {{ redis: {store}, timeout: 2s }}\nrules:\n{rules}")));
    wait::until_true("the store", || weir.metric("weir_store_up", &[]) == 1.0);
    weir
}

fn get(weir: &Weir, key: &str) -> u16 {
    ask(weir.address(), &Request::get("/").header("x-key", key)).status
}

/// Returns how many of `requests` requests are admitted, sent one after the other to the proxies in turn.
fn passing(fleet: &[Weir], key: &str, requests: usize) -> usize {
    (0..requests).filter(|turn| get(&fleet[turn % fleet.len()], key) == 200).count()
}

/// A rule with a period so long that no unit is replenished during a test.
const TEN_A_DAY: &str =
    "  - { name: keyed, key: [{ header: x-key }], limit: 10/d, scope: { shared: lease, wait: 1s } }\n";

#[test]
fn instances_count_one_limit_together_by_key() {
    let store = Server::start();
    let fleet: Vec<_> = (0..3).map(|_| sharing(&store.url(), TEN_A_DAY)).collect();
    let [one, other] = ["a", "b"].map(|key| passing(&fleet, key, 40));
    // A part of the burst is held back for outstanding leases.
    assert!((5..=10).contains(&one) && (5..=10).contains(&other), "{one}, {other}");
}

#[test]
fn an_exact_limit_is_counted_request_by_request() {
    let store = Server::start();
    for algorithm in ["gcra", "token_bucket", "fixed_window", "sliding_window", "sliding_log"] {
        let rule = format!(
            "  - {{ name: '{algorithm}', key: [{{ header: x-key }}], limit: 10/d, algorithm: {algorithm}, \
             scope: {{ shared: exact, wait: 1s }} }}\n"
        );
        let fleet: Vec<_> = (0..2).map(|_| sharing(&store.url(), &rule)).collect();
        assert_eq!(passing(&fleet, "a", 30), 10, "{algorithm}");
    }
}

#[test]
fn a_newcomer_and_a_restarted_instance_find_what_the_others_have_used() {
    let store = Server::start();
    let rule = TEN_A_DAY.replace("lease", "exact");
    let first = [sharing(&store.url(), &rule)];
    assert_eq!(passing(&first, "a", 10), 10);
    drop(first);
    assert_eq!(passing(&[sharing(&store.url(), &rule)], "a", 5), 0);
}

#[test]
fn a_shared_limit_in_shadow_mode_counts_what_is_over_it_and_nothing_else() {
    let store = Server::start();
    let rule =
        "  - { name: looks-on, key: [{ header: x-key }], limit: 1000/d, throttle: shadow, scope: shared }\n";
    let fleet = [sharing(&store.url(), rule)];
    assert_eq!(passing(&fleet, "a", 100), 100);
    let shadow = fleet[0].metric("weir_decisions_total", &[("rule", "looks-on"), ("outcome", "shadow")]);
    assert_eq!(shadow, 0.0, "a tenth of the limit was used");
    let rule = rule.replace("1000/d", "5/d");
    let fleet = [sharing(&store.url(), &rule)];
    assert_eq!(passing(&fleet, "b", 100), 100);
    let shadow = fleet[0].metric("weir_decisions_total", &[("rule", "looks-on"), ("outcome", "shadow")]);
    assert!((80.0..=98.0).contains(&shadow), "{shadow} of 100 requests over a limit of 5");
}

#[test]
fn a_shared_limit_in_shadow_mode_is_within_its_limit_beside_an_enforced_one_that_waits_for_the_store() {
    let store = Server::start();
    let enforced =
        "  - { name: enforced, key: [{ header: x-key }], limit: 9/d, scope: { shared: lease, wait: 1s } }\n";
    let shadow =
        "  - { name: looks-on, key: [{ header: x-key }], limit: 9/d, throttle: shadow, scope: shared }\n";
    let fleet = [sharing(&store.url(), &format!("{enforced}{shadow}"))];
    // The first request of a key finds no leased units of either limit.
    for key in 0..20 {
        assert_eq!(get(&fleet[0], &format!("key-{key}")), 200);
    }
    let shadow = fleet[0].metric("weir_decisions_total", &[("rule", "looks-on"), ("outcome", "shadow")]);
    assert_eq!(shadow, 0.0, "one of nine units was used");
}

#[test]
fn a_cluster_of_servers_counts_as_one() {
    let store = Cluster::start();
    let urls = format!("[{}]", store.servers.each_ref().map(Server::url).join(", "));
    let fleet: Vec<_> = (0..2).map(|_| sharing(&urls, &TEN_A_DAY.replace("lease", "exact"))).collect();
    for key in ["a", "b", "c", "d", "e", "f"] {
        assert_eq!(passing(&fleet, key, 20), 10, "{key}");
    }
}

#[test]
fn after_a_failover_no_more_passes_than_one_server_would_have_let_pass() {
    let mut group = Group::start();
    let weir = sharing(&group.yaml(), &TEN_A_DAY.replace("lease", "exact"));
    let fleet = [weir];
    assert_eq!(passing(&fleet, "a", 5), 5);
    group.master.kill();
    group.await_master(&group.replica);
    let mut newcomers = 0;
    wait::until_true("the new master", || {
        newcomers += 1;
        // Until the store is back, each instance counts the limit on its own.
        fleet[0].metric("weir_store_up", &[]) == 1.0
            && get(&fleet[0], &format!("newcomer {newcomers}")) == 429
    });
    assert_eq!(passing(&fleet, "a", 10), 0, "the replica may lack the last writes, so buckets start empty");
}

#[test]
fn without_the_store_each_rule_does_what_it_says() {
    let mut store = Server::start();
    let rules: String = ["split", "local", "deny", "allow"]
        .map(|loss| {
            format!(
                "  - {{ name: {loss}, match: {{ path: /{loss} }}, key: [], limit: 10/d, \
                 scope: {{ shared: lease, on_store_loss: {loss} }} }}\n"
            )
        })
        .concat();
    let fleet = [sharing(&store.url(), &rules), sharing(&store.url(), &rules)];
    wait::until_true("two instances", || {
        fleet.iter().all(|weir| weir.metric("weir_store_instances", &[]) == 2.0)
    });
    store.kill();
    wait::until_true("the loss", || {
        // The loss is only noticed by a call, such as the next heartbeat.
        fleet.iter().all(|weir| weir.metric("weir_store_up", &[]) == 0.0)
    });
    let passed = |loss: &str| {
        let path = format!("/{loss}");
        let passes = |turn: &usize| ask(fleet[turn % 2].address(), &Request::get(&path)).status == 200;
        (0..60).filter(passes).count()
    };
    assert_eq!(passed("split"), 10, "each instance admits half of the limit");
    assert_eq!(passed("local"), 20, "each instance admits the whole limit");
    assert_eq!(passed("deny"), 0);
    assert_eq!(passed("allow"), 60);
    let marked = ask(fleet[0].address(), &Request::get("/allow"));
    assert_eq!(marked.header("x-weir-over-limit"), "allow");
}

#[test]
fn a_store_that_comes_back_without_its_data_begins_empty() {
    let mut store = Server::start();
    let fleet = [sharing(&store.url(), &TEN_A_DAY.replace("lease", "exact"))];
    assert_eq!(passing(&fleet, "a", 5), 5);
    store.restart();
    wait::until_true("the store", || {
        fleet[0].metric("weir_store_up", &[]) == 1.0 && get(&fleet[0], "b") == 429
    });
    assert_eq!(passing(&fleet, "a", 10), 0, "earlier use is unknown, so nothing is admitted");
}

#[test]
fn a_frozen_store_delays_no_request_for_longer_than_its_rule_waits() {
    let store = Server::start();
    let rule = "  - { name: all, key: [], limit: 10/d, scope: { shared: lease, wait: 10ms } }\n";
    let weir = sharing(&store.url(), rule);
    store.freeze();
    for _ in 0..50 {
        let (status, took) = timed(|| ask(weir.address(), &Request::get("/")).status);
        assert!([200, 429].contains(&status), "{status}");
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
    store.thaw();
    wait::until_true("the store", || weir.metric("weir_store_up", &[]) == 1.0);
}

#[test]
fn clients_are_told_what_is_left_for_all_instances() {
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
    let fleet = [sharing(&store.url(), &rules), sharing(&store.url(), &rules)];
    for (name, reset) in
        [("gcra", 86_400 * 9 / 10..=86_400 * 9 / 10), ("window", 1..=86_400), ("log", 86_400..=86_400)]
    {
        let ask = |turn: usize| ask(fleet[turn % 2].address(), &Request::get(&format!("/{name}")));
        for turn in 0..8 {
            assert_eq!(ask(turn).number("x-ratelimit-remaining"), 9 - turn as u64, "{name}, {turn}");
        }
        let ninth = ask(8);
        assert_eq!((ninth.number("x-ratelimit-remaining"), ninth.status), (1, 200), "{name}");
        assert!(
            reset.contains(&ninth.number("x-ratelimit-reset")),
            "{name}: {}",
            ninth.number("x-ratelimit-reset")
        );
        assert_eq!(ask(9).status, 200, "{name}");
        let rejected = ask(10);
        assert_eq!((rejected.number("x-ratelimit-remaining"), rejected.status), (0, 429), "{name}");
        assert!((1..=90_000).contains(&rejected.number("retry-after")), "{name}");
    }
}

#[test]
fn a_client_that_one_instance_bans_is_banned_by_all() {
    let store = Server::start();
    for algorithm in ["gcra", "sliding_log", "fixed_window"] {
        let rule = format!(
            "  - {{ name: a, key: [{{ header: x-key }}], limit: 1000/s, algorithm: {algorithm}, \
             cost: {{ header: x-cost }}, on_limit: {{ ban: 10m }}, scope: {{ shared: exact, wait: 1s }} }}\n"
        );
        let fleet = [sharing(&store.url(), &rule), sharing(&store.url(), &rule)];
        let ask = |weir: &Weir, key: &str, cost: &str| {
            ask(weir.address(), &Request::get("/").header("x-key", key).header("x-cost", cost))
        };
        let is_banned = |weir: &Weir, cost: &str| {
            let response = ask(weir, algorithm, cost);
            response.status == 429 && response.number("retry-after") > 500
        };
        // Part of the limit is left, so a request with a lower cost does not exceed it on any instance.
        wait::until_true("a ban", || is_banned(&fleet[0], "600"));
        wait::until_true("another key", || ask(&fleet[1], "somebody else", "1").status == 200);
        let newcomer = sharing(&store.url(), &rule);
        for weir in [&fleet[1], &newcomer] {
            wait::until_true("the same ban", || is_banned(weir, "1"));
            let banned = [("rule", "a"), ("outcome", "banned")];
            assert!(weir.metric("weir_decisions_total", &banned) > 0.0, "{algorithm}");
        }
    }
}

/// Returns the sharing state of the rule at `index`, from `/limits`.
fn standing(weir: &Weir, index: usize) -> Value {
    weir.admin_json("/limits")["rules"][index]["sharing"].clone()
}

fn error_bound(weir: &Weir, rule: &str) -> f64 {
    weir.metric("weir_shared_error_bound", &[("rule", rule)])
}

#[test]
fn operators_see_what_counts_a_shared_limit_and_what_is_left_of_it() {
    let mut store = Server::start();
    let rules: String = [
        ("one", "key: [], scope: { shared: exact, wait: 1s, on_store_loss: local }"),
        ("each", "key: [{ header: x-key }], scope: { shared: exact, wait: 1s, on_store_loss: allow }"),
        ("parts", "key: [], scope: { instances: 4 }"),
        ("here", "key: []"),
    ]
    .map(|(name, rest)| format!("  - {{ name: {name}, limit: 100/d, {rest} }}\n"))
    .concat();
    let fleet = [sharing(&store.url(), &rules), sharing(&store.url(), &rules)];
    wait::until_true("two instances", || {
        fleet.iter().all(|weir| weir.metric("weir_store_instances", &[]) == 2.0)
    });
    assert_eq!(passing(&fleet, "a", 10), 10);
    assert_eq!(passing(&fleet[1..], "b", 15), 15);
    let [one, each, parts, here] = [0, 1, 2, 3].map(|rule| standing(&fleet[1], rule));
    assert_eq!(
        (&one["store"], &one["in_force"], &one["instances"]),
        (&"up".into(), &"exact".into(), &2.into())
    );
    assert_eq!(one["limits"][0]["limit"], "100/d");
    assert_eq!(one["limits"][0]["busiest"][0]["remaining"], 75, "{one}");
    let remaining = |index: usize| each["limits"][0]["busiest"][index]["remaining"].as_u64().unwrap();
    assert_eq!(each["limits"][0]["counters"], 2, "{each}");
    assert_eq!([remaining(0), remaining(1)].iter().sum::<u64>(), 90 + 85, "{each}");
    assert_eq!((&parts["instances"], &parts["limits"][0]["limit_here"]), (&4.into(), &"100/4d".into()));
    assert_eq!((&parts["in_force"], &here), (&"split".into(), &Value::Null));
    let late = 0.02 * 100.0 / 86_400.0;
    assert!((error_bound(&fleet[1], "one") - late).abs() < 1e-9);
    store.kill();
    wait::until_true("the loss", || standing(&fleet[1], 0)["store"] == "away");
    let [one, each] = [0, 1].map(|rule| standing(&fleet[1], rule));
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
fn counters_of_many_keys_are_counted_and_ten_of_them_shown() {
    let store = Server::start();
    let weir = sharing(&store.url(), &TEN_A_DAY.replace("lease", "exact").replace("10/d", "1/d"));
    for key in 0..30 {
        // An exhausted counter is remembered, so that further requests do not call the store.
        assert_eq!([get(&weir, &key.to_string()), get(&weir, &key.to_string())], [200, 429]);
    }
    let limit = &standing(&weir, 0)["limits"][0];
    assert_eq!(limit["counters"], 30);
    assert_eq!(limit["busiest"].as_array().unwrap().len(), 10);
}

#[test]
fn no_more_requests_are_in_flight_in_all_instances_than_the_limit() {
    let go = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&go);
    let origin = Origin::start(move |turn| {
        wait::until_true("the test's signal", || gate.load(Ordering::SeqCst));
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        Ok(Then::Keep)
    });
    for mode in ["lease", "exact"] {
        let store = Server::start();
        go.store(false, Ordering::SeqCst);
        let rule =
            format!("  - {{ name: a, key: [], in_flight: 3, scope: {{ shared: {mode}, wait: 1s }} }}\n");
        let fleet = [0, 1].map(|_| sharing_to(origin.address(), &store.url(), &rule));
        let (before, rejected) = (origin.seen().len(), AtomicUsize::new(0));
        let statuses = at_once(9, |turn| {
            if turn == 0 {
                wait::until_true("all decisions", || {
                    origin.seen().len() - before + rejected.load(Ordering::SeqCst) == 8
                });
                go.store(true, Ordering::SeqCst);
                return 0;
            }
            let status = ask(fleet[turn % 2].address(), &Request::get("/")).status;
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
