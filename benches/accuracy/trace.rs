//! Requests of many sources, and how often a sliding window decides otherwise than an exact log would.
//!
//! Sources are counted apart, so each is generated and judged on its own, in the order of its requests and in
//! no more memory than its counters take. Everything follows from the seed.

use std::collections::VecDeque;
use std::num::NonZeroU32;

use fastrand::Rng;
use weir::limiter::algorithm::history::History;
use weir::limiter::algorithm::{self, Algorithm, Counter, Outcome, State};
use weir::limiter::quota::{Limit, Period, Quota, Unit};
use weir::limiter::timestamp::Timestamp;

/// 2026-11-21T08:00:00Z, a mark of every window.
const START: u64 = 1_795_248_000_000_000_000;
const SECOND: f64 = 1e9;

/// What every source is allowed: 100 a minute.
const COUNT: u32 = 100;
const PERIOD: u64 = 60_000_000_000;

/// How a source sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One request is independent of the next; from a tenth of the limit to twice as much, every order of
    /// magnitude as often as the next.
    Poisson,
    /// Silent for minutes, then for seconds at several times the limit.
    Bursty,
    /// Knows the marks: all it is allowed right before one, and a steady stream of attempts after it.
    Hugging,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Poisson, Self::Bursty, Self::Hugging];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Poisson => "Poisson",
            Self::Bursty => "bursty",
            Self::Hugging => "boundary-hugging",
        }
    }

    /// Of the source with this number.
    pub(crate) fn of(source: u64) -> Self {
        Self::ALL[(source % 3) as usize]
    }
}

/// When one source sends, in nanoseconds since the epoch.
struct Source {
    random: Rng,
    kind: Kind,
    now: f64,
    /// Requests a second while it sends.
    rate: f64,
    /// Until when it does, where that ends.
    until: f64,
}

impl Source {
    fn new(seed: u64, number: u64) -> Self {
        let mut random = Rng::with_seed(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let kind = Kind::of(number);
        let allowed = f64::from(COUNT) * SECOND / PERIOD as f64;
        let rate = match kind {
            Kind::Poisson => allowed * 0.1 * 20_f64.powf(random.f64()),
            Kind::Bursty => allowed * (2.0 + 18.0 * random.f64()),
            Kind::Hugging => allowed * (0.5 + random.f64()),
        };
        Self { now: random.f64() * PERIOD as f64, random, kind, rate, until: 0.0 }
    }

    /// The time until something that happens so often a second.
    fn wait(&mut self, rate: f64) -> f64 {
        -(1.0 - self.random.f64()).ln() / rate * SECOND
    }

    fn next(&mut self) -> u64 {
        match self.kind {
            Kind::Poisson => self.now += self.wait(self.rate),
            Kind::Bursty => {
                self.now += self.wait(self.rate);
                if self.now > self.until {
                    // A minute and a half of silence, then ten seconds, in the mean.
                    self.now += self.wait(1.0 / 90.0);
                    self.until = self.now + self.wait(0.1);
                }
            }
            Kind::Hugging => {
                let period = PERIOD as f64;
                let to_mark = period - self.now % period;
                // The last fortieth before every second mark is for the burst.
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

/// Decisions of one kind of sources.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) requests: u64,
    pub(crate) wrongly_allowed: u64,
    pub(crate) wrongly_refused: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.wrongly_allowed += other.wrongly_allowed;
        self.wrongly_refused += other.wrongly_refused;
    }
}

/// A window under measurement beside the times of all that it has admitted in the last period.
struct Pair {
    window: Quota,
    short: Option<State>,
    long: History,
    admitted: VecDeque<Timestamp>,
    tally: Tally,
}

impl Pair {
    fn new(precision: u8) -> Self {
        let limit = Limit::new(NonZeroU32::new(COUNT).expect("not zero"), Period::one(Unit::Minute));
        let window = Quota::new(Algorithm::SlidingWindow, limit, None).expect("a valid quota");
        Self {
            window: window.with_precision(precision).unwrap_or(window),
            short: None,
            long: History::default(),
            admitted: VecDeque::new(),
            tally: Tally::default(),
        }
    }

    /// Decides a request, and notes whether an exact count of what was admitted in the last period agrees.
    fn decide(&mut self, now: Timestamp) {
        let counter = if self.window.looks_back() { Counter::Long(&self.long) } else { self.short.into() };
        let (next, outcome) = algorithm::evaluate(counter, &self.window, 1, now);
        let is_past = |at: &Timestamp| now.as_nanos() - at.as_nanos() >= PERIOD;
        while self.admitted.front().is_some_and(is_past) {
            self.admitted.pop_front();
        }
        let (allows, should) = (outcome == Outcome::Conform, self.admitted.len() < COUNT as usize);
        self.tally.requests += 1;
        self.tally.wrongly_allowed += u64::from(allows && !should);
        self.tally.wrongly_refused += u64::from(!allows && should);
        if !allows {
            return;
        }
        if self.window.looks_back() {
            self.long.follow(next, &self.window, now, true);
        } else {
            self.short = Some(next);
        }
        self.admitted.push_back(now);
    }
}

/// Plays so many requests of one source through a window per precision, 1 for a plain one.
pub(crate) fn play(seed: u64, source: u64, requests: u64, precisions: &[u8]) -> Vec<Tally> {
    let mut source = Source::new(seed, source);
    let mut pairs: Vec<_> = precisions.iter().map(|precision| Pair::new(*precision)).collect();
    for _ in 0..requests {
        let now = Timestamp::from_nanos(source.next());
        pairs.iter_mut().for_each(|pair| pair.decide(now));
    }
    pairs.into_iter().map(|pair| pair.tally).collect()
}
