use std::num::NonZeroU32;

use proptest::prelude::*;

use super::*;
use crate::algorithm::{self, Algorithm, Counter, CounterState, Outcome};

const START: Timestamp = Timestamp::from_secs(1_795_248_000);

fn per_hour(count: u32) -> Quota {
    Quota::per_hour(count).build().unwrap()
}

/// Returns how many of `requests` requests of a key are admitted.
fn admitted<K: Hash + ?Sized>(limiter: &RateLimiter<K>, key: &K, requests: u32) -> u32 {
    (0..requests).filter(|_| limiter.check(key, START).is_ok()).count() as u32
}

#[test]
fn every_algorithm_admits_the_quota_and_rejects_the_next() {
    for algorithm in Algorithm::RATES {
        let quota = Quota::per_hour(7).algorithm(algorithm).build().unwrap();
        let limiter = RateLimiter::keyed(quota);
        assert_eq!(admitted(&limiter, "a", 7), 7, "{algorithm}");
        let rejected = limiter.check("a", START).unwrap_err();
        assert!(rejected.wait() > Duration::ZERO && !rejected.exceeds_quota(), "{algorithm}");
        assert_eq!(limiter.usage("a", START).remaining, 0, "{algorithm}");
    }
}

#[test]
fn keys_are_independent() {
    let limiter = RateLimiter::keyed(per_hour(2));
    let keys = [("tenant", 1_u32), ("tenant", 2), ("other", 1)];
    for key in &keys {
        assert_eq!(admitted(&limiter, key, 3), 2);
    }
    assert_eq!(limiter.live_keys(), keys.len());
    let bytes = RateLimiter::<[u8]>::keyed(per_hour(1));
    assert_eq!((admitted(&bytes, b"ab", 2), admitted(&bytes, b"a", 2)), (1, 1));
}

#[test]
fn direct_limiter_counts_all_requests_together() {
    let limiter = RateLimiter::direct(per_hour(3));
    assert!(limiter.check_n(2, START).is_ok() && limiter.peek(1, START).is_ok());
    assert_eq!(limiter.check(START).map(|passed| passed.remaining()).ok(), Some(0));
    assert_eq!(limiter.check(START).map(|_| ()), limiter.peek(1, START));
    limiter.charge(3, START);
    assert_eq!(limiter.usage(START).used, 6);
    assert!(limiter.reserve(1, Duration::from_secs(3600), START).is_err());
}

#[test]
fn units_of_one_request_are_charged_together_or_not_at_all() {
    let limiter = RateLimiter::keyed(per_hour(10));
    assert_eq!(limiter.check_n(&1, 8, START).map(|passed| passed.units()).ok(), Some(8));
    assert_eq!(limiter.check_n(&1, 3, START).unwrap_err().wait(), Duration::from_secs(360));
    assert_eq!(limiter.usage(&1, START).remaining, 2);
    let never = limiter.check_n(&1, 11, START).unwrap_err();
    assert!(never.exceeds_quota());
    assert_eq!(never.wait(), Duration::from_secs(3600));
}

#[test]
fn several_quotas_admit_together_or_charge_nothing() {
    let quotas = [Quota::per_second(2).build().unwrap(), per_hour(3)];
    let limiter = RateLimiter::keyed_all(&quotas);
    assert_eq!(admitted(&limiter, "a", 4), 2);
    let later = START.saturating_add(Duration::from_secs(1));
    let last = limiter.check("a", later).unwrap();
    assert_eq!(last.remaining(), 0, "of the hour");
    let rejected = limiter.check_n("a", 2, later).unwrap_err();
    assert!(rejected.wait() > Duration::from_secs(1000), "{rejected}");
    last.refund(later);
    assert_eq!(limiter.usage("a", later).remaining, 1, "of the hour");
    assert!(limiter.check("a", later).is_ok());
    let unlimited = RateLimiter::keyed_all(&[]);
    assert_eq!((admitted(&unlimited, "a", 9), unlimited.usage("a", START).remaining), (9, u32::MAX));
}

