//! The rate limiter beside the `governor` crate: processor time per decision.
//!
//! Neither reads a clock. Keys are hashed by each with its default hasher; there are none in rows with 0 keys. Run with
//! `cargo bench -p weir-limiter --bench governor -- [--keys 0,1000] [--threads 1,2] [--rounds 5] [--decisions 2000000]`.
#![expect(clippy::print_stdout, reason = "prints its results")]

#[path = "governor/comparison.rs"]
mod comparison;
#[path = "governor/timing.rs"]
mod timing;

use std::num::NonZeroU32;

use governor::state::{InMemoryState, NotKeyed};
use weir_limiter::{DirectRateLimiter, LimiterSettings, Quota, RateLimiter, Timestamp};

use self::comparison::{Contender, Governor, Load, Plan, TickClock, nanos_at};

const KEYS: [u32; 4] = [0, 1, 1000, 1_000_000];

impl Contender for RateLimiter<u32> {
    fn decide(&self, key: u32, tick: u64) -> bool {
        self.check(&key, Timestamp::from_nanos(nanos_at(tick))).is_ok()
    }
}

impl Contender for DirectRateLimiter {
    fn decide(&self, _: u32, tick: u64) -> bool {
        self.check(Timestamp::from_nanos(nanos_at(tick))).is_ok()
    }
}

type DirectGovernor = Governor<TickClock, NotKeyed, InMemoryState>;

impl Contender for DirectGovernor {
    fn decide(&self, _: u32, tick: u64) -> bool {
        TickClock::set(tick);
        self.check().is_ok()
    }
}

fn quotas(load: Load) -> (Quota, governor::Quota) {
    let fast = NonZeroU32::new(1_000_000_000).expect("a count above 0");
    match load {
        Load::Conforming => {
            (Quota::per_second(fast.get()).build().expect("a valid quota"), governor::Quota::per_second(fast))
        }
        Load::Rejected => {
            (Quota::per_hour(1).build().expect("a valid quota"), governor::Quota::per_hour(NonZeroU32::MIN))
        }
    }
}

fn main() {
    let Some(plan) = Plan::from_arguments(&KEYS, &KEYS) else { return };
    plan.print_heading();
    for load in [Load::Conforming, Load::Rejected] {
        for &keys in &plan.keys {
            let (quota, other) = quotas(load);
            if keys == 0 {
                let theirs = DirectGovernor::direct_with_clock(other, TickClock);
                plan.compare(&RateLimiter::direct(quota), &theirs, keys, load, "none");
            } else {
                let settings = LimiterSettings::with_max_keys(keys.max(1000) as usize);
                let ours = RateLimiter::with_settings(&[quota], settings);
                plan.compare(&ours, &Governor::dashmap_with_clock(other, TickClock), keys, load, "none");
            }
        }
    }
}
