//! Properties that hold for every algorithm, every quota and every order of events.

#[path = "properties/counter.rs"]
mod counter;
#[path = "properties/debts.rs"]
mod debts;
#[path = "properties/envelopes.rs"]
mod envelopes;
#[path = "properties/marks.rs"]
mod marks;
#[path = "properties/oracles.rs"]
mod oracles;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use weir_limiter::algorithm::conversion::OnChange;
use weir_limiter::algorithm::{self, Algorithm, Outcome};
use weir_limiter::decision::Enforcement;
use weir_limiter::quota::{Limit, Period, Quota, TimeUnit};
use weir_limiter::reservation::ChargeTiming;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{Check, LimitHandle, LimitIdentity, LimitSpec, Limiter, LimiterSettings};

use self::counter::Counter;
use self::marks::window_of;

/// 2026-11-21T08:00:00Z.
const START: u64 = 1_795_248_000_000_000_000;

fn quotas() -> impl Strategy<Value = Quota> {
    let count = prop_oneof![1_u32..20, 1_u32..100_000];
    let unit = prop::sample::select(&TimeUnit::ALL[..]);
    let algorithm = prop::sample::select(&Algorithm::RATES[..]);
    let precision = prop_oneof![Just(1), 2_u8..=60];
    (algorithm, count, 1_u32..7, unit, prop::option::of(1_u32..50), precision).prop_filter_map(
        "quotas that can be",
        |(algorithm, count, periods, unit, burst, precision)| {
            let period = Period::new(NonZeroU32::new(periods)?, unit);
            let burst = burst.and_then(NonZeroU32::new).filter(|_| algorithm.has_burst());
            let quota = Quota::new(algorithm, Limit::new(NonZeroU32::new(count)?, period), burst).ok()?;
            Some(quota.with_precision(precision).unwrap_or(quota))
        },
    )
}

/// Generates times between requests, as fractions of the quota's own time scale, so that boundaries occur often.
fn steps() -> impl Strategy<Value = Vec<(u32, u32)>> {
    prop::collection::vec((0_u32..400, 1_u32..4), 1..120)
}

fn nanos_of(quota: &Quota, hundredths: u32) -> u64 {
    let scale = quota.limit().period.nanos() / u64::from(quota.limit().count.get().min(20));
    // The times of a whole test must fit into the range of a timestamp.
    (scale.min(60 * TimeUnit::Day.nanos()) / 100).saturating_mul(hundredths.into())
}

/// Runs the requests in order and returns those that were admitted.
fn admitted(quota: &Quota, requests: &[(u64, u32)]) -> Vec<(u64, u32)> {
    let mut counter = Counter::new(*quota);
    let passes = |(at, cost): &&(u64, u32)| counter.try_charge(*cost, *at) == Outcome::Conform;
    requests.iter().filter(passes).copied().collect()
}

/// Returns the maximum number of units admitted between two moments, both included, as
/// docs/reference/algorithms.md states for each algorithm.
fn max_admitted(quota: &Quota, from: u64, to: u64) -> u128 {
    let (count, period) = (u128::from(quota.limit().count.get()), u128::from(quota.limit().period.nanos()));
    let span = u128::from(to - from);
    match (quota.algorithm(), u128::from(quota.precision())) {
        (Algorithm::FixedWindow, _) | (Algorithm::SlidingWindow, 1) => {
            u128::from(window_of(quota, to) - window_of(quota, from) + 1) * count
        }
        (Algorithm::SlidingWindow, precision) => {
            (span / (period / precision * (precision - 1)).max(1) + 1) * count
        }
        (Algorithm::SlidingLog, _) => (span / period + 1) * count,
        (Algorithm::RefillBucket, _) => u128::from(quota.burst().get()) + (span / period + 1) * count,
        _ => u128::from(quota.burst().get()) + span * count / period,
    }
}