#[test]
fn reserved_requests_leave_evenly_spaced_and_the_longest_wait_is_bounded() {
    let limiter = RateLimiter::keyed(Quota::per_second(10).burst(1).build().unwrap());
    let delay = |_| limiter.reserve("a", 1, Duration::from_millis(200), START).map(|passed| passed.delay());
    let delays: Vec<_> = (0..4).map(delay).collect();
    let [zero, one, two] = [0, 100, 200].map(|millis| Ok(Duration::from_millis(millis)));
    assert_eq!(delays[..3], [zero, one, two]);
    assert_eq!(delays[3].unwrap_err().wait(), Duration::from_millis(100));
    assert!(limiter.reserve("b", 1, Duration::ZERO, START).is_ok());
}

#[test]
fn refunded_request_was_never_charged() {
    for algorithm in Algorithm::RATES {
        let limiter = RateLimiter::keyed(Quota::per_hour(5).algorithm(algorithm).build().unwrap());
        for now in [Timestamp::EPOCH, START] {
            let passed = limiter.check_n("a", 5, now).unwrap();
            assert!(limiter.check("a", now).is_err(), "{algorithm}");
            passed.refund(now);
            let left = limiter.usage("a", now).remaining;
            assert_eq!(left, 5, "{algorithm} at {now:?}");
        }
    }
}

#[test]
fn refund_gives_back_no_units_that_time_has_given_back() {
    let limiter = RateLimiter::keyed(per_hour(10));
    let first = limiter.check_n("a", 5, START).unwrap();
    let later = START.saturating_add(Duration::from_secs(3600));
    assert_eq!(limiter.check_n("a", 10, later).map(|passed| passed.remaining()).ok(), Some(0));
    first.refund(later);
    assert_eq!(limiter.usage("a", later).remaining, 0);
}

#[test]
fn settled_request_costs_what_it_turned_out_to_cost() {
    let limiter = RateLimiter::keyed(per_hour(10));
    limiter.check_n("a", 8, START).unwrap().settle(3, START);
    assert_eq!(limiter.usage("a", START).used, 3);
    limiter.check_n("a", 1, START).unwrap().settle(40, START);
    assert_eq!(limiter.usage("a", START).used, 43);
    limiter.charge("a", 7, START);
    assert_eq!(limiter.usage("a", START).used, 50);
}

#[test]
fn concurrency_limit_gets_its_units_back_by_refunds_only() {
    let limiter = RateLimiter::keyed(Quota::in_flight(NonZeroU32::new(2).unwrap()));
    let later = START.saturating_add(Duration::from_secs(86_400));
    let first = limiter.check("a", START).unwrap();
    assert!(limiter.check("a", START).is_ok() && limiter.check("a", later).is_err());
    first.refund(later);
    assert!(limiter.check("a", later).is_ok() && limiter.check("a", later).is_err());
}

#[test]
fn leased_quota_is_counted_here() {
    let limiter = RateLimiter::keyed(per_hour(2).leased().unwrap());
    assert_eq!(admitted(&limiter, "a", 3), 2);
}

#[test]
fn threads_never_admit_more_than_the_quota() {
    let quotas = [per_hour(500), Quota::per_hour(500).algorithm(Algorithm::SlidingLog).build().unwrap()];
    let limiter = RateLimiter::keyed_all(&quotas);
    let passed = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| admitted(&limiter, "hot", 200))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u32>()
    });
    assert_eq!(passed, 500);
}

#[test]
fn full_table_keeps_its_keys_and_lets_new_ones_share() {
    let limiter = RateLimiter::with_settings(&[per_hour(3)], LimiterSettings::with_max_keys(50));
    assert_eq!(admitted(&limiter, &u32::MAX, 4), 3);
    let own = (0..50).filter(|key| limiter.check(key, START).is_ok_and(|passed| !passed.is_shared())).count();
    assert!((40..=52).contains(&own), "{own}");
    let shared = (1000..2000).filter(|key| limiter.check(key, START).is_ok_and(|passed| passed.is_shared()));
    assert_eq!(shared.count(), 3, "new keys have one counter together");
    assert!(limiter.overflows() > 0 && limiter.live_keys() <= 53, "{limiter:?}");
    assert!(limiter.check(&u32::MAX, START).is_err(), "a key in use keeps its counter");
    // Counters that are unused again make room.
    let later = START.saturating_add(Duration::from_secs(7200));
    assert!((2000..2020).all(|key| limiter.check(&key, later).is_ok_and(|passed| !passed.is_shared())));
}

