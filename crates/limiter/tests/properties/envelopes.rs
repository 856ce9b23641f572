//! Comparing quotas: a limit that is said to be unreachable behind another one never rejects.

use proptest::prelude::*;
use weir_limiter::algorithm::{Algorithm, Outcome};
use weir_limiter::quota::{Limit, Period, Quota, TimeUnit};

use super::counter::Counter;
use super::{START, nanos_of, steps};

/// Generates quotas of one scale, so that one of two is often unreachable.
fn similar_quotas() -> impl Strategy<Value = Quota> {
    let algorithm = prop::sample::select(&Algorithm::RATES[..]);
    let unit = prop::sample::select(vec![TimeUnit::Second, TimeUnit::Minute, TimeUnit::Hour, TimeUnit::Day]);
    let precision = prop_oneof![Just(1), 2_u8..=10];
    (algorithm, 1_u32..60, 1_u32..4, unit, prop::option::of(1_u32..200), precision).prop_filter_map(
        "quotas that can be",
        |(algorithm, count, periods, unit, burst, precision)| {
            let period = Period::new(periods.try_into().ok()?, unit);
            let burst = burst.and_then(|burst| burst.try_into().ok()).filter(|_| algorithm.has_burst());
            let quota = Quota::new(algorithm, Limit::new(count.try_into().ok()?, period), burst).ok()?;
            Some(quota.with_precision(precision).unwrap_or(quota))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: None,
        max_global_rejects: 1_000_000,
        ..ProptestConfig::default()
    })]

    /// Both limits apply to every request; the one said to be unreachable admits even those that the other rejects.
    #[test]
    fn unreachable_limit_admits_every_request(
        pair in (similar_quotas(), similar_quotas())
            .prop_filter("one behind the other", |(looser, tighter)| looser.is_unreachable_behind(tighter, 1)),
        steps in steps(),
    ) {
        let (looser, tighter) = pair;
        let (mut outer, mut inner) = (Counter::new(looser), Counter::new(tighter));
        let mut at = START;
        for (step, repeated) in steps {
            at += nanos_of(&tighter, step);
            for _ in 0..repeated * 20 {
                prop_assert_eq!(outer.peek(1, at).1, Outcome::Conform, "{:?} behind {:?}", looser, tighter);
                if inner.try_charge(1, at) == Outcome::Conform {
                    outer.try_charge(1, at);
                }
            }
        }
    }
}
