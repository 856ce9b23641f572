use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::algorithm::Algorithm;
use crate::algorithm::conversion::OnChange;
use crate::check_options::{CheckOptions, CounterRole, OnDenied};
use crate::decision::Verdict;
use crate::quota::{BoostFactor, Period, QuotaChange, TimeUnit};
use crate::reservation::{ChargeTiming, Reservation};
use crate::testing;
use crate::timestamp::Timestamp;
use crate::{Check, LimitIdentity, LimitSpec, LimiterSettings};

const START: Timestamp = Timestamp::from_secs(1_795_248_000);

fn limit(count: u32, period: Period) -> Limit {
    Limit::new(NonZeroU32::new(count).unwrap(), period)
}

fn minutes(count: u32) -> Limit {
    limit(count, Period::one(TimeUnit::Minute))
}

fn stated(limit: Limit) -> Option<RequestLimit> {
    Some(RequestLimit { limit, burst: limit.count })
}

fn spec(quota: Quota) -> LimitSpec {
    let identity = LimitIdentity { rule: "rule".into(), key: "[]".into() };
    LimitSpec { identity, quota, on_change: OnChange::Keep, lease_policy: None }
}

/// A limiter with one limit, and a check of it.
fn limiter_of(algorithm: Algorithm, default: Limit) -> (Limiter, Check) {
    testing::limiter_of(Quota::new(algorithm, default, None).unwrap(), START)
}

fn with_limit(check: Check, request_limit: Option<RequestLimit>) -> Check {
    let (role, on_denied) = (CounterRole::Limit, OnDenied::Free);
    Check { options: Some(CheckOptions { on_denied, request_limit, ..CheckOptions::new(0, role) }), ..check }
}

fn decide(limiter: &Limiter, check: Check, now: Timestamp) -> Verdict {
    limiter.check(&[check], now).verdicts()[0]
}

/// Number of requests in a row that pass.
fn passing(limiter: &Limiter, check: Check, now: Timestamp) -> usize {
    (0..).take_while(|_| !decide(limiter, check, now).rejects()).count()
}

/// The default and three limits of requests, as exact parts: all periods divide the unit.
const UNIT: u128 = 420_000_000_000;

fn choice(index: usize) -> Option<Limit> {
    [
        None,
        Some(limit(7, Period::one(TimeUnit::Second))),
        Some(minutes(31)),
        Some(limit(3, Period::new(NonZeroU32::new(7).unwrap(), TimeUnit::Second))),
    ][index]
}

/// A bucket that drains at the rate of the limit in force.
struct FluidModel {
    level: u128,
    at: Timestamp,
    current: Limit,
}

impl FluidModel {
    /// Returns the level, of [`UNIT`] parts per request, when a request states `limit`.
    fn level_for(&mut self, limit: Limit, now: Timestamp) -> u128 {
        let elapsed = now.since(self.at).as_nanos();
        let rate = u128::from(self.current.count.get()) * (UNIT / u128::from(self.current.period.nanos()));
        self.level = self.level.saturating_sub(elapsed * rate);
        (self.at, self.current) = (now, limit);
        self.level
    }
}

fn steps() -> impl Strategy<Value = Vec<(u64, usize, u32)>> {
    prop::collection::vec((0_u64..1_500, 0_usize..4, 1_u32..4), 1..150)
}