#[test]
fn table_without_room_shares_one_counter() {
    let limiter = RateLimiter::with_settings(&[per_hour(3)], LimiterSettings::with_max_keys(0));
    assert_eq!(
        (0..100).filter(|key| limiter.check(key, START).is_ok()).count() as u64,
        3 + own_slots(&limiter)
    );
}

/// A table has room for one counter at least.
fn own_slots(limiter: &RateLimiter<u32>) -> u64 {
    limiter.live_keys() as u64
}

#[test]
fn secrets_differ_and_are_not_shown() {
    let [one, other] = [(); 2].map(|()| LimiterSettings::with_max_keys(1).secret);
    assert!(one != other && one[0] != one[1]);
}

#[test]
fn retry_after_is_an_error_with_seconds_rounded_up() {
    let limiter = RateLimiter::direct(Quota::per_second(3).build().unwrap());
    assert!(limiter.check_n(3, START).is_ok());
    let rejected = limiter.check(START).unwrap_err();
    assert_eq!((rejected.wait(), rejected.as_secs_rounded_up()), (Duration::from_nanos(333_333_334), 1));
    let error: Box<dyn std::error::Error> = rejected.into();
    assert_eq!(error.to_string(), "rate limit exceeded, retry after 333.333334ms");
    let never = limiter.check_n(4, START).unwrap_err();
    assert_eq!(never.to_string(), "request has more units than its quota");
}

/// Generates a quota of any rate algorithm.
fn quotas() -> impl Strategy<Value = Quota> {
    let algorithm = prop::sample::select(&Algorithm::RATES[..]);
    let period = prop::sample::select(vec![7_u64, 1000, 60_000, 3_600_000]);
    (algorithm, 1_u32..50, period, prop::option::of(1_u32..50)).prop_filter_map(
        "quotas that can be",
        |(algorithm, count, millis, burst)| {
            let quota = Quota::per(count, Duration::from_millis(millis)).algorithm(algorithm);
            match burst.filter(|_| algorithm.has_burst()) {
                Some(burst) => quota.burst(burst).build().ok(),
                None => quota.build().ok(),
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// The core is the algorithm on one counter, without a table.
    #[test]
    fn decisions_are_those_of_the_core(
        quota in quotas().prop_filter("a counter without history", |quota| !quota.needs_history()),
        steps in prop::collection::vec((0_u64..300, 1_u32..4), 1..60),
    ) {
        let limiter = RateLimiter::keyed(quota);
        let mut state: Option<CounterState> = None;
        let mut now = START;
        for (step, units) in steps {
            now = now.saturating_add(quota.limit().period.duration() / 100 * step as u32 / 10);
            let (next, outcome) = algorithm::evaluate(Counter::from(state), &quota, units, now);
            match (limiter.check_n("a", units, now), outcome) {
                (Ok(passed), Outcome::Conform) => {
                    state = Some(next);
                    prop_assert_eq!(passed.usage(), algorithm::usage(state, &quota, now));
                }
                (Err(rejected), Outcome::Exceed { retry_after }) => {
                    prop_assert_eq!(rejected.exceeds_quota(), retry_after.is_none());
                    prop_assert_eq!(rejected.wait(), retry_after.unwrap_or_else(|| quota.refill()));
                }
                (one, other) => prop_assert!(false, "{one:?}, but {other:?}"),
            }
        }
    }

    #[test]
    fn retry_after_is_sufficient_and_minimal(
        quota in quotas(),
        steps in prop::collection::vec((0_u64..300, 1_u32..4), 1..60),
    ) {
        let limiter = RateLimiter::keyed(quota);
        let mut now = START;
        for (step, units) in steps {
            now = now.saturating_add(quota.limit().period.duration() / 100 * step as u32 / 10);
            let Err(rejected) = limiter.check_n("a", units, now) else { continue };
            let then = now.saturating_add(rejected.wait());
            prop_assert_eq!(limiter.peek("a", units, then).is_ok(), !rejected.exceeds_quota());
            // A token bucket rounds up by one nanosecond at each credit of tokens.
            let nanos = if quota.algorithm() == Algorithm::TokenBucket { 2 } else { 1 };
            let sooner = then.saturating_sub(Duration::from_nanos(nanos)).max(now);
            prop_assert!(limiter.peek("a", units, sooner).is_err());
        }
    }
}
