//! A fleet whose instances all have more demand than their shared limit, and what it admits.

use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use super::*;
use crate::support::Client;
use crate::support::load::SetOnDrop;

/// Units a second, and of the burst.
pub(super) const LIMIT: usize = 200;

/// Instances with one limit of [`LIMIT`] a second, and the requests that each has admitted.
pub(super) struct LoadedFleet {
    pub(super) instances: Vec<Weir>,
    admitted: Vec<AtomicUsize>,
    /// When requests were admitted.
    times: Mutex<Vec<Instant>>,
    is_over: AtomicBool,
}

fn rule(on_store_loss: &str) -> String {
    let scope = format!("{{ shared: lease, on_store_loss: {on_store_loss} }}");
    format!("  - {{ name: all, limit: {LIMIT}/s, scope: {scope} }}\n")
}

impl LoadedFleet {
    /// Starts an instance for each of these sections `store`.
    pub(super) fn start(stores: &[String], on_store_loss: &str) -> Self {
        let rule = rule(on_store_loss);
        Self::of(stores.iter().map(|store| start_with_store("echo", store, &rule)).collect())
    }

    /// Starts two instances with this section `store`, of which the first has a clock that leads by what a file says.
    pub(super) fn start_with_clock(store: &str, lead: &Path) -> Self {
        let rule = rule("deny");
        let yaml = config("echo", &format!("store: {store}\nrules:\n{rule}"));
        let first = Weir::start_with_clock(&yaml, lead);
        wait::until_true("the store", || first.metric("weir_store_up", &[]) == 1.0);
        Self::of(vec![first, start_with_store("echo", store, &rule)])
    }

    fn of(instances: Vec<Weir>) -> Self {
        let admitted = instances.iter().map(|_| AtomicUsize::new(0)).collect();
        Self { instances, admitted, times: Mutex::default(), is_over: AtomicBool::new(false) }
    }

    /// Returns what each instance has admitted.
    pub(super) fn count(&self) -> Vec<usize> {
        self.admitted.iter().map(|admitted| admitted.load(Ordering::SeqCst)).collect()
    }

    /// Waits until an instance has admitted this many more. Its part of the limit, and so its pace, depends on when the
    /// instances have had a processor.
    pub(super) fn until_admits(&self, number: usize, more: usize) {
        let before = self.count()[number];
        let admits = || (self.count()[number] >= before + more).then_some(());
        assert!(wait::within(4 * wait::DEADLINE, admits).is_some(), "no further admissions");
    }

    /// Waits until all instances together have admitted this many more.
    pub(super) fn until_all_admit(&self, more: usize) {
        let sum = || self.count().iter().sum::<usize>();
        let before = sum();
        wait::until_true("further admissions", || sum() >= before + more);
    }

    /// Sends requests to an instance until the test is over.
    fn demand(&self, number: usize) {
        let mut client = Client::connect(self.instances[number].address());
        while !self.is_over.load(Ordering::SeqCst) {
            if client.get("/").status == 200 {
                self.times.lock().unwrap().push(wait::now());
                self.admitted[number].fetch_add(1, Ordering::SeqCst);
            }
            // The demand is above the limit all the same.
            wait::pause(Duration::from_millis(1));
        }
    }

    /// Runs `test` while all instances have demand. Asserts that they admit no more than the limit in any window, and this
    /// part of it or more in all.
    pub(super) fn assert_kept(&self, least: f64, test: impl Fn() + Sync) {
        let start = wait::now();
        run_concurrently(self.instances.len() + 1, |number| {
            if number < self.instances.len() {
                return self.demand(number);
            }
            let _end = SetOnDrop(&self.is_over);
            test();
        });
        let (limit, mut times) = (LIMIT as f64, std::mem::take(&mut *self.times.lock().unwrap()));
        times.sort_unstable();
        // A bucket with the rate and the burst of the limit. Each client may see its last response late.
        let (mut level, mut last) = (0.0, start);
        for time in &times {
            level = f64::max(level - limit * time.duration_since(last).as_secs_f64(), 0.0) + 1.0;
            last = *time;
            assert!(
                level <= limit + self.instances.len() as f64,
                "{level} at {:?}",
                time.duration_since(start)
            );
        }
        let most = limit * (1.0 + start.elapsed().as_secs_f64());
        assert!(times.len() as f64 >= least * most, "{} of at most {most}", times.len());
    }
}
