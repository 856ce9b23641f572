//! Benchmark of the limiter and the `governor` crate in one run: time per decision and memory per key.
//!
//! Both decide the same random sequence of keys, in alternating rounds, so that disturbances on the machine affect
//! both. A decision starts from an IPv4 address: Weir hashes it as a rule with `key: [client_ip]` does, governor hashes
//! it with its default hasher. Run with `cargo bench --features jemalloc --bench limiter -- [--keys 1000,1000000] [--threads 1,2] [--rounds
//! 5]`.
#![expect(clippy::print_stdout, reason = "prints its results")]

#[path = "../crates/limiter/benches/governor/threads.rs"]
mod threads;
#[path = "../crates/limiter/benches/governor/timing.rs"]
mod timing;

use std::cell::Cell;
use std::env;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::process::Command;

use governor::clock::{Clock as GovernorClock, DefaultClock};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::keyed::DefaultKeyedStateStore;
use governor::{Quota as GovernorQuota, RateLimiter};
use weir_limiter::algorithm::Algorithm;
use weir_limiter::algorithm::conversion::OnChange;
use weir_limiter::decision::Enforcement;
use weir_limiter::quota::{Limit, Period, Quota, TimeUnit};
use weir_limiter::reservation::ChargeTiming;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{Check, LimitHandle, LimitIdentity, LimitSpec, Limiter, LimiterSettings};
use weir_net::clock::Clock;

use self::threads::slowest_thread;
use self::timing::median;

/// The allocator of the program, which determines the memory layout of the table.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Nanoseconds by which time advances per decision if no clock is read.
const STEP: u64 = 100;
/// 2026-11-21T08:00:00Z.
const START: u64 = 1_795_248_000_000_000_000;

/// Outcome of most requests.
#[derive(Clone, Copy, PartialEq)]
enum Load {
    /// Admitted: the limit is a million per second for each key, far above the load.
    Conforming,
    /// Rejected: the limit is one per hour for each key, and is used up.
    Rejected,
}

/// A limiter under measurement.
trait Contender: Sync {
    /// Returns whether a request of `address` is admitted. `tick` is the time if no clock is read.
    fn decide(&self, address: u32, tick: u64) -> bool;
}

struct Weir {
    limiter: Limiter,
    handle: LimitHandle,
    clock: Option<Clock>,
}

impl Weir {
    fn new(max_keys: usize, load: Load, clock: Option<Clock>) -> Self {
        let limiter =
            Limiter::new(LimiterSettings { max_keys, secret: [fastrand::u64(..), fastrand::u64(..)] });
        let (count, unit) = match load {
            Load::Conforming => (1_000_000, TimeUnit::Second),
            Load::Rejected => (1, TimeUnit::Hour),
        };
        let limit = Limit::new(NonZeroU32::new(count).expect("a count above 0"), Period::one(unit));
        let quota = Quota::new(Algorithm::Gcra, limit, None).expect("a valid quota");
        let identity = LimitIdentity { rule: "per-client".into(), key: "[client_ip]".into() };
        let now = clock.as_ref().map_or(Timestamp::from_nanos(START), Clock::now);
        let handle = limiter
            .install(&[LimitSpec { identity, quota, on_change: OnChange::Keep, lease_policy: None }], now)[0];
        Self { limiter, handle, clock }
    }
}

impl Contender for Weir {
    fn decide(&self, address: u32, tick: u64) -> bool {
        let now = match &self.clock {
            Some(clock) => clock.now(),
            None => Timestamp::from_nanos(START + tick * STEP),
        };
        let key = self.limiter.hasher().hash_u32(address);
        let check = Check {
            handle: self.handle,
            key,
            cost: 1,
            enforcement: Enforcement::Enforced,
            charge_timing: ChargeTiming::OnArrival,
            options: None,
        };
        !self.limiter.check(&[check], now).is_rejected()
    }
}

thread_local! {
    static TICK: Cell<u64> = const { Cell::new(0) };
}

/// A clock that returns the tick set for the thread, so that governor can be measured without reading a real clock.
#[derive(Clone)]
struct TickClock;

impl GovernorClock for TickClock {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        Nanos::new(TICK.get() * STEP)
    }
}

type Governor<C> =
    RateLimiter<u32, DefaultKeyedStateStore<u32>, C, NoOpMiddleware<<C as GovernorClock>::Instant>>;

fn governor<C: GovernorClock>(load: Load, clock: C) -> Governor<C> {
    let quota = match load {
        Load::Conforming => GovernorQuota::per_second(NonZeroU32::new(1_000_000).expect("a count above 0")),
        Load::Rejected => GovernorQuota::per_hour(NonZeroU32::MIN),
    };
    RateLimiter::dashmap_with_clock(quota, clock)
}

impl<C: GovernorClock + Sync> Contender for Governor<C>
where
    C::Instant: Sync,
{
    fn decide(&self, address: u32, tick: u64) -> bool {
        TICK.set(tick);
        self.check_key(&address).is_ok()
    }
}

/// Decides one request of every key.
fn fill(contender: &impl Contender, keys: u32) {
    for address in 0..keys {
        black_box(contender.decide(address, 0));
    }
}

/// Returns the nanoseconds per decision of the slowest thread.
fn measure(contender: &impl Contender, sequences: &[Vec<u32>], first_tick: u64, load: Load) -> f64 {
    slowest_thread(sequences, first_tick, load == Load::Conforming, |address, tick| {
        contender.decide(address, tick)
    })
}

