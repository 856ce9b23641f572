use std::num::NonZeroU32;

use super::*;
use crate::quota::{Limit, Period, TimeUnit};

/// 2026-11-21T08:00:00Z, a boundary of every window up to the hour.
const START: Timestamp = Timestamp::from_secs(1_795_248_000);
const END: Timestamp = Timestamp::from_nanos(u64::MAX);

fn quota(algorithm: Algorithm, count: u32, unit: TimeUnit, burst: Option<u32>) -> Quota {
    let limit = Limit::new(NonZeroU32::new(count).unwrap(), Period::one(unit));
    Quota::new(algorithm, limit, burst.and_then(NonZeroU32::new)).unwrap()
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn later(millis: u64) -> Timestamp {
    START.saturating_add(Duration::from_millis(millis))
}

fn exceeds_until(wait: Duration) -> Outcome {
    Outcome::Exceed { retry_after: Some(wait) }
}

const NEVER: Outcome = Outcome::Exceed { retry_after: None };

/// A counter and its quota; keeps the state if a request conforms.
struct TestCounter {
    quota: Quota,
    state: Option<CounterState>,
}

impl TestCounter {
    fn new(algorithm: Algorithm, count: u32, unit: TimeUnit, burst: Option<u32>) -> Self {
        Self { quota: quota(algorithm, count, unit, burst), state: None }
    }

    fn request(&mut self, cost: u32, now: Timestamp) -> Outcome {
        let (next, outcome) = evaluate(self.state, &self.quota, cost, now);
        if outcome == Outcome::Conform {
            self.state = Some(next);
        }
        outcome
    }

    /// Number of single units that pass at once.
    fn drain(&mut self, now: Timestamp) -> u32 {
        (0..1000).take_while(|_| self.request(1, now) == Outcome::Conform).count() as u32
    }

    fn charge(&mut self, amount: i64, now: Timestamp) {
        self.state = Some(charge(self.state, &self.quota, amount, now));
    }

    fn usage(&self, now: Timestamp) -> (u32, u32, Duration) {
        let CounterUsage { used, remaining, reset } = usage(self.state, &self.quota, now);
        (used, remaining, reset)
    }
}

/// 10/s, for which all algorithms agree at the start of a second.
fn ten_a_second() -> impl Iterator<Item = TestCounter> {
    Algorithm::RATES.into_iter().map(|algorithm| TestCounter::new(algorithm, 10, TimeUnit::Second, None))
}

#[test]
fn gcra_admits_three_per_second_without_drift() {
    let mut counter = TestCounter::new(Algorithm::Gcra, 3, TimeUnit::Second, Some(5));
    assert_eq!(counter.drain(START), 5);
    for second in 0..100_000_u64 {
        // The thirds of a second, rounded up to whole nanoseconds, and the moment before each.
        for third in [333_333_334_u64, 666_666_667, 1_000_000_000] {
            let due = START.saturating_add(Duration::from_nanos(second * 1_000_000_000 + third));
            let before = Timestamp::from_nanos(due.as_nanos() - 1);
            assert_eq!(counter.request(1, before), exceeds_until(Duration::from_nanos(1)), "second {second}");
            assert_eq!(counter.drain(due), 1, "second {second}");
        }
    }
}

#[test]
fn token_bucket_never_exceeds_its_rate_and_loses_at_most_rounding() {
    let mut counter = TestCounter::new(Algorithm::TokenBucket, 3, TimeUnit::Second, Some(5));
    assert_eq!(counter.drain(START), 5);
    let passed: u32 = (1..=1000).map(|second| counter.drain(later(second * 1000))).sum();
    assert!((2999..=3000).contains(&passed), "{passed}");
}

#[test]
fn gcra_retry_after_is_exact() {
    let mut counter = TestCounter::new(Algorithm::Gcra, 10, TimeUnit::Second, Some(4));
    assert_eq!(counter.request(3, START), Outcome::Conform);
    assert_eq!(counter.usage(START), (3, 1, millis(300)));
    assert_eq!(counter.request(2, START), exceeds_until(millis(100)));
    assert_eq!(counter.request(4, START), exceeds_until(millis(300)));
    assert_eq!(counter.request(2, later(99)), exceeds_until(millis(1)));
    assert_eq!(counter.request(2, later(100)), Outcome::Conform);
    assert_eq!(counter.usage(later(100)), (4, 0, millis(400)));
    // Partly used units count as used.
    assert_eq!(counter.usage(later(150)), (4, 0, millis(350)));
    assert_eq!(counter.usage(later(500)), (0, 4, millis(0)));
}

#[test]
fn token_bucket_credits_whole_tokens_only() {
    let mut counter = TestCounter::new(Algorithm::TokenBucket, 10, TimeUnit::Second, Some(4));
    assert_eq!(counter.drain(START), 4);
    assert_eq!(counter.request(1, later(99)), exceeds_until(millis(1)));
    assert_eq!(counter.request(1, later(100)), Outcome::Conform);
    assert_eq!(counter.request(2, later(150)), exceeds_until(millis(150)));
    assert_eq!(counter.usage(later(250)), (3, 1, millis(250)));
    // An hour earns no more than the burst.
    assert_eq!(counter.drain(later(3_600_000)), 4);
}

#[test]
fn fixed_window_is_full_again_at_its_boundary() {
    let mut counter = TestCounter::new(Algorithm::FixedWindow, 3, TimeUnit::Minute, None);
    assert_eq!(counter.request(1, later(59_000)), Outcome::Conform);
    assert_eq!(counter.usage(later(59_000)), (1, 2, millis(1000)));
    assert_eq!(counter.request(3, later(59_500)), exceeds_until(millis(500)));
    assert_eq!(counter.drain(later(59_999)), 2);
    assert_eq!(counter.request(1, later(59_999)), exceeds_until(millis(1)));
    assert_eq!(counter.drain(later(60_000)), 3);
    assert_eq!(counter.request(1, later(60_000)), exceeds_until(millis(60_000)));
}

#[test]
fn clock_step_back_does_not_reopen_a_window() {
    let mut counter = TestCounter::new(Algorithm::FixedWindow, 3, TimeUnit::Second, None);
    assert_eq!(counter.drain(later(1000)), 3);
    assert_eq!(counter.request(1, later(900)), exceeds_until(millis(1100)));
    let mut counter = TestCounter::new(Algorithm::SlidingWindow, 4, TimeUnit::Second, None);
    assert_eq!(counter.drain(later(1000)), 4);
    assert_eq!(counter.request(1, later(900)), exceeds_until(millis(1350)));
    assert_eq!(counter.request(1, later(2250)), Outcome::Conform);
}

#[test]
fn sliding_window_weights_the_previous_window_by_overlap() {
    let mut counter = TestCounter::new(Algorithm::SlidingWindow, 10, TimeUnit::Second, None);
    assert_eq!(counter.drain(later(900)), 10);
    assert_eq!(counter.usage(later(900)), (10, 0, millis(1100)));
    // At the boundary all of them still overlap, then a tenth less every 100 ms.
    assert_eq!(counter.request(1, later(1000)), exceeds_until(millis(100)));
    assert_eq!(counter.drain(later(1100)), 1);
    assert_eq!(counter.usage(later(1100)), (10, 0, millis(1900)));
    assert_eq!(counter.request(2, later(1150)), exceeds_until(millis(150)));
    assert_eq!(counter.drain(later(1999)), 8);
    // Nine are of the window that has just ended; one of them expires after a ninth of the next.
    assert_eq!(counter.request(1, later(2000)), Outcome::Conform);
    assert_eq!(counter.request(1, later(2000)), exceeds_until(Duration::from_nanos(111_111_112)));
    assert_eq!(counter.usage(later(4000)), (0, 10, millis(0)));
}

#[test]
fn sliding_window_refunds_only_units_still_counted() {
    let mut counter = TestCounter::new(Algorithm::SlidingWindow, 10, TimeUnit::Second, None);
    let refund = |counter: &TestCounter, amount, charged, now| {
        let state = refund(counter.state, &counter.quota, amount, charged, now);
        usage(Some(state), &counter.quota, now).used
    };
    assert_eq!(counter.request(8, later(500)), Outcome::Conform);
    assert_eq!(refund(&counter, 3, later(500), later(999)), 5);
    // In the middle of the next window half of the eight count, or half of five if three are given back.
    assert_eq!(refund(&counter, 3, later(500), later(1500)), 3);
    assert_eq!(counter.request(2, later(1500)), Outcome::Conform);
    assert_eq!(refund(&counter, 8, later(500), later(1500)), 2);
    assert_eq!(refund(&counter, 2, later(1500), later(1500)), 4);
    assert_eq!(refund(&counter, 8, later(500), later(2000)), 2);
}

#[test]
fn sliding_window_at_its_maximum_count_loses_no_unit() {
    for (count, unit) in
        [(1_000_000, TimeUnit::Millisecond), (1_000_000_000, TimeUnit::Second), (u32::MAX, TimeUnit::Year)]
    {
        let mut counter = TestCounter::new(Algorithm::SlidingWindow, count, unit, None);
        assert_eq!(counter.request(count - 1, START), Outcome::Conform);
        assert_eq!(counter.request(1, START), Outcome::Conform);
        assert_eq!(counter.usage(START).0, count);
        assert!(
            matches!(counter.request(1, START), Outcome::Exceed { retry_after: Some(_) }),
            "{count}/{unit:?}"
        );
    }
}

#[test]
fn cost_above_the_burst_is_always_rejected() {
    for mut counter in ten_a_second() {
        assert_eq!(counter.request(11, START), NEVER);
        assert_eq!(counter.request(u32::MAX, START), NEVER);
        assert_eq!(counter.usage(START).0, 0);
        assert_eq!(counter.request(10, START), Outcome::Conform);
        assert_eq!(counter.request(11, START), NEVER);
    }
}

#[test]
fn zero_cost_is_admitted_unless_in_debt() {
    for mut counter in ten_a_second() {
        assert_eq!(counter.drain(START), 10);
        assert_eq!(counter.request(0, START), Outcome::Conform);
        counter.charge(1, START);
        assert!(matches!(counter.request(0, START), Outcome::Exceed { retry_after: Some(_) }));
    }
}

#[test]
fn charge_beyond_the_limit_becomes_debt() {
    for mut counter in ten_a_second() {
        assert_eq!(counter.request(10, START), Outcome::Conform);
        counter.charge(15, START);
        let (used, remaining, reset) = counter.usage(START);
        assert_eq!((used, remaining), (25, 0));
        match counter.quota.algorithm() {
            Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                assert_eq!(reset, millis(2500));
                assert_eq!(counter.request(1, START), exceeds_until(millis(1600)));
                assert_eq!(counter.request(1, later(1600)), Outcome::Conform);
            }
            Algorithm::RefillBucket => {
                assert_eq!(reset, millis(3000));
                assert_eq!(counter.request(1, START), exceeds_until(millis(2000)));
                assert_eq!(counter.drain(later(2000)), 5);
            }
            // Each window that ends pays ten.
            Algorithm::FixedWindow => {
                assert_eq!(reset, millis(3000));
                assert_eq!(counter.request(1, START), exceeds_until(millis(2000)));
                assert_eq!(counter.usage(later(1000)), (15, 0, millis(2000)));
                assert_eq!(counter.drain(later(2000)), 5);
                assert_eq!(counter.drain(later(3000)), 10);
            }
            // Without a history each ten expire together; the tests of `history` cover the rest.
            Algorithm::SlidingLog => {
                let rounds = |seconds: u64| Duration::from_nanos(seconds * 1_000_000_000 - 2);
                assert_eq!(reset, rounds(3));
                assert_eq!(counter.request(1, START), exceeds_until(rounds(3)));
                assert_eq!(counter.usage(later(1000)), (20, 0, rounds(2)));
                assert_eq!(counter.usage(later(2000)), (10, 0, rounds(1)));
                assert_eq!(counter.drain(later(3000)), 10);
            }
            // Fifteen carry over to the next window and five to the one after that, in which four of the ten before it
            // leave room for one more.
            Algorithm::SlidingWindow => {
                assert_eq!(reset, millis(4000));
                assert_eq!(counter.request(1, START), exceeds_until(millis(2600)));
                assert_eq!(counter.usage(later(1500)), (20, 0, millis(2500)));
                assert_eq!(counter.request(1, later(2599)), exceeds_until(millis(1)));
                assert_eq!(counter.request(1, later(2600)), Outcome::Conform);
            }
            Algorithm::InFlight | Algorithm::Ban | Algorithm::Lease(_) => unreachable!("not a rate limit"),
        }
    }
}

