//! Quotas that several instances use up: units that one of them does not use reach the others.

use super::*;

const QUOTA: usize = 300;

fn rule(algorithm: &str) -> String {
    format!(
        "  - {{ name: {algorithm}, key: [{{ header: x-key }}], limit: {QUOTA}/d, algorithm: {algorithm}, \
         scope: {{ shared: lease, wait: 1s }} }}\n"
    )
}

#[test]
fn instances_use_up_a_quota_together_and_no_more() {
    let store = Server::start();
    for algorithm in ["fixed_window", "sliding_window", "sliding_log", "gcra", "token_bucket"] {
        let fleet: Vec<_> = (0..3).map(|_| start_sharing(&store.url(), &rule(algorithm))).collect();
        wait::until_true("three instances", || {
            fleet.iter().all(|weir| weir.metric("weir_store_instances", &[]) == 3.0)
        });
        let mut admitted = count_admitted(&fleet, "a", QUOTA);
        wait::until_true("the rest", || {
            admitted += count_admitted(&fleet, "a", 30);
            admitted * 100 >= QUOTA * 99
        });
        assert!(admitted + count_admitted(&fleet, "a", 60) <= QUOTA, "{algorithm}");
    }
}

#[test]
fn units_of_an_instance_whose_clients_left_reach_the_others() {
    let store = Server::start();
    let fleet: Vec<_> = (0..2).map(|_| start_sharing(&store.url(), &rule("fixed_window"))).collect();
    let mut admitted = count_admitted(&fleet[..1], "a", QUOTA / 3);
    wait::until_true("the rest", || {
        admitted += count_admitted(&fleet[1..], "a", 30);
        admitted * 100 >= QUOTA * 99
    });
    assert!(admitted + count_admitted(&fleet[1..], "a", 60) <= QUOTA);
}
