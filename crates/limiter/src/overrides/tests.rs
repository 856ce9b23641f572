mod pauses;

use std::num::NonZeroU32;
use std::time::Duration;

use super::*;
use crate::algorithm::Algorithm;
use crate::algorithm::conversion::OnChange;
use crate::decision::Enforcement;
use crate::leases::LeasePolicy;
use crate::quota::{BoostFactor, Limit, Period, TimeUnit};
use crate::reservation::ChargeTiming;
use crate::testing;
use crate::{Check, LimitIdentity, LimitSpec};

const NOW: Timestamp = Timestamp::from_secs(1_000_000);
const HOUR: Duration = Duration::from_secs(3600);

fn quota(algorithm: Algorithm, count: u32) -> Quota {
    let limit = Limit::new(NonZeroU32::new(count).unwrap(), Period::one(TimeUnit::Day));
    Quota::new(algorithm, limit, None).unwrap()
}

fn spec(quota: Quota) -> LimitSpec {
    let identity = LimitIdentity { rule: "rule".into(), key: "[]".into() };
    LimitSpec { identity, quota, on_change: OnChange::Keep, lease_policy: None }
}

/// A limiter with one limit, and a check of it.
fn limiter(quota: Quota) -> (Limiter, Check) {
    testing::limiter_of(quota, NOW)
}

fn after(duration: Duration) -> Timestamp {
    NOW.saturating_add(duration)
}

fn factor(factor: u32) -> QuotaChange {
    QuotaChange::Factor(BoostFactor::from_hundredths(factor * 100).unwrap())
}

/// Returns how many requests are admitted at `now`, of at most 200.
fn admitted(limiter: &Limiter, check: &Check, now: Timestamp) -> usize {
    (0..200).filter(|_| !limiter.check(&[*check], now).is_rejected()).count()
}

impl Limiter {
    fn used(&self, check: &Check, now: Timestamp) -> u32 {
        self.usage(check.handle, check.key, now).unwrap().used
    }

    fn boost(&self, check: &Check, change: QuotaChange, now: Timestamp) -> bool {
        self.boost_counter(check.handle, check.key, change, after(HOUR), now)
    }
}

#[test]
fn boosted_key_is_admitted_by_the_raised_quota_and_keeps_its_usage() {
    for algorithm in Algorithm::RATES {
        let (limiter, check) = limiter(quota(algorithm, 10));
        let other = Check { key: limiter.hasher().hash(b"b"), ..check };
        assert_eq!(admitted(&limiter, &check, NOW), 10, "{algorithm}");
        assert!(limiter.boost(&check, factor(3), NOW));
        assert_eq!(admitted(&limiter, &check, NOW), 20, "{algorithm}: units used stay used");
        assert_eq!(limiter.used(&check, NOW), 30, "{algorithm}");
        assert_eq!(admitted(&limiter, &other, NOW), 10, "{algorithm}: other keys are not affected");
    }
}

#[test]
fn units_used_during_a_boost_stay_used_when_it_ends() {
    for algorithm in Algorithm::RATES {
        for is_cleared in [true, false] {
            let (limiter, check) = limiter(quota(algorithm, 10));
            limiter.boost(&check, factor(3), NOW);
            assert_eq!(admitted(&limiter, &check, NOW), 30, "{algorithm}");
            let end = if is_cleared { NOW } else { after(HOUR) };
            if is_cleared {
                limiter.unboost_counter(check.handle, check.key, NOW);
            }
            assert!(limiter.used(&check, end) >= 10, "{algorithm}: {}", limiter.used(&check, end));
            assert_eq!(admitted(&limiter, &check, end), 0, "{algorithm}");
            assert_eq!(limiter.quota_in_force(check.handle, check.key, end), limiter.quota(check.handle));
        }
    }
}

#[test]
fn boost_of_an_unused_counter_leaves_no_trace_when_it_ends() {
    let (limiter, check) = limiter(quota(Algorithm::Gcra, 10));
    limiter.boost(&check, factor(3), NOW);
    assert_eq!(admitted(&limiter, &check, after(HOUR)), 10);
}

#[test]
fn boost_replaces_the_boost_before_it() {
    let (limiter, check) = limiter(quota(Algorithm::FixedWindow, 10));
    limiter.boost(&check, factor(3), NOW);
    assert_eq!(admitted(&limiter, &check, NOW), 30);
    let limit = Limit::new(NonZeroU32::new(50).unwrap(), Period::one(TimeUnit::Day));
    limiter.boost(&check, QuotaChange::Limit(limit), NOW);
    assert_eq!(admitted(&limiter, &check, NOW), 20);
}

#[test]
fn boost_follows_a_limit_that_a_reload_changes() {
    let (limiter, check) = limiter(quota(Algorithm::FixedWindow, 10));
    limiter.boost(&check, factor(3), NOW);
    assert_eq!(admitted(&limiter, &check, NOW), 30);
    assert_eq!(limiter.install(&[spec(quota(Algorithm::FixedWindow, 20))], NOW), [check.handle]);
    assert_eq!(admitted(&limiter, &check, NOW), 30, "sixty minus those used");
    assert_eq!(limiter.used(&check, NOW), 60);
}

