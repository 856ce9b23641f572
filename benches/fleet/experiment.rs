//! One experiment: runs a fleet under a demand and returns the measurements.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval};
use weir_limiter::timestamp::Timestamp;
use weir_net::clock::Clock;
use weir_store::lease_wait::LeaseWaits;

use crate::admission_stats::AdmissionStats;
use crate::commands;
use crate::demand::Demand;
use crate::histogram::Histogram;
use crate::leases::{self, RequestOutcome};

/// Interval at which arrivals are drawn.
const TICK: Duration = Duration::from_millis(1);
/// Maximum number of waiting requests of the whole fleet.
const MAX_WAITING: usize = 100_000;
/// One decision in this many is timed.
const TIMED_ONE_IN: u32 = 8;

/// Instances of a fleet, by how they decide.
#[derive(Debug)]
pub(crate) enum Fleet {
    /// Instances with leases or with a divided limit, and for how long a request may wait for the store.
    Leases(Vec<leases::LeaseInstance>, Duration),
    /// Instances that send commands for each request, and the limit per second.
    Commands(Vec<commands::CommandInstance>, u64),
}

/// Measurements of one experiment.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) stats: AdmissionStats,
    /// Durations of decisions that did not wait for the store.
    pub(crate) decisions: Histogram,
    /// Waiting times of requests that waited for the store.
    pub(crate) waits: Histogram,
    /// Requests rejected because too many others were waiting.
    pub(crate) rejected_waits: u64,
}

/// State of a run, shared with its waiting requests.
struct State {
    fleet: RefCell<Fleet>,
    clock: Arc<Clock>,
    started: Timestamp,
    stats: RefCell<AdmissionStats>,
    waits: RefCell<Histogram>,
    waiting: Cell<usize>,
    rejected_waits: Cell<u64>,
}

/// Runs an experiment for `duration`.
pub(crate) async fn run(
    fleet: Fleet,
    demand: Demand,
    judge: AdmissionStats,
    duration: Duration,
    clock: &Arc<Clock>,
    mut each_tick: impl FnMut(Duration, &mut Fleet),
) -> Outcome {
    let state = Rc::new(State {
        fleet: RefCell::new(fleet),
        clock: Arc::clone(clock),
        started: clock.now(),
        stats: RefCell::new(judge),
        waits: RefCell::new(Histogram::new()),
        waiting: Cell::new(0),
        rejected_waits: Cell::new(0),
    });
    let (mut decisions, mut rng) = (Histogram::new(), Rng::with_seed(17));
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = Duration::ZERO;
    loop {
        ticks.tick().await;
        let at = clock.now().since(state.started);
        if at >= duration {
            break;
        }
        each_tick(at, &mut state.fleet.borrow_mut());
        let of = state.fleet.borrow().size();
        for instance in 0..of {
            for _ in 0..demand.arrivals((instance, of), at, at - last, &mut rng) {
                let key = demand.key(&mut rng);
                let is_timed = rng.u32(0..TIMED_ONE_IN) == 0;
                state.arrive(instance, key, is_timed.then_some(&mut decisions));
            }
        }
        last = at;
    }
    while state.waiting.get() > 0 {
        ticks.tick().await;
    }
    let crowded = state.rejected_waits.get();
    let state = Rc::into_inner(state).expect("no waiting requests");
    Outcome {
        stats: state.stats.into_inner(),
        decisions,
        waits: state.waits.into_inner(),
        rejected_waits: crowded,
    }
}

impl Fleet {
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Leases(instances, _) => instances.len(),
            Self::Commands(instances, _) => instances.len(),
        }
    }
}

impl State {
    fn arrive(self: &Rc<Self>, instance: usize, key: u32, timed: Option<&mut Histogram>) {
        let now = self.clock.now();
        let at = now.since(self.started);
        self.stats.borrow_mut().record_arrival(key, at);
        match &*self.fleet.borrow() {
            Fleet::Leases(instances, wait) => {
                if instances[instance].is_killed() {
                    return;
                }
                let decided = decide(&instances[instance], key, *wait, now, timed);
                match decided {
                    RequestOutcome::Admitted => self.stats.borrow_mut().record_admission(key, at),
                    RequestOutcome::Rejected => {}
                    RequestOutcome::Waits(waiting) => self.await_store(instance, key, waiting),
                }
            }
            Fleet::Commands(instances, limit) => {
                match instances[instance].count(key, now.as_nanos() / 1_000_000_000) {
                    Some(count) => self.await_count(key, count, *limit),
                    None => self.rejected_waits.set(self.rejected_waits.get() + 1),
                }
            }
        }
    }

    /// Holds a request until the store responds, then decides it again.
    fn await_store(self: &Rc<Self>, instance: usize, key: u32, mut waiting: LeaseWaits) {
        if !self.start_waiting() {
            return;
        }
        let state = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let since = Instant::now();
            waiting.wait().await;
            let Fleet::Leases(instances, _) = &*state.fleet.borrow() else { return };
            let now = state.clock.now();
            if let RequestOutcome::Admitted = instances[instance].decide(key, Duration::ZERO, now) {
                state.stats.borrow_mut().record_admission(key, now.since(state.started));
            }
            state.finish_waiting(since);
        });
    }

    fn await_count(self: &Rc<Self>, key: u32, count: oneshot::Receiver<u64>, limit: u64) {
        if !self.start_waiting() {
            return;
        }
        let state = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let since = Instant::now();
            if count.await.is_ok_and(|count| count <= limit) {
                let at = state.clock.now().since(state.started);
                state.stats.borrow_mut().record_admission(key, at);
            }
            state.finish_waiting(since);
        });
    }

    fn start_waiting(&self) -> bool {
        if self.waiting.get() >= MAX_WAITING {
            self.rejected_waits.set(self.rejected_waits.get() + 1);
            return false;
        }
        self.waiting.set(self.waiting.get() + 1);
        true
    }

    fn finish_waiting(&self, since: Instant) {
        self.waits.borrow_mut().record(since.elapsed());
        self.waiting.set(self.waiting.get() - 1);
    }
}

fn decide(
    instance: &leases::LeaseInstance,
    key: u32,
    wait: Duration,
    now: Timestamp,
    timed: Option<&mut Histogram>,
) -> RequestOutcome {
    let Some(histogram) = timed else { return instance.decide(key, wait, now) };
    let started = Instant::now();
    let decided = instance.decide(key, wait, now);
    if !matches!(decided, RequestOutcome::Waits(_)) {
        histogram.record(started.elapsed());
    }
    decided
}
