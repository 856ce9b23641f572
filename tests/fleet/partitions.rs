//! Fleets of which some instances do not reach the store.

use std::time::Duration;

use fastrand::Rng;
use weir_limiter::leases::LeasePolicy;

use crate::plan::{Faults, LEASE, Outcome, PartBreach, Partitions, Pattern, Plan, Role, Schedule, gcra};
use crate::runs::{env_parameter, no_faults};
use crate::world::run;

const WITH_PARTS: LeasePolicy = LeasePolicy { has_parts: true, ..LEASE };

/// Returns the random parameters of the run with this seed.
fn random_plan(seed: u64) -> Plan {
    let mut rng = Rng::with_seed(seed);
    let limit = [20, 100, 1000][rng.usize(0..3)];
    let quota = gcra(limit, limit * [1, 2, 4][rng.usize(0..3)] / [1, 2][rng.usize(0..2)]);
    let patterns = [Pattern::Even, Pattern::Zipf, Pattern::Shifting, Pattern::Bursts, Pattern::OnAndOff];
    Plan {
        role: |_| Role::USUAL,
        instances: rng.usize(2..9),
        quota,
        demand: [0.9, 1.5, 3.0][rng.usize(0..3)],
        pattern: patterns[rng.usize(0..5)],
        keys: [1, 1, 3][rng.usize(0..3)],
        lease_policy: LeasePolicy {
            max_wait: Some(Duration::ZERO),
            priority: rng.u8(0..3),
            is_max_min: rng.bool(),
            ..WITH_PARTS
        },
        wait: [0, 2000, 10_000][rng.usize(0..3)],
        millis: 25_000,
        warm_up: 0,
        faults: Faults {
            lost_one_in: [None, None, Some(200)][rng.usize(0..3)],
            delay: [200, 2000, 40_000][rng.usize(0..3)],
            drift: [0, 10][rng.usize(0..2)],
            crash_interval: [None, None, Some(5000)][rng.usize(0..3)],
        },
        second_tier: None,
        change: None,
        partitions: Some(Partitions {
            schedule: Schedule::Random,
            valid: Duration::from_secs(10),
            breach: None,
        }),
        seed,
    }
}

#[test]
fn no_partition_makes_a_fleet_admit_more_than_a_single_instance() {
    let only = env_parameter::<u64>("WEIR_SEED");
    let seeds = env_parameter("WEIR_SEEDS").map_or(100, |seeds: u64| seeds / 4);
    for seed in only.map_or(0..seeds, |seed| seed..seed + 1) {
        let plan = random_plan(seed);
        let outcome = run(plan);
        assert!(outcome.excess <= 1e-6, "seed {seed}: {outcome:?} of {plan:?}");
    }
}

/// Ten seconds in which one instance in `every` does not reach the store.
fn partition_of(every: usize, pattern: Pattern, demand: f64) -> Plan {
    let schedule = Schedule::Once { from: 6000, until: 15_900, every };
    Plan {
        role: |_| Role::USUAL,
        instances: 12,
        quota: gcra(1000, 1000),
        demand,
        pattern,
        keys: 1,
        lease_policy: WITH_PARTS,
        wait: 5000,
        millis: 16_000,
        warm_up: 6_000_000,
        faults: no_faults(),
        second_tier: None,
        change: None,
        partitions: Some(Partitions { schedule, valid: Duration::from_secs(60), breach: None }),
        seed: 1,
    }
}

/// Returns the units beyond the limit with a broken assumption, of a fleet of which half is cut off for 15 s.
fn excess(breach: Option<PartBreach>) -> f64 {
    let schedule = Schedule::Once { from: 6000, until: 21_000, every: 2 };
    let partitions = Some(Partitions { schedule, valid: Duration::from_secs(10), breach });
    let plan = partition_of(2, Pattern::Even, 3.0);
    run(Plan { quota: gcra(1000, 200), millis: 22_000, partitions, ..plan }).excess
}

#[test]
fn part_that_is_spent_before_it_is_held_back_exceeds_the_limit() {
    assert!(excess(None) <= 1e-6 && excess(Some(PartBreach::SpentAtOnce)) >= 1.0);
}

#[test]
fn part_that_is_spent_after_it_is_granted_to_others_exceeds_the_limit() {
    assert!(excess(Some(PartBreach::SpentForever)) >= 1.0);
}

#[test]
fn instances_that_spend_the_whole_limit_exceed_it() {
    assert!(excess(Some(PartBreach::Whole)) >= 1.0);
}

/// Part of what fits that was used.
fn used(plan: Plan) -> f64 {
    let outcome: Outcome = run(plan);
    assert!(outcome.excess <= 1e-6, "{outcome:?}");
    outcome.admitted as f64 / outcome.possible as f64
}

#[test]
fn partition_leaves_most_of_the_limit_in_use() {
    for every in 1..=4 {
        let used = used(partition_of(every, Pattern::Even, 1.5));
        assert!(used >= 0.7, "one in {every} cut off: {used}");
    }
}

#[test]
fn without_the_store_parts_follow_the_last_demand() {
    for pattern in [Pattern::Even, Pattern::Zipf, Pattern::ShiftedAt(3000)] {
        let used = used(partition_of(1, pattern, 0.9));
        // Nothing is admitted until the store holds the parts back, for more than a second of ten.
        assert!(used >= 0.78, "{pattern:?}: {used}");
    }
}
