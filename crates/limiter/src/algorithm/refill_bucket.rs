//! Token bucket with refills: tokens return in batches at regular intervals, up to the burst.
//!
//! [`super::token_bucket`] earns the same tokens one by one. The clock of this bucket starts when a token is taken from
//! a full bucket, and each whole period after that is a refill. So a full bucket has no state, and keys are not all
//! refilled at the same moment. The state is the time of the last refill, or of the start, and the number of missing
//! tokens.

use std::time::Duration;

use super::bucket::BucketState;
use super::{CounterState, CounterUsage, Outcome};
use crate::quota::Quota;
use crate::timestamp::Timestamp;

pub(super) fn evaluate(
    state: Option<CounterState>,
    quota: &Quota,
    cost: u32,
    now: Timestamp,
) -> (CounterState, Outcome) {
    let bucket = refilled(state, quota, now);
    let burst = quota.capacity();
    if let Some(taken) = bucket.take_tokens(cost, burst) {
        return (taken.into(), Outcome::Conform);
    }
    let retry_after = (cost <= burst).then(|| time_until_debt(state, quota, cost, 0, now));
    (bucket.into(), Outcome::Exceed { retry_after })
}

pub(super) fn charge(
    state: Option<CounterState>,
    quota: &Quota,
    amount: i64,
    now: Timestamp,
) -> CounterState {
    refilled(state, quota, now).charge(amount).into()
}

/// Gives back the tokens that refills since the charge have not. The refill clock is unchanged.
pub(super) fn refund(
    state: Option<CounterState>,
    quota: &Quota,
    amount: u32,
    charged: Timestamp,
    now: Timestamp,
) -> CounterState {
    let bucket = refilled(state, quota, now);
    let refills = bucket.since.saturating_sub(charged.as_nanos()).div_ceil(quota.period_nanos());
    let back = u64::from(amount).saturating_sub(refills.saturating_mul(quota.count()));
    let missing = u64::from(bucket.missing).saturating_sub(back);
    BucketState { missing: u32::try_from(missing).unwrap_or(u32::MAX), ..bucket }.into()
}

pub(super) fn usage(state: Option<CounterState>, quota: &Quota, now: Timestamp) -> CounterUsage {
    let bucket = refilled(state, quota, now);
    CounterUsage {
        used: bucket.missing,
        remaining: quota.capacity().saturating_sub(bucket.missing),
        reset: bucket.until_refilled(bucket.missing.into(), quota, now),
    }
}

/// Time until a request of `cost` would leave at most `owed` tokens missing beyond the burst.
pub(super) fn time_until_debt(
    state: Option<CounterState>,
    quota: &Quota,
    cost: u32,
    owed: u64,
    now: Timestamp,
) -> Duration {
    let bucket = refilled(state, quota, now);
    let most = u64::from(quota.capacity()).saturating_add(owed);
    let short = u64::from(bucket.missing).saturating_add(cost.into()).saturating_sub(most);
    bucket.until_refilled(short, quota, now)
}

pub(super) fn is_unused(state: CounterState, quota: &Quota, now: Timestamp) -> bool {
    refilled(Some(state), quota, now).missing == 0
}

/// Returns the larger number of missing tokens and the later refill time.
pub(super) fn merge_fuller(a: CounterState, b: CounterState, quota: &Quota, now: Timestamp) -> CounterState {
    let [a, b] = [a, b].map(|state| refilled(Some(state), quota, now));
    match (a.missing, b.missing) {
        (_, 0) => a.into(),
        (0, _) => b.into(),
        _ => BucketState { since: a.since.max(b.since), missing: a.missing.max(b.missing) }.into(),
    }
}

impl BucketState {
    /// Time until refills have added `tokens`.
    fn until_refilled(self, tokens: u64, quota: &Quota, now: Timestamp) -> Duration {
        let refills = tokens.div_ceil(quota.count());
        let due = self.since.saturating_add(refills.saturating_mul(quota.period_nanos()));
        Duration::from_nanos(if refills > 0 { due.saturating_sub(now.as_nanos()) } else { 0 })
    }
}