proptest! {
    /// Neither more nor less passes than a bucket admits that drains at the rate of the latest request's limit.
    #[test]
    fn changing_limits_admit_what_a_fluid_bucket_does(
        algorithm in prop::sample::select(vec![Algorithm::Gcra, Algorithm::LeakyBucket, Algorithm::TokenBucket]),
        steps in steps(),
    ) {
        let default = minutes(13);
        let (limiter, check) = limiter_of(algorithm, default);
        let mut model = FluidModel { level: 0, at: START, current: default };
        let mut now = START;
        for (millis, index, cost) in steps {
            now = now.saturating_add(Duration::from_millis(millis));
            let (said, check) = (choice(index), Check { cost, ..check });
            let limit = said.unwrap_or(default);
            let after = model.level_for(limit, now) + u128::from(cost) * UNIT;
            let burst = u128::from(limit.count.get()) * UNIT;
            let rejects = decide(&limiter, with_limit(check, said.and_then(stated)), now).rejects();
            if rejects {
                // Rounding costs at most nanoseconds.
                prop_assert!(after + UNIT / 1_000_000 > burst, "rejected with room");
            } else {
                prop_assert!(after <= burst, "admitted without room");
                model.level = after;
            }
        }
    }

    /// A request with another limit is decided as if a reload had changed the limit before.
    #[test]
    fn changing_limits_decide_as_reloads_do(
        algorithm in prop::sample::select(Algorithm::ALL.to_vec()),
        steps in steps(),
    ) {
        let (limiter, check) = limiter_of(algorithm, minutes(13));
        let (reloaded, plain) = limiter_of(algorithm, minutes(13));
        let mut now = START;
        for (millis, index, cost) in steps {
            now = now.saturating_add(Duration::from_millis(millis * 5));
            let said = [None, Some(minutes(40)), Some(minutes(5)), Some(minutes(21))][index];
            let quota = Quota::new(algorithm, said.unwrap_or_else(|| minutes(13)), None).unwrap();
            prop_assert_eq!(reloaded.install(&[spec(quota)], now)[0], plain.handle);
            let stated = decide(&limiter, with_limit(Check { cost, ..check }, said.and_then(stated)), now);
            let expected = decide(&reloaded, Check { cost, ..plain }, now);
            prop_assert_eq!(stated.outcome, expected.outcome);
            prop_assert_eq!(stated.quota(), expected.quota());
            prop_assert_eq!(stated.usage(now), expected.usage(now));
        }
    }
}

#[test]
fn limit_of_a_request_applies_to_its_key_only_and_counters_take_no_more_room() {
    for algorithm in Algorithm::ALL {
        let (limiter, check) = limiter_of(algorithm, minutes(2));
        let other = Check { key: limiter.hasher().hash(b"b"), ..check };
        assert_eq!(passing(&limiter, with_limit(check, stated(minutes(5))), START), 5, "{algorithm}");
        assert_eq!(passing(&limiter, with_limit(other, None), START), 2, "{algorithm}");
        assert_eq!(limiter.live_keys(), 2);
    }
}

#[test]
fn alternating_limits_never_free_units() {
    for algorithm in Algorithm::ALL {
        let (limiter, check) = limiter_of(algorithm, minutes(2));
        let raised = with_limit(check, stated(minutes(10)));
        assert_eq!(passing(&limiter, raised, START), 10, "{algorithm}");
        for _ in 0..5 {
            assert!(decide(&limiter, with_limit(check, None), START).rejects(), "{algorithm}");
            assert!(decide(&limiter, raised, START).rejects(), "{algorithm}");
        }
    }
}

#[test]
fn windows_of_another_length_and_invalid_limits_are_not_counted() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog] {
        let quota = Quota::new(algorithm, minutes(2), None).unwrap();
        let requested = |limit: Limit| RequestLimit { limit, burst: limit.count };
        assert!(quota.with_request_limit(requested(minutes(9))).is_some());
        assert_eq!(quota.with_request_limit(requested(limit(9, Period::one(TimeUnit::Hour)))), None);
    }
    let gcra = Quota::new(Algorithm::Gcra, minutes(2), None).unwrap();
    let too_fast = limit(2_000_000, Period::one(TimeUnit::Millisecond));
    assert_eq!(gcra.with_request_limit(RequestLimit { limit: too_fast, burst: too_fast.count }), None);
    let hourly = limit(9, Period::one(TimeUnit::Hour));
    let requested = RequestLimit { limit: hourly, burst: NonZeroU32::MIN };
    let quota = gcra.with_request_limit(requested).unwrap();
    assert_eq!((quota.limit(), quota.burst()), (hourly, NonZeroU32::MIN));
}

