//! Guarantees of adaptive concurrency limits with a simulated upstream, and a comparison with other algorithms.
//!
//! `cargo test -p weir-tests --test elastic comparison -- --ignored --nocapture` prints the table of the design note.

use std::num::NonZeroU32;
use std::time::Duration;

use weir_limiter::adaptive::AdaptiveRange;
use weir_limiter::adaptive::controller::{LimitController, Reading, Tolerance};
use weir_limiter::algorithm::conversion::OnChange;
use weir_limiter::check_options::{CheckOptions, CounterRole};
use weir_limiter::control::samples::Samples;
use weir_limiter::decision::Enforcement;
use weir_limiter::quota::Quota;
use weir_limiter::reservation::{ChargeTiming, Reservation};
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{Check, LimitIdentity, LimitSpec, Limiter, LimiterSettings};

use super::queue::{Algorithm, Scenario, Second, Spread, Summary, run, summarise, time_to_recover};
use super::rivals::{Aimd, EnvoyGradient, Gradient2, Vegas, Weir};

/// Twice as many requests as 16 servers can serve.
const OVERLOAD: Scenario = Scenario {
    name: "overload, 16 servers",
    servers: |_| 16,
    service: |_| 0.02,
    spread: Spread::LogNormal(0.5),
    arrivals: |_| 1412.0,
    seconds: 180,
};
const MANY_SERVERS: Scenario = Scenario {
    name: "overload, 200 servers",
    servers: |_| 200,
    service: |_| 0.1,
    arrivals: |_| 3530.0,
    ..OVERLOAD
};
const SLOW_SERVICE: Scenario = Scenario {
    name: "overload, 64 servers of 1 s",
    servers: |_| 64,
    service: |_| 1.0,
    arrivals: |_| 113.0,
    ..OVERLOAD
};
const FEW_SERVERS: Scenario =
    Scenario { name: "overload, 2 servers", servers: |_| 2, arrivals: |_| 176.0, ..OVERLOAD };
const NOISE: Scenario =
    Scenario { name: "load 0.7, noise", spread: Spread::LogNormal(1.5), arrivals: |_| 182.0, ..OVERLOAD };
const LONG_TAIL: Scenario = Scenario {
    name: "overload, 5 % take 50 times",
    spread: Spread::TwoKinds { share: 0.05, factor: 50.0 },
    arrivals: |_| 464.0,
    ..OVERLOAD
};
const BURSTS: Scenario = Scenario {
    name: "bursts of 0.5 s",
    servers: |_| 64,
    arrivals: |second| if second % 2.0 < 0.5 { 2500.0 } else { 100.0 },
    ..OVERLOAD
};
/// A quarter of the capacity for a minute.
const STEP: Scenario = Scenario {
    name: "capacity ×¼, ×4",
    servers: |second| if (60.0..120.0).contains(&second) { 16 } else { 64 },
    arrivals: |_| 4000.0,
    ..OVERLOAD
};
/// Requests take three times as long, for good.
const SLOWER: Scenario = Scenario {
    name: "latency ×3 for good",
    service: |second| if second < 60.0 { 0.02 } else { 0.06 },
    servers: |_| 64,
    arrivals: |_| 4000.0,
    ..OVERLOAD
};
const STOP: Scenario = Scenario {
    name: "standstill of 10 s",
    servers: |second| if (60.0..70.0).contains(&second) { 0 } else { 64 },
    arrivals: |_| 4000.0,
    ..OVERLOAD
};
const GROWING_LOAD: Scenario = Scenario {
    name: "growing load",
    servers: |_| 64,
    arrivals: |second| (20.0 * second).max(5.0),
    ..OVERLOAD
};
const SEEDS: std::ops::Range<u64> = 0..4;

fn range(min: u32) -> AdaptiveRange {
    AdaptiveRange::new(NonZeroU32::new(min).unwrap(), NonZeroU32::new(1000).unwrap()).unwrap()
}

fn run_weir(scenario: &Scenario, seed: u64) -> Vec<Second> {
    run(scenario, &mut Weir::new(range(4)), seed)
}

