//! Simulation of a service with a knee in its latency, in virtual time.
//!
//! The service has a number of workers and an unbounded queue in front of them. Up to as many requests as workers, its
//! latency is constant; beyond, it grows.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::f64::consts::TAU;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use super::{ClassIndex, ConcurrencyGate, ConcurrencySlot, Entrance, Waiting};
use crate::adaptive::limits::UpstreamSignal;
use crate::control::TICK;
use crate::key::KeyHasher;
use crate::timestamp::Timestamp;

/// Requests of one class, at random times.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClassLoad {
    pub(super) class: ClassIndex,
    /// Requests per second.
    pub(super) rate: f64,
    /// Flows between which they are divided evenly, and the first of them.
    pub(super) flows: u32,
    pub(super) first_flow: u32,
}

/// The service.
#[derive(Clone, Copy, Debug)]
pub(super) struct Service {
    pub(super) workers: usize,
    /// Mean time of a request without a queue.
    pub(super) time: Duration,
    pub(super) times: ServiceTimes,
}

/// How the times of requests are distributed around their mean.
#[derive(Clone, Copy, Debug)]
pub(super) enum ServiceTimes {
    /// Between 90 and 110 per cent of it.
    Even,
    Exponential,
    /// With a standard deviation of a half of the logarithm.
    LogNormal,
    /// One in twenty takes ten times as long as the others.
    TwoKinds,
}

impl ServiceTimes {
    /// Returns a random time, of which the mean is one.
    fn draw(self, random: &mut fastrand::Rng) -> f64 {
        let part = random.f64();
        let exponential = -(1.0 - part).ln();
        match self {
            Self::Even => 0.9 + 0.2 * part,
            Self::Exponential => exponential,
            Self::LogNormal => {
                // Box and Muller's transform.
                let normal = (2.0 * exponential).sqrt() * (TAU * random.f64()).cos();
                (0.5 * normal - 0.125).exp()
            }
            Self::TwoKinds if part < 0.05 => 10.0 / 1.45,
            Self::TwoKinds => 1.0 / 1.45,
        }
    }
}

/// What has become of the requests of one load.
#[derive(Clone, Debug, Default)]
pub(super) struct LoadOutcome {
    pub(super) sent: u64,
    pub(super) served: u64,
    /// Time from the arrival to the response.
    latencies: Vec<Duration>,
    /// Requests served, by flow.
    pub(super) by_flow: HashMap<u32, u64>,
}

pub(super) struct GateSimulation {
    pub(super) gate: Arc<ConcurrencyGate>,
    pub(super) service: Service,
    pub(super) now: Timestamp,
    pub(super) outcomes: Vec<LoadOutcome>,
    /// Time for which workers were busy.
    busy: Duration,
    random: fastrand::Rng,
    events: BinaryHeap<Reverse<(Timestamp, u64, Event)>>,
    numbers: u64,
    requests: HashMap<u64, SimulatedRequest>,
    /// Negative while more are busy than there are now.
    idle_workers: isize,
    queue: VecDeque<u64>,
    woken: Arc<Mutex<Vec<u64>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival(usize),
    GivesUp(u64),
    Served(u64),
    Tick,
}

struct SimulatedRequest {
    load: usize,
    flow: u32,
    arrived: Timestamp,
    sent: Timestamp,
    waiting: Option<Waiting>,
    slot: Option<ConcurrencySlot>,
}

struct WakeRequest(u64, Arc<Mutex<Vec<u64>>>);

impl Wake for WakeRequest {
    fn wake(self: Arc<Self>) {
        self.1.lock().push(self.0);
    }
}

impl LoadOutcome {
    /// Returns the share of the requests that were served.
    pub(super) fn goodput(&self) -> f64 {
        self.served as f64 / self.sent as f64
    }

    /// Returns the latency below which this share of the requests was.
    pub(super) fn quantile(&self, share: f64) -> Duration {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        let index = (sorted.len() as f64 * share) as usize;
        sorted.get(index.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
    }
}

impl GateSimulation {
    pub(super) fn new(gate: Arc<ConcurrencyGate>, service: Service, seed: u64) -> Self {
        Self {
            gate,
            service,
            now: Timestamp::from_secs(1),
            outcomes: Vec::new(),
            busy: Duration::ZERO,
            random: fastrand::Rng::with_seed(seed),
            events: BinaryHeap::new(),
            numbers: 0,
            requests: HashMap::new(),
            idle_workers: service.workers as isize,
            queue: VecDeque::new(),
            woken: Arc::default(),
        }
    }