#[test]
fn debt_of_many_windows_is_paid_over_as_many_windows() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog] {
        for (unit, seconds) in [(TimeUnit::Second, 1), (TimeUnit::Week, 7 * 86_400), (TimeUnit::Hour, 3600)] {
            let mut counter = TestCounter::new(algorithm, 10, unit, None);
            counter.charge(10_000, START);
            let after = |windows: u64| START.saturating_add(Duration::from_secs(seconds * windows));
            let used = counter.usage(after(500)).0;
            assert!((4990..=5010).contains(&used), "{algorithm}: {used}");
            assert_eq!(counter.usage(after(1002)).0, 0, "{algorithm}");
        }
    }
}

#[test]
fn lowered_limit_makes_no_debt_of_admitted_units() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog] {
        let from = quota(algorithm, 1000, TimeUnit::Hour, None);
        let mut counter = TestCounter { quota: quota(algorithm, 10, TimeUnit::Hour, None), state: None };
        let used = charge(None, &from, 800, later(60_000));
        counter.state = convert(used, &from, &counter.quota, later(120_000));
        assert_eq!(counter.usage(later(120_000)).0, 800, "{algorithm}");
        assert!(matches!(counter.request(1, later(3_599_000)), Outcome::Exceed { .. }), "{algorithm}");
        let windows = if algorithm == Algorithm::SlidingWindow { 2 } else { 1 };
        assert_eq!(counter.drain(later(windows * 3_600_000 + 60_001)), 10, "{algorithm}");
        // A debt from before the change is still owed.
        let owed = charge(None, &from, 1200, later(60_000));
        let converted = convert(owed, &from, &counter.quota, later(120_000));
        assert!(usage(converted, &counter.quota, later(10 * 3_600_000)).used > 1000, "{algorithm}");
    }
}