/// Returns the summary of the seconds from 60 to 180.
fn settled(scenario: &Scenario, seed: u64) -> Summary {
    summarise(scenario, &run_weir(scenario, seed), 60, 180)
}

#[test]
fn adaptive_limit_uses_the_capacity_with_latencies_below_twice_the_unloaded() {
    for scenario in [OVERLOAD, MANY_SERVERS, SLOW_SERVICE] {
        for seed in SEEDS {
            let settled = settled(&scenario, seed);
            assert!(settled.throughput >= 0.95, "{settled:?} in {} {seed}", scenario.name);
            assert!(settled.median <= 2.0, "{settled:?} in {} {seed}", scenario.name);
        }
    }
}

#[test]
fn adaptive_limit_of_few_servers_is_close_to_their_number() {
    for seed in SEEDS {
        let seconds = run(&FEW_SERVERS, &mut Weir::new(range(1)), seed);
        let settled = summarise(&FEW_SERVERS, &seconds, 60, 180);
        assert!(settled.throughput >= 0.95 && settled.median <= 3.0, "{settled:?} {seed}");
    }
}

#[test]
fn noise_and_long_tails_do_not_collapse_the_adaptive_limit() {
    for seed in SEEDS {
        let noise = settled(&NOISE, seed);
        assert!(noise.throughput >= 0.97, "{noise:?} {seed}");
        let long_tail = settled(&LONG_TAIL, seed);
        assert!(long_tail.throughput >= 0.92 && long_tail.median <= 4.0, "{long_tail:?} {seed}");
    }
}

#[test]
fn adaptive_limit_follows_lost_and_returned_capacity_within_seconds() {
    for seed in SEEDS {
        let seconds = run_weir(&STEP, seed);
        let reduced = summarise(&STEP, &seconds, 65, 120);
        assert!(reduced.throughput >= 0.95 && reduced.median <= 2.0, "{reduced:?} {seed}");
        let recovery = time_to_recover(&STEP, &seconds, 120).unwrap();
        assert!(recovery <= 5, "{recovery} s, {seed}");
        let restored = summarise(&STEP, &seconds, 130, 180);
        assert!(restored.throughput >= 0.95 && restored.median <= 2.0, "{restored:?} {seed}");
    }
}

#[test]
fn lasting_change_of_latency_becomes_the_baseline() {
    for seed in SEEDS {
        let seconds = run_weir(&SLOWER, seed);
        let recovery = time_to_recover(&SLOWER, &seconds, 60).unwrap();
        assert!(recovery <= 6, "{recovery} s, {seed}");
        let settled = summarise(&SLOWER, &seconds, 75, 180);
        assert!(settled.throughput >= 0.95 && settled.median <= 2.0, "{settled:?} {seed}");
    }
}

#[test]
fn standstill_does_not_raise_the_adaptive_limit() {
    for seed in SEEDS {
        let seconds = run_weir(&STOP, seed);
        let (before, during) = (summarise(&STOP, &seconds, 50, 60), summarise(&STOP, &seconds, 61, 70));
        assert!(during.limit <= before.limit * 1.2, "{before:?} {during:?}");
        let after = summarise(&STOP, &seconds, 75, 120);
        assert!(after.throughput >= 0.95 && after.median <= 2.0, "{after:?} {seed}");
    }
}

#[test]
fn adaptive_limit_stays_ahead_of_a_growing_load() {
    for seed in SEEDS {
        let seconds = run_weir(&GROWING_LOAD, seed);
        let within_capacity = summarise(&GROWING_LOAD, &seconds, 2, 120);
        assert!(within_capacity.throughput >= 0.99, "{within_capacity:?} {seed}");
    }
}

#[test]
fn long_overload_does_not_raise_the_baseline() {
    let scenario = Scenario { seconds: 1800, ..OVERLOAD };
    let seconds = run_weir(&scenario, 5);
    let end = summarise(&scenario, &seconds, 1680, 1800);
    assert!(end.throughput >= 0.95 && end.median <= 2.0, "{end:?}");
}