    /// Runs for `time` with these loads, and returns their outcomes. Requests that are in flight at the end do not count.
    pub(super) fn run(&mut self, loads: &[ClassLoad], time: Duration) -> Vec<LoadOutcome> {
        let end = self.now.saturating_add(time);
        self.outcomes = vec![LoadOutcome::default(); loads.len()];
        self.busy = Duration::ZERO;
        self.events.retain(|Reverse((_, _, event))| !matches!(event, Event::Arrival(_) | Event::Tick));
        (0..loads.len()).for_each(|load| self.plan_arrival(load, loads));
        self.plan(TICK, Event::Tick);
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            if at >= end {
                self.plan(Duration::ZERO, event);
                break;
            }
            self.now = at;
            match event {
                Event::Arrival(load) => {
                    self.plan_arrival(load, loads);
                    self.arrive(load, loads[load]);
                }
                Event::GivesUp(request) => self.give_up(request),
                Event::Served(request) => self.serve(request),
                Event::Tick => {
                    self.gate.adapt(at);
                    self.plan(TICK, Event::Tick);
                }
            }
            self.poll_woken();
        }
        self.now = end;
        std::mem::take(&mut self.outcomes)
    }

    /// Returns the share of the workers that was busy in the last run, which took `seconds`.
    pub(super) fn used(&self, seconds: f64) -> f64 {
        self.busy.as_secs_f64() / seconds / self.service.workers as f64
    }

    /// Changes the number of workers. Those that are busy finish their requests.
    pub(super) fn set_workers(&mut self, workers: usize) {
        let busy = self.service.workers as isize - self.idle_workers;
        self.service.workers = workers;
        self.idle_workers = workers as isize - busy;
        self.work();
    }

    fn plan(&mut self, delay: Duration, event: Event) {
        self.numbers += 1;
        self.events.push(Reverse((self.now.saturating_add(delay), self.numbers, event)));
    }

    fn plan_arrival(&mut self, load: usize, loads: &[ClassLoad]) {
        let pause = -(1.0 - self.random.f64()).ln() / loads[load].rate;
        self.plan(Duration::from_secs_f64(pause), Event::Arrival(load));
    }

    fn arrive(&mut self, load: usize, ClassLoad { class, flows, first_flow, .. }: ClassLoad) {
        self.numbers += 1;
        let (number, flow) = (self.numbers, first_flow + self.random.u32(0..flows));
        self.outcomes[load].sent += 1;
        let key = KeyHasher::new([1, 2]).hash_u32(flow);
        let mut request =
            SimulatedRequest { load, flow, arrived: self.now, sent: self.now, waiting: None, slot: None };
        match self.gate.enter(class, key, self.now) {
            Entrance::Admitted(slot) => {
                request.slot = Some(slot);
                self.requests.insert(number, request);
                self.send(number);
            }
            Entrance::Waits(waiting, patience) => {
                request.waiting = Some(waiting);
                self.requests.insert(number, request);
                self.plan(patience, Event::GivesUp(number));
                self.poll(number);
            }
        }
    }

    fn poll(&mut self, number: u64) {
        let Some(request) = self.requests.get_mut(&number) else { return };
        let waker = Waker::from(Arc::new(WakeRequest(number, Arc::clone(&self.woken))));
        let polled =
            request.waiting.as_mut().map(|waiting| Pin::new(waiting).poll(&mut Context::from_waker(&waker)));
        if let Some(Poll::Ready(slot)) = polled {
            (request.waiting, request.slot) = (None, Some(slot));
            self.send(number);
        }
    }

    fn poll_woken(&mut self) {
        loop {
            let woken = std::mem::take(&mut *self.woken.lock());
            if woken.is_empty() {
                break;
            }
            woken.into_iter().for_each(|number| self.poll(number));
        }
    }

    fn give_up(&mut self, number: u64) {
        let Some(request) = self.requests.get_mut(&number) else { return };
        let Some(waiting) = request.waiting.take() else { return };
        match waiting.give_up(self.now) {
            None => {
                self.requests.remove(&number);
            }
            Some(slot) => {
                request.slot = Some(slot);
                self.send(number);
            }
        }
    }

    fn send(&mut self, number: u64) {
        if let Some(request) = self.requests.get_mut(&number) {
            request.sent = self.now;
        }
        self.queue.push_back(number);
        self.work();
    }

    fn work(&mut self) {
        while self.idle_workers > 0
            && let Some(number) = self.queue.pop_front()
        {
            self.idle_workers -= 1;
            let took = self.service.time.mul_f64(self.service.times.draw(&mut self.random));
            self.busy += took;
            self.plan(took, Event::Served(number));
        }
    }

    fn serve(&mut self, number: u64) {
        self.idle_workers += 1;
        self.work();
        let Some(SimulatedRequest { load, flow, arrived, sent, slot, .. }) = self.requests.remove(&number)
        else {
            return;
        };
        if let Some(slot) = slot {
            slot.record(UpstreamSignal::Latency(self.now.since(sent)));
        }
        let Some(outcome) = self.outcomes.get_mut(load) else { return };
        outcome.served += 1;
        outcome.latencies.push(self.now.since(arrived));
        *outcome.by_flow.entry(flow).or_default() += 1;
    }
}
