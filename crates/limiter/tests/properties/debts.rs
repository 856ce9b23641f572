//! Debts: charged rejections (`on_denied: charge`) and costs that become known after admission.

use std::num::NonZeroU32;
use std::time::Duration;

use proptest::prelude::*;
use weir_limiter::algorithm::{self, Algorithm};
use weir_limiter::check_options::{CheckOptions, CounterRole, OnDenied};
use weir_limiter::quota::{Limit, Period, Quota, TimeUnit};
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{Check, LimitHandle, Limiter};

use super::{START, checks, limiter, steps};

const SECOND: u64 = 1_000_000_000;

/// Generates quotas of a rule that charges rejections: limits per second, without a separate burst.
fn quotas(algorithms: &'static [Algorithm]) -> impl Strategy<Value = Quota> {
    let algorithm = prop::sample::select(algorithms);
    (algorithm, 1_u32..20, 1_u8..10).prop_map(|(algorithm, count, precision)| {
        let limit = Limit::new(NonZeroU32::new(count).expect("nonzero"), Period::one(TimeUnit::Second));
        let quota = Quota::new(algorithm, limit, None).expect("a valid quota");
        quota.with_precision(precision).unwrap_or(quota)
    })
}

/// Whether a request at `now` is admitted. A rejected one is charged.
fn is_admitted(limiter: &Limiter, handles: &[LimitHandle], cost: u32, now: u64) -> bool {
    let options =
        Some(CheckOptions { on_denied: OnDenied::Charge, ..CheckOptions::new(0, CounterRole::Limit) });
    let checks: Vec<_> = checks(limiter, handles, b"client", cost)
        .into_iter()
        .map(|check| Check { options, ..check })
        .collect();
    !limiter.check(&checks, Timestamp::from_nanos(now)).is_rejected()
}

fn used(limiter: &Limiter, handles: &[LimitHandle], now: u64) -> u32 {
    let key = limiter.hasher().hash(b"client");
    limiter.usage(handles[0], key, Timestamp::from_nanos(now)).expect("an installed limit").used
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn charged_rejections_block_a_client_at_twice_the_limit(
        quota in quotas(&Algorithm::RATES),
        times in 2_u64..6,
        phase in 0_u64..SECOND,
    ) {
        let (limiter, handles) = limiter(&[quota], 100);
        let step = SECOND / (times * u64::from(quota.limit().count.get()));
        let (from, until) = (START + 3 * SECOND, START + 20 * SECOND);
        let mut now = START + phase;
        while now < until {
            let admitted = is_admitted(&limiter, &handles, 1, now);
            prop_assert!(!admitted || now < from, "after {} ns", now - START);
            prop_assert!(used(&limiter, &handles, now) <= 2 * quota.burst().get());
            now += step;
        }
        // A client that stops is admitted again.
        prop_assert!(is_admitted(&limiter, &handles, 1, until + 3 * SECOND));
    }

    #[test]
    fn charged_rejections_block_a_rejected_client_at_the_limit(
        // Fixed windows and refill buckets settle debts at the end of a window, which takes longer than one rejection.
        quota in quotas(&[
            Algorithm::Gcra,
            Algorithm::TokenBucket,
            Algorithm::LeakyBucket,
            Algorithm::SlidingWindow,
            Algorithm::SlidingLog,
        ]),
        faster in 0_u64..50,
        phase in 0_u64..SECOND,
    ) {
        let (limiter, handles) = limiter(&[quota], 100);
        let step = SECOND / u64::from(quota.limit().count.get()) * (100 - faster) / 100;
        let mut now = START + phase;
        // First uses up the limit at one moment.
        while is_admitted(&limiter, &handles, 1, now) {}
        for _ in 0..500 {
            now += step;
            prop_assert!(!is_admitted(&limiter, &handles, 1, now), "after {} ns", now - START);
        }
    }

    #[test]
    fn retry_after_is_sufficient_with_charged_rejections(
        quota in quotas(&Algorithm::RATES),
        steps in prop::collection::vec(0_u64..400, 1..60),
    ) {
        let (limiter, handles) = limiter(&[quota], 100);
        let options = Some(CheckOptions { on_denied: OnDenied::Charge, ..CheckOptions::new(0, CounterRole::Limit) });
        let check = Check { options, ..checks(&limiter, &handles, b"client", 1)[0] };
        let mut now = START;
        for step in steps {
            now += step * SECOND / 1000;
            let decision = limiter.check(&[check], Timestamp::from_nanos(now));
            if decision.is_rejected() {
                now += u64::try_from(decision.verdicts()[0].retry_after().as_nanos()).unwrap() + 1;
                let again = limiter.check(&[check], Timestamp::from_nanos(now));
                prop_assert!(!again.is_rejected());
            }
        }
    }

    #[test]
    fn late_cost_is_paid_off_at_the_rate_of_the_limit(quota in quotas(&Algorithm::RATES), rounds in 2_u32..50) {
        let (limiter, handles) = limiter(&[quota], 100);
        let count = quota.limit().count.get();
        let key = limiter.hasher().hash(b"client");
        limiter.charge(handles[0], key, i64::from(rounds * count), Timestamp::from_nanos(START));
        // A debt of `rounds` times the count takes `rounds` - 1 to `rounds` + 2 periods to pay.
        let after = |rounds: u32| START + u64::from(rounds) * SECOND;
        prop_assert!(used(&limiter, &handles, after(rounds - 1) - 1) >= count);
        prop_assert!(!is_admitted(&limiter, &handles, 1, after(rounds - 1) - 1));
        prop_assert_eq!(used(&limiter, &handles, after(rounds + 2)), 0);
    }

    #[test]
    fn a_refund_never_creates_quota(
        // In a refill bucket the first charge starts the clock, refunded or not. A log is bound to its entries.
        quota in quotas(&[
            Algorithm::Gcra,
            Algorithm::TokenBucket,
            Algorithm::LeakyBucket,
            Algorithm::FixedWindow,
            Algorithm::SlidingWindow,
        ]).prop_filter("has a history", |quota| !quota.needs_history()),
        steps in steps(),
        refunded in 0_usize..120,
        late in 0_usize..20,
    ) {
        let refunded = refunded % steps.len();
        let (mut now, mut charged) = (Timestamp::from_nanos(START), None);
        let (mut with, mut without) = (None, None);
        for (index, (step, cost)) in steps.iter().enumerate() {
            now = now.saturating_add(Duration::from_millis((*step).into()));
            let amount = 3 * *cost;
            with = Some(algorithm::charge(with, &quota, amount.into(), now));
            match index == refunded {
                true => charged = Some((now, amount)),
                false => without = Some(algorithm::charge(without, &quota, amount.into(), now)),
            }
            if let Some((at, amount)) = charged.filter(|_| index >= refunded + late) {
                let refunded = algorithm::refund(with, &quota, amount, at, now);
                let left = |state| algorithm::usage(state, &quota, now).remaining;
                prop_assert!(left(Some(refunded)) <= left(without));
                break;
            }
        }
    }
}
