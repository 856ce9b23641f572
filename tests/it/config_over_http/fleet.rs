//! A shared limit that an operator changes once, for all instances of a fleet.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use super::BootstrapDirectory;
use super::server::ConfigServer;
use crate::servers;
use crate::support::{Request, Weir, fetch, wait};

const INSTANCES: usize = 2;

/// A fleet that shares limits through a store and gets its rules from a server.
struct ConfigFleet {
    _store: servers::Server,
    server: ConfigServer,
    _directories: Vec<BootstrapDirectory>,
    instances: Vec<Weir>,
    mode: &'static str,
}

impl ConfigFleet {
    fn start(mode: &'static str, limit: &str) -> Self {
        let store = servers::Server::start();
        let server = ConfigServer::start_long_polling(&rules(mode, limit));
        let shared = format!("store: {{ redis: {}, timeout: 2s }}\n", store.url());
        let places: Vec<_> = (0..INSTANCES)
            .map(|_| {
                let place = BootstrapDirectory::new(&server.url(), ", interval: 1h");
                let text = std::fs::read_to_string(place.config_path()).unwrap() + &shared;
                std::fs::write(place.config_path(), text).unwrap();
                place
            })
            .collect();
        let instances: Vec<_> = places.iter().map(BootstrapDirectory::start).collect();
        for instance in &instances {
            wait::until_true("the store", || instance.metric("weir_store_up", &[]) == 1.0);
        }
        server.until_requests_held(INSTANCES);
        Self { _store: store, server, _directories: places, instances, mode }
    }

    /// Changes the limit on the server, and waits until all instances have reloaded.
    fn change_limit(&self, limit: &str) {
        let before: Vec<_> = self.instances.iter().map(Weir::generation).collect();
        self.server.publish(&rules(self.mode, limit));
        for (instance, before) in self.instances.iter().zip(before) {
            instance.until_reloaded(before);
        }
        self.server.until_requests_held(INSTANCES);
    }

    /// Returns how many of `requests` requests are admitted, sent to the instances in turn.
    fn count_admitted(&self, key: &str, requests: usize) -> usize {
        (0..requests).filter(|turn| self.is_admitted(turn % INSTANCES, key)).count()
    }

    /// Requires that `expected` of `requests` requests are admitted, less those whose units the store has spent on a response that came too
    /// late, which only happens on a busy machine.
    #[track_caller]
    fn assert_admitted(&self, key: &str, requests: usize, expected: usize) {
        let before = self.unanswered();
        let admitted = self.count_admitted(key, requests);
        let late = self.unanswered() - before;
        assert!(
            admitted <= expected && admitted + late >= expected,
            "{key}: {admitted} of {expected}, {late} too late"
        );
    }

    /// Returns the number of requests that the store has not responded to in time, which are rejected.
    fn unanswered(&self) -> usize {
        self.instances.iter().map(Weir::unanswered).sum::<f64>() as usize
    }

    fn is_admitted(&self, instance: usize, key: &str) -> bool {
        fetch(self.instances[instance].address(), &Request::get("/").header("x-key", key)).status == 200
    }

    /// Returns how many requests are admitted while both instances receive a steady stream and the limit changes.
    fn count_admitted_during_change(&self, key: &str, limit: &str) -> usize {
        let (passed, done) = (AtomicUsize::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            for instance in 0..INSTANCES {
                let (passed, done) = (&passed, &done);
                scope.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        passed.fetch_add(usize::from(self.is_admitted(instance, key)), Ordering::Relaxed);
                    }
                });
            }
            wait::until_true("traffic", || passed.load(Ordering::Relaxed) > 0);
            let changed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.change_limit(limit)));
            done.store(true, Ordering::Relaxed);
            changed.unwrap();
        });
        passed.into_inner() + self.count_admitted(key, 100)
    }
}

/// Returns rules with a period so long that no unit is replenished during a test.
fn rules(mode: &str, limit: &str) -> String {
    format!(
        "rules: [{{ name: total, key: [{{ header: x-key }}], limit: {limit}, algorithm: fixed_window, \
         scope: {{ shared: {mode}, wait: 1s, on_store_loss: deny }} }}]\n"
    )
}

#[test]
fn changed_shared_limit_applies_to_all_instances() {
    let fleet = ConfigFleet::start("exact", "10/year");
    fleet.assert_admitted("a", 30, 10);
    fleet.change_limit("16/year");
    // Used units stay used after a reload.
    fleet.assert_admitted("a", 30, 6);
    fleet.change_limit("12/year");
    fleet.assert_admitted("a", 30, 0);
    fleet.assert_admitted("b", 30, 12);
}

#[test]
fn changing_a_shared_limit_exceeds_neither_the_old_nor_the_new_value() {
    for mode in ["exact", "lease"] {
        let fleet = ConfigFleet::start(mode, "40/year");
        let raised = fleet.count_admitted_during_change("a", "60/year");
        assert!((41..=60).contains(&raised), "{mode}: {raised} admitted, limit 40 to 60");
        let lowered = fleet.count_admitted_during_change("b", "20/year");
        assert!((1..=60).contains(&lowered), "{mode}: {lowered} admitted, limit 60 to 20");
        let fresh = fleet.count_admitted("c", 100);
        assert!((1..=20).contains(&fresh), "{mode}: {fresh} admitted, limit 20");
    }
}
