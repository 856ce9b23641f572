use std::num::NonZeroU32;
use std::time::Duration;

use super::algorithm::Algorithm;
use super::quota::{Limit, Period, Quota, Unit};
use super::*;

const NOW: Timestamp = Timestamp::from_secs(1_795_248_000);

fn per_hour(count: u32) -> Quota {
    let limit = Limit::new(NonZeroU32::new(count).unwrap(), Period::one(Unit::Hour));
    Quota::new(Algorithm::Gcra, limit, None).unwrap()
}

fn spec(rule: &str, quota: Quota) -> MeterSpec {
    MeterSpec { lineage: Lineage { rule: rule.into(), key: "[client_ip]".into(), ordinal: 0 }, quota }
}

fn limiter(max_keys: usize) -> Limiter {
    Limiter::new(Settings { max_keys, secret: [7, 11] })
}

fn check(meter: Meter, key: KeyHash, enforcement: Enforcement) -> Check {
    Check { meter, key, cost: 1, enforcement }
}

/// Two limits, `first` with more room than `second`, and a key whose counters lie in different shards.
fn two_limits() -> (Limiter, Meter, Meter, KeyHash) {
    let limiter = limiter(10_000);
    let meters = limiter.install(&[spec("first", per_hour(10)), spec("second", per_hour(2))], NOW);
    let (first, second) = (meters[0], meters[1]);
    let key = (0_u32..)
        .map(|number| limiter.hasher().hash(&number.to_be_bytes()))
        .find(|key| {
            let shard = |meter: Meter| limiter.store.shard_of(key.salted(meter.salt));
            shard(first) != shard(second)
        })
        .unwrap();
    (limiter, first, second, key)
}

fn used(limiter: &Limiter, meter: Meter, key: KeyHash) -> u32 {
    limiter.usage(meter, key, NOW).unwrap().used
}

#[test]
fn a_refused_request_charges_no_limit_in_any_shard() {
    let (limiter, first, second, key) = two_limits();
    let checks = [check(first, key, Enforcement::Enforced), check(second, key, Enforcement::Enforced)];
    let turned = [checks[1], checks[0]];
    assert!(!limiter.check(&checks, NOW).is_refused());
    assert!(!limiter.check(&turned, NOW).is_refused());
    for checks in [checks, turned] {
        let decision = limiter.check(&checks, NOW);
        assert!(decision.is_refused());
        let refusing: Vec<_> = decision.verdicts().iter().map(|verdict| verdict.refuses()).collect();
        assert_eq!(refusing, checks.map(|check| check.meter == second), "in the order of the checks");
        assert_eq!((used(&limiter, first, key), used(&limiter, second, key)), (2, 2));
    }
}

#[test]
fn a_refused_request_is_told_what_is_left_of_the_other_limits() {
    let (limiter, first, second, key) = two_limits();
    let checks = [check(first, key, Enforcement::Enforced), check(second, key, Enforcement::Enforced)];
    let remaining = || {
        let decision = limiter.check(&checks, NOW);
        [0, 1].map(|at| decision.verdicts()[at].usage(NOW).unwrap().remaining)
    };
    assert_eq!(remaining(), [9, 1]);
    assert_eq!(remaining(), [8, 0]);
    assert_eq!(remaining(), [8, 0]);
    assert_eq!(remaining(), [8, 0]);
}

#[test]
fn a_shadow_limit_refuses_nobody_and_is_no_obstacle() {
    let (limiter, first, second, key) = two_limits();
    let checks = [check(first, key, Enforcement::Enforced), check(second, key, Enforcement::Shadow)];
    for request in 1..=5 {
        let decision = limiter.check(&checks, NOW);
        assert!(!decision.is_refused());
        assert_eq!(decision.verdicts()[1].exceeds(), request > 2);
        assert_eq!(used(&limiter, first, key), request);
        assert_eq!(used(&limiter, second, key), request.min(2));
    }
    let alone = limiter.check(&checks[1..], NOW);
    assert!(!alone.is_refused() && alone.verdicts()[0].exceeds());
}

