//! One experiment: a fleet, its demand, and what came of it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, timeout};
use weir::clock::Clock;
use weir::limiter::timestamp::Timestamp;

use crate::claims::{self, Decided};
use crate::commands;
use crate::demand::Demand;
use crate::histogram::Histogram;
use crate::judge::Judge;

/// Arrivals are drawn so often.
const TICK: Duration = Duration::from_millis(1);
/// Requests of the fleet that may wait at once.
const MAX_WAITING: usize = 100_000;
/// One decision of so many is timed.
const TIMED: u32 = 8;

/// How instances decide.
#[derive(Debug)]
pub(crate) enum Fleet {
    /// By claims on the store, or by a limit of their own. A request waits so long for the store.
    Claims(Vec<claims::Instance>, Duration),
    /// By a command for each request; so many units in a second.
    Commands(Vec<commands::Instance>, u64),
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) judge: Judge,
    /// Decisions that did not wait.
    pub(crate) decisions: Histogram,
    /// Requests that waited for the store.
    pub(crate) waits: Histogram,
    /// Rejected since too many waited.
    pub(crate) crowded: u64,
}

/// What a run has in common with the requests of it that wait.
struct State {
    fleet: RefCell<Fleet>,
    clock: Arc<Clock>,
    started: Timestamp,
    judge: RefCell<Judge>,
    waits: RefCell<Histogram>,
    waiting: Cell<usize>,
    crowded: Cell<u64>,
}

/// Lets requests arrive for as long as `lasts`.
pub(crate) async fn run(
    fleet: Fleet,
    demand: Demand,
    judge: Judge,
    lasts: Duration,
    clock: &Arc<Clock>,
    mut each_tick: impl FnMut(Duration, &mut Fleet),
) -> Outcome {
    let state = Rc::new(State {
        fleet: RefCell::new(fleet),
        clock: Arc::clone(clock),
        started: clock.now(),
        judge: RefCell::new(judge),
        waits: RefCell::new(Histogram::new()),
        waiting: Cell::new(0),
        crowded: Cell::new(0),
    });
    let (mut decisions, mut rng) = (Histogram::new(), Rng::with_seed(17));
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = Duration::ZERO;
    loop {
        ticks.tick().await;
        let at = clock.now().since(state.started);
        if at >= lasts {
            break;
        }
        each_tick(at, &mut state.fleet.borrow_mut());
        let of = state.fleet.borrow().size();
        for instance in 0..of {
            for _ in 0..demand.arrivals((instance, of), at, at - last, &mut rng) {
                let key = demand.key(&mut rng);
                let is_timed = rng.u32(0..TIMED) == 0;
                state.arrive(instance, key, is_timed.then_some(&mut decisions));
            }
        }
        last = at;
    }
    while state.waiting.get() > 0 {
        ticks.tick().await;
    }
    let crowded = state.crowded.get();
    let state = Rc::into_inner(state).expect("nothing waits");
    Outcome { judge: state.judge.into_inner(), decisions, waits: state.waits.into_inner(), crowded }
}

impl Fleet {
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Claims(instances, _) => instances.len(),
            Self::Commands(instances, _) => instances.len(),
        }
    }
}

impl State {
    fn arrive(self: &Rc<Self>, instance: usize, key: u32, timed: Option<&mut Histogram>) {
        let now = self.clock.now();
        let at = now.since(self.started);
        self.judge.borrow_mut().offer(key, at);
        match &*self.fleet.borrow() {
            Fleet::Claims(instances, wait) => {
                if instances[instance].is_killed() {
                    return;
                }
                let decided = decide(&instances[instance], key, !wait.is_zero(), now, timed);
                match decided {
                    Decided::Admitted => self.judge.borrow_mut().admit(key, at),
                    Decided::Rejected => {}
                    Decided::Waits(response) => self.hold(instance, key, response, *wait),
                }
            }
            Fleet::Commands(instances, limit) => {
                match instances[instance].count(key, now.as_nanos() / 1_000_000_000) {
                    Some(count) => self.await_count(key, count, *limit),
                    None => self.crowded.set(self.crowded.get() + 1),
                }
            }
        }
    }

    /// Holds a request until the store has responded, or for as long as it may wait; then it is decided again.
    fn hold(self: &Rc<Self>, instance: usize, key: u32, response: oneshot::Receiver<()>, wait: Duration) {
        if !self.enter() {
            return;
        }
        let state = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let since = Instant::now();
            // What it was told by then is the same with and without a response.
            let _ = timeout(wait, response).await;
            let Fleet::Claims(instances, _) = &*state.fleet.borrow() else { return };
            let now = state.clock.now();
            if let Decided::Admitted = instances[instance].decide(key, false, now) {
                state.judge.borrow_mut().admit(key, now.since(state.started));
            }
            state.leave(since);
        });
    }

    fn await_count(self: &Rc<Self>, key: u32, count: oneshot::Receiver<u64>, limit: u64) {
        if !self.enter() {
            return;
        }
        let state = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let since = Instant::now();
            if count.await.is_ok_and(|count| count <= limit) {
                let at = state.clock.now().since(state.started);
                state.judge.borrow_mut().admit(key, at);
            }
            state.leave(since);
        });
    }

    fn enter(&self) -> bool {
        if self.waiting.get() >= MAX_WAITING {
            self.crowded.set(self.crowded.get() + 1);
            return false;
        }
        self.waiting.set(self.waiting.get() + 1);
        true
    }

    fn leave(&self, since: Instant) {
        self.waits.borrow_mut().record(since.elapsed());
        self.waiting.set(self.waiting.get() - 1);
    }
}

fn decide(
    instance: &claims::Instance,
    key: u32,
    waits: bool,
    now: Timestamp,
    timed: Option<&mut Histogram>,
) -> Decided {
    let Some(histogram) = timed else { return instance.decide(key, waits, now) };
    let started = Instant::now();
    let decided = instance.decide(key, waits, now);
    histogram.record(started.elapsed());
    decided
}