/// The bucket at `now`, with all refills so far added. The clock of a full bucket starts now.
fn refilled(state: Option<CounterState>, quota: &Quota, now: Timestamp) -> BucketState {
    let full = BucketState::full(now);
    let Some(CounterState { word: since, extra: missing }) = state else { return full };
    let refills = now.as_nanos().saturating_sub(since) / quota.period_nanos();
    match u64::from(missing).checked_sub(refills.saturating_mul(quota.count())) {
        None | Some(0) => full,
        Some(missing) => BucketState {
            since: since.saturating_add(refills.saturating_mul(quota.period_nanos())),
            missing: u32::try_from(missing).unwrap_or(u32::MAX),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::Algorithm;
    use crate::quota::{Limit, Period, TimeUnit};

    const START: u64 = 1_795_248_000_123_456_789;

    fn quota(refill: u32, seconds: u32, burst: u32) -> Quota {
        let nonzero = |number| NonZeroU32::new(number).unwrap();
        let limit = Limit::new(nonzero(refill), Period::new(nonzero(seconds), TimeUnit::Second));
        Quota::new(Algorithm::RefillBucket, limit, Some(nonzero(burst))).unwrap()
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(START + millis * 1_000_000)
    }

    /// Reference bucket: it ticks, and every tick adds its tokens.
    struct ReferenceRefillBucket {
        tokens: u64,
        next: Option<u64>,
    }

    impl ReferenceRefillBucket {
        fn tick(&mut self, quota: &Quota, now: u64) {
            while let Some(next) = self.next.filter(|next| *next <= now) {
                self.tokens = (self.tokens + quota.count()).min(quota.capacity().into());
                let is_full = self.tokens == u64::from(quota.capacity());
                self.next = (!is_full).then(|| next + quota.period_nanos());
            }
        }

        fn take(&mut self, quota: &Quota, cost: u64, now: u64) -> bool {
            self.tick(quota, now);
            let fits = cost <= self.tokens;
            if fits && cost > 0 {
                self.tokens -= cost;
                self.next = self.next.or_else(|| Some(now + quota.period_nanos()));
            }
            fits
        }
    }

    #[test]
    fn refill_bucket_adds_all_tokens_at_once_per_period() {
        let quota = quota(3, 6, 10);
        let mut state = None;
        let mut drain = |millis| {
            let mut passed = 0;
            loop {
                let (next, outcome) = evaluate(state, &quota, 1, at(millis));
                match outcome {
                    Outcome::Conform => (state, passed) = (Some(next), passed + 1),
                    Outcome::Exceed { retry_after } => return (passed, retry_after.unwrap().as_millis()),
                }
            }
        };
        assert_eq!(drain(0), (10, 6000));
        assert_eq!(drain(5999), (0, 1));
        assert_eq!(drain(6000), (3, 6000));
        assert_eq!(drain(17_999), (3, 1), "one refill is due, the next one in 1 ms");
        assert_eq!(drain(18_000), (3, 6000));
        // A full bucket loses its refills, and its clock starts again.
        assert_eq!(drain(1_000_000), (10, 6000));
    }

    #[test]
    fn refill_bucket_wait_spans_the_refills_the_cost_needs() {
        let quota = quota(3, 6, 10);
        let (state, _) = evaluate(None, &quota, 10, at(0));
        let wait = |cost, millis| match evaluate(Some(state), &quota, cost, at(millis)).1 {
            Outcome::Exceed { retry_after } => retry_after.map(|wait| wait.as_millis()),
            Outcome::Conform => None,
        };
        assert_eq!([wait(3, 0), wait(4, 0), wait(10, 1000)], [Some(6000), Some(12_000), Some(23_000)]);
        assert_eq!(usage(Some(state), &quota, at(1000)).reset, Duration::from_secs(23));
    }

    #[test]
    fn refill_bucket_refund_excludes_refilled_tokens() {
        let quota = quota(3, 6, 10);
        let state = charge(None, &quota, 8, at(0));
        let missing = |amount, millis| {
            usage(Some(refund(Some(state), &quota, amount, at(0), at(millis))), &quota, at(millis)).used
        };
        assert_eq!([missing(8, 5999), missing(2, 5999)], [0, 6]);
        assert_eq!([missing(8, 6000), missing(4, 6000), missing(2, 6000)], [0, 4, 5]);
    }

    proptest! {
        #[test]
        fn refill_bucket_matches_the_reference_bucket(
            refill in 1_u32..20,
            seconds in 1_u32..7,
            more in 0_u32..40,
            requests in prop::collection::vec((0_u64..300, 0_u32..6), 1..200),
        ) {
            let quota = quota(refill, seconds, refill + more);
            let mut model = ReferenceRefillBucket { tokens: u64::from(quota.capacity()), next: None };
            let (mut state, mut now) = (None, START);
            for (step, cost) in requests {
                now += step * quota.period_nanos() / 100;
                let time = Timestamp::from_nanos(now);
                let (next, outcome) = evaluate(state, &quota, cost, time);
                let left = usage(state, &quota, time).remaining;
                let passes = model.take(&quota, cost.into(), now);
                prop_assert_eq!(outcome == Outcome::Conform, passes);
                if passes {
                    state = Some(next);
                } else {
                    prop_assert_eq!(u64::from(left), model.tokens);
                }
            }
        }
    }
}
