//! Some instances do not reach the store: they spend their parts, which the store holds back meanwhile.

use super::loaded_fleet::{LIMIT, LoadedFleet};
use super::*;

const STRICT: &str = "strict_split";

/// An instance spends its part until its registration ends, which must be long enough on a busy machine, where parts may be small.
fn settings(redis: &str) -> String {
    format!("{{ redis: {redis}, timeout: 200ms, registration: 1m }}")
}

fn until_all_have_parts(fleet: &LoadedFleet) {
    for weir in &fleet.instances {
        wait::until_true("a part", || weir.metric("weir_store_part", &[]) > 0.1);
    }
}

#[test]
fn instance_that_is_cut_off_spends_its_part_and_the_others_leave_it() {
    let store = Server::start();
    let (link, is_cut) = slow_link::start_with_cut(([127, 0, 0, 1], store.port()).into());
    let stores = [store.url(), store.url(), format!("redis://{link}")];
    let fleet = LoadedFleet::start(&stores.map(|redis| settings(&redis)), STRICT);
    fleet.assert_kept(0.5, || {
        until_all_have_parts(&fleet);
        is_cut.store(true, Ordering::SeqCst);
        // What it spends would be in excess if the others did not leave it.
        fleet.until_admits(2, 2 * LIMIT);
        is_cut.store(false, Ordering::SeqCst);
        let cut_off = &fleet.instances[2];
        wait::until_true("the store", || cut_off.metric("weir_store_up", &[]) == 1.0);
        fleet.until_admits(2, LIMIT);
    });
}

#[test]
fn parts_without_a_store_add_up_to_the_limit() {
    let store = Server::start();
    let fleet = LoadedFleet::start(&[(); 3].map(|()| settings(&store.url())), STRICT);
    fleet.assert_kept(0.3, || {
        until_all_have_parts(&fleet);
        store.freeze();
        (0..3).for_each(|number| fleet.until_admits(number, LIMIT / 2));
    });
    store.thaw();
}

#[test]
fn instance_without_a_part_rejects_everything() {
    let store = Server::start();
    let rule =
        "rules:\n  - { name: all, limit: 200/s, scope: { shared: lease, on_store_loss: strict_split } }\n";
    let yaml = format!("store: {}\n{rule}", settings(&store.url()));
    drop(store);
    let weir = Weir::start(&config("echo", &yaml));
    let response = fetch(weir.address(), &Request::get("/"));
    assert_eq!((response.status, response.header("retry-after")), (429, "1"));
}

#[test]
fn instance_that_ends_gives_its_part_up() {
    let store = Server::start();
    let mut fleet = LoadedFleet::start(&[(); 2].map(|()| settings(&store.url())), STRICT);
    until_all_have_parts(&fleet);
    let mut ending = fleet.instances.pop().unwrap();
    ending.terminate();
    ending.wait_exit();
    let rest = &fleet.instances[0];
    wait::until_true("the whole limit", || rest.metric("weir_store_part", &[]) == 1.0);
}