#[test]
fn boost_raises_the_number_of_requests_in_flight() {
    let (limiter, check) = limiter(Quota::in_flight(NonZeroU32::new(2).unwrap()));
    let check = Check { charge_timing: ChargeTiming::WhileInFlight, ..check };
    assert_eq!(admitted(&limiter, &check, NOW), 2);
    limiter.boost(&check, factor(2), NOW);
    assert_eq!(admitted(&limiter, &check, NOW), 2);
    assert_eq!(limiter.usage_with_holds(check.handle, check.key, NOW).unwrap().used, 4);
}

#[test]
fn boosted_counters_are_saved_in_units_of_the_limit() {
    for algorithm in [Algorithm::Gcra, Algorithm::SlidingLog] {
        let (limiter, check) = limiter(quota(algorithm, 10));
        limiter.boost(&check, factor(3), NOW);
        assert_eq!(admitted(&limiter, &check, NOW), 30);
        let saved = limiter.table.saved_states(NOW);
        let (quota, state) = (limiter.quota(check.handle).unwrap(), saved[0]);
        assert!(algorithm::usage(Some(state), &quota, NOW).used >= 10, "{algorithm}");
    }
}

#[test]
fn boosted_limit_of_the_store_is_counted_here() {
    let leased = quota(Algorithm::Gcra, 10).leased().unwrap();
    let (limiter, check) = limiter(leased);
    let policy = LeasePolicy {
        is_exact: false,
        max_wait: Some(Duration::ZERO),
        priority: 0,
        is_max_min: false,
        has_parts: false,
    };
    limiter.install(&[LimitSpec { lease_policy: Some(policy), ..spec(leased) }], NOW);
    limiter.boost(&check, factor(2), NOW);
    assert_eq!(admitted(&limiter, &check, NOW), 20);
    assert!(limiter.check(&[check], after(HOUR)).verdicts()[0].awaits_lease());
}

#[test]
fn banned_key_is_rejected_until_the_end_and_not_charged() {
    let (limiter, check) = limiter(quota(Algorithm::Gcra, 10));
    limiter.check(&[check], NOW);
    limiter.ban_counter(check.handle, check.key, Some(after(HOUR)));
    let decision = limiter.check(&[check], NOW);
    assert!(decision.verdicts()[0].is_banned() && decision.verdicts()[0].rejects());
    assert_eq!(decision.verdicts()[0].retry_after(), HOUR);
    assert_eq!(limiter.used(&check, NOW), 1);
    let shadow = Check { enforcement: Enforcement::Shadow, ..check };
    assert!(!limiter.check(&[shadow], NOW).is_rejected());
    assert_eq!(admitted(&limiter, &check, after(HOUR)), 9);
    limiter.ban_counter(check.handle, check.key, Some(after(2 * HOUR)));
    limiter.ban_counter(check.handle, check.key, None);
    assert!(!limiter.check(&[check], after(HOUR)).verdicts()[0].is_banned());
}

#[test]
fn reset_frees_the_counter_but_not_requests_in_flight() {
    for algorithm in Algorithm::RATES {
        let (limiter, check) = limiter(quota(algorithm, 10));
        assert_eq!(admitted(&limiter, &check, NOW), 10);
        assert!(limiter.reset_counter(check.handle, check.key));
        assert!(!limiter.reset_counter(check.handle, check.key), "idempotent");
        assert_eq!(admitted(&limiter, &check, NOW), 10, "{algorithm}");
    }
    let (limiter, check) = limiter(Quota::in_flight(NonZeroU32::new(2).unwrap()));
    let check = Check { charge_timing: ChargeTiming::WhileInFlight, ..check };
    assert_eq!(admitted(&limiter, &check, NOW), 2);
    limiter.reset_counter(check.handle, check.key);
    assert_eq!(admitted(&limiter, &check, NOW), 0);
}

#[test]
fn copied_counters_decide_alike_and_leave_the_original_unchanged() {
    for algorithm in Algorithm::RATES {
        let (limiter, check) = limiter(quota(algorithm, 10));
        for _ in 0..4 {
            limiter.check(&[check], NOW);
        }
        let twice = [check, check];
        for boost in [None, Some(factor(3))] {
            if let Some(change) = boost {
                limiter.boost(&check, change, NOW);
            }
            let copy = limiter.copy_for(&twice, NOW);
            assert_eq!(copy.used(&check, NOW), 4);
            let left = if boost.is_some() { 26 } else { 6 };
            assert_eq!(admitted(&copy, &check, NOW), left, "{algorithm}");
            assert_eq!(limiter.used(&check, NOW), 4, "{algorithm}");
        }
        let unused = Check { key: limiter.hasher().hash(b"b"), ..check };
        let before = limiter.live_keys();
        assert_eq!(admitted(&limiter.copy_for(&[unused], NOW), &unused, NOW), 10);
        assert_eq!(limiter.live_keys(), before);
    }
}
