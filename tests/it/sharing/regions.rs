//! Several regions with a store each share limits through a global store that is far away.

use super::loaded_fleet::{LIMIT, LoadedFleet};
use super::*;

/// Time from a region to the global store.
const DELAY: Duration = Duration::from_millis(60);

/// Stores of three regions, and a global one.
struct Regions {
    stores: Vec<Server>,
    global: Server,
    cuts: Vec<Arc<AtomicBool>>,
    settings: Vec<String>,
}

impl Regions {
    fn start() -> Self {
        let (global, stores): (_, Vec<_>) = (Server::start(), (0..3).map(|_| Server::start()).collect());
        let to_global = ([127, 0, 0, 1], global.port()).into();
        let links: Vec<_> = stores.iter().map(|_| slow_link::start_slow_with_cut(to_global, DELAY)).collect();
        let settings = stores.iter().zip(&links).enumerate().map(|(number, (store, (link, _)))| {
            let regions = format!("{{ name: r{number}, global: redis://{link}, count: 3 }}");
            format!("{{ redis: {}, timeout: 200ms, registration: 20s, regions: {regions} }}", store.url())
        });
        let settings = settings.collect();
        Self { stores, global, cuts: links.into_iter().map(|(_, cut)| cut).collect(), settings }
    }

    fn fleet(&self) -> LoadedFleet {
        let fleet = LoadedFleet::start(&self.settings, "split");
        for weir in &fleet.instances {
            wait::until_true("the regions", || weir.metric("weir_store_regions", &[]) == 3.0);
        }
        fleet
    }
}

#[test]
fn regions_share_a_limit_and_use_it() {
    let regions = Regions::start();
    let fleet = regions.fleet();
    fleet.assert_kept(0.7, || {
        fleet.until_all_admit(5 * LIMIT);
        (0..3).for_each(|number| fleet.until_admits(number, LIMIT / 2));
    });
}

#[test]
fn region_that_is_cut_off_spends_its_part_and_the_others_leave_it() {
    let regions = Regions::start();
    let fleet = regions.fleet();
    fleet.assert_kept(0.5, || {
        fleet.until_all_admit(3 * LIMIT);
        regions.cuts[1].store(true, Ordering::SeqCst);
        wait::until_true("the loss", || fleet.instances[1].metric("weir_store_global_up", &[]) == 0.0);
        (0..3).for_each(|number| fleet.until_admits(number, LIMIT));
        regions.cuts[1].store(false, Ordering::SeqCst);
        wait::until_true("the link", || fleet.instances[1].metric("weir_store_global_up", &[]) == 1.0);
        fleet.until_admits(1, LIMIT);
    });
}

#[test]
fn global_store_that_loses_its_data_gives_nothing_out_twice() {
    let regions = Regions::start();
    let fleet = regions.fleet();
    fleet.assert_kept(0.5, || {
        fleet.until_all_admit(3 * LIMIT);
        regions.global.cli(&["FLUSHALL"]);
        fleet.until_all_admit(3 * LIMIT);
        regions.stores[0].cli(&["FLUSHALL"]);
        fleet.until_all_admit(2 * LIMIT);
    });
}

#[test]
fn first_request_of_a_key_does_not_wait_for_another_region() {
    let regions = Regions::start();
    let rule =
        "  - { name: all, key: [{ header: x-key }], limit: 100/m, scope: { shared: lease, wait: 20ms } }\n";
    let weir = start_with_store("echo", &regions.settings[0], rule);
    for key in ["a", "b", "c"] {
        assert_eq!(status_for_key(&weir, key), 200, "{key}");
    }
}
