use std::num::NonZeroU32;
use std::time::Duration;

use super::algorithm::Algorithm;
use super::algorithm::conversion::OnChange;
use super::quota::{Limit, Period, Quota, TimeUnit};
use super::*;

const START: Timestamp = Timestamp::from_secs(1_795_248_000);

fn limiter(max_keys: usize) -> Limiter {
    Limiter::new(LimiterSettings { max_keys, secret: [7, 11] })
}

fn spec(rule: &str, key: &str, per_hour: u32) -> LimitSpec {
    let limit = Limit::new(NonZeroU32::new(per_hour).unwrap(), Period::one(TimeUnit::Hour));
    LimitSpec {
        identity: LimitIdentity { rule: rule.into(), key: key.into() },
        quota: Quota::new(Algorithm::Gcra, limit, None).unwrap(),
        on_change: OnChange::Keep,
        lease_policy: None,
    }
}

/// Installs one limit per element, each of a rule of its own.
fn installed(limiter: &Limiter, per_hour: &[u32]) -> Vec<LimitHandle> {
    let specs: Vec<_> =
        per_hour.iter().enumerate().map(|(rule, count)| spec(&rule.to_string(), "[]", *count)).collect();
    limiter.install(&specs, START)
}

fn check(limiter: &Limiter, meter: LimitHandle, cost: u32) -> Check {
    Check {
        handle: meter,
        key: limiter.hasher().hash(b"client"),
        cost,
        enforcement: Enforcement::Enforced,
        charge_timing: ChargeTiming::OnArrival,
        options: None,
    }
}

fn shadow(limiter: &Limiter, meter: LimitHandle, cost: u32) -> Check {
    Check { enforcement: Enforcement::Shadow, ..check(limiter, meter, cost) }
}

/// Whether a request with one check passes.
fn passes(limiter: &Limiter, meter: LimitHandle, cost: u32) -> bool {
    !limiter.check(&[check(limiter, meter, cost)], START).is_rejected()
}

fn used(limiter: &Limiter, meter: LimitHandle) -> u32 {
    limiter.usage(meter, limiter.hasher().hash(b"client"), START).unwrap().used
}

fn remaining(decision: &Decision) -> Vec<u32> {
    decision.verdicts().iter().map(|verdict| verdict.usage(START).unwrap().remaining).collect()
}

#[test]
fn no_checks_conform() {
    let decision = limiter(100).check(&[], START);
    assert!(!decision.is_rejected() && !decision.overflowed() && decision.verdicts().is_empty());
}

#[test]
fn either_both_limits_are_charged_or_none() {
    let limiter = limiter(10_000);
    let meters = installed(&limiter, &[10, 2]);
    let ask = || {
        let [first, second] = [meters[0], meters[1]].map(|meter| check(&limiter, meter, 1));
        limiter.check(&[first, second], START)
    };
    assert_eq!(remaining(&ask()), [9, 1]);
    assert_eq!(remaining(&ask()), [8, 0]);
    let refused = ask();
    assert!(refused.is_rejected());
    assert!(!refused.verdicts()[0].rejects() && refused.verdicts()[1].rejects());
    assert_eq!(refused.verdicts()[1].retry_after(), Duration::from_secs(1800));
    assert_eq!(remaining(&refused), [8, 0]);
    assert_eq!(meters.iter().map(|meter| used(&limiter, *meter)).collect::<Vec<_>>(), [2, 2]);
}

#[test]
fn refusal_leaves_remaining_of_the_others_unchanged_wherever_it_stands() {
    for refusing in 0..4 {
        let limiter = limiter(10_000);
        let counts: Vec<_> = (0..4).map(|index| if index == refusing { 1 } else { 5 }).collect();
        let meters = installed(&limiter, &counts);
        let checks: Vec<_> = meters.iter().map(|meter| check(&limiter, *meter, 1)).collect();
        let passed = remaining(&limiter.check(&checks, START));
        for _ in 0..3 {
            let decision = limiter.check(&checks, START);
            assert!(decision.is_rejected());
            assert_eq!(remaining(&decision), passed);
        }
    }
}

