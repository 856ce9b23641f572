//! A store that responds late: a late response is not an exhausted limit.

use std::net::SocketAddr;

use super::*;

fn link(store: &Server, delay: u64) -> SocketAddr {
    slow_link::start(([127, 0, 0, 1], store.port()).into(), Duration::from_millis(delay))
}

fn rejections(weir: &Weir, keys: usize) -> usize {
    (0..keys).filter(|key| status_for_key(weir, &format!("key {key}")) != 200).count()
}

#[test]
fn clients_far_below_their_limit_are_admitted_however_far_the_store_is() {
    let store = Server::start();
    for (delay, mode) in [(0, "lease"), (4, "lease"), (15, "lease"), (15, "exact")] {
        let rule = format!(
            "  - {{ name: {mode}-{delay}, key: [{{ header: x-key }}], limit: 100/h, scope: {{ shared: {mode} }} }}\n"
        );
        let weir = start_sharing(&format!("redis://{}", link(&store, delay)), &rule);
        assert_eq!(rejections(&weir, 50), 0, "{mode}, {delay} ms each way");
        let wait = weir.metric("weir_store_wait_seconds", &[]);
        assert!((0.05..=0.5).contains(&wait), "{wait}");
        // A busy machine may delay some responses for longer than requests wait.
        assert!(weir.unanswered() < 25.0, "{mode}, {delay} ms each way: {}", weir.unanswered());
    }
}

#[test]
fn requests_that_wait_long_enough_are_answered() {
    let store = Server::start();
    // A request without a response would be rejected.
    let rule = "  - { name: far, key: [{ header: x-key }], limit: 100/h, \
                scope: { shared: exact, wait: 1s, on_store_loss: deny } }\n";
    let weir = start_sharing(&format!("redis://{}", link(&store, 15)), rule);
    assert_eq!(rejections(&weir, 20), 0);
}

#[test]
fn each_rule_waits_for_its_own_time() {
    let store = Server::start();
    let rule = |name: &str, wait: &str, loss: &str| {
        format!(
            "  - {{ name: {name}, key: [{{ header: x-key }}], limit: 100/h, \
             scope: {{ shared: lease, wait: {wait}, on_store_loss: {loss} }} }}\n"
        )
    };
    let rules = rule("short", "1ms", "allow") + &rule("long", "1s", "deny");
    let weir = start_sharing(&format!("redis://{}", link(&store, 30)), &rules);
    assert_eq!(rejections(&weir, 10), 0, "the store responds within the wait of the second rule");
    wait::until_true("the waits of the first rule", || weir.unanswered() == 10.0);
}

#[test]
fn wait_that_ends_without_a_response_is_a_store_loss() {
    let store = Server::start();
    let link = link(&store, 30);
    for (loss, rejected) in [("split", 0), ("allow", 0), ("local", 0), ("deny", 20)] {
        let rule = format!(
            "  - {{ name: {loss}, key: [{{ header: x-key }}], limit: 100/h, \
             scope: {{ shared: lease, wait: 1ms, on_store_loss: {loss} }} }}\n"
        );
        let weir = start_sharing(&format!("redis://{link}"), &rule);
        assert_eq!(rejections(&weir, 20), rejected, "{loss}");
        wait::until_true("the count", || weir.unanswered() == 20.0);
        let of = |reason| weir.metric("weir_store_unanswered_total", &[("reason", reason)]);
        assert_eq!(of("late") + of("not_sent"), 20.0, "{loss}");
        assert_eq!(weir.metric("weir_store_up", &[]), 1.0, "the store responds, but late");
    }
}

#[test]
fn fresh_start_counts_the_first_requests_in_the_store() {
    for _ in 0..3 {
        let redis = Server::start();
        let rule = "rules:\n  - { name: per-ip, key: [client_ip], limit: 5/10m, burst: 5, \
                    scope: { shared: lease, wait: 1s } }\n";
        let store = format!("store: {{ redis: {}, timeout: 2s }}\n{rule}", redis.url());
        let weir = Weir::start(&config("echo", &store));
        let statuses: Vec<_> = (0..8).map(|_| fetch(weir.address(), &Request::get("/")).status).collect();
        assert_eq!(statuses, [[200; 5].as_slice(), &[429; 3]].concat());
    }
}
