//! Some instances do not reach the store: they spend their parts, which the store holds back meanwhile.

use super::*;
use crate::support::Client;
use crate::support::load::SetOnDrop;

/// Units a second, and of the burst.
const LIMIT: usize = 200;

const RULE: &str = "  - { name: all, limit: 200/s, scope: { shared: lease, on_store_loss: strict_split } }\n";

/// Admissions of a fleet of three, of which the last may be cut off.
struct Partition {
    _store: Server,
    is_cut: Arc<AtomicBool>,
    fleet: Vec<Weir>,
    admitted: Vec<AtomicUsize>,
    is_over: AtomicBool,
}

impl Partition {
    fn start() -> Self {
        let store = Server::start();
        let (link, is_cut) = slow_link::start_with_cut(([127, 0, 0, 1], store.port()).into());
        let settings = |redis: &str| {
            let store = format!("store: {{ redis: {redis}, timeout: 200ms, registration: 20s }}\n");
            let weir = Weir::start(&config("echo", &format!("{store}rules:\n{RULE}")));
            wait::until_true("the store", || weir.metric("weir_store_up", &[]) == 1.0);
            weir
        };
        let stores = [store.url(), store.url(), format!("redis://{link}")];
        let fleet: Vec<_> = stores.iter().map(|redis| settings(redis)).collect();
        let admitted = fleet.iter().map(|_| AtomicUsize::new(0)).collect();
        Self { _store: store, is_cut, fleet, admitted, is_over: AtomicBool::new(false) }
    }

    fn count(&self) -> Vec<usize> {
        self.admitted.iter().map(|admitted| admitted.load(Ordering::SeqCst)).collect()
    }

    /// Sends requests to an instance until the test is over.
    fn demand(&self, number: usize) {
        let mut client = Client::connect(self.fleet[number].address());
        while !self.is_over.load(Ordering::SeqCst) {
            let is_admitted = client.get("/").status == 200;
            self.admitted[number].fetch_add(usize::from(is_admitted), Ordering::SeqCst);
            // The demand is above the limit all the same.
            wait::pause(Duration::from_millis(1));
        }
    }

    /// Waits until the cut-off instance has admitted this many more.
    fn until_cut_off_admits(&self, more: usize) {
        let before = self.count()[2];
        wait::until_true("requests by the part", || self.count()[2] >= before + more);
    }

    /// Runs `test` while all instances have demand; returns what they have admitted of what they may at most.
    fn run(&self, test: impl Fn() + Sync) -> (usize, f64) {
        let start = wait::now();
        run_concurrently(self.fleet.len() + 1, |number| {
            if number < self.fleet.len() {
                return self.demand(number);
            }
            let _end = SetOnDrop(&self.is_over);
            test();
        });
        (self.count().iter().sum(), LIMIT as f64 * (1.0 + start.elapsed().as_secs_f64()))
    }
}

#[test]
fn instance_that_is_cut_off_spends_its_part_and_the_others_leave_it() {
    let partition = Partition::start();
    let (admitted, most) = partition.run(|| {
        wait::until_true("demand", || partition.count().iter().all(|count| *count > LIMIT));
        partition.is_cut.store(true, Ordering::SeqCst);
        partition.until_cut_off_admits(2 * LIMIT);
        partition.is_cut.store(false, Ordering::SeqCst);
        let cut_off = &partition.fleet[2];
        wait::until_true("the store", || cut_off.metric("weir_store_up", &[]) == 1.0);
        partition.until_cut_off_admits(LIMIT);
    });
    assert!(admitted as f64 <= most, "{admitted} of at most {most}");
    assert!(admitted as f64 >= most / 2.0, "{admitted} of {most}");
}

#[test]
fn parts_without_a_store_add_up_to_the_limit() {
    let mut partition = Partition::start();
    let (admitted, most) = {
        let partition = &partition;
        partition.run(|| {
            wait::until_true("demand", || partition.count().iter().all(|count| *count > LIMIT));
            partition._store.freeze();
            for number in 0..3 {
                let before = partition.count()[number];
                wait::until_true("requests by the parts", || partition.count()[number] >= before + LIMIT);
            }
        })
    };
    partition._store.kill();
    assert!(admitted as f64 <= most, "{admitted} of at most {most}");
}

#[test]
fn instance_without_a_part_rejects_everything() {
    let store = Server::start();
    let settings = format!("store: {{ redis: {}, timeout: 200ms }}\nrules:\n{RULE}", store.url());
    drop(store);
    let weir = Weir::start(&config("echo", &settings));
    let response = fetch(weir.address(), &Request::get("/"));
    assert_eq!((response.status, response.header("retry-after")), (429, "1"));
}
