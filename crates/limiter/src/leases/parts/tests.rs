use std::num::NonZeroU32;

use proptest::prelude::*;

use super::*;
use crate::algorithm::Algorithm;
use crate::leases::{LeaseOutcome, LeasePolicy, UnitSource};
use crate::quota::{Limit, Period, Quota, TimeUnit};
use crate::testing::{NOW, limiter, shared_limit};
use crate::{Check, LimitSpec, Limiter};

const FRACTION: f64 = 0.25;
const MILLI: Duration = Duration::from_millis(1);

fn part() -> StorePart {
    let from = NOW.saturating_add(Duration::from_secs(2));
    let until = NOW.saturating_add(Duration::from_secs(50));
    StorePart { fraction: FRACTION, from, until, max_settle_time: Duration::from_secs(60) }
}

fn quota(algorithm: Algorithm, count: u32, seconds: u32) -> Quota {
    let number = |units| NonZeroU32::new(units).unwrap();
    let period = Period::new(number(seconds), TimeUnit::Second);
    Quota::new(algorithm, Limit::new(number(count), period), None).unwrap()
}

fn spec(quota: Quota, has_parts: bool) -> LimitSpec {
    let spec = shared_limit("shared");
    let lease_policy = spec.lease_policy.map(|policy| LeasePolicy { has_parts, ..policy });
    LimitSpec { quota: quota.leased().unwrap(), lease_policy, ..spec }
}

fn limiter_with(quota: Quota, has_parts: bool) -> (Limiter, Check) {
    let (limiter, check) = limiter();
    let handle = limiter.install(&[spec(quota, has_parts)], NOW)[0];
    (limiter, Check { handle, ..check })
}

fn limited(quota: Quota) -> (Limiter, Check) {
    limiter_with(quota, true)
}

fn after(millis: u32) -> Timestamp {
    NOW.saturating_add(MILLI * millis)
}

/// Sends a request; returns whether it is admitted.
fn admits(limiter: &Limiter, check: Check, now: Timestamp) -> bool {
    if limiter.check(&[check], now).is_rejected() {
        let outcome = limiter.acquire_units_from(UnitSource::Part(part()), &check, now);
        return matches!(outcome, LeaseOutcome::Ready(_)) && !limiter.check(&[check], now).is_rejected();
    }
    true
}

/// Number of requests that are admitted between two times, with one each millisecond.
fn admitted(limiter: &Limiter, check: Check, millis: std::ops::Range<u32>) -> usize {
    millis.filter(|milli| admits(limiter, check, after(*milli))).count()
}

#[test]
fn part_is_spent_from_its_start_to_its_end() {
    let (limiter, check) = limited(quota(Algorithm::Gcra, 100, 1));
    assert_eq!(admitted(&limiter, check, 0..2000), 0);
    let second = admitted(&limiter, check, 2000..3000);
    assert!((24..=25).contains(&second), "{second}: it begins empty");
    assert_eq!(admitted(&limiter, check, 50_000..51_000), 0);
}

#[test]
fn unused_part_grows_to_its_burst() {
    let (limiter, check) = limited(quota(Algorithm::Gcra, 100, 1));
    let first = admitted(&limiter, check, 10_000..10_100);
    assert!((25..=27).contains(&first), "{first}: a burst, and what drains in a tenth of a second");
}

#[test]
fn request_before_the_start_is_rejected_until_then() {
    let (limiter, check) = limited(quota(Algorithm::Gcra, 100, 1));
    let outcome = limiter.acquire_units_from(UnitSource::Part(part()), &check, after(1500));
    assert_eq!(outcome, LeaseOutcome::Rejected(Duration::from_millis(500)));
}

#[test]
fn limits_without_parts_have_none() {
    let source = UnitSource::Part(part());
    let unavailable = |(limiter, check): (Limiter, Check)| {
        limiter.acquire_units_from(source, &check, after(3000)) == LeaseOutcome::Unavailable
    };
    assert!(unavailable(limiter_with(quota(Algorithm::Gcra, 100, 1), false)));
    assert!(unavailable(limited(quota(Algorithm::Gcra, 100, 90))), "not whole again within a minute");
    assert!(unavailable(limited(quota(Algorithm::Gcra, 3, 1))), "a quarter is less than a unit");
}

