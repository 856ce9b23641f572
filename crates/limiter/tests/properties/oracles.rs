//! Oracles: every algorithm compared with its definition, computed by brute force from all charges.

use std::num::NonZeroU32;

use proptest::prelude::*;
use weir_limiter::algorithm::{Algorithm, Outcome};
use weir_limiter::quota::{Limit, Period, Quota, TimeUnit};

use super::counter::Counter;
use super::marks::window_of;
use super::{requests, steps};

/// Charges: the time in nanoseconds since the epoch, and the units.
type Charges = [(u64, u32)];

/// Returns the exact number of units in use at `now`, as a multiple of 1/[`whole`] units.
fn used(quota: &Quota, charged: &Charges, now: u64) -> u128 {
    let (period, count) = (quota.window().nanos(), u128::from(quota.limit().count.get()));
    match (quota.algorithm(), u64::from(quota.precision())) {
        // A level that drains at the rate of the limit.
        (Algorithm::Gcra | Algorithm::LeakyBucket | Algorithm::TokenBucket, _) => {
            let (mut level, mut last) = (0_u128, 0);
            for (at, cost) in charged.iter().copied().chain([(now, 0)]) {
                level = level.saturating_sub(u128::from(at - last) * count);
                level += u128::from(cost) * u128::from(period);
                last = at;
            }
            level
        }
        (Algorithm::RefillBucket, _) => missing_tokens(quota, charged, now),
        // Each window that ends pays for one count of units.
        (Algorithm::FixedWindow, _) => {
            let (mut level, mut last) = (0_u128, 0);
            for (at, cost) in charged.iter().copied().chain([(now, 0)]) {
                let window = window_of(quota, at);
                level = level.saturating_sub(u128::from(window - last) * count) + u128::from(cost);
                last = window;
            }
            level
        }
        (Algorithm::SlidingLog, _) => {
            let dates = effective_times(quota, charged, 1, period - 1);
            dates.iter().map(|at| u128::from(at + period > now)).sum()
        }
        // A unit counts fully for `precision` sub-windows from the start of its own, and fades out linearly during the
        // next one.
        (Algorithm::SlidingWindow, precision) => {
            let tick = period.div_ceil(precision);
            let dates = effective_times(quota, charged, tick, precision * tick);
            let left = |at: &u64| u128::from((at + (precision + 1) * tick).saturating_sub(now).min(tick));
            dates.iter().map(left).sum()
        }
        (Algorithm::InFlight | Algorithm::Ban | Algorithm::Lease(_), _) => {
            unreachable!("not an algorithm of rate limits")
        }
    }
}

/// Returns the time from which each unit counts: that of its charge, or later if the unit one count before it still
/// counts fully at that time.
fn effective_times(quota: &Quota, charged: &Charges, tick: u64, full: u64) -> Vec<u64> {
    let count = quota.limit().count.get() as usize;
    let mut dates: Vec<u64> = Vec::new();
    for (at, cost) in charged {
        for _ in 0..*cost {
            let before = dates.len().checked_sub(count).map_or(0, |before| dates[before] + full);
            dates.push(before.max(at - at % tick));
        }
    }
    dates
}

/// Returns the missing tokens of a bucket whose clock starts when the first token is taken.
fn missing_tokens(quota: &Quota, charged: &Charges, now: u64) -> u128 {
    let (period, count) = (quota.window().nanos(), u128::from(quota.limit().count.get()));
    let (mut missing, mut next) = (0_u128, 0);
    for (at, cost) in charged.iter().copied().chain([(now, 0)]) {
        while missing > 0 && next <= at {
            (missing, next) = (missing.saturating_sub(count), next + period);
        }
        if missing == 0 {
            next = at + period;
        }
        missing += u128::from(cost);
    }
    missing
}

