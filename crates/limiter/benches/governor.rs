//! The rate limiter beside the `governor` crate: processor time per decision.
//!
//! Both decide the same random sequence of keys, in alternating rounds, so that disturbances on the machine affect
//! both. Neither reads a clock. Keys are hashed by each with its default hasher. Run with `cargo bench -p weir-limiter --bench
//! governor -- [--decisions 2000000] [--rounds 5]`.
#![expect(clippy::print_stdout, reason = "prints its results")]

#[path = "governor/threads.rs"]
mod threads;
#[path = "governor/timing.rs"]
mod timing;

use std::cell::Cell;
use std::env;
use std::hint::black_box;
use std::num::NonZeroU32;

use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::keyed::DefaultKeyedStateStore;
use governor::state::{InMemoryState, NotKeyed};
use weir_limiter::{DirectRateLimiter, LimiterSettings, Quota, RateLimiter, Timestamp};

use self::threads::slowest_thread;
use self::timing::median;

/// Nanoseconds by which time advances per decision.
const STEP: u64 = 100;
/// 2026-11-21T08:00:00Z.
const START: Timestamp = Timestamp::from_secs(1_795_248_000);
const KEYS: [u32; 4] = [0, 1, 1000, 1_000_000];
const THREADS: [usize; 2] = [1, 2];

/// Outcome of all requests.
#[derive(Clone, Copy, PartialEq)]
enum Load {
    /// Admitted: the limit is far above the load.
    Admitted,
    /// Rejected: the limit is one per hour, and is used up.
    Rejected,
}

/// A limiter under measurement.
trait Limiting: Sync {
    /// Returns whether a request of `key` is admitted at `tick`.
    fn decide(&self, key: u32, tick: u64) -> bool;
}

impl Limiting for RateLimiter<u32> {
    fn decide(&self, key: u32, tick: u64) -> bool {
        self.check(&key, time(tick)).is_ok()
    }
}

impl Limiting for DirectRateLimiter {
    fn decide(&self, _: u32, tick: u64) -> bool {
        self.check(time(tick)).is_ok()
    }
}

const fn time(tick: u64) -> Timestamp {
    Timestamp::from_nanos(START.as_nanos().saturating_add(tick * STEP))
}

thread_local! {
    static TICK: Cell<u64> = const { Cell::new(0) };
}

/// A clock that returns the tick set for the thread.
#[derive(Clone)]
struct ThreadClock;

impl Clock for ThreadClock {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        Nanos::new(TICK.get() * STEP)
    }
}

type Governor<K, S> = governor::RateLimiter<K, S, ThreadClock, NoOpMiddleware<Nanos>>;

impl Limiting for Governor<u32, DefaultKeyedStateStore<u32>> {
    fn decide(&self, key: u32, tick: u64) -> bool {
        TICK.set(tick);
        self.check_key(&key).is_ok()
    }
}

impl Limiting for Governor<NotKeyed, InMemoryState> {
    fn decide(&self, _: u32, tick: u64) -> bool {
        TICK.set(tick);
        self.check().is_ok()
    }
}

fn quotas(load: Load) -> (Quota, governor::Quota) {
    let fast = NonZeroU32::new(1_000_000_000).expect("a count above 0");
    match load {
        Load::Admitted => {
            (Quota::per_second(fast.get()).build().expect("a valid quota"), governor::Quota::per_second(fast))
        }
        Load::Rejected => {
            (Quota::per_hour(1).build().expect("a valid quota"), governor::Quota::per_hour(NonZeroU32::MIN))
        }
    }
}

/// Returns the nanoseconds per decision of the slowest thread.
fn measure(limiter: &impl Limiting, sequences: &[Vec<u32>], first_tick: u64, load: Load) -> f64 {
    slowest_thread(sequences, first_tick, load == Load::Admitted, |key, tick| limiter.decide(key, tick))
}

/// Prints a row per number of threads. `keys` is 0 for limiters without keys.
fn compare(ours: &impl Limiting, theirs: &impl Limiting, keys: u32, load: Load, plan: &Plan) {
    for key in 0..keys.max(1) {
        black_box((ours.decide(key, 0), theirs.decide(key, 0)));
    }
    let mut tick = 1;
    for threads in THREADS {
        let mut random = fastrand::Rng::with_seed(7);
        let sequences: Vec<Vec<u32>> =
            (0..threads).map(|_| (0..plan.decisions).map(|_| random.u32(..keys.max(1))).collect()).collect();
        let mut rounds = Vec::new();
        // The first round warms up caches and is not counted.
        for round in 0..=plan.rounds {
            let both = (measure(ours, &sequences, tick, load), measure(theirs, &sequences, tick, load));
            tick += plan.decisions as u64;
            if round > 0 {
                rounds.push(both);
            }
        }
        let of = |figure: fn(&(f64, f64)) -> f64| median(rounds.iter().map(figure).collect());
        let (ours, theirs) = (of(|(ours, _)| *ours), of(|(_, theirs)| *theirs));
        let ratio = of(|(ours, theirs)| ours / theirs);
        let load = if load == Load::Admitted { "admitted" } else { "rejected" };
        println!("{keys:>9} {threads:>8} {load:>9} {ours:>8.1} {theirs:>9.1} {ratio:>6.2}");
    }
}

struct Plan {
    rounds: usize,
    decisions: usize,
}

impl Plan {
    fn from_arguments(arguments: &[String]) -> Self {
        // Cargo passes `--bench` for a measurement. Without it this is a test run, which only checks that the benchmark
        // works.
        let measuring = arguments.iter().any(|argument| argument == "--bench");
        let number = |name: &str, default: usize| {
            let position = arguments.iter().position(|argument| argument == name);
            let value = position.and_then(|position| arguments.get(position + 1));
            value.map_or(default, |value| value.parse().expect("a number"))
        };
        let (rounds, decisions) = if measuring { (5, 2_000_000) } else { (1, 1000) };
        Self { rounds: number("--rounds", rounds), decisions: number("--decisions", decisions) }
    }
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    // Test runners list the tests with `--list`; there are none with a name.
    if arguments.iter().any(|argument| argument == "--list") {
        return;
    }
    let plan = Plan::from_arguments(&arguments);
    println!(
        "Nanoseconds per decision and thread, medians of {} rounds; the ratio is ours / governor.",
        plan.rounds
    );
    println!("     keys  threads      load     ours  governor  ratio");
    for load in [Load::Admitted, Load::Rejected] {
        for keys in KEYS {
            let (quota, other) = quotas(load);
            if keys == 0 {
                let theirs = Governor::direct_with_clock(other, ThreadClock);
                compare(&RateLimiter::direct(quota), &theirs, keys, load, &plan);
            } else {
                let settings = LimiterSettings::with_max_keys(keys.max(1000) as usize);
                let ours = RateLimiter::with_settings(&[quota], settings);
                compare(&ours, &Governor::dashmap_with_clock(other, ThreadClock), keys, load, &plan);
            }
        }
    }
}
