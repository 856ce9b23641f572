//! Distribution of a limit that is too small for all instances.

use crate::plan::{Faults, LEASE, Outcome, Pattern, Plan, Role, gcra};
use crate::runs::no_faults;
use crate::world::run;
use weir_limiter::quota::Quota;

/// Twelve instances that demand twice the limit.
fn contended() -> Plan {
    Plan {
        role: |_| Role::USUAL,
        instances: 12,
        quota: gcra(12_000, 12_000),
        demand: 2.0,
        pattern: Pattern::Even,
        keys: 1,
        lease_policy: LEASE,
        wait: 5000,
        millis: 12_000,
        warm_up: 4_000_000,
        faults: no_faults(),
        second_tier: None,
        change: None,
        partitions: None,
        seed: 1,
    }
}

/// Returns the fraction of its requests that each instance has admitted.
fn admitted_fractions(outcome: &Outcome) -> Vec<f64> {
    outcome.requests_and_admissions.iter().map(|(wanted, got)| *got as f64 / *wanted as f64).collect()
}

fn is_near(value: f64, expected: f64) -> bool {
    (0.85 * expected..=1.15 * expected).contains(&value)
}

#[test]
fn proportional_sharing_admits_the_same_fraction_of_every_demand() {
    for pattern in [Pattern::Even, Pattern::Zipf] {
        let outcome = run(Plan { pattern, ..contended() });
        let parts = admitted_fractions(&outcome);
        assert!(parts.iter().all(|part| is_near(*part, 0.5)), "{pattern:?}: {parts:?}");
    }
}

#[test]
fn max_min_sharing_admits_small_demands_in_full_and_large_ones_equally() {
    let mut plan = Plan { pattern: Pattern::Zipf, millis: 20_000, warm_up: 10_000_000, ..contended() };
    plan.lease_policy.is_max_min = true;
    let outcome = run(plan);
    // The demands are 7734 per second, 3867, 2578 and so on. The share is 1158 each. Demands below it are served in
    // full: from the seventh instance on, which demands 1105.
    let parts = admitted_fractions(&outcome);
    let [first, second, third] = [0, 1, 2].map(|number| outcome.requests_and_admissions[number].1 as f64);
    assert!(is_near(second, first) && is_near(third, first), "{:?}", outcome.requests_and_admissions);
    assert!(parts[6..].iter().all(|part| *part > 0.9), "{parts:?}");
}

#[test]
fn lease_share_is_proportional_to_the_weight() {
    let heavy = |number| Role { weight: if number < 3 { 3.0 } else { 1.0 }, ..Role::USUAL };
    let outcome = run(Plan { role: heavy, ..contended() });
    // 12,000 divided by a total weight of 3 x 3 + 9 x 1; each instance demands 2000.
    let a_second = |number: usize| outcome.requests_and_admissions[number].1 as f64 / 8.0;
    let (heavy, light): (Vec<_>, Vec<_>) = (0..12).map(a_second).partition(|units| *units > 1300.0);
    assert_eq!(heavy.len(), 3, "{:?}", outcome.requests_and_admissions);
    assert!(heavy.iter().all(|units| is_near(*units, 2000.0)), "{heavy:?}");
    assert!(light.iter().all(|units| is_near(*units, 667.0)), "{light:?}");
}

#[test]
fn higher_priority_is_served_first() {
    let ranked = |number| Role { priority: Some(if number < 4 { 0 } else { 2 }), ..Role::USUAL };
    let outcome = run(Plan { role: ranked, ..contended() });
    // Four instances demand two thirds of the limit and get it; eight share the rest.
    let parts = admitted_fractions(&outcome);
    assert!(parts[..4].iter().all(|part| *part > 0.97), "{parts:?}");
    assert!(parts[4..].iter().all(|part| is_near(*part, 0.25)), "{parts:?}");
}

