//! Requests that wait for a rule which a reload removes, renames or changes.

use super::{
    config_with_rules, decisions, numbered, paths, rejections, reset, send, send_all, start, statuses,
    until_waiting, waiting,
};
use crate::support::{Client, Origin, Request, Weir, get, wait};

/// A rule that admits one request at once, and the next one three minutes later.
fn slow(name: &str, settings: &str) -> String {
    format!("{{ name: {name}, limit: 20/h, burst: 1, {settings} }}")
}

/// Starts a proxy whose rule `q` has these settings and is used up, and sends this many requests, which wait.
fn start_waiting(settings: &str, count: usize) -> (Origin, Weir, Vec<Client>) {
    let origin = Origin::hello();
    let weir = start(&origin, &[&slow("q", settings)]);
    assert_eq!(get(weir.address(), "/").status, 200);
    let clients = send_all(&weir, "q", &numbered(count));
    (origin, weir, clients)
}

#[test]
fn removed_rule_lets_waiting_requests_pass() {
    let (origin, weir, clients) = start_waiting("key: [], throttle: { wait: { max: 1h } }", 5);
    weir.reload(&config_with_rules(&origin, &["{ name: other, key: [], limit: 1000/s }"]));
    assert_eq!(statuses(clients), [200; 5]);
    assert_eq!((waiting(&weir, "q"), decisions(&weir, "other", "allowed")), (0.0, 5.0));
}

#[test]
fn requests_wait_for_a_renamed_rule_in_the_order_of_their_arrival() {
    let settings = "key: [], throttle: { wait: { max: 1h } }";
    let (origin, weir, mut clients) = start_waiting(settings, 6);
    weir.reload(&config_with_rules(&origin, &[&slow("renamed", settings)]));
    // A counter with a new name has room for one request, and not for all that have waited.
    until_waiting(&weir, "renamed", 5);
    assert_eq!(waiting(&weir, "q"), 0.0);
    clients.extend(send_all(&weir, "renamed", [&Request::get("/new")]));
    for admitted in 2..=7 {
        wait::until_true("an admitted request", || paths(&origin, 1).len() == admitted - 1);
        reset(&weir, "renamed");
    }
    assert_eq!(statuses(clients), [200; 7]);
    assert_eq!(paths(&origin, 2)[..4], ["/1", "/2", "/3", "/4"].map(str::to_owned)[..]);
    assert_eq!(paths(&origin, 7), ["/new"]);
}

#[test]
fn requests_wait_for_a_rule_with_another_key() {
    let (origin, weir, clients) = start_waiting("key: [], throttle: { wait: { max: 1h } }", 4);
    let changed = slow("q", "key: client_ip, throttle: { wait: { max: 1h } }");
    weir.reload(&config_with_rules(&origin, &[&changed]));
    wait::until_true("an admitted request", || paths(&origin, 1).len() == 1);
    until_waiting(&weir, "q", 3);
    weir.reload(&config_with_rules(&origin, &["{ name: other, key: [], limit: 1000/s }"]));
    assert_eq!(statuses(clients), [200; 4]);
    let delays = || weir.metric("weir_request_delay_seconds_count", &[]);
    assert_eq!(delays(), 4.0, "a request that waits for several rules is delayed once");
}

#[test]
fn requests_that_wait_are_rejected_by_a_renamed_rule_without_a_queue() {
    let (origin, weir, clients) = start_waiting("key: [], throttle: { wait: { max: 1h } }", 4);
    weir.reload(&config_with_rules(&origin, &[&slow("renamed", "key: []")]));
    let mut statuses = statuses(clients);
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 429, 429, 429]);
    assert_eq!(decisions(&weir, "renamed", "limited"), 3.0);
}

#[test]
fn time_that_a_request_has_waited_counts_for_a_renamed_rule() {
    let (origin, weir, clients) = start_waiting("key: [], throttle: { wait: { max: 1h } }", 2);
    // Both have waited longer than the new rule permits, and there is room for one of them.
    weir.reload(&config_with_rules(
        &origin,
        &[&slow("renamed", "key: [], throttle: { wait: { max: 1ms } }")],
    ));
    let mut statuses = statuses(clients);
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 429]);
    assert_eq!(rejections(&weir, "renamed", "no_time"), 1.0);
}

#[test]
fn denied_and_exempt_requests_do_not_wait_any_longer() {
    for (action, status) in [("deny", 403), ("allow", 200)] {
        let (origin, weir, clients) = start_waiting("key: [], throttle: { wait: { max: 1h } }", 2);
        weir.reload(&config_with_rules(&origin, &[&format!("{{ name: all, action: {action} }}")]));
        assert_eq!(statuses(clients), [status; 2], "{action}");
    }
}

#[test]
fn client_that_disconnects_after_a_rename_leaves_the_queue() {
    let settings = "key: [], throttle: { wait: { max: 1h } }";
    let (origin, weir, clients) = start_waiting(settings, 3);
    weir.reload(&config_with_rules(&origin, &[&slow("renamed", settings)]));
    until_waiting(&weir, "renamed", 2);
    drop(clients);
    until_waiting(&weir, "renamed", 0);
    let next = send(&weir, &Request::get("/next"));
    until_waiting(&weir, "renamed", 1);
    drop(next);
}
