//! Simulation of an upstream behind a concurrency limit: a queue with several servers, requests that arrive at random
//! times independently of responses, and an algorithm that computes the limit.
//!
//! A request that finds the limit reached is rejected. A request that waits longer than the timeout fails.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

/// Length of a tick, in seconds.
pub(crate) const TICK: f64 = 0.1;
/// Request timeout of the simulated proxy, in seconds.
const TIMEOUT: f64 = 15.0;

/// An algorithm that computes a concurrency limit.
pub(crate) trait Algorithm {
    /// Returns the limit in force.
    fn limit(&self) -> u32;
    /// Processes a response that took this long, and the number of requests in flight then.
    fn respond(&mut self, latency: Duration, in_flight: u32);
    /// Processes a failure.
    fn fail(&mut self);
    /// Is called every 100 ms, with the maximum number of requests in flight since the last call.
    fn tick(&mut self, peak: u32);
}

/// Distribution of service times, relative to their median.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spread {
    /// Log-normal, with this standard deviation of the logarithm.
    LogNormal(f64),
    /// Most requests take the median; this share takes as many times as long.
    TwoKinds { share: f64, factor: f64 },
}

/// Parameters of a simulation. Functions have the second of the simulation as their argument.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    /// Name in the table.
    pub(crate) name: &'static str,
    /// Number of requests that the upstream processes concurrently.
    pub(crate) servers: fn(f64) -> usize,
    /// Median service time, in seconds.
    pub(crate) service: fn(f64) -> f64,
    /// Distribution of the service times.
    pub(crate) spread: Spread,
    /// Requests per second.
    pub(crate) arrivals: fn(f64) -> f64,
    /// Duration in seconds.
    pub(crate) seconds: u32,
}

/// One second of a simulation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Second {
    /// Completed requests.
    pub(crate) completed: u32,
    /// Requests that arrived.
    pub(crate) arrived: u32,
    /// Latencies in seconds.
    pub(crate) latencies: Vec<f64>,
    /// Mean of the limit.
    pub(crate) limit: f64,
}

struct Queue<'a> {
    scenario: &'a Scenario,
    random: fastrand::Rng,
    /// Requests in service: nanosecond of completion, and of arrival.
    working: BinaryHeap<Reverse<(u64, u64)>>,
    waiting: VecDeque<u64>,
    next_arrival: u64,
    peak: u32,
    second: Second,
}

/// Runs `scenario` to its end with `algorithm`; returns each second.
pub(crate) fn run(scenario: &Scenario, algorithm: &mut dyn Algorithm, seed: u64) -> Vec<Second> {
    let mut queue = Queue {
        scenario,
        random: fastrand::Rng::with_seed(seed),
        working: BinaryHeap::new(),
        waiting: VecDeque::new(),
        next_arrival: 0,
        peak: 0,
        second: Second::default(),
    };
    let mut seconds = Vec::new();
    for tick in 1..=scenario.seconds * 10 {
        queue.run_until(nanos(f64::from(tick) * TICK), algorithm);
        algorithm.tick(queue.peak);
        queue.peak = queue.in_flight();
        queue.second.limit += f64::from(algorithm.limit()) / 10.0;
        if tick % 10 == 0 {
            seconds.push(std::mem::take(&mut queue.second));
        }
    }
    seconds
}

