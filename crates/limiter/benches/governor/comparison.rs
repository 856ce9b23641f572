//! Comparison of two limiters, of which one is the `governor` crate.
//!
//! Both decide the same random sequences of keys, in alternating rounds, so that disturbances on the machine affect
//! both.

use std::cell::Cell;
use std::env;
use std::hint::black_box;
use std::str::FromStr;
use std::sync::Barrier;

use governor::RateLimiter;
use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::keyed::DefaultKeyedStateStore;

use super::timing::{median, thread_cpu_nanos};

/// 2026-11-21T08:00:00Z.
const START: u64 = 1_795_248_000_000_000_000;
/// Nanoseconds by which time advances per decision if no clock is read.
const STEP: u64 = 100;

/// Outcome of all requests.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Load {
    /// Admitted: the limit is far above the load.
    Conforming,
    /// Rejected: the limit is one per hour, and is used up.
    Rejected,
}

/// A limiter under measurement.
pub(super) trait Contender: Sync {
    /// Returns whether a request of `key` is admitted. `tick` is the time if no clock is read.
    fn decide(&self, key: u32, tick: u64) -> bool;
}

/// Returns the nanoseconds since the epoch at a tick.
pub(super) const fn nanos_at(tick: u64) -> u64 {
    START + tick * STEP
}

thread_local! {
    static TICK: Cell<u64> = const { Cell::new(0) };
}

/// A clock that returns the tick set for the thread, so that governor can be measured without reading a real clock.
#[derive(Clone)]
pub(super) struct TickClock;

impl TickClock {
    pub(super) fn set(tick: u64) {
        TICK.set(tick);
    }
}

impl Clock for TickClock {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        Nanos::new(TICK.get() * STEP)
    }
}

/// Governor with a state per key, or with a single one.
pub(super) type Governor<C, K = u32, S = DefaultKeyedStateStore<u32>> =
    RateLimiter<K, S, C, NoOpMiddleware<<C as Clock>::Instant>>;

impl<C: Clock + Sync> Contender for Governor<C>
where
    C::Instant: Sync,
{
    fn decide(&self, key: u32, tick: u64) -> bool {
        TickClock::set(tick);
        self.check_key(&key).is_ok()
    }
}

/// Size of the measurement, from the command line.
pub(super) struct Plan {
    pub(super) keys: Vec<u32>,
    threads: Vec<usize>,
    rounds: usize,
    decisions: usize,
}

impl Plan {
    /// Reads the arguments. By default, `keys` are the numbers of keys of a measurement, and `tested` those of a test run.
    /// Returns `None` if nothing is to be run.
    pub(super) fn from_arguments(keys: &[u32], tested: &[u32]) -> Option<Self> {
        fn numbers<T: FromStr>(arguments: &[String], name: &str) -> Option<Vec<T>> {
            let position = arguments.iter().position(|argument| argument == name)?;
            let numbers = arguments.get(position + 1)?.split(',').map(|number| number.parse().ok());
            Some(numbers.collect::<Option<_>>().expect("comma-separated numbers"))
        }
        let arguments: Vec<String> = env::args().collect();
        let has = |name: &str| arguments.iter().any(|argument| argument == name);
        // Cargo passes `--bench` for a measurement. Without it this is a test run, which only checks that the benchmark
        // works. Test runners list the tests with `--list`; there are none with a name.
        let (keys, rounds, decisions) = if has("--bench") { (keys, 5, 2_000_000) } else { (tested, 1, 1000) };
        let number = |name| numbers(&arguments, name).map(|numbers| numbers[0]);
        (!has("--list")).then(|| Self {
            keys: numbers(&arguments, "--keys").unwrap_or_else(|| keys.to_vec()),
            threads: numbers(&arguments, "--threads").unwrap_or_else(|| vec![1, 2]),
            rounds: number("--rounds").unwrap_or(rounds),
            decisions: number("--decisions").unwrap_or(decisions),
        })
    }

    /// Prints the heading of the rows.
    pub(super) fn print_heading(&self) {
        let rounds = self.rounds;
        println!(
            "Nanoseconds per decision and thread, medians of {rounds} rounds; the ratio is weir / governor."
        );
        println!("     keys  threads        load  clock      weir     governor  ratio");
    }

    /// Measures two limiters and prints a row per number of threads. `keys` is 0 for limiters without keys.
    pub(super) fn compare(
        &self,
        ours: &impl Contender,
        theirs: &impl Contender,
        keys: u32,
        load: Load,
        clock: &str,
    ) {
        fill(ours, keys);
        fill(theirs, keys);
        let mut tick = 1;
        for &threads in &self.threads {
            let mut random = fastrand::Rng::with_seed(7);
            let mut sequence = || (0..self.decisions).map(|_| random.u32(..keys.max(1))).collect();
            let sequences: Vec<Vec<u32>> = (0..threads).map(|_| sequence()).collect();
            let mut rounds = Vec::new();
            // The first round warms up caches and is not counted.
            for round in 0..=self.rounds {
                let both = (measure(ours, &sequences, tick, load), measure(theirs, &sequences, tick, load));
                tick += self.decisions as u64;
                if round > 0 {
                    rounds.push(both);
                }
            }
            let of = |figure: fn(&(f64, f64)) -> f64| median(rounds.iter().map(figure).collect());
            let (ours, theirs) = (of(|(ours, _)| *ours), of(|(_, theirs)| *theirs));
            let ratio = of(|(ours, theirs)| ours / theirs);
            let load = if load == Load::Conforming { "conforming" } else { "rejected" };
            println!("{keys:>9} {threads:>8} {load:>11} {clock:>6} {ours:>9.1} {theirs:>12.1} {ratio:>6.2}");
        }
    }
}

/// Decides one request of every key.
pub(super) fn fill(contender: &impl Contender, keys: u32) {
    for key in 0..keys.max(1) {
        black_box(contender.decide(key, 0));
    }
}

/// Returns the nanoseconds per decision of the slowest thread, each of which has its own sequence of keys.
fn measure(contender: &impl Contender, sequences: &[Vec<u32>], first_tick: u64, load: Load) -> f64 {
    let barrier = Barrier::new(sequences.len());
    let run = |sequence: &[u32]| {
        barrier.wait();
        let start = thread_cpu_nanos();
        let decided = sequence.iter().zip(first_tick..);
        let admitted = decided.filter(|(key, tick)| contender.decide(**key, *tick)).count();
        let elapsed = thread_cpu_nanos() - start;
        let expected = if load == Load::Conforming { sequence.len() } else { 0 };
        assert_eq!(admitted, expected, "unexpected share of admitted requests");
        elapsed as f64 / sequence.len() as f64
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = sequences.iter().map(|sequence| scope.spawn(|| run(sequence))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the thread panicked")).fold(0.0, f64::max)
    })
}
