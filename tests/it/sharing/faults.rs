//! Faults of the store and of instances, while the demand is above the limit.

use super::loaded_fleet::{LIMIT, LoadedFleet};
use super::*;

/// Sections `store` for this number of instances.
fn stores(redis: &str, instances: usize) -> Vec<String> {
    vec![format!("{{ redis: {redis}, timeout: 2s }}"); instances]
}

#[test]
fn store_restored_from_an_old_snapshot_admits_nothing_twice() {
    let mut store = Server::start();
    let fleet = LoadedFleet::start(&stores(&store.url(), 2), "deny");
    let store = std::sync::Mutex::new(&mut store);
    fleet.assert_kept(0.0, || {
        let mut store = store.lock().unwrap();
        store.cli(&["save"]);
        fleet.until_all_admit(2 * LIMIT);
        store.restart();
        fleet.until_all_admit(LIMIT);
    });
}

#[test]
fn instance_that_is_suspended_past_its_lease_spends_none_of_it() {
    let store = Server::start();
    let fleet = LoadedFleet::start(&stores(&store.url(), 3), "deny");
    fleet.assert_kept(0.5, || {
        for _ in 0..3 {
            fleet.until_all_admit(LIMIT);
            fleet.instances[0].signal("STOP");
            // The leases of the suspended instance are valid for a second at most.
            fleet.until_all_admit(2 * LIMIT);
            fleet.instances[0].signal("CONT");
            fleet.until_admits(0, LIMIT / 4);
        }
    });
}

#[test]
fn slots_that_move_to_another_server_of_a_cluster_admit_nothing_twice() {
    let cluster = Cluster::start();
    let urls = cluster.servers.each_ref().map(Server::url).join(", ");
    let fleet = LoadedFleet::start(&stores(&format!("[{urls}]"), 2), "deny");
    fleet.assert_kept(0.2, || {
        fleet.until_all_admit(LIMIT);
        // Groups of counters, of which one has that of the limit.
        for group in 0..16 {
            let key = format!("weir:2:{{weir.{group}}}:generation");
            cluster.move_slot_with_keys(&key, (cluster.owner(&key) + 1) % 3);
        }
        fleet.until_all_admit(2 * LIMIT);
    });
}

#[test]
fn wall_clock_that_jumps_on_one_instance_admits_nothing_twice() {
    let (store, directory) = (Server::start(), tempfile::tempdir().unwrap());
    let lead = directory.path().join("lead");
    let jump_to = |seconds: &str| std::fs::write(&lead, seconds).unwrap();
    jump_to("+0");
    let fleet = LoadedFleet::start_with_clock(&format!("{{ redis: {}, timeout: 2s }}", store.url()), &lead);
    let noticed =
        |times| fleet.instances[0].log().iter().filter(|line| line.contains("clock")).count() >= times;
    fleet.assert_kept(0.5, || {
        for (times, seconds) in (1..).zip(["+20", "+0", "+3600", "-3600"]) {
            jump_to(seconds);
            wait::until_true("the jump", || noticed(times));
            fleet.until_admits(0, LIMIT / 4);
            fleet.until_all_admit(LIMIT);
        }
    });
}
