//! Simulation of an upstream, of clients that send whatever is admitted, and of the limiter and controller
//! between them.
//!
//! The upstream is a queue with several servers. Its service times are log-normal, and a scenario scales them over
//! time. Clients send at random times and independently of responses (an open loop, which is what overloads upstreams).
//! Admission uses the arithmetic of the real limiter. The controller is the real one, and its input is what a proxy
//! would measure.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::num::NonZeroU32;
use std::time::Duration;

use weir_limiter::algorithm::{Algorithm, CounterState, Outcome, evaluate};
use weir_limiter::control::TICK;
use weir_limiter::control::samples::Samples;
use weir_limiter::elastic::controller::{Assessment, Controller};
use weir_limiter::elastic::signal::{SignalSet, UpstreamMeasurement};
use weir_limiter::elastic::{ElasticCosts, ElasticRange, Headroom};
use weir_limiter::quota::{Limit, Period, Quota, TimeUnit};
use weir_limiter::timestamp::Timestamp;

const START: u64 = 1_704_067_200_000_000_000;
const SECOND: f64 = 1e9;
/// Request timeout of the simulated proxy, in nanoseconds.
const TIMEOUT: u64 = 15_000_000_000;

/// Parameters of a simulation.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    /// Seed of the random numbers.
    pub(crate) seed: u64,
    /// Number of requests that the upstream processes concurrently.
    pub(crate) servers: usize,
    /// Median service time, in seconds.
    pub(crate) service: f64,
    /// Spread of the service times: the standard deviation of their logarithm.
    pub(crate) spread: f64,
    /// Factor by which service times are longer, at a second of the simulation.
    pub(crate) slowdown: fn(f64) -> f64,
    /// Fraction of the servers that work, at a second of the simulation.
    pub(crate) working: fn(f64) -> f64,
    /// Whether the upstream reports its load.
    pub(crate) reports_load: bool,
    /// Base limit of each client, per second.
    pub(crate) limit: u32,
    /// Maximum of the elastic limit, as a multiple of the base limit.
    pub(crate) max_multiple: u32,
    /// Demand of each client: requests per second, at a second of the simulation.
    pub(crate) clients: Vec<fn(f64) -> f64>,
    /// Duration in seconds.
    pub(crate) seconds: u32,
    /// Signals that the controller uses.
    pub(crate) signals: SignalSet,
}

impl Scenario {
    /// An upstream of 16 servers with a capacity of 800 requests per second, and four clients with a base limit of 100
    /// that send 500 each.
    pub(crate) fn greedy(seed: u64) -> Self {
        Self {
            seed,
            servers: 16,
            service: 0.0177,
            spread: 0.5,
            slowdown: |_| 1.0,
            working: |_| 1.0,
            reports_load: false,
            limit: 100,
            max_multiple: 3,
            clients: vec![|_| 500.0; 4],
            seconds: 180,
            signals: SignalSet::ALL,
        }
    }
}

/// State at one tick of a simulation.
#[derive(Clone, Debug)]
pub(crate) struct TickState {
    /// Seconds since the start.
    pub(crate) at: f64,
    /// Limits in force, as a multiple of the base limits.
    pub(crate) factor: f64,
    /// Assessment of the controller.
    pub(crate) assessment: Assessment,
    /// Requests in the upstream.
    pub(crate) in_flight: usize,
    /// Mean response time of the responses in this tick, in seconds.
    pub(crate) latency: Option<f64>,
    /// Admitted requests in this tick, by client.
    pub(crate) admitted: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Done,
    Arrival(usize),
}

struct Client {
    rate: fn(f64) -> f64,
    state: Option<CounterState>,
    admitted: u32,
}

struct Simulation {
    scenario: Scenario,
    random: fastrand::Rng,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    quota: Quota,
    costs: ElasticCosts,
    clients: Vec<Client>,
    /// Requests in process: the time at which each will be done, and its arrival time.
    working: BinaryHeap<Reverse<(u64, u64)>>,
    waiting: VecDeque<u64>,
    headroom: Headroom,
    measurements: TickMeasurements,
}

/// Measurements of the current tick.
#[derive(Default)]
struct TickMeasurements {
    response_times: Samples,
    latencies: f64,
    ended: u64,
    failed: u64,
    /// Busy servers, integrated over time in nanoseconds.
    busy: f64,
    busy_until: u64,
}