#[test]
fn refund_stops_at_an_unused_counter() {
    for mut counter in ten_a_second() {
        assert_eq!(counter.request(7, START), Outcome::Conform);
        counter.charge(-3, START);
        assert_eq!(counter.usage(START).0, 4);
        counter.charge(-5, START);
        assert_eq!(counter.usage(START).0, 0);
        assert!(is_unused(counter.state.unwrap(), &counter.quota, START));
        counter.charge(i64::MIN, START);
        assert_eq!(counter.drain(START), 10);
    }
}

#[test]
fn charges_saturate_without_overflow() {
    for mut counter in ten_a_second() {
        for _ in 0..3 {
            counter.charge(i64::MAX, START);
        }
        // The state of a sliding window of one second has room for 10⁹ units, one per nanosecond.
        let max_used =
            if counter.quota.algorithm() == Algorithm::SlidingWindow { 1_000_000_000 } else { u32::MAX };
        assert_eq!(counter.usage(START).0, max_used);
        assert!(matches!(counter.request(u32::MAX, START), NEVER));
        assert!(matches!(counter.request(1, START), Outcome::Exceed { retry_after: Some(_) }));
    }
}

#[test]
fn debt_beyond_the_maximum_timestamp_rejects() {
    for mut counter in ten_a_second() {
        let before = Timestamp::from_nanos(u64::MAX - 10_000_000_000);
        assert_eq!(counter.drain(before), 10, "{}", counter.quota.algorithm());
        counter.charge(i64::from(u32::MAX), before);
        assert!(matches!(counter.request(1, before), Outcome::Exceed { .. }));
        let _ = (
            counter.request(1, END),
            counter.usage(END),
            is_unused(counter.state.unwrap(), &counter.quota, END),
        );
        counter.charge(i64::MIN, END);
        counter.charge(i64::MAX, END);
        let _ = (counter.request(u32::MAX, END), counter.usage(END));
    }
}

