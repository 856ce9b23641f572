//! Limits divided by the number of instances, without a store.

use std::time::{SystemTime, UNIX_EPOCH};

use super::*;

/// Starts a proxy with one rule; `rest` contains the limit.
fn start_split(rest: &str, instances: &str) -> Weir {
    let rule = format!("rules:\n  - {{ name: all, key: [], {rest}, scope: {{ instances: {instances} }} }}\n");
    Weir::start(&config("echo", &rule))
}

#[test]
fn limit_is_split_by_the_addresses_of_a_dns_name() {
    let instances = |weir: &Weir| weir.metric("weir_shared_instances", &[("rule", "all")]);
    // The name has one address, or one of each address family.
    let weir = start_split("limit: 10/d", "{ dns: localhost }");
    assert_eq!(instances(&weir), 1.0);
    assert_eq!(count_admitted(&[weir], "a", 20), 10);
    // The domain `invalid` never exists (RFC 6761 section 6.4): the limit is not divided, and no request waits for the
    // name.
    let weir = start_split("limit: 10/d", "{ dns: pods.invalid }");
    assert_eq!(instances(&weir), 1.0);
    assert_eq!(count_admitted(&[weir], "a", 20), 10);
    let weir = start_split("limit: 10/d", "5");
    assert_eq!(instances(&weir), 5.0);
    assert_eq!(count_admitted(&[weir], "a", 20), 2);
}

#[expect(clippy::disallowed_methods, reason = "windows end by the wall clock")]
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn windows_of_all_instances_end_together() {
    let fleet = [(); 2].map(|()| start_split("limit: 10/h, algorithm: fixed_window", "2"));
    for weir in &fleet {
        let before = now();
        let reset: u64 =
            fetch(weir.address(), &Request::get("/")).header("x-ratelimit-reset").parse().unwrap();
        let after = now();
        // Whole seconds, rounded up; the hour ends by the wall clock.
        let ends = (before + reset - 1)..=(after + reset + 1);
        assert!(ends.clone().any(|end| end % 3600 == 0), "{ends:?}");
    }
    assert_eq!(count_admitted(&fleet, "a", 30), 8, "half of it each, less two admitted");
}
