use std::num::NonZeroU32;

use super::*;
use crate::limiter::quota::{Limit, Period, Unit};

/// Midnight of a Saturday, so that it is a mark for every window up to a day.
const START: u64 = 1_795_219_200_000_000_000;
const MILLIS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MILLIS;

fn quota(algorithm: Algorithm, count: u32, unit: Unit, burst: Option<u32>) -> Quota {
    let limit = Limit::new(NonZeroU32::new(count).unwrap(), Period::one(unit));
    Quota::new(algorithm, limit, burst.and_then(NonZeroU32::new)).unwrap()
}

fn at(nanos: u64) -> Timestamp {
    Timestamp::from_nanos(START + nanos)
}

fn exceed(wait: u64) -> Outcome {
    Outcome::Exceed { retry_after: Some(Duration::from_nanos(wait)) }
}

/// Runs requests of (time after the start, cost) and compares what each is told.
fn assert_told(quota: &Quota, requests: &[(u64, u32, Outcome)]) {
    let mut state = None;
    for (number, (time, cost, expected)) in requests.iter().enumerate() {
        let (next, outcome) = evaluate(state, quota, *cost, at(*time));
        assert_eq!(outcome, *expected, "request {number}");
        if outcome == Outcome::Conform {
            state = Some(next);
        }
    }
}

#[test]
fn gcra_spaces_what_comes_after_the_burst() {
    let quota = quota(Algorithm::Gcra, 10, Unit::Second, Some(2));
    assert_told(
        &quota,
        &[
            (0, 1, Outcome::Conform),
            (0, 1, Outcome::Conform),
            (0, 1, exceed(100 * MILLIS)),
            (40 * MILLIS, 1, exceed(60 * MILLIS)),
            (40 * MILLIS, 2, exceed(160 * MILLIS)),
            (100 * MILLIS, 1, Outcome::Conform),
            (100 * MILLIS, 1, exceed(100 * MILLIS)),
            (SECOND, 2, Outcome::Conform),
            (SECOND, 0, Outcome::Conform),
        ],
    );
}

#[test]
fn a_token_bucket_refills_one_by_one() {
    let quota = quota(Algorithm::TokenBucket, 10, Unit::Second, Some(2));
    assert_told(
        &quota,
        &[
            (0, 2, Outcome::Conform),
            (50 * MILLIS, 1, exceed(50 * MILLIS)),
            (150 * MILLIS, 1, Outcome::Conform),
            (150 * MILLIS, 1, exceed(50 * MILLIS)),
            (200 * MILLIS, 1, Outcome::Conform),
            (SECOND, 2, Outcome::Conform),
            (SECOND, 1, exceed(100 * MILLIS)),
        ],
    );
}

#[test]
fn a_window_opens_at_its_mark() {
    let quota = quota(Algorithm::FixedWindow, 3, Unit::Minute, None);
    assert_told(
        &quota,
        &[
            (59 * SECOND, 2, Outcome::Conform),
            (59 * SECOND, 2, exceed(SECOND)),
            (59 * SECOND, 1, Outcome::Conform),
            (59 * SECOND + 1, 1, exceed(SECOND - 1)),
            (60 * SECOND, 3, Outcome::Conform),
            (60 * SECOND, 1, exceed(60 * SECOND)),
        ],
    );
}

#[test]
fn a_third_of_a_second_is_exact_for_a_million_seconds() {
    for algorithm in Algorithm::ALL {
        let quota = quota(algorithm, 3, Unit::Second, None);
        let mut state = None;
        for second in 0..1_000_000 {
            let now = at(second * SECOND);
            for request in 1..=4 {
                let (next, outcome) = evaluate(state, &quota, 1, now);
                assert_eq!(outcome == Outcome::Conform, request < 4, "{algorithm}, second {second}");
                if request < 4 {
                    state = Some(next);
                }
            }
        }
    }
}

#[test]
fn thirds_that_come_as_soon_as_they_may_come_on_time() {
    let quota = quota(Algorithm::Gcra, 3, Unit::Second, None);
    let mut state = Some(charge(None, &quota, 3, at(0)));
    let mut now = 0;
    for request in 1..=3_000_u64 {
        if let Outcome::Exceed { retry_after: Some(wait) } = evaluate(state, &quota, 1, at(now)).1 {
            now += wait.as_nanos() as u64;
        }
        assert_eq!(now, (request * SECOND).div_ceil(3));
        let (next, outcome) = evaluate(state, &quota, 1, at(now));
        assert_eq!(outcome, Outcome::Conform);
        state = Some(next);
    }
}

