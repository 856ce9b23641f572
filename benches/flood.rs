//! Benchmark of a flood of distinct keys into a table of fixed size: time per decision, memory, and whether
//! clients that have used up their limit stay rejected.
//!
//! The clock advances by a second per million requests, each with the IPv4 or IPv6 address of a new client. The limit
//! is 10 per hour, so no counter becomes full again before the end. Run with `cargo bench --features jemalloc --bench flood -- [--keys
//! 100000000] [--max-keys 1000000]`.
#![expect(clippy::print_stdout, reason = "prints its results")]

use std::env;
use std::fs;
use std::num::NonZeroU32;

use weir_limiter::algorithm::Algorithm;
use weir_limiter::algorithm::conversion::OnChange;
use weir_limiter::decision::Enforcement;
use weir_limiter::quota::{Limit, Period, Quota, TimeUnit};
use weir_limiter::reservation::ChargeTiming;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{Check, LimitHandle, LimitIdentity, LimitSpec, Limiter, LimiterSettings};
use weir_net::clock::Clock;

/// The allocator of the program, which determines the memory layout of the table.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Number of clients that have used up their limit before the flood.
const BLOCKED: u64 = 1000;
/// 2026-11-21T08:00:00Z.
const START: u64 = 1_795_248_000_000_000_000;
/// Nanoseconds between two requests.
const STEP: u64 = 1000;
/// Number of rows of the printed table.
const LINES: u64 = 10;

struct FloodedLimiter {
    limiter: Limiter,
    handle: LimitHandle,
}

impl FloodedLimiter {
    fn new(max_keys: usize) -> Self {
        let limit = Limit::new(NonZeroU32::new(10).expect("a limit above 0"), Period::one(TimeUnit::Hour));
        let spec = LimitSpec {
            identity: LimitIdentity { rule: "per-client".into(), key: "[client_ip]".into() },
            quota: Quota::new(Algorithm::Gcra, limit, None).expect("a valid quota"),
            on_change: OnChange::Keep,
            lease_policy: None,
        };
        let limiter = Limiter::new(LimiterSettings { max_keys, secret: [0x5eed, 0x5ec2e7] });
        let meter = limiter.install(&[spec], Timestamp::from_nanos(START))[0];
        Self { limiter, handle: meter }
    }

    /// Returns whether a request of client `number` is admitted.
    fn is_admitted(&self, number: u64, cost: u32, now: u64) -> bool {
        let key = self.limiter.hasher().hash(&number.to_be_bytes());
        let check = Check {
            handle: self.handle,
            key,
            cost,
            enforcement: Enforcement::Enforced,
            charge_timing: ChargeTiming::OnArrival,
            options: None,
        };
        !self.limiter.check(&[check], Timestamp::from_nanos(now)).is_rejected()
    }
}

fn argument(name: &str, default: u64) -> u64 {
    let arguments: Vec<String> = env::args().collect();
    let given = arguments.iter().position(|argument| argument == name);
    given.and_then(|place| arguments.get(place + 1)?.parse().ok()).unwrap_or(default)
}

/// Resident memory in MiB.
fn resident_mib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) / 1024
}

fn main() {
    let keys = argument("--keys", 100_000_000);
    let max_keys = argument("--max-keys", 1_000_000);
    let flooded = FloodedLimiter::new(usize::try_from(max_keys).unwrap_or(usize::MAX));
    let blocked = (0..BLOCKED).filter(|number| flooded.is_admitted(*number, 10, START)).count();
    assert_eq!(blocked as u64, BLOCKED);
    println!("{keys} keys, room for {max_keys}; {} MiB resident before", resident_mib());
    println!("| keys | ns | passed | in the table | shared | MiB | blocked that pass |");
    println!("|---|---|---|---|---|---|---|");
    let clock = Clock::start();
    for line in 0..LINES {
        let (from, to) = (keys / LINES * line, keys / LINES * (line + 1));
        let started = clock.now();
        let passed =
            (from..to).filter(|key| flooded.is_admitted(BLOCKED + key, 1, START + key * STEP)).count();
        let nanos = clock.now().since(started).as_nanos() / u128::from((to - from).max(1));
        let freed = (0..BLOCKED).filter(|number| flooded.is_admitted(*number, 10, START + to * STEP)).count();
        let (live, shared) = (flooded.limiter.live_keys(), flooded.limiter.overflows());
        println!("| {to} | {nanos} | {passed} | {live} | {shared} | {} | {freed} |", resident_mib());
        assert_eq!(freed, 0, "a blocked client was admitted");
    }
}