fn denominator(quota: &Quota) -> u128 {
    let period = quota.window().nanos();
    match quota.algorithm() {
        Algorithm::FixedWindow | Algorithm::SlidingLog | Algorithm::RefillBucket => 1,
        Algorithm::SlidingWindow => u128::from(period.div_ceil(quota.precision().into())),
        _ => u128::from(period),
    }
}

fn admits(quota: &Quota, charged: &Charges, cost: u32, now: u64) -> bool {
    used(quota, charged, now) + u128::from(cost) * denominator(quota)
        <= u128::from(quota.burst().get()) * denominator(quota)
}

/// Generates quotas that do not round: of token buckets those whose tokens are a whole number of nanoseconds apart.
fn quotas() -> impl Strategy<Value = Quota> {
    let whole = |quota: &Quota| quota.window().nanos().is_multiple_of(quota.limit().count.get().into());
    any_quotas(&Algorithm::RATES)
        .prop_filter("rounds", move |quota| quota.algorithm() != Algorithm::TokenBucket || whole(quota))
}

fn any_quotas(algorithms: &'static [Algorithm]) -> impl Strategy<Value = Quota> {
    let algorithm = prop::sample::select(algorithms);
    let unit = prop::sample::select(&TimeUnit::ALL[..]);
    (algorithm, 1_u32..60, 1_u32..7, unit, 1_u8..=60, 1_u32..60).prop_filter_map(
        "takes a century",
        |(algorithm, count, periods, unit, precision, burst)| {
            let limit = Limit::new(NonZeroU32::new(count)?, Period::new(NonZeroU32::new(periods)?, unit));
            let burst = NonZeroU32::new(burst).filter(|_| algorithm.has_burst());
            let quota = Quota::new(algorithm, limit, burst).ok()?;
            Some(quota.with_precision(precision).unwrap_or(quota))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_algorithm_admits_what_its_definition_admits(quota in quotas(), steps in steps()) {
        let mut counter = Counter::new(quota);
        let mut charged = Vec::new();
        for (now, cost) in requests(&quota, &steps) {
            let passes = counter.try_charge(cost, now) == Outcome::Conform;
            prop_assert_eq!(passes, admits(&quota, &charged, cost, now), "{} of {:?} at {}", cost, quota, now);
            if passes {
                charged.push((now, cost));
            }
            let exact = used(&quota, &charged, now).div_ceil(denominator(&quota));
            prop_assert_eq!(u128::from(counter.usage(now).used), exact);
        }
    }

    #[test]
    fn token_bucket_rounds_by_at_most_one_nanosecond_per_credit(
        quota in any_quotas(&[Algorithm::TokenBucket]), steps in steps(),
    ) {
        let mut counter = Counter::new(quota);
        let (mut charged, mut short) = (Vec::new(), 0);
        let nanosecond = u128::from(quota.limit().count.get());
        for (now, cost) in requests(&quota, &steps) {
            // Each evaluation may credit tokens, and rounds.
            short += nanosecond;
            if counter.try_charge(cost, now) == Outcome::Conform {
                prop_assert!(admits(&quota, &charged, cost, now), "{} of {:?} at {}", cost, quota, now);
                charged.push((now, cost));
            } else {
                let needed = used(&quota, &charged, now) + short + u128::from(cost) * denominator(&quota);
                prop_assert!(needed > u128::from(quota.burst().get()) * denominator(&quota), "rejected a cost of {}", cost);
            }
        }
    }

    #[test]
    fn debts_are_counted_by_every_algorithm(quota in quotas(), steps in steps()) {
        let mut counter = Counter::new(quota);
        let mut charged = Vec::new();
        for (index, (now, cost)) in requests(&quota, &steps).into_iter().enumerate() {
            let admitted = admits(&quota, &charged, cost, now);
            prop_assert_eq!(counter.peek(cost, now).1 == Outcome::Conform, admitted, "request {}", index);
            if admitted || index % 3 == 0 {
                counter.charge(cost.into(), now);
                charged.push((now, cost));
            }
        }
    }

    #[test]
    fn counter_is_unused_once_no_units_count(quota in quotas(), steps in steps()) {
        let mut counter = Counter::new(quota);
        let mut charged = Vec::new();
        for (now, cost) in requests(&quota, &steps) {
            prop_assert_eq!(counter.is_unused(now), used(&quota, &charged, now) == 0);
            let whole_again = now + u64::try_from(counter.usage(now).reset.as_nanos()).unwrap();
            prop_assert!(counter.is_unused(whole_again));
            if whole_again > now && quota.algorithm() != Algorithm::FixedWindow {
                prop_assert!(!counter.is_unused(whole_again - 1), "{} reports the reset too late", quota.algorithm());
            }
            if counter.try_charge(cost, now) == Outcome::Conform {
                charged.push((now, cost));
            }
        }
    }

    #[test]
    fn sliding_log_admits_at_most_its_count_per_period(
        count in 1_u32..30,
        steps in steps(),
        back in prop::collection::vec(0_u64..20, 120),
    ) {
        let limit = Limit::new(NonZeroU32::new(count).unwrap(), Period::one(TimeUnit::Minute));
        let quota = Quota::new(Algorithm::SlidingLog, limit, None).unwrap();
        let mut counter = Counter::new(quota);
        // `back` moves a request into the past, so the first may be from before the start of the steps.
        let (mut charged, mut latest) = (Vec::new(), 0);
        for ((now, cost), back) in requests(&quota, &steps).into_iter().zip(back) {
            // Threads may read the clock in one order and reach the counter in another.
            if counter.try_charge(cost, now - back) == Outcome::Conform {
                latest = latest.max(now - back);
                charged.push((latest, cost));
            }
        }
        for (first, (from, _)) in charged.iter().enumerate() {
            let within = charged[first..].iter().filter(|(at, _)| at - from < limit.period.nanos());
            prop_assert!(within.map(|(_, cost)| cost).sum::<u32>() <= count);
        }
    }

    #[test]
    fn precise_sliding_window_admits_at_most_its_count_per_period_less_a_sub_window(
        count in 1_u32..30,
        precision in 2_u8..=60,
        steps in steps(),
    ) {
        let limit = Limit::new(NonZeroU32::new(count).unwrap(), Period::one(TimeUnit::Minute));
        let quota = Quota::new(Algorithm::SlidingWindow, limit, None).unwrap();
        let quota = quota.with_precision(precision).unwrap();
        let mut counter = Counter::new(quota);
        let all = requests(&quota, &steps);
        let charged: Vec<_> =
            all.into_iter().filter(|(now, cost)| counter.try_charge(*cost, *now) == Outcome::Conform).collect();
        let span = limit.period.nanos() / u64::from(precision) * u64::from(precision - 1);
        for (first, (from, _)) in charged.iter().enumerate() {
            let within = charged[first..].iter().filter(|(at, _)| at - from < span);
            prop_assert!(within.map(|(_, cost)| cost).sum::<u32>() <= count);
        }
    }

    #[test]
    fn counter_without_history_is_never_more_permissive(
        precise in any::<bool>(), count in 1_u32..30, steps in steps(),
    ) {
        let limit = Limit::new(NonZeroU32::new(count).unwrap(), Period::one(TimeUnit::Minute));
        let algorithm = if precise { Algorithm::SlidingWindow } else { Algorithm::SlidingLog };
        let quota = Quota::new(algorithm, limit, None).unwrap();
        let quota = quota.with_precision(6).unwrap_or(quota);
        let (mut short, mut charged) = (None, Vec::new());
        for (now, cost) in requests(&quota, &steps) {
            let at = weir_limiter::timestamp::Timestamp::from_nanos(now);
            let (next, outcome) = weir_limiter::algorithm::evaluate(short, &quota, cost, at);
            if outcome == Outcome::Conform {
                prop_assert!(admits(&quota, &charged, cost, now));
                short = Some(next);
                charged.push((now, cost));
            }
        }
    }
}
