//! Quotas that no second brings back: a burst of demand on several instances uses them up, to the last units.

use std::num::NonZeroU32;

use weir_limiter::algorithm::Algorithm;
use weir_limiter::quota::{Limit, Period, Quota, TimeUnit};

use crate::model::Model;
use crate::plan::{LEASE, Pattern, Plan, Role, rate};
use crate::runs::no_faults;
use crate::world::run;

fn quota(algorithm: Algorithm, count: u32, unit: TimeUnit) -> Quota {
    let limit = Limit::new(NonZeroU32::new(count).unwrap(), Period::one(unit));
    Quota::new(algorithm, limit, None).unwrap()
}

/// One second in which `instances` together demand `a_second` units.
fn burst(quota: Quota, instances: usize, a_second: f64, pattern: Pattern) -> Plan {
    Plan {
        role: |_| Role::USUAL,
        instances,
        quota,
        demand: a_second / rate(&quota),
        pattern,
        keys: 1,
        lease_policy: LEASE,
        wait: 50_000,
        millis: 1000,
        warm_up: 0,
        faults: no_faults(),
        second_tier: None,
        change: None,
        partitions: None,
        seed: 1,
    }
}

#[test]
fn quota_is_used_up_within_a_second_of_demand() {
    let algorithms = [
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
        Algorithm::Gcra,
        Algorithm::TokenBucket,
    ];
    let mut failures = Vec::new();
    for algorithm in algorithms {
        for (count, unit) in [(100, TimeUnit::Hour), (1000, TimeUnit::Day)] {
            for instances in [2, 3, 8] {
                for (a_second, pattern) in
                    [(2.0, Pattern::Even), (10.0, Pattern::Even), (2.0, Pattern::Zipf), (10.0, Pattern::Zipf)]
                {
                    let quota = quota(algorithm, count, unit);
                    let plan = burst(quota, instances, a_second * f64::from(count), pattern);
                    let outcome = run(plan);
                    if outcome.admitted * 100 < u64::from(count) * 99 || outcome.excess > 1e-6 {
                        failures.push(format!(
                            "{algorithm} {count}, {instances} instances, {a_second} {pattern:?}: {} admitted, \
                             excess {}",
                            outcome.admitted, outcome.excess
                        ));
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

const START: u64 = 1_795_248_000_000_000;

/// Sends one request about a counter.
fn ask(store: &mut Model, micros: u64, question: &str) -> [i64; 6] {
    ask_of_generation(store, micros, ("-", "key"), question)
}

/// As [`ask`], by an instance that knows this generation of the data.
fn ask_of_generation(
    store: &mut Model,
    micros: u64,
    (generation, key): (&str, &str),
    question: &str,
) -> [i64; 6] {
    store.ask(key, [generation, "1", "1"], question, START + micros).1
}

/// A bucket of 5 units, each of which takes 2 s; `rest` begins with the needed units.
fn bucket(rest: &str) -> String {
    format!("b 2000000 5 20000 1 0 1 {rest} 1000 0 0 0 20000 3 1")
}

#[test]
fn burst_after_a_pause_is_granted_as_a_whole() {
    let mut store = Model::default();
    let granted = |store: &mut Model, micros| ask(store, micros, &bucket("1 1 1"))[0];
    assert_eq!((0..6).map(|_| granted(&mut store, 0)).sum::<i64>(), 5);
    // One unit has drained, but units of the first may be spent 20 ms late.
    assert_eq!(granted(&mut store, 2_010_000), 0);
    assert_eq!(granted(&mut store, 2_020_000), 1);
    assert_eq!((0..6).map(|_| granted(&mut store, 13_000_000)).sum::<i64>(), 5);
}

#[test]
fn burst_is_granted_as_a_whole_after_a_grant_has_come_too_late() {
    let mut store = Model::default();
    assert_eq!((0..5).map(|turn| ask(&mut store, turn * 5000, &bucket("1 1 1"))[0]).sum::<i64>(), 5);
    // The first unit comes back 30 ms after its grant, and a part of it has drained.
    let returning = format!("b 2000000 5 20000 1 0 1 1 1 1 1000 1 {START} 0 20000 1 1");
    assert_eq!(ask(&mut store, 30_000, &returning)[0], 1);
    assert_eq!(ask(&mut store, 30_000, &bucket("1 1 1"))[0], 0);
}

#[test]
fn last_units_are_granted_even_if_waiting_requests_need_more() {
    let mut store = Model::default();
    assert_eq!(ask(&mut store, 0, &bucket("3 3 3"))[0], 3);
    let [granted, _, wait, ..] = ask(&mut store, 0, &bucket("4 4 4"));
    assert_eq!(granted, 2);
    assert!(
        (1..=500_000).contains(&wait),
        "units of others may come back before the bucket has drained: {wait}"
    );
    assert_eq!(ask(&mut store, 0, &bucket("1 1 1"))[0], 0);
}

#[test]
fn instance_without_units_asks_again_while_others_may_return_some() {
    let mut store = Model::default();
    let hour = 3_600_000_000_u64;
    let start = 1_795_248_000_000_000 / hour * hour;
    let window = |needed: u32, wanted: u32, returned: u32| {
        format!(
            "w 100 1000000 1 1 {needed} {wanted} {wanted} 1000 {returned} {} 0 800000 {start} {} {} 2 1",
            if returned > 0 { 1_795_248_000_000_000_u64 } else { 0 },
            start + hour,
            start + 2 * hour
        )
    };
    // Leases are at most a quarter of what is left, each for two instances.
    assert_eq!(ask(&mut store, 0, &window(1, 100, 0))[0], 25);
    assert_eq!(ask(&mut store, 0, &window(75, 75, 0))[0], 75);
    let [granted, _, wait, ..] = ask(&mut store, 0, &window(1, 1, 0));
    assert!(granted == 0 && wait < 100_000, "{wait}");
    ask(&mut store, 50_000, &window(0, 0, 20));
    assert_eq!(ask(&mut store, 60_000, &window(1, 1, 0))[0], 1);
    assert_eq!(ask(&mut store, 60_000, &window(19, 19, 0))[0], 19);
    let [granted, _, wait, ..] = ask(&mut store, 5_000_000, &window(1, 1, 0));
    assert!(granted == 0 && wait > 100_000_000, "nothing comes back before the window ends: {wait}");
}

#[test]
fn units_given_back_soon_after_their_grant_are_there_at_once() {
    // A unit takes 10 ms. Leases are valid for up to a second, so the first slice of the past is 250 ms long.
    let bucket = |wanted: u32, returned: u32| {
        format!("b 10000 200 1000000 1 0 1 0 {wanted} {wanted} 1000 {returned} {START} 0 800000 1 0")
    };
    for millis in [0, 1, 50, 100, 249] {
        let mut store = Model::default();
        assert_eq!(ask(&mut store, 0, &bucket(40, 0))[0], 40);
        let [.., remaining] = ask(&mut store, millis * 1000, &bucket(0, 40));
        let drained = i64::try_from(millis / 10).unwrap();
        assert_eq!(remaining, 200, "after {millis} ms, in which {drained} units have drained");
    }
}

#[test]
fn key_that_is_new_long_after_a_loss_begins_with_its_whole_limit() {
    let mut store = Model::default();
    let granted =
        |store: &mut Model, micros, key| ask_of_generation(store, micros, ("lost", key), &bucket("5 5 5"))[0];
    assert_eq!(granted(&mut store, 0, "first"), 0, "what was used before the loss is unknown");
    assert_eq!(granted(&mut store, 1_000_000, "second"), 0);
    // The burst takes 10 s to drain, and leases from before the loss are valid for a second.
    assert_eq!(granted(&mut store, 11_000_000, "third"), 5);
    assert_eq!(granted(&mut store, 100_000_000, "fourth"), 5);
}

#[test]
fn instances_without_units_call_the_store_at_a_bounded_rate() {
    const INSTANCES: usize = 8;
    const SECONDS: u64 = 5;
    let second = Limit::new(NonZeroU32::new(10).unwrap(), Period::one(TimeUnit::Second));
    let limits = [
        (quota(Algorithm::FixedWindow, 100, TimeUnit::Hour), 40),
        (quota(Algorithm::Gcra, 100, TimeUnit::Hour), 40),
        (quota(Algorithm::SlidingLog, 100, TimeUnit::Hour), 40),
        (Quota::new(Algorithm::Gcra, second, None).unwrap(), 40),
    ];
    for (quota, most) in limits {
        let plan = Plan {
            // The first second uses up the quota.
            warm_up: 1_000_000,
            millis: 1000 + SECONDS * 1000,
            ..burst(quota, INSTANCES, 5000.0, Pattern::Even)
        };
        let outcome = run(plan);
        let a_second = outcome.calls / SECONDS;
        assert!(a_second <= most * INSTANCES as u64, "{quota:?}: {a_second} calls per second");
    }
}
