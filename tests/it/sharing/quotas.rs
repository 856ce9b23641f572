//! Quotas that several instances use up: units that one of them does not use reach the others.

use super::*;

const QUOTA: usize = 300;

fn rule(algorithm: &str) -> String {
    format!(
        "  - {{ name: {algorithm}, key: [{{ header: x-key }}], limit: {QUOTA}/d, algorithm: {algorithm}, \
         scope: {{ shared: lease, on_store_loss: deny }} }}\n"
    )
}

/// Sends requests until nearly all of the quota is used, and then some more. Returns how many are admitted in all.
fn use_up(fleet: &[Weir], mut admitted: usize, name: &str) -> usize {
    let used_up = wait::within(Duration::from_secs(60), || {
        admitted += count_admitted(fleet, "a", 30);
        (admitted * 100 >= QUOTA * 99).then_some(())
    });
    assert!(used_up.is_some(), "{name}: {admitted} of {QUOTA}");
    admitted + count_admitted(fleet, "a", 60)
}

/// Returns the `retry-after` of a request, if it is rejected. On a busy machine, a last unit may come back late.
fn retry_after(weir: &Weir) -> Option<u64> {
    let response = fetch(weir.address(), &Request::get("/").header("x-key", "a"));
    (response.status == 429).then(|| response.numeric_header("retry-after"))
}

#[test]
fn instances_use_up_a_quota_together_and_no_more() {
    let store = Server::start();
    for algorithm in ["fixed_window", "sliding_window", "sliding_log", "gcra", "token_bucket"] {
        let fleet: Vec<_> = (0..3).map(|_| start_sharing(&store.url(), &rule(algorithm))).collect();
        wait::until_true("three instances", || {
            fleet.iter().all(|weir| weir.metric("weir_store_instances", &[]) == 3.0)
        });
        let admitted = count_admitted(&fleet, "a", QUOTA);
        let admitted = use_up(&fleet, admitted, algorithm);
        assert!(admitted <= QUOTA, "{algorithm}: {admitted}");
        for weir in &fleet {
            let seconds = wait::until("a rejection", || retry_after(weir));
            // The store counts what slides by hundredths of the period, each of which ends a whole period before its units are back.
            let most = if algorithm.starts_with("sliding") { 86_400 + 864 } else { 86_400 };
            assert!((1..=most).contains(&seconds), "{algorithm}: {seconds}");
        }
        // The end of a day may be near.
        if algorithm != "fixed_window" {
            // Until then, units that another instance holds may come back.
            let is_next_unit_far = |weir| retry_after(weir).is_some_and(|seconds| seconds > 60);
            wait::until_true("the time of the next unit", || fleet.iter().all(is_next_unit_far));
        }
    }
}

#[test]
fn units_of_an_instance_whose_clients_left_reach_the_others() {
    let store = Server::start();
    let fleet: Vec<_> = (0..2).map(|_| start_sharing(&store.url(), &rule("fixed_window"))).collect();
    let admitted = count_admitted(&fleet[..1], "a", QUOTA / 3);
    assert!(use_up(&fleet[1..], admitted, "one of two instances") <= QUOTA);
}