#[test]
fn changed_quota_keeps_used_units() {
    for mut counter in ten_a_second() {
        assert_eq!(counter.request(10, START), Outcome::Conform);
        for algorithm in Algorithm::RATES {
            for (count, left) in [(100, 90), (5, 0)] {
                let to = quota(algorithm, count, TimeUnit::Second, None);
                let state = convert(counter.state.unwrap(), &counter.quota, &to, START);
                let usage = usage(state, &to, START);
                assert_eq!((usage.used, usage.remaining), (10, left), "to {algorithm}");
            }
        }
        let to = quota(Algorithm::Gcra, 100, TimeUnit::Second, None);
        assert_eq!(convert(counter.state.unwrap(), &counter.quota, &to, later(2000)), None);
    }
}

#[test]
fn limits_hold_at_the_maximum_timestamp() {
    let limit = Limit::new(NonZeroU32::new(10).unwrap(), Period::one(TimeUnit::Second));
    for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket] {
        let quota = Quota::new(algorithm, limit, None).unwrap();
        let now = Timestamp::from_nanos(u64::MAX - 999_999_999);
        let mut state = None;
        let passes = |_: &i32| {
            let (next, outcome) = evaluate(state, &quota, 1, now);
            state = Some(next);
            outcome == Outcome::Conform
        };
        assert!((0..1000).filter(passes).count() <= 10, "{algorithm}");
    }
}
