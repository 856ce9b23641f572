use std::num::NonZeroU32;

use super::*;
use crate::algorithm::conversion::OnChange;
use crate::decision::Enforcement;
use crate::quota::{Limit, Period, TimeUnit};
use crate::reservation::ChargeTiming;
use crate::{LimitIdentity, LimitSpec, LimiterSettings};

const START: Timestamp = Timestamp::from_secs(1_795_248_000);
const RATE: u32 = 10;

/// A limiter with one limit of ten a second, and a check of it.
fn ten_a_second(algorithm: Algorithm) -> (Limiter, Check) {
    let limit = Limit::new(NonZeroU32::new(RATE).unwrap(), Period::one(TimeUnit::Second));
    let limiter = Limiter::new(LimiterSettings { max_keys: 100, secret: [7, 11] });
    let spec = LimitSpec {
        identity: LimitIdentity { rule: "q".into(), key: "[]".into() },
        quota: Quota::new(algorithm, limit, None).unwrap(),
        on_change: OnChange::Keep,
        lease_policy: None,
    };
    let check = Check {
        handle: limiter.install(&[spec], START)[0],
        key: limiter.hasher().hash(b""),
        cost: 1,
        enforcement: Enforcement::Enforced,
        charge_timing: ChargeTiming::OnArrival,
        options: None,
    };
    (limiter, check)
}

/// Time until a request passes behind `ahead` others, each of which passes as soon as it can.
fn simulated_wait(limiter: &Limiter, check: Check, ahead: usize, start: Timestamp) -> Duration {
    let mut now = start;
    for _ in 0..=ahead {
        loop {
            let decision = limiter.check(&[check], now);
            match decision.verdicts()[0].retry_after() {
                Duration::ZERO => break,
                wait => now = now.saturating_add(wait),
            }
        }
    }
    now.since(start)
}

#[test]
fn peek_charges_nothing() {
    let (limiter, check) = ten_a_second(Algorithm::Gcra);
    for _ in 0..3 * RATE {
        assert!(!limiter.peek([check], START).is_rejected());
    }
    assert_eq!(limiter.usage(check.handle, check.key, START).unwrap().used, 0);
}

#[test]
fn predicted_wait_is_never_too_long_and_close_for_rates() {
    for algorithm in [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
    ] {
        for used in [0, 4, RATE, RATE + 5] {
            for ahead in [0, 1, 9, 10, 11, 25, 100] {
                let (limiter, check) = ten_a_second(algorithm);
                let mut now = START.saturating_add(Duration::from_millis(130));
                for _ in 0..used {
                    now = now.saturating_add(simulated_wait(&limiter, check, 0, now));
                }
                let verdict = limiter.peek([check], now).verdicts()[0];
                let predicted = verdict.min_wait_behind(ahead, 1, now);
                let actual = simulated_wait(&limiter, check, ahead, now);
                let case = format!("{algorithm}, {used} used, {ahead} ahead: {predicted:?} of {actual:?}");
                assert!(predicted <= actual, "{case}");
                if algorithm.refills_continuously() {
                    assert!(actual - predicted <= Duration::from_millis(100), "{case}");
                }
            }
        }
    }
}

#[test]
fn request_above_the_limit_has_no_time() {
    let (limiter, check) = ten_a_second(Algorithm::Gcra);
    let check = Check { cost: RATE + 1, ..check };
    let verdict = limiter.peek([check], START).verdicts()[0];
    assert_eq!(verdict.outcome, Outcome::Exceed { retry_after: None });
    assert!(verdict.min_wait_behind(0, check.cost, START) >= Duration::from_secs(1));
}
