//! Waiting for units of a limit that instances share through a store.

use super::{decisions, numbered, send, statuses, until_waiting};
use crate::servers::Server;
use crate::support::{Weir, config, get, wait};

fn start_sharing(store: &Server, rule: &str) -> Weir {
    let store = store.url();
    let rules = format!("store: {{ redis: {store}, timeout: 2s }}\nrules:\n  - {rule}\n");
    let weir = Weir::start(&config("echo", &rules));
    wait::until_true("the store", || weir.metric("weir_store_up", &[]) == 1.0);
    weir
}

#[test]
fn instances_that_share_a_limit_admit_all_waiting_requests_at_its_rate() {
    let store = Server::start();
    for mode in ["lease", "exact"] {
        let rule = format!(
            "{{ name: {mode}, key: [], limit: 40/s, scope: {{ shared: {mode} }}, \
             throttle: {{ wait: {{ max: 60s }} }} }}"
        );
        let fleet = [start_sharing(&store, &rule), start_sharing(&store, &rule)];
        let begun = wait::now();
        let clients: Vec<_> = numbered(120)
            .iter()
            .zip(fleet.iter().cycle())
            .map(|(request, weir)| send(weir, request))
            .collect();
        assert!(statuses(clients).iter().all(|status| *status == 200), "{mode}");
        // The burst at once, and the rest at 40 a second.
        assert!(begun.elapsed().as_millis() >= 1950, "{mode}: {:?}", begun.elapsed());
        for weir in &fleet {
            assert!(decisions(weir, mode, "delayed") > 0.0, "{mode}");
            assert_eq!(decisions(weir, mode, "limited"), 0.0, "{mode}");
            until_waiting(weir, mode, 0);
        }
    }
}

#[test]
fn queues_of_several_instances_do_not_exceed_a_shared_limit_with_a_small_burst() {
    let store = Server::start();
    let rule =
        "{ name: q, key: [], limit: 500/s, burst: 5, scope: shared, throttle: { wait: { max: 60s } } }";
    let fleet = [start_sharing(&store, rule), start_sharing(&store, rule)];
    let clients: Vec<_> =
        numbered(1600).iter().zip(fleet.iter().cycle()).map(|(request, weir)| send(weir, request)).collect();
    let admitted = || fleet.iter().map(|weir| decisions(weir, "q", "delayed")).sum::<f64>();
    // Once both have a queue, until one of them is nearly empty.
    let [first, last] = [200.0, 1300.0].map(|count| {
        wait::until_true("admitted requests", || admitted() >= count);
        (admitted(), wait::now())
    });
    let [count, seconds] = [last.0 - first.0, (last.1 - first.1).as_secs_f64()];
    assert!(count / seconds <= 1.05 * 500.0, "{count} in {seconds} s");
    assert!(statuses(clients).iter().all(|status| *status == 200));
}

#[test]
fn units_that_the_store_does_not_have_in_time_are_not_waited_for() {
    let store = Server::start();
    let rule = "{ name: q, key: [], limit: 3/d, scope: { shared: exact, wait: 1s }, \
                throttle: { wait: { max: 5s } } }";
    let weir = start_sharing(&store, rule);
    let admitted = (0..5).filter(|_| get(weir.address(), "/").status == 200).count();
    assert!((1..=3).contains(&admitted), "{admitted}");
    assert_eq!(decisions(&weir, "q", "limited"), 5.0 - admitted as f64);
    until_waiting(&weir, "q", 0);
}