#[test]
fn a_shadow_limit_is_not_charged_for_what_another_refuses() {
    let (limiter, first, second, key) = two_limits();
    limiter.charge(second, key, 2, NOW);
    let checks = [check(first, key, Enforcement::Shadow), check(second, key, Enforcement::Enforced)];
    assert!(limiter.check(&checks, NOW).is_refused());
    assert_eq!(used(&limiter, first, key), 0);
}

#[test]
fn the_same_limit_twice_in_one_request_does_not_lock_up() {
    let (limiter, first, _, key) = two_limits();
    let decision = limiter.check(&[check(first, key, Enforcement::Enforced); 2], NOW);
    assert_eq!(decision.verdicts().len(), 2);
}

#[test]
fn no_checks_no_objection() {
    let decision = limiter(100).check(&[], NOW);
    assert!(decision.verdicts().is_empty() && !decision.is_refused() && !decision.overflowed());
}

#[test]
fn a_limit_keeps_its_counters_by_lineage_when_rules_change() {
    let (limiter, first, _, key) = two_limits();
    limiter.charge(first, key, 6, NOW);
    let next = limiter.install(&[spec("new", per_hour(1)), spec("first", per_hour(8))], NOW);
    assert_eq!(next[1], first);
    assert_ne!(next[0].id, first.id);
    let usage = limiter.usage(next[1], key, NOW).unwrap();
    assert_eq!((usage.used, usage.remaining), (6, 2), "units used stay used, held against the new quota");
    assert_eq!(used(&limiter, next[0], key), 0);
}

#[test]
fn what_is_retired_is_forgotten_and_limits_nothing() {
    let (limiter, first, second, key) = two_limits();
    limiter.charge(first, key, 1, NOW);
    limiter.charge(second, key, 2, NOW);
    assert_eq!(limiter.live_keys(), 2);
    limiter.retire_others(&[first], NOW);
    assert_eq!(limiter.live_keys(), 1);
    assert_eq!(limiter.usage(second, key, NOW), None);
    assert_eq!(used(&limiter, first, key), 1);

    // A request that was matched before the change.
    let decision = limiter.check(&[check(second, key, Enforcement::Enforced)], NOW);
    assert!(!decision.is_refused());
    assert!(decision.verdicts()[0].quota().is_none() && decision.verdicts()[0].usage(NOW).is_none());
    limiter.charge(second, key, 1, NOW);
    assert_eq!(limiter.live_keys(), 1);

    let again = limiter.install(&[spec("first", per_hour(10)), spec("second", per_hour(2))], NOW);
    assert_eq!(again[0], first);
    assert_eq!(used(&limiter, again[1], key), 0);
}

#[test]
fn a_full_table_is_reported() {
    let limiter = limiter(16);
    let meter = limiter.install(&[spec("first", per_hour(10))], NOW)[0];
    let request = |number: u32| {
        let key = limiter.hasher().hash(&number.to_be_bytes());
        limiter.check(&[check(meter, key, Enforcement::Enforced)], NOW)
    };
    let room = (0..).find(|number| request(*number).overflowed()).unwrap();
    assert!(room >= 16, "a place for each of 16 keys, and {room} were given");
    assert_eq!(limiter.overflows(), 1);
    // One was charged already, nine more fill the counter that all newcomers share.
    for number in 1..10 {
        assert!(!request(room + number).is_refused());
    }
    assert!(request(room + 10).is_refused());
    assert_eq!(limiter.overflows(), 10);
    assert!(!request(0).is_refused(), "a key that was there before has its own counter");
    assert_eq!(limiter.keys_per_meter(NOW)[&meter.id], limiter.live_keys() as u64);
}

#[test]
fn a_request_that_can_never_pass_is_told_to_wait_for_all_there_is() {
    let (limiter, first, _, key) = two_limits();
    let costly = Check { cost: 11, ..check(first, key, Enforcement::Enforced) };
    let verdict = limiter.check(&[costly], NOW).verdicts()[0];
    assert!(verdict.refuses());
    assert_eq!(verdict.wait(), Duration::from_secs(3600));
}
