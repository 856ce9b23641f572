//! Token bucket: whole tokens, refilled one by one at the limit's rate, never above the burst.
//!
//! It admits what gcra admits, by other arithmetic: the state is the number of missing tokens and the moment
//! from which the next one is earned. That moment is rounded up to a nanosecond whenever tokens are credited,
//! so a bucket can fall short of its rate by a nanosecond per credit and never exceed it.

use std::time::Duration;

use super::bucket::Bucket;
use super::{Outcome, State, Usage};
use crate::limiter::quota::Quota;
use crate::limiter::timestamp::Timestamp;

pub(super) fn evaluate(state: Option<State>, quota: &Quota, cost: u32, now: Timestamp) -> (State, Outcome) {
    let bucket = credited(state, quota, now);
    let burst = quota.capacity();
    if let Some(taken) = bucket.take(cost, burst) {
        return (taken.into(), Outcome::Conform);
    }
    let retry_after = (cost <= burst).then(|| {
        let short = bucket.missing.saturating_sub(burst - cost);
        let due = bucket.since.saturating_add(time_for(short, quota));
        Duration::from_nanos(due.saturating_sub(now.as_nanos()))
    });
    (bucket.into(), Outcome::Exceed { retry_after })
}

pub(super) fn charge(state: Option<State>, quota: &Quota, amount: i64, now: Timestamp) -> State {
    credited(state, quota, now).charge(amount).into()
}

/// Every nanosecond since the charge has earned one back for whoever came; what remains of the time the tokens
/// stand for is taken off the time until the bucket is full.
pub(super) fn refund(
    state: Option<State>,
    quota: &Quota,
    amount: u32,
    (charged, now): (Timestamp, Timestamp),
) -> State {
    let bucket = credited(state, quota, now);
    let interval = quota.interval();
    let whole = interval.whole.saturating_mul(amount.into());
    let worth = whole.saturating_add(u64::from(interval.part).saturating_mul(amount.into()) / quota.count());
    let back = worth.saturating_sub(now.as_nanos().saturating_sub(charged.as_nanos()));
    let full = bucket.since.saturating_add(time_for(bucket.missing, quota)).saturating_sub(back);
    let left = u128::from(full.saturating_sub(now.as_nanos())) * u128::from(quota.count());
    let missing = u32::try_from(left.div_ceil(u128::from(quota.period()))).unwrap_or(u32::MAX);
    match missing.min(bucket.missing) {
        0 => Bucket::full(now).into(),
        missing => Bucket { since: full.saturating_sub(time_for(missing, quota)), missing }.into(),
    }
}

pub(super) fn usage(state: Option<State>, quota: &Quota, now: Timestamp) -> Usage {
    let bucket = credited(state, quota, now);
    let full = bucket.since.saturating_add(time_for(bucket.missing, quota));
    Usage {
        used: bucket.missing,
        remaining: quota.capacity().saturating_sub(bucket.missing),
        reset: Duration::from_nanos(full.saturating_sub(now.as_nanos())),
    }
}

/// As the wait of [`evaluate`], with a burst of so many units more.
pub(super) fn until_owed(
    state: Option<State>,
    quota: &Quota,
    (cost, owed): (u32, u64),
    now: Timestamp,
) -> Duration {
    let bucket = credited(state, quota, now);
    let most = u64::from(quota.capacity()).saturating_add(owed);
    let short = u64::from(bucket.missing).saturating_add(cost.into()).saturating_sub(most);
    let due = bucket.since.saturating_add(time_for(u32::try_from(short).unwrap_or(u32::MAX), quota));
    Duration::from_nanos(due.saturating_sub(now.as_nanos()))
}

/// A credit rounds up, where a token takes no whole number of nanoseconds.
pub(super) fn rounding(quota: &Quota) -> Duration {
    Duration::from_nanos(u64::from(quota.interval().part > 0))
}

pub(super) fn is_unused(state: State, quota: &Quota, now: Timestamp) -> bool {
    credited(Some(state), quota, now).missing == 0
}

/// The bucket at `now`, with all tokens earned so far put in.
fn credited(state: Option<State>, quota: &Quota, now: Timestamp) -> Bucket {
    let full = Bucket::full(now);
    let Some(State { word: since, extra: missing }) = state else { return full };
    let elapsed = now.as_nanos().saturating_sub(since);
    let earned = match elapsed.checked_mul(quota.count()) {
        Some(product) => product / quota.period(),
        None => {
            let earned = u128::from(elapsed) * u128::from(quota.count()) / u128::from(quota.period());
            u64::try_from(earned).unwrap_or(u64::MAX)
        }
    };
    match u32::try_from(earned) {
        Ok(earned) if earned < missing => {
            Bucket { since: since.saturating_add(time_for(earned, quota)), missing: missing - earned }
        }
        _ => full,
    }
}

/// The time in which `tokens` are earned, rounded up.
fn time_for(tokens: u32, quota: &Quota) -> u64 {
    let interval = quota.interval();
    let parts = u64::from(interval.part).saturating_mul(tokens.into()).div_ceil(quota.count());
    interval.whole.saturating_mul(tokens.into()).saturating_add(parts)
}
