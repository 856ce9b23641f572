//! Leaky bucket: charges fill it, the limit's rate drains it, and a request that would overflow it is rejected.
//!
//! As a meter it is the other form of gcra: ITU-T I.371 (annex A) gives both and shows that they admit the same. The
//! level is stored as the time at which the bucket will be empty, which is gcra's arrival time, so it drains exactly,
//! to a fraction of a nanosecond. The tests compare it with a bucket that stores its level as a number.
//!
//! It differs in its use as a queue, with `throttle: delay`: unless a burst is configured it then holds one request,
//! and requests leave evenly spaced in the order in which they came.

pub(super) use super::gcra::{charge, evaluate, is_unused, refund, time_until_debt, usage};

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::{Algorithm, Outcome};
    use crate::quota::{Limit, Period, Quota, TimeUnit};
    use crate::timestamp::Timestamp;

    const START: u64 = 1_795_248_000_000_000_000;

    /// Reference bucket. The level is in fractions of a unit, one unit being as many as the period has nanoseconds.
    struct ReferenceLeakyBucket {
        level: u128,
        at: u64,
    }

    impl ReferenceLeakyBucket {
        fn admits(&mut self, quota: &Quota, cost: u32, now: u64) -> bool {
            let drained = u128::from(now - self.at) * u128::from(quota.count());
            let level =
                self.level.saturating_sub(drained) + u128::from(cost) * u128::from(quota.period_nanos());
            let fits = level <= u128::from(quota.capacity()) * u128::from(quota.period_nanos());
            if fits {
                (self.level, self.at) = (level, now);
            }
            fits
        }
    }

    proptest! {
        #[test]
        fn leaky_bucket_matches_the_reference_bucket(
            count in 1_u32..50,
            periods in 1_u32..7,
            burst in 1_u32..60,
            requests in prop::collection::vec((0_u64..300, 0_u32..4), 1..200),
        ) {
            let limit = Limit::new(
                NonZeroU32::new(count).unwrap(),
                Period::new(NonZeroU32::new(periods).unwrap(), TimeUnit::Second),
            );
            let quota = Quota::new(Algorithm::LeakyBucket, limit, NonZeroU32::new(burst)).unwrap();
            let mut bucket = ReferenceLeakyBucket { level: 0, at: START };
            let (mut state, mut now) = (None, START);
            for (step, cost) in requests {
                // Hundredths of the time in which a unit drains.
                now += step * quota.period_nanos() / u64::from(count) / 100;
                let (next, outcome) = evaluate(state, &quota, cost, Timestamp::from_nanos(now));
                prop_assert_eq!(outcome == Outcome::Conform, bucket.admits(&quota, cost, now));
                if outcome == Outcome::Conform {
                    state = Some(next);
                }
            }
        }
    }
}