/// Measures two filled limiters in alternating rounds and prints a row per number of threads.
fn compare(ours: &impl Contender, theirs: &impl Contender, keys: u32, load: Load, clock: &str, plan: &Plan) {
    fill(ours, keys);
    fill(theirs, keys);
    let mut tick = 1;
    for &threads in &plan.threads {
        let mut random = fastrand::Rng::with_seed(7);
        let sequences: Vec<Vec<u32>> =
            (0..threads).map(|_| (0..plan.decisions).map(|_| random.u32(..keys)).collect()).collect();
        let (mut our_times, mut their_times, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        // The first round warms up caches and is not counted.
        for round in 0..=plan.rounds {
            let our_time = measure(ours, &sequences, tick, load);
            let their_time = measure(theirs, &sequences, tick, load);
            tick += plan.decisions as u64;
            if round > 0 {
                our_times.push(our_time);
                their_times.push(their_time);
                ratios.push(our_time / their_time);
            }
        }
        let load = if load == Load::Conforming { "conforming" } else { "refused" };
        println!(
            "{keys:>9} {threads:>8} {load:>11} {clock:>6} {:>9.1} {:>12.1} {:>6.2}",
            median(our_times),
            median(their_times),
            median(ratios)
        );
    }
}

fn compare_speed(plan: &Plan) {
    println!(
        "Nanoseconds per decision and thread, medians of {} rounds; the ratio is weir / governor.",
        plan.rounds
    );
    println!("     keys  threads        load  clock      weir     governor  ratio");
    for &keys in &plan.keys {
        for load in [Load::Conforming, Load::Rejected] {
            let ours = Weir::new(keys as usize, load, None);
            compare(&ours, &governor(load, TickClock), keys, load, "none", plan);
            let ours = Weir::new(keys as usize, load, Some(Clock::start()));
            compare(&ours, &governor(load, DefaultClock::default()), keys, load, "own", plan);
        }
    }
}

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).map_or(0, |pages: u64| pages * 4096)
}

/// Fills a limiter in a child process and returns the growth of its resident memory in bytes.
fn growth(contender: &str, keys: u32, capacity: u32) -> u64 {
    let before = resident();
    if contender == "weir" {
        let weir = Weir::new(capacity as usize, Load::Rejected, None);
        fill(&weir, keys);
        resident().saturating_sub(before)
    } else {
        let governor = governor(Load::Rejected, TickClock);
        fill(&governor, keys);
        resident().saturating_sub(before)
    }
}

/// Returns the bytes per key of `capacity`. A separate process measures them, so that no freed memory is reused.
fn bytes_per_key(contender: &str, keys: u32, capacity: u32) -> Option<f64> {
    let program = env::current_exe().ok()?;
    let fill = format!("{contender},{keys},{capacity}");
    let output = Command::new(program).args(["--fill", &fill]).output().ok()?;
    let grown: f64 = String::from_utf8(output.stdout).ok()?.trim().parse().ok()?;
    Some(grown / f64::from(capacity))
}

fn compare_memory(plan: &Plan) {
    println!("\nResident bytes per key. Flooded: shown three times the keys, per key there is room for.");
    println!("     keys      weir     governor  ratio  weir flooded  governor flooded");
    for &keys in &plan.keys {
        let figure = |who, keys, room| bytes_per_key(who, keys, room).unwrap_or(f64::NAN);
        let (ours, theirs) = (figure("weir", keys, keys), figure("governor", keys, keys));
        let flood = keys.saturating_mul(3);
        println!(
            "{keys:>9} {ours:>9.1} {theirs:>12.1} {:>6.2} {:>13.1} {:>17.1}",
            ours / theirs,
            figure("weir", flood, keys),
            figure("governor", flood, keys)
        );
    }
}

/// Size of the measurement, from the command line.
struct Plan {
    keys: Vec<u32>,
    threads: Vec<usize>,
    rounds: usize,
    decisions: usize,
}

impl Plan {
    fn from_arguments(arguments: &[String]) -> Self {
        let after = |name: &str| {
            let position = arguments.iter().position(|argument| argument == name)?;
            arguments.get(position + 1)
        };
        fn numbers<T: std::str::FromStr>(text: Option<&String>) -> Option<Vec<T>> {
            let numbers = text?.split(',').map(|number| number.parse().ok());
            Some(numbers.collect::<Option<_>>().expect("comma-separated numbers"))
        }
        // Cargo passes `--bench` for a measurement. Without it this is a test run, which only checks that the benchmark
        // works.
        let measuring = arguments.iter().any(|argument| argument == "--bench");
        let plan = if measuring {
            Self {
                keys: vec![1000, 1_000_000, 10_000_000],
                threads: vec![1, 2],
                rounds: 5,
                decisions: 2_000_000,
            }
        } else {
            Self { keys: vec![1000], threads: vec![1, 2], rounds: 1, decisions: 1000 }
        };
        Self {
            keys: numbers(after("--keys")).unwrap_or(plan.keys),
            threads: numbers(after("--threads")).unwrap_or(plan.threads),
            rounds: numbers(after("--rounds")).map_or(plan.rounds, |rounds: Vec<usize>| rounds[0]),
            decisions: numbers(after("--decisions")).map_or(plan.decisions, |count: Vec<usize>| count[0]),
        }
    }
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    // Test runners list the tests with `--list`; there are none with a name.
    if arguments.iter().any(|argument| argument == "--list") {
        return;
    }
    if let [flag, fill] = arguments.as_slice()
        && flag == "--fill"
    {
        let parts: Vec<&str> = fill.split(',').collect();
        let number = |index: usize| parts[index].parse().expect("a number");
        println!("{}", growth(parts[0], number(1), number(2)));
        return;
    }
    let plan = Plan::from_arguments(&arguments);
    compare_speed(&plan);
    compare_memory(&plan);
}
