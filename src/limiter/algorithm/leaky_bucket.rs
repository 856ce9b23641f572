//! Leaky bucket: what has been charged fills it, the limit's rate drains it, and what would spill does not pass.
//!
//! As a meter it is gcra seen from the other side: ITU-T I.371 (annex A) gives both forms and shows that they
//! admit the same. The bucket's level is kept as the moment at which it will have run empty, which is gcra's
//! arrival time, and so drains exactly, to a fraction of a nanosecond; the tests hold it to a bucket that keeps
//! its level as a number. What sets it apart is its use as a queue, with `throttle: delay`: unless a burst is
//! given it then holds one request, and requests leave evenly spaced in the order in which they came.

pub(super) use super::gcra::{charge, evaluate, is_unused, refund, until_owed, usage};

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;
    use crate::limiter::algorithm::{Algorithm, Outcome};
    use crate::limiter::quota::{Limit, Period, Quota, Unit};
    use crate::limiter::timestamp::Timestamp;

    const START: u64 = 1_795_248_000_000_000_000;

    /// A level in parts of a unit, as many as a period has nanoseconds.
    struct Bucket {
        level: u128,
        at: u64,
    }

    impl Bucket {
        fn takes(&mut self, quota: &Quota, cost: u32, now: u64) -> bool {
            let drained = u128::from(now - self.at) * u128::from(quota.count());
            let level = self.level.saturating_sub(drained) + u128::from(cost) * u128::from(quota.period());
            let fits = level <= u128::from(quota.capacity()) * u128::from(quota.period());
            if fits {
                (self.level, self.at) = (level, now);
            }
            fits
        }
    }

    proptest! {
        #[test]
        fn it_admits_what_a_bucket_with_a_level_admits(
            count in 1_u32..50,
            periods in 1_u32..7,
            burst in 1_u32..60,
            requests in prop::collection::vec((0_u64..300, 0_u32..4), 1..200),
        ) {
            let limit = Limit::new(
                NonZeroU32::new(count).unwrap(),
                Period::new(NonZeroU32::new(periods).unwrap(), Unit::Second),
            );
            let quota = Quota::new(Algorithm::LeakyBucket, limit, NonZeroU32::new(burst)).unwrap();
            let mut bucket = Bucket { level: 0, at: START };
            let (mut state, mut now) = (None, START);
            for (step, cost) in requests {
                // Hundredths of what a unit takes to drain.
                now += step * quota.period() / u64::from(count) / 100;
                let (next, outcome) = evaluate(state, &quota, cost, Timestamp::from_nanos(now));
                prop_assert_eq!(outcome == Outcome::Conform, bucket.takes(&quota, cost, now));
                if outcome == Outcome::Conform {
                    state = Some(next);
                }
            }
        }
    }
}