#[test]
fn more_than_the_limit_can_ever_give_is_never() {
    for algorithm in Algorithm::ALL {
        let quota = quota(algorithm, 5, Unit::Hour, None);
        let (_, outcome) = evaluate(None, &quota, 6, at(0));
        assert_eq!(outcome, Outcome::Exceed { retry_after: None }, "{algorithm}");
        assert_eq!(evaluate(None, &quota, u32::MAX, at(0)).1, outcome, "{algorithm}");
        assert_eq!(evaluate(None, &quota, 5, at(0)).1, Outcome::Conform, "{algorithm}");
    }
}

#[test]
fn a_late_charge_makes_a_debt_that_time_pays() {
    for (algorithm, wait) in [
        (Algorithm::Gcra, 600 * MILLIS),
        (Algorithm::TokenBucket, 600 * MILLIS),
        (Algorithm::FixedWindow, SECOND),
    ] {
        let quota = quota(algorithm, 10, Unit::Second, None);
        let state = Some(charge(None, &quota, 15, at(0)));
        let debt = usage(state, &quota, at(0));
        assert_eq!((debt.used, debt.remaining), (15, 0), "{algorithm}");
        assert_eq!(evaluate(state, &quota, 1, at(0)).1, exceed(wait), "{algorithm}");
        assert!(evaluate(state, &quota, 0, at(0)).1 != Outcome::Conform, "{algorithm}: in debt");
        assert_eq!(evaluate(state, &quota, 1, at(wait)).1, Outcome::Conform, "{algorithm}");
        let back = charge(state, &quota, -100, at(0));
        assert_eq!(usage(Some(back), &quota, at(0)).used, 0, "{algorithm}: no credit beyond a full quota");
    }
}

#[test]
fn a_debt_beyond_the_end_of_time_is_one_until_then() {
    let before = |nanos: u64| Timestamp::from_nanos(u64::MAX - nanos);
    for algorithm in Algorithm::ALL {
        let quota = quota(algorithm, 1, Unit::Hour, None);
        let mut state = None;
        for _ in 0..3 {
            state = Some(charge(state, &quota, i64::MAX, before(7200 * SECOND)));
        }
        let used = usage(state, &quota, before(7200 * SECOND)).used;
        assert!(used >= 2, "{algorithm}: {used}");
        let (_, outcome) = evaluate(state, &quota, 1, before(7200 * SECOND));
        assert!(matches!(outcome, Outcome::Exceed { .. }), "{algorithm}");
        // A window ends all the same.
        assert_eq!(is_unused(state.unwrap(), &quota, before(1)), !algorithm.has_burst(), "{algorithm}");
        let _ = evaluate(state, &quota, u32::MAX, before(0));
    }
}

#[test]
fn used_once_unused_as_soon_as_it_is_earned_again() {
    for algorithm in Algorithm::ALL {
        let quota = quota(algorithm, 4, Unit::Second, None);
        let state = charge(None, &quota, 1, at(0));
        let earned = if algorithm.has_burst() { 250 * MILLIS } else { SECOND };
        assert!(!is_unused(state, &quota, at(earned - 1)), "{algorithm}");
        assert!(is_unused(state, &quota, at(earned)), "{algorithm}");
    }
}

#[test]
fn a_changed_quota_keeps_units_and_an_unchanged_one_keeps_the_state() {
    for from in Algorithm::ALL {
        let before = quota(from, 10, Unit::Minute, None);
        let state = charge(None, &before, 7, at(SECOND));
        assert_eq!(convert(state, &before, &before, at(SECOND)), Some(state));
        for to in Algorithm::ALL {
            let after = quota(to, 100, Unit::Hour, None);
            let converted = convert(state, &before, &after, at(SECOND));
            assert_eq!(usage(converted, &after, at(SECOND)).used, 7, "{from} to {to}");
            assert_eq!(convert(state, &before, &after, at(61 * SECOND)), None, "{from} to {to}");
        }
    }
}