#[test]
fn adaptive_limit_is_within_its_bounds_whatever_is_measured() {
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..200 {
        let (one, other) = (random.u32(1..2000), random.u32(1..2000));
        let bound = |number| NonZeroU32::new(number).unwrap();
        let mut range = AdaptiveRange::new(bound(one.min(other)), bound(one.max(other))).unwrap();
        let mut controller = LimitController::new(range, Tolerance::QUEUE_UPSTREAM, random.u64(..));
        for step in 0..300 {
            if step == 150 {
                range = AdaptiveRange::new(bound(one.min(other)), bound(one.min(other))).unwrap();
            }
            let mut latencies = Samples::default();
            for _ in 0..random.u32(0..30) {
                latencies.add(Duration::from_nanos(1 << random.u32(0..50)));
            }
            let failed = if random.bool() { 0 } else { random.u64(0..20) };
            let reading = Reading { latencies, failed, peak: random.u32(..) };
            let limit = controller.adapt(&reading, range, Duration::from_millis(random.u64(0..1500)));
            assert!((range.min().get()..=range.max().get()).contains(&limit), "{limit} of {range}");
        }
    }
}

#[test]
fn request_is_admitted_exactly_if_fewer_than_the_limit_in_force_are_in_flight() {
    let limiter = Limiter::new(LimiterSettings { max_keys: 100, secret: [1, 2] });
    let identity = LimitIdentity { rule: "a".into(), key: "".into() };
    let quota = Quota::in_flight(NonZeroU32::new(50).unwrap());
    let spec = LimitSpec { identity, quota, on_change: OnChange::default(), lease_policy: None };
    let now = Timestamp::from_nanos(1 << 60);
    let handle = limiter.install(&[spec], now)[0];
    let mut random = fastrand::Rng::with_seed(11);
    let mut permits = Vec::new();
    for _ in 0..20_000 {
        let limit = random.u32(1..=50);
        let options = CheckOptions::new(0, CounterRole::Adaptive(limit));
        let check = Check {
            handle,
            key: limiter.hasher().hash_u32(7),
            cost: 1,
            enforcement: Enforcement::Enforced,
            charge_timing: ChargeTiming::WhileInFlight,
            options: Some(options),
        };
        let is_admitted = !limiter.check(&[check], now).is_rejected();
        assert_eq!(is_admitted, permits.len() < limit as usize, "{} of {limit}", permits.len());
        if is_admitted {
            permits.push(Reservation::new(&check, now));
        }
        if random.u32(0..3) == 0 {
            permits.pop().iter().for_each(|permit| limiter.release_permit(permit));
        }
    }
}

#[test]
#[ignore = "prints the table of the design note"]
fn comparison_of_concurrency_algorithms() {
    type Create = fn() -> Box<dyn Algorithm>;
    let algorithms: [(&str, Create); 5] = [
        ("Weir", || Box::new(Weir::new(range(4)))),
        ("Envoy gradient", || Box::new(EnvoyGradient::new())),
        ("Gradient2", || Box::new(Gradient2::new())),
        ("Vegas", || Box::new(Vegas::new())),
        ("AIMD", || Box::new(Aimd::new())),
    ];
    let scenarios = [
        (OVERLOAD, 60, 180),
        (FEW_SERVERS, 60, 180),
        (MANY_SERVERS, 60, 180),
        (SLOW_SERVICE, 60, 180),
        (NOISE, 60, 180),
        (LONG_TAIL, 60, 180),
        (BURSTS, 60, 180),
        (STEP, 60, 120),
        (STEP, 120, 180),
        (SLOWER, 60, 180),
        (STOP, 70, 180),
        (GROWING_LOAD, 2, 180),
    ];
    println!("| scenario | {} |", algorithms.map(|(name, _)| name).join(" | "));
    println!("|---|---|---|---|---|---|");
    for (scenario, from, to) in scenarios {
        let cells = algorithms.map(|(_, create)| {
            let all: Vec<Summary> = SEEDS
                .map(|seed| summarise(&scenario, &run(&scenario, &mut *create(), seed), from, to))
                .collect();
            let mean = |of: fn(&Summary) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
            format!("{:.0} % {:.1}×", mean(|one| one.throughput) * 100.0, mean(|one| one.median))
        });
        println!("| {}, {from} to {to} s | {} |", scenario.name, cells.join(" | "));
    }
}
