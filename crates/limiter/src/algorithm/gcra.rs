//! Generic cell rate algorithm, virtual scheduling form (ITU-T I.371, annex A).
//!
//! The state is the theoretical arrival time: the moment at which everything charged so far would have been earned at
//! the limit's rate. It is stored exactly, as nanoseconds and a remainder in units of `1 / limit.count` ns, so that the
//! error of a rate such as 3/s does not accumulate.

use std::time::Duration;

use super::{CounterState, CounterUsage, Outcome};
use crate::quota::{ExactSpan, Quota};
use crate::timestamp::Timestamp;

#[inline]
pub(super) fn evaluate(
    state: Option<CounterState>,
    quota: &Quota,
    cost: u32,
    now: Timestamp,
) -> (CounterState, Outcome) {
    let arrival = arrival(state, quota, now);
    let next = advance(arrival, quota, cost);
    let ahead = ExactSpan { nanos: next.nanos.saturating_sub(now.as_nanos()), remainder: next.remainder };
    let tolerance = quota.tolerance();
    // At the last representable moment the arrival time saturates; a request that cannot be counted is rejected.
    if ahead <= tolerance && next.nanos < u64::MAX {
        return (pack(next), Outcome::Conform);
    }
    let retry_after = (cost <= quota.capacity()).then(|| {
        let wait = ahead.nanos.saturating_sub(tolerance.nanos);
        Duration::from_nanos(wait.saturating_add(u64::from(ahead.remainder > tolerance.remainder)))
    });
    (pack(arrival), Outcome::Exceed { retry_after })
}

pub(super) fn charge(
    state: Option<CounterState>,
    quota: &Quota,
    amount: i64,
    now: Timestamp,
) -> CounterState {
    let arrival = arrival(state, quota, now);
    let units = u32::try_from(amount.unsigned_abs()).unwrap_or(u32::MAX);
    if amount >= 0 {
        return pack(advance(arrival, quota, units));
    }
    give_back(arrival, advance(ExactSpan { nanos: 0, remainder: 0 }, quota, units), quota, now)
}

/// Gives back `amount` units less those that time since the charge has already returned: what remains of the time that
/// they stand for is subtracted from the arrival time.
pub(super) fn refund(
    state: Option<CounterState>,
    quota: &Quota,
    amount: u32,
    charged: Timestamp,
    now: Timestamp,
) -> CounterState {
    let arrival = arrival(state, quota, now);
    let mut back = advance(ExactSpan { nanos: 0, remainder: 0 }, quota, amount);
    let elapsed = now.as_nanos().saturating_sub(charged.as_nanos());
    if elapsed > back.nanos {
        return pack(arrival);
    }
    back.nanos -= elapsed;
    give_back(arrival, back, quota, now)
}

/// Moves `arrival` back by `back`, at most to `now`.
fn give_back(arrival: ExactSpan, back: ExactSpan, quota: &Quota, now: Timestamp) -> CounterState {
    let count = quota.count();
    let borrow = u64::from(back.remainder > arrival.remainder);
    let whole = arrival.nanos.saturating_sub(back.nanos).saturating_sub(borrow);
    if whole < now.as_nanos() {
        return CounterState { word: now.as_nanos(), extra: 0 };
    }
    let part =
        u64::from(arrival.remainder).saturating_add(borrow * count).saturating_sub(u64::from(back.remainder));
    CounterState { word: whole, extra: u32::try_from(part).unwrap_or(0) }
}

#[inline]
pub(super) fn usage(state: Option<CounterState>, quota: &Quota, now: Timestamp) -> CounterUsage {
    let arrival = arrival(state, quota, now);
    let ahead = ExactSpan { nanos: arrival.nanos.saturating_sub(now.as_nanos()), ..arrival };
    let parts = ahead.nanos.checked_mul(quota.count());
    // A division of 128 bits takes ten times as long, and almost no quota needs it.
    let used = match parts.and_then(|parts| parts.checked_add(ahead.remainder.into())) {
        Some(parts) => u32::try_from(parts.div_ceil(quota.period_nanos())).unwrap_or(u32::MAX),
        None => units_in_long_span(ahead, quota),
    };
    CounterUsage {
        used,
        remaining: quota.capacity().saturating_sub(used),
        reset: Duration::from_nanos(ahead.nanos.saturating_add(u64::from(ahead.remainder > 0))),
    }
}