#[test]
fn new_instance_gets_its_share_within_a_second() {
    let new = |number| Role { from: if number == 11 { 6000 } else { 0 }, ..Role::USUAL };
    let outcome = run(Plan { role: new, millis: 7000, warm_up: 6_000_000, ..contended() });
    let newcomer = admitted_fractions(&outcome)[11];
    assert!(newcomer > 0.4, "the newcomer gets {newcomer} of its demand, all others get half of theirs");
}

#[test]
fn no_instance_starves_at_one_request_per_second() {
    let plan = Plan { instances: 96, quota: gcra(100, 100), demand: 1.5, millis: 64_000, ..contended() };
    let outcome = run(plan);
    let parts = admitted_fractions(&outcome);
    assert!(parts.iter().all(|part| (0.45..0.9).contains(part)), "{parts:?}");
}

#[test]
fn contended_limit_needs_few_calls_of_a_slow_store() {
    let faults = Faults { delay: 2000, ..no_faults() };
    let plan =
        Plan { instances: 24, quota: gcra(75_000, 75_000), demand: 1.5, millis: 6000, faults, ..contended() };
    let Outcome { calls, admitted, .. } = run(plan);
    let per_admitted = calls as f64 / admitted as f64;
    // If waiting requests were granted units beyond the share of their instance, this would be one call for every 20
    // admissions.
    assert!(per_admitted < 0.003, "{per_admitted}");
}

/// 96 instances, a third of which has most of the demand, until another third has it. Admissions are counted from one second
/// after that.
fn shifted(quota: Quota, is_max_min: bool) -> Outcome {
    let mut plan = Plan {
        instances: 96,
        quota,
        demand: 1.5,
        pattern: Pattern::ShiftedAt(6000),
        millis: 10_000,
        warm_up: 7_000_000,
        ..contended()
    };
    plan.lease_policy.is_max_min = is_max_min;
    run(plan)
}

/// Returns the smallest fraction of its fair share that an instance has admitted, and Jain's index of these fractions.
fn fairness(outcome: &Outcome, fair: impl Fn(u64) -> f64) -> (f64, f64) {
    let fractions: Vec<_> =
        outcome.requests_and_admissions.iter().map(|(wanted, got)| *got as f64 / fair(*wanted)).collect();
    let (sum, squares) =
        fractions.iter().fold((0.0, 0.0), |(sum, squares), part| (sum + part, squares + part * part));
    (fractions.iter().copied().fold(f64::INFINITY, f64::min), sum * sum / (fractions.len() as f64 * squares))
}

/// Returns the share of each instance that is not served in full, if `units` are shared by max-min fairness.
fn water_level(outcome: &Outcome, units: f64) -> f64 {
    let mut wanted: Vec<_> =
        outcome.requests_and_admissions.iter().map(|(wanted, _)| *wanted as f64).collect();
    wanted.sort_unstable_by(f64::total_cmp);
    let mut left = units;
    for (index, demand) in wanted.iter().enumerate() {
        let level = left / (wanted.len() - index) as f64;
        if *demand >= level {
            return level;
        }
        left -= demand;
    }
    f64::INFINITY
}

#[test]
fn every_instance_has_its_share_a_second_after_demand_has_moved() {
    for limit in [10_000, 300_000] {
        let units = f64::from(limit) * 3.0;
        let proportional = shifted(gcra(limit, limit), false);
        let wanted: u64 = proportional.requests_and_admissions.iter().map(|(wanted, _)| wanted).sum();
        let (least, index) = fairness(&proportional, |demand| demand as f64 * units / wanted as f64);
        assert!(least >= 0.8 && index >= 0.98, "proportional, {limit}: {least}, {index}");
        let max_min = shifted(gcra(limit, limit), true);
        let level = water_level(&max_min, units);
        let (least, index) = fairness(&max_min, |demand| level.min(demand as f64));
        assert!(least >= 0.9 && index >= 0.98, "max_min, {limit}: {least}, {index}");
    }
}
