//! Quotas that count in finer units, decided at shares of the limit.

use std::num::NonZeroU32;
use std::time::Duration;

use super::super::LimitShare;
use crate::algorithm::Algorithm;
use crate::quota::{Limit, Period, Quota, TimeUnit};
use crate::reservation::{DebtLimit, Reservation};
use crate::testing;
use crate::timestamp::Timestamp;
use crate::{Check, Limiter};

const NOW: Timestamp = Timestamp::from_secs(1_000_000);

fn quota(algorithm: Algorithm, count: u32, unit: TimeUnit, burst: Option<u32>) -> Quota {
    let limit = Limit::new(NonZeroU32::new(count).unwrap(), Period::one(unit));
    Quota::new(algorithm, limit, burst.and_then(NonZeroU32::new)).unwrap()
}

fn limiter(quota: Quota) -> (Limiter, Check) {
    testing::limiter_of(quota, NOW)
}

/// Sends a request every millisecond for some time at a share, as rules do, and returns how many are admitted.
fn admitted(quota: &Quota, share: LimitShare, millis: u64) -> usize {
    let (limiter, check) = limiter(*quota);
    let price = share.cost(quota.units_per_request()).get();
    let cost = price.min(quota.max_cost(1, 1));
    let sent = (0..millis).filter(|at| {
        let now = NOW.saturating_add(Duration::from_millis(*at));
        let check = Check { cost, ..check };
        let passes = !limiter.check(&[check], now).is_rejected();
        if passes && price > cost {
            let charged = Reservation::charged(&check, now).in_units_of(quota);
            limiter.settle(&mut charged.with_debt_limit(DebtLimit::Unlimited), price, now);
        }
        passes
    });
    sent.count()
}

#[test]
fn whole_share_admits_exactly_what_the_written_limit_admits() {
    for algorithm in Algorithm::RATES {
        let written = quota(algorithm, 50, TimeUnit::Second, None);
        let following = written.to_following().unwrap();
        assert_eq!((following.limit(), following.burst()), (written.limit(), written.burst()));
        assert_eq!(
            admitted(&written, LimitShare::FULL, 3000),
            admitted(&following, LimitShare::FULL, 3000),
            "{algorithm}"
        );
    }
}

#[test]
fn share_of_a_rate_is_admitted_whatever_the_burst_is() {
    for burst in [1, 2, 5, 20] {
        let following = quota(Algorithm::Gcra, 10, TimeUnit::Second, Some(burst)).to_following().unwrap();
        for millionths in [10_000, 50_000, 250_000, 900_000] {
            let share = LimitShare::from_millionths(millionths);
            let expected = 10.0 * 60.0 * share.fraction();
            let admitted = admitted(&following, share, 60_000) as f64;
            // At most a burst more, and fewer by what rounding a cost and a time up takes.
            let most = expected + f64::from(burst) * share.fraction() + 1.0;
            assert!(
                admitted <= most && admitted >= expected * 0.98 - 1.0,
                "{admitted} at {share}, burst {burst}"
            );
        }
    }
}

#[test]
fn divided_quota_keeps_its_units() {
    for algorithm in Algorithm::RATES {
        let written = quota(algorithm, 40, TimeUnit::Minute, None);
        let following = written.to_following().unwrap();
        let four = NonZeroU32::new(4).unwrap();
        let part = following.split_among(four);
        assert_eq!(part.units_per_request(), following.units_per_request(), "{algorithm}");
        assert_eq!(part.limit(), written.split_among(four).limit(), "{algorithm}");
    }
}

#[test]
fn limit_without_room_for_units_cannot_follow() {
    assert_eq!(quota(Algorithm::Gcra, 1_000_000_000, TimeUnit::Second, None).to_following(), None);
    assert!(quota(Algorithm::Gcra, 1_000_000, TimeUnit::Second, None).to_following().is_some());
}
