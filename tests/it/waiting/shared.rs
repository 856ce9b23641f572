//! Waiting for units of a limit that instances share through a store.

use std::time::{Duration, Instant};

use super::{decisions, numbered, send, statuses, until_waiting};
use crate::servers::Server;
use crate::support::{Weir, config, get, slow_link, wait};

fn start_sharing(store: &Server, rule: &str) -> Weir {
    start_sharing_at(&store.url(), rule)
}

fn start_sharing_at(store: &str, rule: &str) -> Weir {
    let rules = format!("store: {{ redis: {store}, timeout: 2s }}\nrules:\n  - {rule}\n");
    let weir = Weir::start(&config("echo", &rules));
    wait::until_true("the store", || weir.metric("weir_store_up", &[]) == 1.0);
    weir
}

fn since(first: Instant, last: Instant) -> f64 {
    (last - first).as_secs_f64()
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
fn queues_of_several_instances_use_a_shared_limit_with_a_small_burst_and_do_not_exceed_it() {
    const RATE: f64 = 100.0;
    const BURST: f64 = 25.0;
    let store = Server::start();
    // A queue that gets its units one by one gets twelve a second.
    let link = slow_link::start(([127, 0, 0, 1], store.port()).into(), Duration::from_millis(40));
    let rule = format!(
        "{{ name: q, key: [], limit: {RATE}/s, burst: {BURST}, scope: {{ shared: lease, wait: 1s }}, \
         throttle: {{ wait: {{ max: 60s }} }} }}"
    );
    let fleet = [(), ()].map(|()| start_sharing_at(&format!("redis://{link}"), &rule));
    let clients: Vec<_> =
        numbered(320).iter().zip(fleet.iter().cycle()).map(|(request, weir)| send(weir, request)).collect();
    let admitted = || fleet.iter().map(|weir| decisions(weir, "q", "delayed")).sum::<f64>();
    // Once both have a queue, until one of them is nearly empty.
    let mut seen = Vec::new();
    let is_admitted = wait::within(Duration::from_secs(60), || {
        seen.push((admitted(), wait::now()));
        seen.last().filter(|(count, _)| *count >= 260.0).map(drop)
    });
    assert!(is_admitted.is_some(), "{:?}", seen.last());
    seen.retain(|(count, _)| *count >= 40.0);
    let [first, last] = [seen[0], seen[seen.len() - 1]];
    assert!(last.0 - first.0 <= BURST + 1.02 * RATE * since(first.1, last.1), "{first:?} to {last:?}");
    // Half of it in the best part of the time, because other programs may keep the processors busy.
    let parts = seen.iter().flat_map(|first| {
        let later = seen.iter().filter(|last| last.0 >= first.0 + 80.0);
        later.map(|last| (last.0 - first.0) / since(first.1, last.1))
    });
    let best = parts.fold(0.0, f64::max);
    assert!(best >= 0.5 * RATE, "{best} of {RATE} a second");
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