/// Runs `scenario` to its end.
pub(crate) fn run(scenario: &Scenario) -> Vec<TickState> {
    let limit = NonZeroU32::new(scenario.limit).expect("a limit above 0");
    let limit = Limit::new(limit, Period::one(TimeUnit::Second));
    let burst = NonZeroU32::new(scenario.limit.div_ceil(10));
    let written = Quota::new(Algorithm::Gcra, limit, burst).expect("a valid quota");
    let stretch = ElasticRange::from_hundredths(scenario.max_multiple * 100).expect("a maximum above 1x");
    let (quota, prices) = written.to_elastic(stretch).expect("a quota that can be elastic");
    let client = |rate: &fn(f64) -> f64| Client { rate: *rate, state: None, admitted: 0 };
    let mut simulation = Simulation {
        random: fastrand::Rng::with_seed(scenario.seed),
        events: (0..scenario.clients.len()).map(|client| Reverse((0, Event::Arrival(client)))).collect(),
        quota,
        costs: prices,
        clients: scenario.clients.iter().map(client).collect(),
        working: BinaryHeap::new(),
        waiting: VecDeque::new(),
        headroom: Headroom::NONE,
        measurements: TickMeasurements::default(),
        scenario: scenario.clone(),
    };
    let mut controller = Controller::default();
    let ticks = u64::from(scenario.seconds) * 10;
    (1..=ticks).map(|tick| simulation.tick(tick * 100_000_000, &mut controller)).collect()
}

impl Simulation {
    fn tick(&mut self, end: u64, controller: &mut Controller) -> TickState {
        while let Some(Reverse((now, event))) =
            self.events.peek().copied().filter(|Reverse((at, _))| *at < end)
        {
            self.events.pop();
            self.record_busy_time(now);
            match event {
                Event::Done => self.finish_request(now),
                Event::Arrival(client) => self.arrive(client, now),
            }
        }
        self.record_busy_time(end);
        self.apply_timeouts(end);
        let tally = std::mem::take(&mut self.measurements);
        self.measurements.busy_until = end;
        let in_flight = self.working.len() + self.waiting.len();
        let busy = tally.busy / (self.scenario.servers as f64 * TICK.as_nanos() as f64);
        let reading = UpstreamMeasurement {
            in_flight: in_flight as u64,
            response_times: tally.response_times,
            ended: tally.ended,
            failed: tally.failed,
            utilization: (self.scenario.reports_load && tally.ended > 0).then_some(busy),
            cpu: None,
        };
        let assessment =
            controller.assess(&reading, self.scenario.signals, Timestamp::from_nanos(START + end));
        self.headroom = assessment.headroom;
        TickState {
            at: end as f64 / SECOND,
            factor: self.costs.range().factor_at(self.headroom),
            assessment,
            in_flight,
            latency: (tally.ended > 0).then(|| tally.latencies / tally.ended as f64),
            admitted: self.clients.iter_mut().map(|client| std::mem::take(&mut client.admitted)).collect(),
        }
    }

    fn record_busy_time(&mut self, now: u64) {
        let passed = now.saturating_sub(self.measurements.busy_until) as f64;
        self.measurements.busy += passed * self.working.len() as f64;
        self.measurements.busy_until = now;
    }

    fn arrive(&mut self, client: usize, now: u64) {
        let rate = (self.clients[client].rate)(now as f64 / SECOND).max(0.001);
        let gap = -(1.0 - self.random.f64()).ln() / rate;
        self.events.push(Reverse((now + (gap * SECOND) as u64, Event::Arrival(client))));
        let asking = &mut self.clients[client];
        let price = self.costs.at_headroom(self.headroom).get();
        let (next, outcome) = evaluate(asking.state, &self.quota, price, Timestamp::from_nanos(START + now));
        if outcome != Outcome::Conform {
            return;
        }
        asking.state = Some(next);
        asking.admitted += 1;
        if self.has_free_server(now) {
            self.start_request(now, now);
        } else {
            self.waiting.push_back(now);
        }
    }

    fn start_request(&mut self, arrived: u64, now: u64) {
        let (one, other) = (1.0 - self.random.f64(), self.random.f64());
        let normal = (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * other).cos();
        let slowness = (self.scenario.slowdown)(now as f64 / SECOND);
        let seconds = self.scenario.service * (normal * self.scenario.spread).exp() * slowness;
        let done = now + (seconds * SECOND) as u64;
        self.working.push(Reverse((done, arrived)));
        self.events.push(Reverse((done, Event::Done)));
    }

    fn finish_request(&mut self, now: u64) {
        if let Some(Reverse((_, came))) = self.working.pop() {
            let took = now - came;
            self.measurements.ended += 1;
            self.measurements.latencies += took as f64 / SECOND;
            if took > TIMEOUT {
                self.measurements.failed += 1;
            } else {
                self.measurements.response_times.add(Duration::from_nanos(took));
            }
        }
        while self.has_free_server(now)
            && let Some(came) = self.waiting.pop_front()
        {
            self.start_request(came, now);
        }
    }

    fn has_free_server(&self, now: u64) -> bool {
        let share = (self.scenario.working)(now as f64 / SECOND);
        (self.working.len() as f64) < (self.scenario.servers as f64 * share).max(1.0)
    }

    /// Applies the request timeout: the proxy closes the connections of requests that have waited too long.
    fn apply_timeouts(&mut self, now: u64) {
        while self.waiting.front().is_some_and(|came| now - came > TIMEOUT) {
            self.waiting.pop_front();
            self.measurements.ended += 1;
            self.measurements.failed += 1;
            self.measurements.latencies += TIMEOUT as f64 / SECOND;
        }
    }
}
