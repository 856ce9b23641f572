//! Benchmark of the limiter and the `governor` crate in one run: time per decision and memory per key.
//!
//! A decision starts from an IPv4 address: Weir hashes it as a rule with `key: [client_ip]` does, governor hashes
//! it with its default hasher. Run with `cargo bench --features jemalloc --bench limiter -- [--keys 1000,1000000] [--threads 1,2] [--rounds
//! 5]`.
#![expect(clippy::print_stdout, reason = "prints its results")]

#[path = "../crates/limiter/benches/governor/comparison.rs"]
mod comparison;
#[path = "../crates/limiter/benches/governor/timing.rs"]
mod timing;

use std::env;
use std::num::NonZeroU32;
use std::process::Command;

use governor::Quota as GovernorQuota;
use governor::clock::{Clock as GovernorClock, DefaultClock};
use weir_limiter::algorithm::Algorithm;
use weir_limiter::algorithm::conversion::OnChange;
use weir_limiter::decision::Enforcement;
use weir_limiter::quota::{Limit, Period, Quota, TimeUnit};
use weir_limiter::reservation::ChargeTiming;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{Check, LimitHandle, LimitIdentity, LimitSpec, Limiter, LimiterSettings};
use weir_net::clock::Clock;

use self::comparison::{Contender, Governor, Load, Plan, TickClock, fill, nanos_at};

/// The allocator of the program, which determines the memory layout of the table.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

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
        let now = clock.as_ref().map_or(Timestamp::from_nanos(nanos_at(0)), Clock::now);
        let handle = limiter
            .install(&[LimitSpec { identity, quota, on_change: OnChange::Keep, lease_policy: None }], now)[0];
        Self { limiter, handle, clock }
    }
}

impl Contender for Weir {
    fn decide(&self, address: u32, tick: u64) -> bool {
        let now = match &self.clock {
            Some(clock) => clock.now(),
            None => Timestamp::from_nanos(nanos_at(tick)),
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

fn governor<C: GovernorClock>(load: Load, clock: C) -> Governor<C> {
    let quota = match load {
        Load::Conforming => GovernorQuota::per_second(NonZeroU32::new(1_000_000).expect("a count above 0")),
        Load::Rejected => GovernorQuota::per_hour(NonZeroU32::MIN),
    };
    Governor::dashmap_with_clock(quota, clock)
}

fn compare_speed(plan: &Plan) {
    plan.print_heading();
    for &keys in &plan.keys {
        for load in [Load::Conforming, Load::Rejected] {
            let ours = Weir::new(keys as usize, load, None);
            plan.compare(&ours, &governor(load, TickClock), keys, load, "none");
            let ours = Weir::new(keys as usize, load, Some(Clock::start()));
            plan.compare(&ours, &governor(load, DefaultClock::default()), keys, load, "own");
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

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [flag, fill] = arguments.as_slice()
        && flag == "--fill"
    {
        let parts: Vec<&str> = fill.split(',').collect();
        let number = |index: usize| parts[index].parse().expect("a number");
        println!("{}", growth(parts[0], number(1), number(2)));
        return;
    }
    let Some(plan) = Plan::from_arguments(&[1000, 1_000_000, 10_000_000], &[1000]) else { return };
    compare_speed(&plan);
    compare_memory(&plan);
}
