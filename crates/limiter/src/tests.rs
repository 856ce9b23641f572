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
fn install_limits(limiter: &Limiter, per_hour: &[u32]) -> Vec<LimitHandle> {
    let specs: Vec<_> =
        per_hour.iter().enumerate().map(|(rule, count)| spec(&rule.to_string(), "[]", *count)).collect();
    limiter.install(&specs, START)
}

fn check(limiter: &Limiter, handle: LimitHandle, cost: u32) -> Check {
    Check {
        handle,
        key: limiter.hasher().hash(b"client"),
        cost,
        enforcement: Enforcement::Enforced,
        charge_timing: ChargeTiming::OnArrival,
        options: None,
    }
}

fn shadow(limiter: &Limiter, handle: LimitHandle, cost: u32) -> Check {
    Check { enforcement: Enforcement::Shadow, ..check(limiter, handle, cost) }
}

/// Whether a request with one check passes.
fn passes(limiter: &Limiter, handle: LimitHandle, cost: u32) -> bool {
    !limiter.check(&[check(limiter, handle, cost)], START).is_rejected()
}

fn used(limiter: &Limiter, handle: LimitHandle) -> u32 {
    limiter.usage(handle, limiter.hasher().hash(b"client"), START).unwrap().used
}

fn remaining(decision: &Decision) -> Vec<u32> {
    decision.verdicts().iter().map(|verdict| verdict.usage(START).unwrap().remaining).collect()
}

#[test]
fn empty_check_list_is_admitted() {
    let decision = limiter(100).check(&[], START);
    assert!(!decision.is_rejected() && !decision.overflowed() && decision.verdicts().is_empty());
}

#[test]
fn reading_ahead_changes_nothing() {
    let mut limiter = limiter(10_000);
    let handle = install_limits(&limiter, &[10])[0];
    let one = check(&limiter, handle, 1);
    limiter.warm([one; 3].iter());
    assert_eq!((remaining(&limiter.check(&[one], START)), limiter.live_keys()), (vec![9], 1));
    limiter.warm([one; 3].iter());
    assert_eq!((used(&limiter, handle), limiter.live_keys()), (1, 1));
}

#[test]
fn rejected_request_charges_neither_limit() {
    let limiter = limiter(10_000);
    let handles = install_limits(&limiter, &[10, 2]);
    let request = || {
        let [first, second] = [handles[0], handles[1]].map(|handle| check(&limiter, handle, 1));
        limiter.check(&[first, second], START)
    };
    assert_eq!(remaining(&request()), [9, 1]);
    assert_eq!(remaining(&request()), [8, 0]);
    let rejected = request();
    assert!(rejected.is_rejected());
    assert!(!rejected.verdicts()[0].rejects() && rejected.verdicts()[1].rejects());
    assert_eq!(rejected.verdicts()[1].retry_after(), Duration::from_secs(1800));
    assert_eq!(remaining(&rejected), [8, 0]);
    assert_eq!(handles.iter().map(|handle| used(&limiter, *handle)).collect::<Vec<_>>(), [2, 2]);
}

#[test]
fn rejection_leaves_the_other_limits_unchanged_in_any_position() {
    for rejecting in 0..4 {
        let limiter = limiter(10_000);
        let counts: Vec<_> = (0..4).map(|index| if index == rejecting { 1 } else { 5 }).collect();
        let handles = install_limits(&limiter, &counts);
        let checks: Vec<_> = handles.iter().map(|handle| check(&limiter, *handle, 1)).collect();
        let passed = remaining(&limiter.check(&checks, START));
        for _ in 0..3 {
            let decision = limiter.check(&checks, START);
            assert!(decision.is_rejected());
            assert_eq!(remaining(&decision), passed);
        }
    }
}

#[test]
fn shadow_limit_counts_but_never_rejects() {
    let limiter = limiter(100);
    let handle = install_limits(&limiter, &[2])[0];
    for over in [false, false, true, true] {
        let decision = limiter.check(&[shadow(&limiter, handle, 1)], START);
        assert!(!decision.is_rejected());
        assert_eq!(decision.verdicts()[0].exceeds(), over);
    }
    assert_eq!(used(&limiter, handle), 2);
}

#[test]
fn exceeded_shadow_limit_does_not_affect_other_limits() {
    let limiter = limiter(100);
    let handles = install_limits(&limiter, &[1, 10]);
    let checks = [shadow(&limiter, handles[0], 1), check(&limiter, handles[1], 1)];
    for sum in 1..=3 {
        assert!(!limiter.check(&checks, START).is_rejected());
        assert_eq!((used(&limiter, handles[0]), used(&limiter, handles[1])), (1, sum));
    }
}

#[test]
fn shadow_limit_is_not_charged_when_another_limit_rejects() {
    let limiter = limiter(100);
    let handles = install_limits(&limiter, &[10, 1]);
    let checks = [shadow(&limiter, handles[0], 1), check(&limiter, handles[1], 1)];
    assert!(!limiter.check(&checks, START).is_rejected());
    let rejected = limiter.check(&checks, START);
    assert!(rejected.is_rejected());
    assert_eq!((remaining(&rejected), used(&limiter, handles[0])), (vec![9, 0], 1));
}