#[test]
fn what_is_spent_counts_while_nothing_else_happens() {
    let (limiter, check) = limited(quota(Algorithm::Gcra, 100, 1));
    admitted(&limiter, check, 10_000..10_040);
    let counter = limiter.shared_counter(&check);
    for milli in 10_040..10_200 {
        limiter.review(counter, after(milli));
    }
    let next = admitted(&limiter, check, 10_200..10_210);
    assert!(next <= 5, "{next}: the account was forgotten");
}

#[test]
fn keys_that_are_rejected_take_no_room() {
    let (limiter, check) = limited(quota(Algorithm::Gcra, 100, 1));
    let key = |number: u32| Check { key: limiter.hasher().hash(&number.to_be_bytes()), ..check };
    for number in 0..1000 {
        limiter.acquire_units_from(UnitSource::Part(part()), &key(number), after(1000));
        limiter.acquire_units_from(UnitSource::Part(part()), &key(number), after(60_000));
    }
    assert_eq!(limiter.shared_counter_count(), 0);
    let first = limiter.acquire_units_from(UnitSource::Part(part()), &key(0), after(10_000));
    assert_eq!(first, LeaseOutcome::Ready(true), "it has to be reviewed");
    assert!(!limiter.check(&[key(0)], after(10_000)).is_rejected());
    limiter.review(limiter.shared_counter(&key(0)), after(12_000));
    assert_eq!(limiter.shared_counter_count(), 0);
}

#[test]
fn request_that_costs_more_than_the_part_has_no_part() {
    let (limiter, check) = limited(quota(Algorithm::Gcra, 100, 1));
    let outcome =
        limiter.acquire_units_from(UnitSource::Part(part()), &Check { cost: 30, ..check }, after(9000));
    assert_eq!(outcome, LeaseOutcome::Unavailable);
}

#[test]
fn limit_that_changes_does_not_forget_what_was_spent() {
    let refilled = |burst| {
        let limit = Limit::new(NonZeroU32::new(100).unwrap(), Period::one(TimeUnit::Second));
        Quota::new(Algorithm::RefillBucket, limit, NonZeroU32::new(burst)).unwrap()
    };
    let (limiter, check) = limited(refilled(200));
    assert!(admitted(&limiter, check, 10_000..10_050) > 30);
    let handle = limiter.install(&[spec(refilled(400), true)], after(10_050))[0];
    assert_eq!(handle, check.handle);
    // The burst of the part grows from 37 units to 87.
    let more = admitted(&limiter, check, 10_051..10_200);
    assert!((45..=55).contains(&more), "{more}: as if nothing had been spent");
}

#[test]
fn units_of_a_part_are_not_given_back() {
    let (limiter, check) = limited(quota(Algorithm::Gcra, 100, 1));
    limiter.acquire_units_from(UnitSource::Part(part()), &check, after(10_000));
    let counter = limiter.shared_counter(&check);
    let request = limiter.lease_request(counter, Default::default(), after(10_100)).unwrap();
    assert_eq!(request.returned.granted_at, 0, "no grant of the store is as old");
}

fn algorithm() -> impl Strategy<Value = Algorithm> {
    prop_oneof![
        Just(Algorithm::Gcra),
        Just(Algorithm::FixedWindow),
        Just(Algorithm::SlidingWindow),
        Just(Algorithm::TokenBucket)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_window_has_more_than_the_part(
        algorithm in algorithm(),
        count in 4_u32..200,
        gaps in prop::collection::vec(0_u32..400, 1..400),
    ) {
        let quota = quota(algorithm, count, 1);
        let (limiter, check) = limited(quota);
        let (mut milli, mut times) = (2000, Vec::new());
        for gap in gaps {
            milli += gap;
            if admits(&limiter, check, after(milli)) {
                times.push(milli);
            }
        }
        let burst = f64::from(quota.burst().get()) * FRACTION;
        for (index, start) in times.iter().enumerate() {
            for (more, end) in times[index..].iter().enumerate() {
                let seconds = f64::from(end - start) / 1000.0;
                let whole_windows = match quota.algorithm().has_burst() {
                    true => burst + f64::from(count) * FRACTION * seconds,
                    false => f64::from(count) * FRACTION * (seconds.floor() + 1.0),
                };
                prop_assert!(more as f64 + 1.0 <= whole_windows + 1e-6, "{} in {seconds} s of {whole_windows}", more + 1);
            }
        }
    }
}