impl Queue<'_> {
    fn run_until(&mut self, end: u64, algorithm: &mut dyn Algorithm) {
        loop {
            let done = self.working.peek().map_or(u64::MAX, |Reverse((done, _))| *done);
            let now = done.min(self.next_arrival);
            if now >= end {
                break;
            }
            match done <= self.next_arrival {
                true => self.complete(algorithm),
                false => self.arrive(now, algorithm),
            }
            self.start_waiting(now);
        }
        while self.waiting.front().is_some_and(|came| end - came > nanos(TIMEOUT)) {
            self.waiting.pop_front();
            algorithm.fail();
        }
        self.start_waiting(end);
    }

    fn in_flight(&self) -> u32 {
        (self.working.len() + self.waiting.len()) as u32
    }

    fn complete(&mut self, algorithm: &mut dyn Algorithm) {
        let Some(Reverse((done, came))) = self.working.pop() else { return };
        let latency = (done - came) as f64 / 1e9;
        self.second.completed += 1;
        self.second.latencies.push(latency);
        algorithm.respond(Duration::from_nanos(done - came), self.in_flight() + 1);
    }

    fn arrive(&mut self, now: u64, algorithm: &mut dyn Algorithm) {
        let rate = (self.scenario.arrivals)(now as f64 / 1e9).max(0.01);
        self.next_arrival = now + nanos(-(1.0 - self.random.f64()).ln() / rate).max(1);
        self.second.arrived += 1;
        if self.in_flight() < algorithm.limit() {
            self.waiting.push_back(now);
            self.peak = self.peak.max(self.in_flight());
        }
    }

    fn start_waiting(&mut self, now: u64) {
        while self.working.len() < (self.scenario.servers)(now as f64 / 1e9)
            && let Some(came) = self.waiting.pop_front()
        {
            let service = (self.scenario.service)(now as f64 / 1e9) * self.relative_service_time();
            self.working.push(Reverse((now + nanos(service).max(1), came)));
        }
    }

    fn relative_service_time(&mut self) -> f64 {
        match self.scenario.spread {
            Spread::LogNormal(deviation) => {
                let (one, other) = (1.0 - self.random.f64(), self.random.f64());
                ((-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * other).cos() * deviation).exp()
            }
            Spread::TwoKinds { share, factor } if self.random.f64() < share => factor,
            Spread::TwoKinds { .. } => 1.0,
        }
    }
}

impl Spread {
    /// Returns the mean of the service times, relative to their median.
    fn mean(self) -> f64 {
        match self {
            Self::LogNormal(deviation) => (deviation * deviation / 2.0).exp(),
            Self::TwoKinds { share, factor } => 1.0 + share * (factor - 1.0),
        }
    }
}

impl Scenario {
    /// Returns the requests per second that the upstream can serve at `second`.
    pub(crate) fn capacity(&self, second: f64) -> f64 {
        (self.servers)(second) as f64 / ((self.service)(second) * self.spread.mean())
    }
}

/// Results of a part of a simulation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Summary {
    /// Completed requests, relative to what the upstream could have served of those that arrived.
    pub(crate) throughput: f64,
    /// Median latency, relative to the median service time.
    pub(crate) median: f64,
    /// Mean limit.
    pub(crate) limit: f64,
}

/// Summarises the seconds from `from` to `to`.
pub(crate) fn summarise(scenario: &Scenario, seconds: &[Second], from: usize, to: usize) -> Summary {
    let (mut completed, mut possible, mut limit) = (0.0, 0.0, 0.0);
    let mut relative = Vec::new();
    for (at, second) in seconds.iter().enumerate().take(to).skip(from) {
        let at = at as f64 + 0.5;
        completed += f64::from(second.completed);
        possible += f64::from(second.arrived).min(scenario.capacity(at));
        limit += second.limit;
        relative.extend(second.latencies.iter().map(|latency| latency / (scenario.service)(at)));
    }
    relative.sort_by(f64::total_cmp);
    Summary {
        throughput: completed / possible,
        median: relative.get(relative.len() / 2).copied().unwrap_or(0.0),
        limit: limit / (to - from) as f64,
    }
}

/// Returns the seconds from `from` until the throughput is 90 % of what is possible.
pub(crate) fn time_to_recover(scenario: &Scenario, seconds: &[Second], from: usize) -> Option<usize> {
    let is_full = |at: usize| {
        let possible = f64::from(seconds[at].arrived).min(scenario.capacity(at as f64 + 0.5));
        f64::from(seconds[at].completed) >= possible * 0.9
    };
    (from..seconds.len().saturating_sub(1)).find(|at| is_full(*at) && is_full(at + 1)).map(|at| at - from)
}

fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}