#[test]
fn more_distinct_limits_than_have_room_fall_back_and_are_counted_until_room_is_free() {
    let (limiter, check) = limiter_of(Algorithm::Gcra, minutes(2));
    let limiter_keys = 60_000;
    let limiter = Limiter { table: crate::table::CounterTable::new(limiter_keys), ..limiter };
    let quota = Quota::new(Algorithm::Gcra, minutes(2), None).unwrap();
    let handle = limiter.install(&[spec(quota)], START)[0];
    let one = |number: u32, now| {
        let key = limiter.hasher().hash_u32(number);
        decide(&limiter, with_limit(Check { key, handle, ..check }, stated(minutes(number))), now)
    };
    for number in 1..=50_000 {
        assert!(!one(number, START).rejects());
    }
    let dropped = limiter.request_limits_dropped();
    assert!(dropped > 0, "numbers are bounded");
    assert!(limiter.live_keys() == 50_000);
    let later = START.saturating_add(Duration::from_secs(3600));
    let verdict = one(60_000, later);
    assert_eq!(verdict.quota().unwrap().limit(), minutes(60_000));
    assert_eq!(limiter.request_limits_dropped(), dropped);
}

#[test]
fn checks_of_one_request_do_not_reclaim_each_others_counters() {
    let limiter = Limiter::new(LimiterSettings { max_keys: 100, secret: [1, 2] });
    let named = |rule: usize| {
        let quota = Quota::new(Algorithm::Gcra, minutes(2), None).unwrap();
        LimitSpec {
            identity: LimitIdentity { rule: rule.to_string().into(), key: "[]".into() },
            ..spec(quota)
        }
    };
    let specs: Vec<_> = (0..30).map(named).collect();
    let (_, check) = limiter_of(Algorithm::Gcra, minutes(2));
    let checks: Vec<_> = limiter
        .install(&specs, START)
        .into_iter()
        .map(|handle| with_limit(Check { handle, ..check }, stated(minutes(5))))
        .collect();
    for _ in 0..5 {
        assert!(!limiter.check(&checks, START).is_rejected());
    }
    let last = limiter.check(&checks, START);
    assert!(
        last.verdicts()
            .iter()
            .all(|verdict| verdict.rejects() && verdict.quota().unwrap().limit() == minutes(5))
    );
}

#[test]
fn reload_keeps_limits_of_requests_and_another_algorithm_ends_them() {
    let (limiter, check) = limiter_of(Algorithm::Gcra, minutes(2));
    let raised = with_limit(check, stated(minutes(5)));
    assert_eq!(passing(&limiter, raised, START), 5);
    let reload = |algorithm, count| {
        limiter.install(&[spec(Quota::new(algorithm, minutes(count), None).unwrap())], START);
        limiter.quota_in_force(check.handle, check.key, START).unwrap().limit()
    };
    assert_eq!(reload(Algorithm::Gcra, 3), minutes(5), "it does not depend on the default");
    assert!(decide(&limiter, raised, START).rejects());
    assert_eq!(reload(Algorithm::TokenBucket, 3), minutes(3));
    assert_eq!(limiter.usage(check.handle, check.key, START).unwrap().used, 5);
    let more = with_limit(check, stated(minutes(7)));
    assert_eq!(passing(&limiter, more, START), 2, "units used stay used");
}

#[test]
fn check_of_a_rule_that_no_longer_reads_limits_gets_its_own_quota() {
    let (limiter, check) = limiter_of(Algorithm::Gcra, minutes(3));
    assert!(!decide(&limiter, with_limit(check, stated(minutes(50))), START).rejects());
    assert_eq!(passing(&limiter, check, START), 2);
    assert_eq!(decide(&limiter, check, START).quota().unwrap().limit(), minutes(3));
}

#[test]
fn boost_raises_the_limit_of_the_request() {
    let (limiter, check) = limiter_of(Algorithm::Gcra, minutes(2));
    let raised = |count| with_limit(check, stated(minutes(count)));
    assert_eq!(passing(&limiter, raised(10), START), 10);
    let until = START.saturating_add(Duration::from_secs(30));
    let change = QuotaChange::Factor(BoostFactor::from_hundredths(200).unwrap());
    assert!(limiter.boost_counter(check.handle, check.key, change, until, START));
    assert_eq!(passing(&limiter, raised(10), START), 10);
    assert_eq!(passing(&limiter, raised(15), START), 10, "twice the limit that is stated now");
    let after = until.saturating_add(Duration::from_millis(1));
    assert_eq!(limiter.quota_in_force(check.handle, check.key, after).unwrap().limit(), minutes(15));
}