fn requests(quota: &Quota, steps: &[(u32, u32)]) -> Vec<(u64, u32)> {
    let mut at = START;
    steps
        .iter()
        .map(|&(step, cost)| {
            at += nanos_of(quota, step);
            (at, cost)
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_window_admits_more_than_quota_times_window_plus_burst(quota in quotas(), steps in steps()) {
        let passed = admitted(&quota, &requests(&quota, &steps));
        for first in 0..passed.len() {
            let mut sum = 0_u128;
            for &(at, cost) in &passed[first..] {
                sum += u128::from(cost);
                prop_assert!(sum <= max_admitted(&quota, passed[first].0, at), "{sum} units admitted from request {first} on");
            }
        }
    }

    #[test]
    fn retry_after_is_sufficient_and_not_too_long(quota in quotas(), steps in steps()) {
        let mut counter = Counter::new(quota);
        for (at, cost) in requests(&quota, &steps) {
            match counter.try_charge(cost, at) {
                Outcome::Conform => {}
                Outcome::Exceed { retry_after: Some(wait) } => {
                    prop_assert!(wait > Duration::ZERO);
                    let wait = u64::try_from(wait.as_nanos()).unwrap();
                    prop_assert_eq!(counter.peek(cost, at + wait).1, Outcome::Conform);
                    // A token bucket rounds up by one nanosecond at each credit of tokens.
                    let rounding = if quota.algorithm() == Algorithm::TokenBucket { 2 } else { 1 };
                    prop_assert_ne!(counter.peek(cost, at + wait - rounding.min(wait)).1, Outcome::Conform);
                }
                Outcome::Exceed { retry_after: None } => {
                    let most = if quota.algorithm().has_burst() { quota.burst() } else { quota.limit().count };
                    prop_assert!(cost > most.get());
                }
            }
        }
    }

    #[test]
    fn gcra_and_token_bucket_admit_the_same(
        // The intervals are whole nanoseconds, so neither algorithm rounds.
        count in prop::sample::select(&[1_u32, 2, 4, 5, 8, 10, 25, 50, 1000, 40_000][..]),
        unit in prop::sample::select(&TimeUnit::ALL[1..]),
        burst in 1_u32..50,
        steps in steps(),
    ) {
        let limit = Limit::new(NonZeroU32::new(count).unwrap(), Period::one(unit));
        let with = |algorithm| Quota::new(algorithm, limit, NonZeroU32::new(burst)).unwrap();
        let requests = requests(&with(Algorithm::Gcra), &steps);
        prop_assert_eq!(
            admitted(&with(Algorithm::Gcra), &requests),
            admitted(&with(Algorithm::TokenBucket), &requests)
        );
    }

    #[test]
    fn a_clock_that_steps_back_admits_no_more(quota in quotas(), steps in steps(), back in 0_u32..300) {
        let mut requests = requests(&quota, &steps);
        for (index, (at, _)) in requests.iter_mut().enumerate() {
            if index % 3 == 2 {
                *at -= nanos_of(&quota, back).min(*at - START);
            }
        }
        let latest = requests.iter().map(|(at, _)| *at).max().unwrap_or(START);
        let sum: u128 = admitted(&quota, &requests).iter().map(|(_, cost)| u128::from(*cost)).sum();
        prop_assert!(sum <= max_admitted(&quota, START, latest));
    }

    #[test]
    fn the_order_of_charges_is_irrelevant(
        quota in quotas(),
        charges in prop::collection::vec(0_u32..50, 1..20),
        turn in 0_usize..20,
    ) {
        let used = |charges: &[u32]| {
            let mut counter = Counter::new(quota);
            charges.iter().for_each(|cost| counter.charge(i64::from(*cost), START));
            counter.usage(START)
        };
        let mut turned = charges.clone();
        turned.rotate_left(turn % charges.len());
        turned.reverse();
        prop_assert_eq!(used(&charges), used(&turned));
    }

    #[test]
    fn refund_undoes_a_charge(quota in quotas(), steps in steps(), amount in 0_i64..40) {
        let mut counter = Counter::new(quota);
        for (at, cost) in requests(&quota, &steps) {
            let before = counter.usage(at);
            let mut back = counter.clone();
            back.charge(amount, at);
            back.charge(-amount, at);
            prop_assert_eq!(back.usage(at), before);
            counter.try_charge(cost, at);
        }
    }

    #[test]
    fn unused_counter_behaves_like_a_new_one(quota in quotas(), steps in steps()) {
        let mut counter = Counter::new(quota);
        for (at, cost) in requests(&quota, &steps) {
            if counter.is_unused(at) {
                prop_assert_eq!(counter.peek(cost, at).1, Counter::new(quota).peek(cost, at).1);
                prop_assert_eq!(counter.usage(at).used, 0);
            }
            counter.try_charge(cost, at);
        }
    }

    #[test]
    fn units_used_stay_used_when_the_quota_changes(from in quotas(), to in quotas(), steps in steps()) {
        let mut counter = Counter::new(from);
        for (at, cost) in requests(&from, &steps) {
            let now = Timestamp::from_nanos(at);
            let used = counter.usage(at).used;
            let converted = counter.compact_state(at).and_then(|state| algorithm::convert(state, &from, &to, now));
            prop_assert_eq!(algorithm::usage(converted, &to, now).used, used);
            counter.try_charge(cost, at);
        }
    }

    #[test]
    fn rejected_requests_are_not_charged(first in quotas(), second in quotas(), steps in steps()) {
        let requests = requests(&first, &steps);
        let (with_refused, handles) = limiter(&[first, second], 1000);
        let (without, other_handles) = limiter(&[first, second], 1000);
        let mut last = START;
        for &(at, cost) in &requests {
            let now = Timestamp::from_nanos(at);
            if !with_refused.check(&checks(&with_refused, &handles, b"key", cost), now).is_rejected() {
                let again = without.check(&checks(&without, &other_handles, b"key", cost), now);
                prop_assert!(!again.is_rejected());
            }
            last = at;
        }
        for (one, other) in handles.iter().zip(&other_handles) {
            let now = Timestamp::from_nanos(last);
            prop_assert_eq!(
                with_refused.usage(*one, with_refused.hasher().hash(b"key"), now),
                without.usage(*other, without.hasher().hash(b"key"), now)
            );
        }
    }

    #[test]
    fn flood_of_keys_does_not_reset_exhausted_keys(quota in quotas(), flood in 50_u32..400) {
        let (limiter, handles) = limiter(&[quota], 16);
        let now = Timestamp::from_nanos(START);
        let most = if quota.algorithm().has_burst() { quota.burst() } else { quota.limit().count }.get().min(60);
        let victim = |cost| limiter.check(&checks(&limiter, &handles, b"victim", cost), now).is_rejected();
        let blocked = quota.burst().get();
        prop_assert!(!victim(blocked));
        for key in 0..flood {
            let _ = limiter.check(&checks(&limiter, &handles, &key.to_be_bytes(), most), now);
            prop_assert!(victim(1), "the counter was lost after {key} other keys");
        }
        prop_assert!(limiter.live_keys() <= 20);
    }
}

fn limiter(quotas: &[Quota], max_keys: usize) -> (Limiter, Vec<LimitHandle>) {
    let limiter = Limiter::new(LimiterSettings { max_keys, secret: [7, 11] });
    let specs: Vec<_> = quotas
        .iter()
        .map(|quota| LimitSpec {
            identity: LimitIdentity { rule: "rule".into(), key: "[]".into() },
            quota: *quota,
            on_change: OnChange::Keep,
            lease_policy: None,
        })
        .collect();
    let handles = limiter.install(&specs, Timestamp::from_nanos(START));
    (limiter, handles)
}

fn checks(limiter: &Limiter, handles: &[LimitHandle], key: &[u8], cost: u32) -> Vec<Check> {
    let key = limiter.hasher().hash(key);
    handles
        .iter()
        .map(|handle| Check {
            handle: *handle,
            key,
            cost,
            enforcement: Enforcement::Enforced,
            charge_timing: ChargeTiming::OnArrival,
            options: None,
        })
        .collect()
}

#[test]
fn concurrent_threads_admit_exactly_the_quota() {
    for algorithm in Algorithm::RATES {
        let limit = Limit::new(NonZeroU32::new(1000).unwrap(), Period::one(TimeUnit::Day));
        let quota = Quota::new(algorithm, limit, None).unwrap();
        let (limiter, handles) = limiter(&[quota, quota], 1000);
        let (limiter, handles) = (Arc::new(limiter), Arc::new(handles));
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let (limiter, handles) = (Arc::clone(&limiter), Arc::clone(&handles));
                std::thread::spawn(move || {
                    let now = Timestamp::from_nanos(START);
                    let passes = || !limiter.check(&checks(&limiter, &handles, b"hot", 1), now).is_rejected();
                    (0..1000).filter(|_| passes()).count()
                })
            })
            .collect();
        let passed: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(passed, 1000, "{algorithm}");
    }
}
