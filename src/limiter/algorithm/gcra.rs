//! Generic cell rate algorithm, virtual scheduling form (ITU-T I.371, annex A).
//!
//! The state is the theoretical arrival time: the moment at which everything charged so far would have been
//! earned at the limit's rate. It is kept exactly, as nanoseconds and a remainder in units of
//! `1 / limit.count` ns, so that a rate like 3/s neither leaks nor starves however long it runs.

use std::time::Duration;

use super::{Outcome, State, Usage};
use crate::limiter::quota::{Quota, Span};
use crate::limiter::timestamp::Timestamp;

#[inline]
pub(super) fn evaluate(state: Option<State>, quota: &Quota, cost: u32, now: Timestamp) -> (State, Outcome) {
    let arrival = arrival(state, quota, now);
    let next = advance(arrival, quota, cost);
    let ahead = Span { whole: next.whole.saturating_sub(now.as_nanos()), part: next.part };
    let tolerance = quota.tolerance();
    // At the end of time the arrival can move no further; what cannot be counted does not pass.
    if ahead <= tolerance && next.whole < u64::MAX {
        return (pack(next), Outcome::Conform);
    }
    let retry_after = (cost <= quota.capacity()).then(|| {
        let wait = ahead.whole.saturating_sub(tolerance.whole);
        Duration::from_nanos(wait.saturating_add(u64::from(ahead.part > tolerance.part)))
    });
    (pack(arrival), Outcome::Exceed { retry_after })
}

pub(super) fn charge(state: Option<State>, quota: &Quota, amount: i64, now: Timestamp) -> State {
    let arrival = arrival(state, quota, now);
    let units = u32::try_from(amount.unsigned_abs()).unwrap_or(u32::MAX);
    if amount >= 0 {
        return pack(advance(arrival, quota, units));
    }
    give_back(arrival, advance(Span { whole: 0, part: 0 }, quota, units), quota, now)
}

/// Every nanosecond since the charge has earned one back for whoever came; what remains of the time the units
/// stand for is taken off.
pub(super) fn refund(
    state: Option<State>,
    quota: &Quota,
    amount: u32,
    (charged, now): (Timestamp, Timestamp),
) -> State {
    let arrival = arrival(state, quota, now);
    let mut back = advance(Span { whole: 0, part: 0 }, quota, amount);
    let elapsed = now.as_nanos().saturating_sub(charged.as_nanos());
    if elapsed > back.whole {
        return pack(arrival);
    }
    back.whole -= elapsed;
    give_back(arrival, back, quota, now)
}

/// `arrival` moved back, at most to `now`.
fn give_back(arrival: Span, back: Span, quota: &Quota, now: Timestamp) -> State {
    let count = quota.count();
    let borrow = u64::from(back.part > arrival.part);
    let whole = arrival.whole.saturating_sub(back.whole).saturating_sub(borrow);
    if whole < now.as_nanos() {
        return State { word: now.as_nanos(), extra: 0 };
    }
    let part = u64::from(arrival.part).saturating_add(borrow * count).saturating_sub(u64::from(back.part));
    State { word: whole, extra: u32::try_from(part).unwrap_or(0) }
}

pub(super) fn usage(state: Option<State>, quota: &Quota, now: Timestamp) -> Usage {
    let arrival = arrival(state, quota, now);
    let ahead = arrival.whole.saturating_sub(now.as_nanos());
    let used = (u128::from(ahead) * u128::from(quota.count()) + u128::from(arrival.part))
        .div_ceil(u128::from(quota.period()));
    let used = u32::try_from(used).unwrap_or(u32::MAX);
    Usage {
        used,
        remaining: quota.capacity().saturating_sub(used),
        reset: Duration::from_nanos(ahead.saturating_add(u64::from(arrival.part > 0))),
    }
}

/// As the wait of [`evaluate`], with a tolerance of so many units more.
pub(super) fn until_owed(
    state: Option<State>,
    quota: &Quota,
    (cost, owed): (u32, u64),
    now: Timestamp,
) -> Duration {
    let next = advance(arrival(state, quota, now), quota, cost);
    let ahead = Span { whole: next.whole.saturating_sub(now.as_nanos()), part: next.part };
    let units = u64::from(quota.capacity()).saturating_add(owed);
    let units = u32::try_from(units).unwrap_or(u32::MAX);
    let tolerance = advance(Span { whole: 0, part: 0 }, quota, units);
    if ahead <= tolerance {
        return Duration::ZERO;
    }
    let wait = ahead.whole.saturating_sub(tolerance.whole);
    Duration::from_nanos(wait.saturating_add(u64::from(ahead.part > tolerance.part)))
}

pub(super) fn is_unused(state: State, now: Timestamp) -> bool {
    state.word < now.as_nanos() || (state.word == now.as_nanos() && state.extra == 0)
}

/// The arrival time to count from: never in the past, since unused time earns nothing beyond the burst.
fn arrival(state: Option<State>, quota: &Quota, now: Timestamp) -> Span {
    match state {
        Some(State { word, extra }) if word >= now.as_nanos() => {
            // A remainder is smaller than the count it was taken by; a foreign one would be read as time.
            debug_assert!(u64::from(extra) < quota.count());
            Span { whole: word, part: extra }
        }
        _ => Span { whole: now.as_nanos(), part: 0 },
    }
}

/// `from` moved on by `units` intervals, saturating at the end of time.
fn advance(from: Span, quota: &Quota, units: u32) -> Span {
    let (interval, count) = (quota.interval(), quota.count());
    let parts = u64::from(from.part).saturating_add(u64::from(interval.part).saturating_mul(units.into()));
    // One division less on the path that almost every request takes.
    let (carry, part) = if parts < count { (0, parts) } else { (parts / count, parts % count) };
    Span {
        whole: from.whole.saturating_add(interval.whole.saturating_mul(units.into())).saturating_add(carry),
        part: u32::try_from(part).unwrap_or(0),
    }
}

fn pack(span: Span) -> State {
    State { word: span.whole, extra: span.part }
}
