//! Token bucket: whole tokens, refilled one by one at the limit's rate, up to the burst.
//!
//! It admits what gcra admits, with other arithmetic: the state is the number of missing tokens and the time from which
//! the next one is earned. That time is rounded up to a nanosecond whenever tokens are credited, so a bucket may be
//! below its rate by a nanosecond per credit and never exceeds it.

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
    let bucket = credited(state, quota, now);
    let burst = quota.capacity();
    if let Some(taken) = bucket.take_tokens(cost, burst) {
        return (taken.into(), Outcome::Conform);
    }
    let retry_after = (cost <= burst).then(|| {
        let short = bucket.missing.saturating_sub(burst - cost);
        let due = bucket.since.saturating_add(time_for(short, quota));
        Duration::from_nanos(due.saturating_sub(now.as_nanos()))
    });
    (bucket.into(), Outcome::Exceed { retry_after })
}

pub(super) fn charge(
    state: Option<CounterState>,
    quota: &Quota,
    amount: i64,
    now: Timestamp,
) -> CounterState {
    credited(state, quota, now).charge(amount).into()
}

/// Gives back `amount` tokens less those that time since the charge has already returned: what remains of the time that
/// they stand for is subtracted from the time until the bucket is full.
pub(super) fn refund(
    state: Option<CounterState>,
    quota: &Quota,
    amount: u32,
    charged: Timestamp,
    now: Timestamp,
) -> CounterState {
    let bucket = credited(state, quota, now);
    let interval = quota.interval();
    let whole = interval.nanos.saturating_mul(amount.into());
    let worth =
        whole.saturating_add(u64::from(interval.remainder).saturating_mul(amount.into()) / quota.count());
    let back = worth.saturating_sub(now.as_nanos().saturating_sub(charged.as_nanos()));
    let full = bucket.since.saturating_add(time_for(bucket.missing, quota)).saturating_sub(back);
    let left = u128::from(full.saturating_sub(now.as_nanos())) * u128::from(quota.count());
    let missing = u32::try_from(left.div_ceil(u128::from(quota.period_nanos()))).unwrap_or(u32::MAX);
    match missing.min(bucket.missing) {
        0 => BucketState::full(now).into(),
        missing => BucketState { since: full.saturating_sub(time_for(missing, quota)), missing }.into(),
    }
}

pub(super) fn usage(state: Option<CounterState>, quota: &Quota, now: Timestamp) -> CounterUsage {
    let bucket = credited(state, quota, now);
    let full = bucket.since.saturating_add(time_for(bucket.missing, quota));
    CounterUsage {
        used: bucket.missing,
        remaining: quota.capacity().saturating_sub(bucket.missing),
        reset: Duration::from_nanos(full.saturating_sub(now.as_nanos())),
    }
}

/// Computes the wait as [`evaluate`] does, with the burst raised by `owed` units.
pub(super) fn time_until_debt(
    state: Option<CounterState>,
    quota: &Quota,
    cost: u32,
    owed: u64,
    now: Timestamp,
) -> Duration {
    let bucket = credited(state, quota, now);
    let most = u64::from(quota.capacity()).saturating_add(owed);
    let short = u64::from(bucket.missing).saturating_add(cost.into()).saturating_sub(most);
    let due = bucket.since.saturating_add(time_for(u32::try_from(short).unwrap_or(u32::MAX), quota));
    Duration::from_nanos(due.saturating_sub(now.as_nanos()))
}

/// Rounding of one credit, if a token takes a fractional number of nanoseconds.
pub(super) fn rounding(quota: &Quota) -> Duration {
    Duration::from_nanos(u64::from(quota.interval().remainder > 0))
}

/// Converts the missing tokens and the earned part of the next one, rounded down; `None` if it cannot be computed exactly.
pub(super) fn rescale(state: CounterState, from: &Quota, to: &Quota, now: Timestamp) -> Option<CounterState> {
    let bucket = credited(Some(state), from, now);
    let elapsed = u128::from(now.as_nanos().saturating_sub(bucket.since)) * u128::from(from.count());
    let period = u128::from(from.period_nanos()) * u128::from(to.count());
    let earned = u64::try_from(elapsed.checked_mul(to.period_nanos().into())? / period).ok()?;
    Some(BucketState { since: bucket.since.max(now.as_nanos()).saturating_sub(earned), ..bucket }.into())
}

pub(super) fn is_unused(state: CounterState, quota: &Quota, now: Timestamp) -> bool {
    credited(Some(state), quota, now).missing == 0
}

/// The bucket at `now`, with all tokens earned so far added.
fn credited(state: Option<CounterState>, quota: &Quota, now: Timestamp) -> BucketState {
    let full = BucketState::full(now);
    let Some(CounterState { word: since, extra: missing }) = state else { return full };
    let elapsed = now.as_nanos().saturating_sub(since);
    let earned = match elapsed.checked_mul(quota.count()) {
        Some(product) => product / quota.period_nanos(),
        None => {
            let earned = u128::from(elapsed) * u128::from(quota.count()) / u128::from(quota.period_nanos());
            u64::try_from(earned).unwrap_or(u64::MAX)
        }
    };
    match u32::try_from(earned) {
        Ok(earned) if earned < missing => {
            BucketState { since: since.saturating_add(time_for(earned, quota)), missing: missing - earned }
        }
        _ => full,
    }
}

/// Time in which `tokens` are earned, in nanoseconds, rounded up.
fn time_for(tokens: u32, quota: &Quota) -> u64 {
    let interval = quota.interval();
    let parts = u64::from(interval.remainder).saturating_mul(tokens.into()).div_ceil(quota.count());
    interval.nanos.saturating_mul(tokens.into()).saturating_add(parts)
}
