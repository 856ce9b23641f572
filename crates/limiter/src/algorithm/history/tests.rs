//! Debts in histories: how long they last in aggregates, after refunds and when entries are merged.

use std::num::NonZeroU32;

use super::*;
use crate::algorithm::Algorithm;
use crate::algorithm::conversion::{Change, OnChange};
use crate::quota::{Limit, Period, TimeUnit};

const START: Timestamp = Timestamp::from_secs(1_795_248_000);
const COUNT: u32 = 3;

/// `count` per second; precise windows have four sub-windows.
fn quota(algorithm: Algorithm, count: u32) -> Quota {
    let limit = Limit::new(NonZeroU32::new(count).unwrap(), Period::one(TimeUnit::Second));
    let quota = Quota::new(algorithm, limit, None).unwrap();
    quota.with_precision(4).unwrap_or(quota)
}

/// 3/s as a log and as a precise window.
fn quotas() -> [Quota; 2] {
    [Algorithm::SlidingLog, Algorithm::SlidingWindow].map(|algorithm| quota(algorithm, COUNT))
}

fn after(millis: u64) -> Timestamp {
    START.saturating_add(Duration::from_millis(millis))
}

fn charge(history: &mut History, units: i64, quota: &Quota, now: Timestamp, may_grow: bool) {
    let state = aggregate::charge(Some(history.compact_state(quota, now)), quota, units, now);
    history.apply_state(state, quota, now, may_grow);
}

#[test]
fn repeated_compaction_does_not_prolong_a_debt() {
    for quota in quotas() {
        let mut history = History::default();
        charge(&mut history, 30, &quota, START, true);
        let end = history.expires_at(&quota);
        for seconds in 1..9 {
            let now = after(1000 * seconds + 10);
            history = History::from_state(history.compact_state(&quota, now), &quota, now);
            assert!(history.expires_at(&quota) <= end + 1, "{} after {seconds} s", quota.algorithm());
            let rounds = 10 - u32::try_from(seconds).unwrap();
            assert!(history.compact_state(&quota, now).extra <= (rounds + 1) * COUNT);
            let refused = history.evaluate(&quota, COUNT, now).1;
            assert!(matches!(refused, Outcome::Exceed { retry_after: Some(_) }));
        }
    }
}

#[test]
fn charge_during_debt_expires_after_the_debt() {
    for quota in quotas() {
        let mut history = History::default();
        charge(&mut history, 12, &quota, START, true);
        let end = history.expires_at(&quota);
        charge(&mut history, 1, &quota, after(2100), true);
        assert_eq!(
            history.expires_at(&quota),
            end + aggregate::lookback(&quota).full,
            "{}",
            quota.algorithm()
        );
    }
}

#[test]
fn charge_after_a_refund_does_not_prolong_the_debt() {
    for quota in quotas() {
        let mut history = History::default();
        charge(&mut history, 6, &quota, START, true);
        let end = history.expires_at(&quota);
        for millis in [10, 20, 30] {
            history.refund(2, &quota, START, after(millis), true);
            charge(&mut history, 2, &quota, after(millis), true);
            let late = history.expires_at(&quota) - end;
            assert!(late <= 30_000_000, "{}: {late} ns later", quota.algorithm());
            assert_eq!(history.compact_state(&quota, after(millis)).extra, 6);
        }
    }
}

#[test]
fn debt_lasts_equally_long_when_the_history_cannot_grow() {
    for quota in quotas() {
        let mut with = History::default();
        let mut without = History::default();
        charge(&mut with, 1, &quota, START, true);
        charge(&mut without, 1, &quota, START, false);
        for units in [11, 1, 1, 4] {
            charge(&mut with, units, &quota, START, true);
            charge(&mut without, units, &quota, START, false);
            assert_eq!(without.expires_at(&quota), with.expires_at(&quota), "{} {units}", quota.algorithm());
        }
    }
}

#[test]
fn lowered_limit_keeps_used_units_beside_a_debt() {
    for to in quotas() {
        let from = quota(to.algorithm(), 20);
        let mut history = History::default();
        charge(&mut history, 20, &from, START, true);
        let change = Change { from: &from, to: &to, on_change: OnChange::Keep };
        assert!(change.carry_history(&mut history));
        charge(&mut history, 1, &to, after(100), true);
        let short = history.compact_state(&to, after(200));
        assert_eq!(short.extra, 21, "{}", to.algorithm());
        assert!(!aggregate::is_in_debt(short, &to, after(200)), "twenty units are paid in one period");
        // The history itself still has the debt.
        let (_, outcome) = history.evaluate(&to, COUNT, after(1600));
        assert!(matches!(outcome, Outcome::Exceed { .. }), "{}", to.algorithm());
    }
}