#[test]
fn a_shadow_limit_counts_but_never_refuses() {
    let limiter = limiter(100);
    let meter = installed(&limiter, &[2])[0];
    for over in [false, false, true, true] {
        let decision = limiter.check(&[shadow(&limiter, meter, 1)], START);
        assert!(!decision.is_rejected());
        assert_eq!(decision.verdicts()[0].exceeds(), over);
    }
    assert_eq!(used(&limiter, meter), 2);
}

#[test]
fn a_shadow_limit_that_is_over_is_not_in_the_way_of_others() {
    let limiter = limiter(100);
    let meters = installed(&limiter, &[1, 10]);
    let checks = [shadow(&limiter, meters[0], 1), check(&limiter, meters[1], 1)];
    for sum in 1..=3 {
        assert!(!limiter.check(&checks, START).is_rejected());
        assert_eq!((used(&limiter, meters[0]), used(&limiter, meters[1])), (1, sum));
    }
}

#[test]
fn a_shadow_limit_is_not_charged_when_another_refuses() {
    let limiter = limiter(100);
    let meters = installed(&limiter, &[10, 1]);
    let checks = [shadow(&limiter, meters[0], 1), check(&limiter, meters[1], 1)];
    assert!(!limiter.check(&checks, START).is_rejected());
    let refused = limiter.check(&checks, START);
    assert!(refused.is_rejected());
    assert_eq!((remaining(&refused), used(&limiter, meters[0])), (vec![9, 0], 1));
}

#[test]
fn meters_come_in_the_order_of_the_specs_and_count_apart() {
    let limiter = limiter(100);
    let meters = limiter.install(&[spec("b", "[]", 3), spec("a", "[]", 5), spec("a", "[]", 7)], START);
    for (meter, count) in meters.iter().zip([3, 5, 7]) {
        assert!(!passes(&limiter, *meter, count + 1) && passes(&limiter, *meter, count));
    }
}

#[test]
fn raising_a_limit_keeps_what_was_used() {
    let limiter = limiter(100);
    let meter = limiter.install(&[spec("api", "[]", 10)], START)[0];
    assert!(passes(&limiter, meter, 10) && !passes(&limiter, meter, 1));
    let raised = limiter.install(&[spec("new", "[]", 1), spec("api", "[]", 100)], START)[1];
    assert_eq!(raised, meter);
    assert_eq!(used(&limiter, raised), 10);
    assert!(passes(&limiter, raised, 90) && !passes(&limiter, raised, 1));
}

#[test]
fn lowering_a_limit_below_what_was_used_refuses() {
    let limiter = limiter(100);
    let meter = limiter.install(&[spec("api", "[]", 100)], START)[0];
    assert!(passes(&limiter, meter, 10));
    let lowered = limiter.install(&[spec("api", "[]", 5)], START)[0];
    assert_eq!(used(&limiter, lowered), 10);
    let decision = limiter.check(&[check(&limiter, lowered, 1)], START);
    assert!(decision.is_rejected());
    // Six of the ten units have to expire, at five per hour.
    assert_eq!(decision.verdicts()[0].retry_after(), Duration::from_secs(6 * 720));
}

#[test]
fn another_key_or_rule_is_a_new_lineage() {
    let limiter = limiter(100);
    let meter = limiter.install(&[spec("api", "[client_ip]", 10)], START)[0];
    assert!(passes(&limiter, meter, 10));
    for (rule, key) in [("api", "[path]"), ("web", "[client_ip]")] {
        let other = limiter.install(&[spec(rule, key, 10)], START)[0];
        assert_ne!(other, meter);
        assert_eq!(used(&limiter, other), 0);
    }
    assert_eq!(used(&limiter, meter), 10);
}

