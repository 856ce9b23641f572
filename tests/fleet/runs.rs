//! Fleets with various parameters: a table of limit usage, and checks that no limit is exceeded.

use std::str::FromStr;
use std::time::Duration;

use fastrand::Rng;
use weir_limiter::leases::LeasePolicy;

use crate::plan::{Faults, LEASE, Outcome, Pattern, Plan, Role, gcra, rate};
use crate::world::run;

/// Returns the value of an environment variable that adjusts a test run.
#[expect(clippy::disallowed_methods, reason = "tests are asked for more this way")]
pub(crate) fn env_parameter<T: FromStr>(variable: &str) -> Option<T> {
    std::env::var(variable).ok()?.parse().ok()
}

pub(crate) fn no_faults() -> Faults {
    Faults {
        lost_one_in: None,
        delay: env_parameter("WEIR_DELAY").unwrap_or(300),
        drift: 0,
        crash_interval: None,
    }
}

#[test]
#[ignore = "prints a table"]
fn table() {
    let only: Option<String> = env_parameter("WEIR_LIMIT");
    let wait = env_parameter("WEIR_WAIT").unwrap_or(5000);
    let limits =
        [(10, 1), (100, 1), (1000, 1), (10_000, 1), (300_000, 1), (2_000_000, 1), (10, 100), (100, 1000)];
    for (limit, keys) in limits {
        if only.as_ref().is_some_and(|only| *only != format!("{limit}x{keys}")) {
            continue;
        }
        for demand in [0.9, 1.5]
            .into_iter()
            .filter(|it| env_parameter("WEIR_DEMAND").is_none_or(|only: f64| only == *it))
        {
            for pattern in [Pattern::Even, Pattern::Zipf, Pattern::Shifting, Pattern::Bursts] {
                let millis = match (limit, keys) {
                    (..100, 1) => 60_000,
                    (2_000_000, _) | (_, 1000) => 8000,
                    _ => 12_000,
                };
                let plan = Plan {
                    role: |_| Role::USUAL,
                    instances: 96,
                    quota: gcra(limit, limit),
                    demand,
                    pattern,
                    keys,
                    lease_policy: LEASE,
                    wait,
                    millis,
                    warm_up: 4_000_000,
                    faults: no_faults(),
                    second_tier: None,
                    change: None,
                    partitions: None,
                    seed: 1,
                };
                let Outcome {
                    admitted, possible, calls, excess, worst_share: least, unit_flow: tally, ..
                } = run(plan);
                let all = f64::from(limit) * keys as f64 * millis as f64 / 1e5;
                println!(
                    "{limit:>7} x{keys:<4} {demand} {pattern:>8}: used {:6.2} %, {:.5} calls/admitted, \
                     excess {excess:.2}, least {least:.2}; given back {:.1} %, too late {:.1} %, idle {:.1} %",
                    100.0 * admitted as f64 / possible as f64,
                    calls as f64 / admitted as f64,
                    tally.returned / all,
                    tally.late / all,
                    tally.idle / all,
                    pattern = format!("{pattern:?}"),
                );
            }
        }
    }
}

/// Returns the random parameters of the run with this seed.
fn random_plan(seed: u64) -> Plan {
    let mut rng = Rng::with_seed(seed);
    let limit = [5, 20, 100, 1000, 20_000][rng.usize(0..5)];
    let mut burst = |limit: u32| (limit * [1, 1, 2, 5][rng.usize(0..4)] / [1, 1, 4][rng.usize(0..3)]).max(2);
    let quota = gcra(limit, burst(limit));
    let other = [limit / 4, limit / 2, limit * 3][seed as usize % 3].max(2);
    let other = gcra(other, burst(other));
    let change = (seed % 4 == 3).then_some((other, 1000));
    let patterns = [Pattern::Even, Pattern::Zipf, Pattern::Shifting, Pattern::Bursts, Pattern::OnAndOff];
    Plan {
        role: |_| Role::USUAL,
        instances: rng.usize(1..12),
        quota,
        demand: [0.3, 0.9, 1.1, 3.0][rng.usize(0..4)],
        pattern: patterns[rng.usize(0..5)],
        keys: [1, 1, 3][rng.usize(0..3)],
        lease_policy: LeasePolicy {
            is_exact: seed % 7 == 5,
            max_wait: Some(Duration::ZERO),
            priority: rng.u8(0..3),
            is_max_min: rng.bool(),
            has_parts: false,
        },
        wait: [0, 2000, 10_000, 100_000, 1_000_000][rng.usize(0..5)],
        millis: 2500,
        warm_up: 0,
        faults: Faults {
            lost_one_in: [None, Some(20), Some(4)][rng.usize(0..3)],
            delay: [200, 2000, 40_000][rng.usize(0..3)],
            drift: [0, 10][rng.usize(0..2)],
            crash_interval: [None, Some(100), Some(700)][rng.usize(0..3)],
        },
        second_tier: None,
        change,
        partitions: None,
        seed,
    }
}

/// Whether an instance has used units that it did not have. If leases for waiting requests are valid for various times, a
/// later lease may end before an earlier one, and it is not known of which lease a unit was.
fn has_invalid_use(plan: &Plan, outcome: &Outcome) -> bool {
    plan.wait <= 10_000 && outcome.invalid_uses > 0
}

#[test]
fn fleet_admits_no_more_than_a_single_instance() {
    let (seeds, only) = (env_parameter("WEIR_SEEDS").unwrap_or(300), env_parameter::<u64>("WEIR_SEED"));
    for seed in only.map_or(0..seeds, |seed| seed..seed + 1) {
        let plan = random_plan(seed);
        let outcome = run(plan);
        // Units granted for a waiting request may arrive as late as the request waits, or 20 ms.
        let arrival = (plan.wait as f64 * 1e-6 * 8.0 / 7.0).clamp(0.02, 1.0);
        let late = if plan.lease_policy.is_exact { arrival * rate(&plan.quota) } else { 0.0 };
        assert!(
            outcome.excess <= late + 1e-6 && !has_invalid_use(&plan, &outcome),
            "seed {seed}: {outcome:?} of {plan:?}"
        );
    }
}

#[test]
fn regional_stores_admit_no_more_than_a_single_instance() {
    for seed in 0..env_parameter("WEIR_SEEDS").unwrap_or(100) {
        let plan = Plan {
            second_tier: Some([100_000, 500_000][seed as usize % 2]),
            instances: 3,
            ..random_plan(seed)
        };
        if plan.lease_policy.is_exact {
            continue;
        }
        let outcome = run(plan);
        let is_within_bound = outcome.excess <= 1e-6 && !has_invalid_use(&plan, &outcome);
        assert!(is_within_bound, "seed {seed}: {outcome:?} of {plan:?}");
    }
}
