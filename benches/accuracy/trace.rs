//! Simulated requests of many sources, and how often a sliding window decides differently from an exact log.
//!
//! Sources are counted separately. So each is generated and measured on its own, in the order of its
//! requests, and needs no more memory than its counters. Runs with the same seed are identical.

use std::collections::VecDeque;
use std::num::NonZeroU32;

use fastrand::Rng;
use weir_limiter::algorithm::history::History;
use weir_limiter::algorithm::{self, Algorithm, Counter, CounterState, Outcome};
use weir_limiter::quota::{Limit, Period, Quota, TimeUnit};
use weir_limiter::timestamp::Timestamp;

/// 2026-11-21T08:00:00Z, the start of a window of every length.
const START: u64 = 1_795_248_000_000_000_000;
const SECOND: f64 = 1e9;

/// Limit of every source: 100 per minute.
const COUNT: u32 = 100;
const PERIOD: u64 = 60_000_000_000;

/// Arrival pattern of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceKind {
    /// A Poisson process: arrivals are independent. Mean rates are spread log-uniformly from a tenth of the limit to
    /// twice the limit.
    Poisson,
    /// Minutes of silence, then seconds at several times the limit.
    Bursty,
    /// Sends its whole limit right before a window ends, and a steady stream of requests after that.
    BoundaryHugging,
}

impl SourceKind {
    pub(crate) const ALL: [Self; 3] = [Self::Poisson, Self::Bursty, Self::BoundaryHugging];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Poisson => "Poisson",
            Self::Bursty => "bursty",
            Self::BoundaryHugging => "boundary-hugging",
        }
    }

    /// Returns the kind of the source with this number.
    pub(crate) fn from_number(source: u64) -> Self {
        Self::ALL[(source % 3) as usize]
    }
}

/// Generator of the arrival times of one source, in nanoseconds since the epoch.
struct Source {
    random: Rng,
    kind: SourceKind,
    now: f64,
    /// Requests per second while the source sends.
    rate: f64,
    /// End of the current burst; used by bursty sources only.
    burst_end: f64,
}

impl Source {
    fn new(seed: u64, number: u64) -> Self {
        let mut random = Rng::with_seed(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let kind = SourceKind::from_number(number);
        let allowed = f64::from(COUNT) * SECOND / PERIOD as f64;
        let rate = match kind {
            SourceKind::Poisson => allowed * 0.1 * 20_f64.powf(random.f64()),
            SourceKind::Bursty => allowed * (2.0 + 18.0 * random.f64()),
            SourceKind::BoundaryHugging => allowed * (0.5 + random.f64()),
        };
        Self { now: random.f64() * PERIOD as f64, random, kind, rate, burst_end: 0.0 }
    }

    /// Draws the time until the next event of a Poisson process with `rate` events per second, in nanoseconds.
    fn draw_gap(&mut self, rate: f64) -> f64 {
        -(1.0 - self.random.f64()).ln() / rate * SECOND
    }

    fn next_arrival(&mut self) -> u64 {
        match self.kind {
            SourceKind::Poisson => self.now += self.draw_gap(self.rate),
            SourceKind::Bursty => {
                self.now += self.draw_gap(self.rate);
                if self.now > self.burst_end {
                    // Mean values: 90 s of silence, then 10 s of requests.
                    self.now += self.draw_gap(1.0 / 90.0);
                    self.burst_end = self.now + self.draw_gap(0.1);
                }
            }
            SourceKind::BoundaryHugging => {
                let period = PERIOD as f64;
                let to_mark = period - self.now % period;
                // The last fortieth before every second window boundary is for the burst.
                let is_odd = (self.now / period) as u64 % 2 == 1;
                let burst = period / 40.0;
                let step =
                    if is_odd && to_mark <= burst { burst / f64::from(COUNT) } else { SECOND / self.rate };
                let step = step * (0.5 + self.random.f64());
                self.now += if is_odd && to_mark > burst { step.min(to_mark - burst) } else { step };
            }
        }
        START + self.now as u64
    }
}

/// Counts of decisions for one kind of source.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DecisionErrors {
    pub(crate) requests: u64,
    pub(crate) wrongly_allowed: u64,
    pub(crate) wrongly_rejected: u64,
}

impl DecisionErrors {
    pub(crate) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.wrongly_allowed += other.wrongly_allowed;
        self.wrongly_rejected += other.wrongly_rejected;
    }
}

/// A window under measurement, and the times of all admissions within the last period as the exact log.
struct WindowAndLog {
    window: Quota,
    state: Option<CounterState>,
    history: History,
    admitted: VecDeque<Timestamp>,
    errors: DecisionErrors,
}

impl WindowAndLog {
    fn new(precision: u8) -> Self {
        let limit = Limit::new(NonZeroU32::new(COUNT).expect("nonzero"), Period::one(TimeUnit::Minute));
        let window = Quota::new(Algorithm::SlidingWindow, limit, None).expect("a valid quota");
        Self {
            window: window.with_precision(precision).unwrap_or(window),
            state: None,
            history: History::default(),
            admitted: VecDeque::new(),
            errors: DecisionErrors::default(),
        }
    }

    /// Decides a request, and records whether an exact count of the admissions within the last period agrees.
    fn decide(&mut self, now: Timestamp) {
        let counter =
            if self.window.needs_history() { Counter::WithHistory(&self.history) } else { self.state.into() };
        let (next, outcome) = algorithm::evaluate(counter, &self.window, 1, now);
        let is_past = |at: &Timestamp| now.as_nanos() - at.as_nanos() >= PERIOD;
        while self.admitted.front().is_some_and(is_past) {
            self.admitted.pop_front();
        }
        let (allows, should) = (outcome == Outcome::Conform, self.admitted.len() < COUNT as usize);
        self.errors.requests += 1;
        self.errors.wrongly_allowed += u64::from(allows && !should);
        self.errors.wrongly_rejected += u64::from(!allows && should);
        if !allows {
            return;
        }
        if self.window.needs_history() {
            self.history.apply_state(next, &self.window, now, true);
        } else {
            self.state = Some(next);
        }
        self.admitted.push_back(now);
    }
}

/// Runs `requests` requests of one source through one window per precision; precision 1 is a plain sliding window.
pub(crate) fn simulate_source(
    seed: u64,
    source: u64,
    requests: u64,
    precisions: &[u8],
) -> Vec<DecisionErrors> {
    let mut source = Source::new(seed, source);
    let mut pairs: Vec<_> = precisions.iter().map(|precision| WindowAndLog::new(*precision)).collect();
    for _ in 0..requests {
        let now = Timestamp::from_nanos(source.next_arrival());
        pairs.iter_mut().for_each(|pair| pair.decide(now));
    }
    pairs.into_iter().map(|pair| pair.errors).collect()
}