/// Units that are earned in `span`, rounded up, at most the largest number of 32 bits.
#[cold]
fn units_in_long_span(span: ExactSpan, quota: &Quota) -> u32 {
    let parts = u128::from(span.nanos) * u128::from(quota.count()) + u128::from(span.remainder);
    u32::try_from(parts.div_ceil(quota.period_nanos().into())).unwrap_or(u32::MAX)
}

/// Computes the wait as [`evaluate`] does, with the tolerance raised by `owed` units.
pub(super) fn time_until_debt(
    state: Option<CounterState>,
    quota: &Quota,
    cost: u32,
    owed: u64,
    now: Timestamp,
) -> Duration {
    let next = advance(arrival(state, quota, now), quota, cost);
    let ahead = ExactSpan { nanos: next.nanos.saturating_sub(now.as_nanos()), remainder: next.remainder };
    let units = u64::from(quota.capacity()).saturating_add(owed);
    let units = u32::try_from(units).unwrap_or(u32::MAX);
    let tolerance = advance(ExactSpan { nanos: 0, remainder: 0 }, quota, units);
    if ahead <= tolerance {
        return Duration::ZERO;
    }
    let wait = ahead.nanos.saturating_sub(tolerance.nanos);
    Duration::from_nanos(wait.saturating_add(u64::from(ahead.remainder > tolerance.remainder)))
}

/// Converts the units in use, rounded up to a fraction of a nanosecond; `None` if they are too many to convert exactly.
pub(super) fn rescale(state: CounterState, from: &Quota, to: &Quota, now: Timestamp) -> Option<CounterState> {
    let arrival = arrival(Some(state), from, now);
    let ahead = u128::from(arrival.nanos.saturating_sub(now.as_nanos()));
    // One unit is as many parts as the period has nanoseconds.
    let parts = ahead * u128::from(from.count()) + u128::from(arrival.remainder);
    let parts = parts.checked_mul(to.period_nanos().into())?.div_ceil(from.period_nanos().into());
    let (nanos, remainder) = (parts / u128::from(to.count()), parts % u128::from(to.count()));
    let nanos = now.as_nanos().checked_add(u64::try_from(nanos).ok()?)?;
    Some(pack(ExactSpan { nanos, remainder: u32::try_from(remainder).ok()? }))
}

pub(super) fn is_unused(state: CounterState, now: Timestamp) -> bool {
    state.word < now.as_nanos() || (state.word == now.as_nanos() && state.extra == 0)
}

/// The arrival time to count from: never in the past, because unused time earns nothing beyond the burst.
fn arrival(state: Option<CounterState>, quota: &Quota, now: Timestamp) -> ExactSpan {
    match state {
        Some(CounterState { word, extra }) if word >= now.as_nanos() => {
            // A remainder is smaller than the quota's count. One from another quota would be read as time.
            debug_assert!(u64::from(extra) < quota.count());
            ExactSpan { nanos: word, remainder: extra }
        }
        _ => ExactSpan { nanos: now.as_nanos(), remainder: 0 },
    }
}

/// Moves `from` forward by `units` intervals, saturating at the last representable moment.
fn advance(from: ExactSpan, quota: &Quota, units: u32) -> ExactSpan {
    let (interval, count) = (quota.interval(), quota.count());
    let parts =
        u64::from(from.remainder).saturating_add(u64::from(interval.remainder).saturating_mul(units.into()));
    // Saves one division on the path of nearly every request.
    let (carry, part) = if parts < count { (0, parts) } else { (parts / count, parts % count) };
    ExactSpan {
        nanos: from.nanos.saturating_add(interval.nanos.saturating_mul(units.into())).saturating_add(carry),
        remainder: u32::try_from(part).unwrap_or(0),
    }
}

fn pack(span: ExactSpan) -> CounterState {
    CounterState { word: span.nanos, extra: span.remainder }
}