#[test]
fn the_old_generation_keeps_its_limits_until_it_is_retired() {
    let limiter = limiter(100);
    let old = limiter.install(&[spec("old", "[]", 1)], START)[0];
    assert!(passes(&limiter, old, 1));
    let new = limiter.install(&[spec("new", "[]", 1)], START);
    assert!(!passes(&limiter, old, 1));
    limiter.retire_others(&new, START);
    let late = limiter.check(&[check(&limiter, old, 1)], START);
    assert!(!late.is_rejected() && late.verdicts()[0].usage(START).is_none());
    assert!(late.verdicts()[0].quota().is_none());
}

#[test]
fn a_retired_meter_limits_nothing_and_forgets() {
    let limiter = limiter(100);
    let meters = installed(&limiter, &[10, 10]);
    assert!(meters.iter().all(|meter| passes(&limiter, *meter, 4)));
    assert_eq!(limiter.live_keys(), 2);
    limiter.retire_others(&meters[..1], START);
    assert_eq!((limiter.live_keys(), used(&limiter, meters[0])), (1, 4));
    let key = limiter.hasher().hash(b"client");
    limiter.charge(meters[1], key, 5, START);
    assert_eq!(limiter.usage(meters[1], key, START), None);
    // A removed limit does not affect others.
    let both = [check(&limiter, meters[1], 99), check(&limiter, meters[0], 6)];
    assert!(!limiter.check(&both, START).is_rejected());
    assert!(limiter.check(&both, START).is_rejected());
    // The removed limit that is installed again, and the new one that reuses its slot, start unused.
    let again = installed(&limiter, &[10, 10, 10]);
    assert_eq!(again.iter().map(|meter| used(&limiter, *meter)).collect::<Vec<_>>(), [10, 0, 0]);
}

#[test]
fn charges_never_refuse_and_can_be_given_back() {
    let limiter = limiter(100);
    let meter = installed(&limiter, &[10])[0];
    let key = limiter.hasher().hash(b"client");
    limiter.charge(meter, key, 15, START);
    assert_eq!(used(&limiter, meter), 15);
    assert!(!passes(&limiter, meter, 1));
    limiter.charge(meter, key, -6, START);
    assert_eq!(used(&limiter, meter), 9);
    assert!(passes(&limiter, meter, 1) && !passes(&limiter, meter, 1));
}

#[test]
fn a_full_table_says_so_and_stays_bounded() {
    let limiter = limiter(64);
    let meter = installed(&limiter, &[1000])[0];
    let overflowed = (0..2000_u32)
        .filter(|number| {
            let key = limiter.hasher().hash(&number.to_be_bytes());
            limiter.check(&[Check { key, ..check(&limiter, meter, 1) }], START).overflowed()
        })
        .count() as u64;
    assert!(overflowed > 0);
    assert_eq!(limiter.overflows(), overflowed);
    assert!((64..=72).contains(&limiter.live_keys()), "{}", limiter.live_keys());
    // The overflow counter's 1000 units are used up, so new keys are rejected.
    assert_eq!(used(&limiter, meter), 1000);
    assert!(!passes(&limiter, meter, 1));
}

#[test]
fn counters_are_counted_per_meter_while_in_use() {
    let limiter = limiter(1000);
    let meters = installed(&limiter, &[10, 10]);
    for number in 0..6_u8 {
        let key = limiter.hasher().hash(&[number]);
        let checks = [meters[0], meters[1]].map(|meter| Check { key, ..check(&limiter, meter, 1) });
        limiter.check(&checks[..1 + usize::from(number % 2)], START);
    }
    let counts = limiter.keys_per_limit(START);
    assert_eq!((counts[&meters[0].id], counts[&meters[1].id]), (6, 3));
    assert!(limiter.keys_per_limit(START.saturating_add(Duration::from_secs(3600))).is_empty());
}
