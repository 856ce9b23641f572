//! A store that comes back with data of an earlier time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::start_sharing;
use crate::servers::Server;
use crate::support::load::SetOnDrop;
use crate::support::{Client, run_concurrently, wait};

/// Units a second, and of the burst.
const LIMIT: usize = 200;

#[test]
fn store_restored_from_an_old_snapshot_admits_nothing_twice() {
    let mut store = Server::start();
    let rule = "  - { name: all, limit: 200/s, scope: { shared: lease, on_store_loss: deny } }\n";
    let fleet: Vec<_> = (0..2).map(|_| start_sharing(&store.url(), rule)).collect();
    let (admitted, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let until_more = |more: usize| {
        let before = admitted.load(Ordering::SeqCst);
        wait::until_true("further admissions", || admitted.load(Ordering::SeqCst) >= before + more);
    };
    let store = std::sync::Mutex::new(&mut store);
    let start = wait::now();
    run_concurrently(1 + fleet.len(), |index| {
        let Some(weir) = fleet.get(index) else {
            let _end = SetOnDrop(&is_over);
            let mut store = store.lock().unwrap();
            store.cli(&["save"]);
            until_more(2 * LIMIT);
            store.restart();
            return until_more(LIMIT);
        };
        let mut client = Client::connect(weir.address());
        while !is_over.load(Ordering::SeqCst) {
            admitted.fetch_add(usize::from(client.get("/").status == 200), Ordering::SeqCst);
            // The demand is above the limit all the same.
            wait::pause(Duration::from_millis(1));
        }
    });
    let most = LIMIT as f64 * (1.0 + start.elapsed().as_secs_f64());
    let admitted = admitted.into_inner();
    assert!(admitted as f64 <= most, "{admitted} of at most {most}");
}