#[test]
fn limit_handles_follow_spec_order_and_count_separately() {
    let limiter = limiter(100);
    let handles = limiter.install(&[spec("b", "[]", 3), spec("a", "[]", 5), spec("a", "[]", 7)], START);
    for (handle, count) in handles.iter().zip([3, 5, 7]) {
        assert!(!passes(&limiter, *handle, count + 1) && passes(&limiter, *handle, count));
    }
}

#[test]
fn raised_limit_keeps_used_units() {
    let limiter = limiter(100);
    let handle = limiter.install(&[spec("api", "[]", 10)], START)[0];
    assert!(passes(&limiter, handle, 10) && !passes(&limiter, handle, 1));
    let raised = limiter.install(&[spec("new", "[]", 1), spec("api", "[]", 100)], START)[1];
    assert_eq!(raised, handle);
    assert_eq!(used(&limiter, raised), 10);
    assert!(passes(&limiter, raised, 90) && !passes(&limiter, raised, 1));
}

#[test]
fn lowered_limit_below_its_usage_rejects() {
    let limiter = limiter(100);
    let handle = limiter.install(&[spec("api", "[]", 100)], START)[0];
    assert!(passes(&limiter, handle, 10));
    let lowered = limiter.install(&[spec("api", "[]", 5)], START)[0];
    assert_eq!(used(&limiter, lowered), 10);
    let decision = limiter.check(&[check(&limiter, lowered, 1)], START);
    assert!(decision.is_rejected());
    // Six of the ten units have to expire, at five per hour.
    assert_eq!(decision.verdicts()[0].retry_after(), Duration::from_secs(6 * 720));
}

#[test]
fn other_key_or_rule_is_a_new_limit_identity() {
    let limiter = limiter(100);
    let handle = limiter.install(&[spec("api", "[client_ip]", 10)], START)[0];
    assert!(passes(&limiter, handle, 10));
    for (rule, key) in [("api", "[path]"), ("web", "[client_ip]")] {
        let other = limiter.install(&[spec(rule, key, 10)], START)[0];
        assert_ne!(other, handle);
        assert_eq!(used(&limiter, other), 0);
    }
    assert_eq!(used(&limiter, handle), 10);
}

#[test]
fn old_generation_keeps_its_limits_until_retired() {
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
fn retired_limit_admits_everything_and_drops_its_counters() {
    let limiter = limiter(100);
    let handles = install_limits(&limiter, &[10, 10]);
    assert!(handles.iter().all(|handle| passes(&limiter, *handle, 4)));
    assert_eq!(limiter.live_keys(), 2);
    limiter.retire_others(&handles[..1], START);
    assert_eq!((limiter.live_keys(), used(&limiter, handles[0])), (1, 4));
    let key = limiter.hasher().hash(b"client");
    limiter.charge(handles[1], key, 5, START);
    assert_eq!(limiter.usage(handles[1], key, START), None);
    // A removed limit does not affect others.
    let both = [check(&limiter, handles[1], 99), check(&limiter, handles[0], 6)];
    assert!(!limiter.check(&both, START).is_rejected());
    assert!(limiter.check(&both, START).is_rejected());
    // The removed limit that is installed again, and the new one that reuses its slot, start unused.
    let again = install_limits(&limiter, &[10, 10, 10]);
    assert_eq!(again.iter().map(|handle| used(&limiter, *handle)).collect::<Vec<_>>(), [10, 0, 0]);
}

#[test]
fn charges_are_never_rejected_and_can_be_refunded() {
    let limiter = limiter(100);
    let handle = install_limits(&limiter, &[10])[0];
    let key = limiter.hasher().hash(b"client");
    limiter.charge(handle, key, 15, START);
    assert_eq!(used(&limiter, handle), 15);
    assert!(!passes(&limiter, handle, 1));
    limiter.charge(handle, key, -6, START);
    assert_eq!(used(&limiter, handle), 9);
    assert!(passes(&limiter, handle, 1) && !passes(&limiter, handle, 1));
}

#[test]
fn full_table_reports_overflow_and_stays_bounded() {
    let limiter = limiter(64);
    let handle = install_limits(&limiter, &[1000])[0];
    let overflowed = (0..2000_u32)
        .filter(|number| {
            let key = limiter.hasher().hash(&number.to_be_bytes());
            limiter.check(&[Check { key, ..check(&limiter, handle, 1) }], START).overflowed()
        })
        .count() as u64;
    assert!(overflowed > 0);
    assert_eq!(limiter.overflows(), overflowed);
    assert!((64..=72).contains(&limiter.live_keys()), "{}", limiter.live_keys());
    // The overflow counter's 1000 units are used up, so new keys are rejected.
    assert_eq!(used(&limiter, handle), 1000);
    assert!(!passes(&limiter, handle, 1));
}

#[test]
fn keys_per_limit_counts_only_counters_in_use() {
    let limiter = limiter(1000);
    let handles = install_limits(&limiter, &[10, 10]);
    for number in 0..6_u8 {
        let key = limiter.hasher().hash(&[number]);
        let checks = [handles[0], handles[1]].map(|handle| Check { key, ..check(&limiter, handle, 1) });
        limiter.check(&checks[..1 + usize::from(number % 2)], START);
    }
    let counts = limiter.keys_per_limit(START);
    assert_eq!((counts[&handles[0].id], counts[&handles[1].id]), (6, 3));
    assert!(limiter.keys_per_limit(START.saturating_add(Duration::from_secs(3600))).is_empty());
}