#[test]
fn settlement_counts_by_the_limit_of_the_request() {
    let (limiter, check) = limiter_of(Algorithm::Gcra, minutes(2));
    let check = with_limit(Check { charge_timing: ChargeTiming::OnResponse, ..check }, stated(minutes(100)));
    assert!(!decide(&limiter, check, START).rejects());
    // Other keys make the shard look for counters to reclaim.
    let later = START.saturating_add(Duration::from_secs(1));
    for number in 0..400 {
        let key = limiter.hasher().hash_u32(number);
        decide(&limiter, Check { key, ..with_limit(check, None) }, later);
        decide(
            &limiter,
            Check { key, charge_timing: ChargeTiming::OnArrival, ..with_limit(check, None) },
            later,
        );
    }
    let mut reservation = Reservation::new(&check, START);
    limiter.settle(&mut reservation, 90, later);
    let usage = limiter.usage(check.handle, check.key, later).unwrap();
    assert_eq!((usage.used, usage.remaining), (90, 10));
    // A charge under another limit is not given back: its units have returned at another rate since.
    let lowered = with_limit(Check { charge_timing: ChargeTiming::OnArrival, ..check }, stated(minutes(91)));
    assert!(!decide(&limiter, lowered, later).rejects());
    limiter.settle(&mut reservation, 0, later);
    assert_eq!(limiter.usage(check.handle, check.key, later).unwrap().used, 91);
}

#[test]
fn copies_decide_by_the_limit_of_the_request_and_change_nothing() {
    let (limiter, check) = limiter_of(Algorithm::SlidingLog, minutes(2));
    let raised = with_limit(check, stated(minutes(5)));
    assert!(!decide(&limiter, raised, START).rejects());
    let copy = limiter.copy_for(&[raised], START);
    assert_eq!(copy.quota_in_force(check.handle, check.key, START).unwrap().limit(), minutes(5));
    assert_eq!(passing(&copy, raised, START), 4);
    assert_eq!(passing(&copy, with_limit(check, stated(minutes(8))), START), 3);
    assert_eq!(limiter.usage(check.handle, check.key, START).unwrap().used, 1);
}

#[test]
fn saved_counters_are_in_units_of_the_configured_limit() {
    let (limiter, check) = limiter_of(Algorithm::Gcra, minutes(10));
    assert_eq!(passing(&limiter, with_limit(check, stated(minutes(600))), START), 600);
    let states = limiter.table.saved_states(START);
    let quota = Quota::new(Algorithm::Gcra, minutes(10), None).unwrap();
    assert_eq!(crate::algorithm::usage(Some(states[0]), &quota, START).used, 600);
}

#[test]
fn key_of_a_full_table_has_the_configured_limit_and_keeps_its_usage_when_there_is_room() {
    let (limiter, check) = limiter_of(Algorithm::Gcra, minutes(3));
    let limiter = Limiter { table: crate::table::CounterTable::new(20), ..limiter };
    let quota = Quota::new(Algorithm::Gcra, minutes(3), None).unwrap();
    let handle = limiter.install(&[spec(quota)], START)[0];
    let of = |number: u32, request_limit| {
        let key = limiter.hasher().hash_u32(number);
        with_limit(Check { key, handle, ..check }, request_limit)
    };
    for number in 0..100 {
        decide(&limiter, of(number, stated(minutes(50))), START);
    }
    assert!(limiter.overflows() > 0 && limiter.request_limits_dropped() > 0);
    let late = of(200, stated(minutes(50)));
    assert_eq!(passing(&limiter, late, START), 0, "all share the configured limit");
    // By then the counters of the others are unused; three minutes would be needed for the shared one.
    let later = START.saturating_add(Duration::from_secs(2));
    let verdict = decide(&limiter, late, later);
    assert_eq!(verdict.quota().unwrap().limit(), minutes(50));
    assert_eq!(verdict.usage(later).unwrap().remaining, 50 - 3 - 1);
}
