//! How requests that wait are spread over time, without a pace and with each kind of pace.
//!
//! `cargo bench --bench pace` simulates a queue that never runs empty behind one limit, on a virtual clock with timers of
//! a millisecond, and prints what each pace uses of the limit and how evenly. `cargo bench --bench pace -- --csv` prints
//! the times of the admitted requests in microseconds instead, as `pace,limit,time`.
#![expect(clippy::print_stdout, reason = "prints its results")]
#![expect(clippy::unwrap_used, reason = "a bench that cannot go on stops, and the line says where")]

use std::num::NonZeroU32;
use std::time::Duration;

use weir_limiter::algorithm::Algorithm;
use weir_limiter::algorithm::conversion::OnChange;
use weir_limiter::decision::Enforcement;
use weir_limiter::quota::{Limit, Period, Quota, TimeUnit};
use weir_limiter::reservation::ChargeTiming;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::wait_queue::pace::{Pace, PaceMode, PaceSlot};
use weir_limiter::{Check, LimitIdentity, LimitSpec, Limiter, LimiterSettings};

const START: Timestamp = Timestamp::from_secs(1_795_248_000);
const SECONDS: u64 = 10;
const MILLISECOND: u64 = 1_000_000;
/// Length of the buckets in which the distribution of requests is measured.
const BUCKET: u64 = 10 * MILLISECOND;
/// Time in which one request is decided after another.
const DECISION: u64 = 1000;

/// Admits the requests of a queue that never runs empty. Returns the times after the start at which they are forwarded,
/// in nanoseconds.
fn simulate(mode: Option<PaceMode>, algorithm: Algorithm, rate: u32) -> Vec<u64> {
    let limit = Limit::new(NonZeroU32::new(rate).unwrap(), Period::one(TimeUnit::Second));
    let quota = Quota::new(algorithm, limit, None).unwrap();
    let limiter = Limiter::new(LimiterSettings { max_keys: 16, secret: [1, 2] });
    let identity = LimitIdentity { rule: "q".into(), key: "[]".into() };
    let spec = LimitSpec { identity, quota, on_change: OnChange::Keep, lease_policy: None };
    let check = Check {
        handle: limiter.install(&[spec], START)[0],
        key: limiter.hasher().hash(b""),
        cost: 1,
        enforcement: Enforcement::Enforced,
        charge_timing: ChargeTiming::OnArrival,
        options: None,
    };
    let pace = mode.map(|mode| Pace::new(mode, &quota, NonZeroU32::MIN, 1));
    let (queues, counter) = (limiter.queues(), check.counter_id());
    let (mut now, mut admitted) = (0, Vec::new());
    while now < SECONDS * 1000 * MILLISECOND {
        let at = START.saturating_add(Duration::from_nanos(now));
        let slot =
            pace.map_or(PaceSlot::Taken(Duration::ZERO), |pace| queues.reserve_pace(counter, &pace, at));
        let wait = match slot {
            PaceSlot::After(wait) => wait,
            PaceSlot::Taken(delay) => match limiter.check(&[check], at).verdicts()[0].retry_after() {
                Duration::ZERO => {
                    admitted.push(now + delay.as_nanos() as u64);
                    now += DECISION;
                    continue;
                }
                wait => {
                    queues.cancel_pace(counter, true, at);
                    wait
                }
            },
        };
        now = (now + wait.as_nanos() as u64).div_ceil(MILLISECOND) * MILLISECOND;
    }
    admitted
}

/// Returns the share of the limit that was used, and the coefficient of variation of the requests per bucket, both after
/// the first second.
fn statistics(admitted: &[u64], rate: u32) -> (f64, f64) {
    let mut buckets = vec![0.0_f64; ((SECONDS - 1) * 100) as usize];
    for at in admitted.iter().filter_map(|at| at.checked_sub(1000 * MILLISECOND)) {
        if let Some(bucket) = buckets.get_mut((at / BUCKET) as usize) {
            *bucket += 1.0;
        }
    }
    let total: f64 = buckets.iter().sum();
    let mean = total / buckets.len() as f64;
    let variance = buckets.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / buckets.len() as f64;
    (total / f64::from(rate) / (SECONDS - 1) as f64, variance.sqrt() / mean)
}

fn main() {
    let is_csv = std::env::args().any(|argument| argument == "--csv");
    // Cargo passes `--bench` for a measurement. Without it this is a test run.
    let is_measuring = std::env::args().any(|argument| argument == "--bench");
    let rates = if is_measuring { &[100, 1000, 10_000, 100_000][..] } else { &[100, 1000] };
    let modes = [("none", None), ("even", Some(PaceMode::Even)), ("pid", Some(PaceMode::Pid))];
    for algorithm in [Algorithm::FixedWindow, Algorithm::Gcra] {
        for rate in rates.iter().copied() {
            for (name, mode) in modes {
                let admitted = simulate(mode, algorithm, rate);
                if is_csv {
                    admitted.iter().for_each(|at| println!("{name},{algorithm} {rate}/s,{}", at / 1000));
                    continue;
                }
                let (used, variation) = statistics(&admitted, rate);
                let limit = format!("{algorithm} {rate}/s");
                println!("{limit:<24} pace {name:<5} use {:>6.2} %  variation {variation:.3}", 100.0 * used);
            }
        }
    }
}
