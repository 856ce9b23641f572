//! Properties of an elastic limit: without headroom it is exactly the base limit, with full headroom exactly the
//! raised one. A client that stays within the base limit is always admitted, for any sequence of headroom.

use std::num::NonZeroU32;
use std::time::Duration;

use proptest::prelude::*;
use weir_limiter::algorithm::{Algorithm, CounterState, Outcome, convert, evaluate, usage};
use weir_limiter::elastic::{ElasticCosts, ElasticRange, Headroom};
use weir_limiter::quota::{Limit, Period, Quota, TimeUnit};
use weir_limiter::timestamp::Timestamp;

/// 2024-01-01T00:00:00Z, a Monday.
const START: u64 = 1_704_067_200_000_000_000;

/// One counter and its quota.
struct Counter {
    quota: Quota,
    state: Option<CounterState>,
}

impl Counter {
    fn new(quota: Quota) -> Self {
        Self { quota, state: None }
    }

    fn try_charge(&mut self, cost: u32, now: u64) -> Outcome {
        let (next, outcome) = evaluate(self.state, &self.quota, cost, Timestamp::from_nanos(now));
        if outcome == Outcome::Conform {
            self.state = Some(next);
        }
        outcome
    }
}

fn nonzero(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap()
}

/// Returns the quota in shares of a request, and the costs of requests in shares.
fn to_elastic(quota: Quota, hundredths: u32) -> (Quota, ElasticCosts) {
    quota.to_elastic(ElasticRange::from_hundredths(hundredths).unwrap()).unwrap()
}

fn quotas() -> impl Strategy<Value = Quota> {
    let algorithm = prop::sample::select(&Algorithm::ALL[..]);
    let unit = prop::sample::select(&[TimeUnit::Second, TimeUnit::Minute, TimeUnit::Hour][..]);
    (algorithm, 1..50_u32, unit, 1..100_u32).prop_map(|(algorithm, count, unit, burst)| {
        let burst = algorithm.has_burst().then(|| nonzero(burst));
        Quota::new(algorithm, Limit::new(nonzero(count), Period::one(unit)), burst).unwrap()
    })
}

/// Generates arrivals: the square root of the gap in intervals of the limit, so that small gaps are frequent, and a
/// headroom.
fn arrivals() -> impl Strategy<Value = Vec<(f64, u16)>> {
    prop::collection::vec((0.0..2.5_f64, prop_oneof![Just(0), Just(u16::MAX), any::<u16>()]), 1..300)
}

fn times_and_headroom(arrivals: &[(f64, u16)], quota: &Quota) -> Vec<(u64, Headroom)> {
    let interval = quota.window().duration().as_nanos() as f64 / f64::from(quota.limit().count.get());
    let mut now = START;
    let moment = |(gap, room): &(f64, u16)| {
        now += (gap * gap * interval) as u64;
        (now, Headroom::from_bits(*room))
    };
    arrivals.iter().map(moment).collect()
}

/// Whether two outcomes may differ by rounding. The token bucket rounds to a nanosecond at each credit, and the two
/// counters are credited at different moments.
fn is_rounding(outcome: Outcome, quota: &Quota, asked: usize) -> bool {
    let Outcome::Exceed { retry_after: Some(wait) } = outcome else { return false };
    quota.algorithm() == Algorithm::TokenBucket && wait <= Duration::from_nanos(asked as u64)
}

/// Checks that two outcomes agree, except for the rounding of the token bucket. Returns whether the counters are still
/// comparable.
fn check_equal_outcomes(
    one: Outcome,
    other: Outcome,
    quota: &Quota,
    asked: usize,
) -> Result<bool, TestCaseError> {
    if (one == Outcome::Conform) == (other == Outcome::Conform) {
        return Ok(true);
    }
    let refusal = if one == Outcome::Conform { other } else { one };
    prop_assert!(is_rounding(refusal, quota, asked), "{:?} and {:?} of {:?}", one, other, quota);
    Ok(false)
}

proptest! {
    #[test]
    fn elastic_limit_without_headroom_equals_the_base_limit(
        quota in quotas(), hundredths in 101..2_000_u32, arrivals in arrivals(),
    ) {
        let (finer, prices) = to_elastic(quota, hundredths);
        let (mut written, mut elastic) = (Counter::new(quota), Counter::new(finer));
        for (asked, (now, _)) in times_and_headroom(&arrivals, &quota).into_iter().enumerate() {
            let price = prices.at_headroom(Headroom::NONE);
            let outcomes = (written.try_charge(1, now), elastic.try_charge(price.get(), now));
            if !check_equal_outcomes(outcomes.0, outcomes.1, &quota, asked + 1)? {
                break;
            }
            let shown = usage(elastic.state, &finer, Timestamp::from_nanos(now)).in_requests(price);
            let plain = usage(written.state, &quota, Timestamp::from_nanos(now));
            prop_assert!(plain.used.abs_diff(shown.used) <= u32::from(quota.algorithm() == Algorithm::TokenBucket));
        }
    }

    #[test]
    fn elastic_limit_with_full_headroom_equals_the_maximum(
        quota in quotas(), times in 2..20_u32, arrivals in arrivals(),
    ) {
        let (finer, prices) = to_elastic(quota, times * 100);
        let limit = Limit::new(nonzero(quota.limit().count.get() * times), quota.window());
        let burst = quota.algorithm().has_burst().then(|| nonzero(quota.burst().get() * times));
        let larger = Quota::new(quota.algorithm(), limit, burst).unwrap();
        let (mut written, mut elastic) = (Counter::new(larger), Counter::new(finer));
        for (asked, (now, _)) in times_and_headroom(&arrivals, &larger).into_iter().enumerate() {
            let outcomes = (written.try_charge(1, now), elastic.try_charge(prices.at_headroom(Headroom::FULL).get(), now));
            if !check_equal_outcomes(outcomes.0, outcomes.1, &quota, asked + 1)? {
                break;
            }
        }
    }

    #[test]
    fn client_within_the_base_limit_is_never_rejected(
        quota in quotas(), hundredths in 101..2_000_u32, arrivals in arrivals(),
    ) {
        let (finer, prices) = to_elastic(quota, hundredths);
        let (mut written, mut elastic) = (Counter::new(quota), Counter::new(finer));
        for (asked, (now, headroom)) in times_and_headroom(&arrivals, &quota).into_iter().enumerate() {
            if written.try_charge(1, now) == Outcome::Conform {
                let outcome = elastic.try_charge(prices.at_headroom(headroom).get(), now);
                if outcome != Outcome::Conform {
                    prop_assert!(is_rounding(outcome, &quota, asked + 1), "{:?} of {:?}", outcome, quota);
                    break;
                }
            }
        }
    }

    #[test]
    fn reload_keeps_used_requests_across_elastic_ranges(
        quota in quotas(), from in 101..2_000_u32, to in 101..2_000_u32, requests in 1..50_u32,
    ) {
        let now = Timestamp::from_nanos(START);
        let requests = requests.min(quota.burst().get());
        let ((one, prices), (other, _)) = (to_elastic(quota, from), to_elastic(quota, to));
        let mut counter = Counter::new(one);
        counter.try_charge(requests * prices.at_headroom(Headroom::NONE).get(), START);
        for target in [quota, other] {
            let kept = convert(counter.state.unwrap(), &one, &target, now);
            let used = usage(kept, &target, now).in_requests(NonZeroU32::from(target.units_per_request())).used;
            prop_assert_eq!(used, requests);
        }
    }
}
