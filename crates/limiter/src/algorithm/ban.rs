//! Ban of a key: every request is rejected for a while, twice as long each time a ban follows another.
//!
//! The state is the end of the ban and how often its duration was doubled. It is kept after the end for the maximum
//! duration of a ban, so that the next one can be twice as long. Requests neither extend nor repeat a running ban; only
//! [`start_ban`] and [`extended_until`] write.

use std::time::Duration;

use super::{CounterState, CounterUsage, Outcome};
use crate::quota::Quota;
use crate::timestamp::Timestamp;

/// Rejects until the ban ends; a request that passes changes nothing.
pub(super) fn evaluate(state: Option<CounterState>, now: Timestamp) -> (CounterState, Outcome) {
    let kept = state.unwrap_or(CounterState { word: 0, extra: 0 });
    let rest = Timestamp::from_nanos(kept.word).since(now);
    let outcome = if rest.is_zero() { Outcome::Conform } else { Outcome::Exceed { retry_after: Some(rest) } };
    (kept, outcome)
}

/// Starts a ban because of a rejection at `now`; returns the state and the ban's length. A running ban is unchanged,
/// with the time that is left.
pub(crate) fn start_ban(
    state: Option<CounterState>,
    quota: &Quota,
    now: Timestamp,
) -> (CounterState, Duration) {
    let doubled = match state {
        Some(running) if running.word > now.as_nanos() => {
            return (running, Timestamp::from_nanos(running.word).since(now));
        }
        // Bounds the shift in `length`.
        Some(past) if !is_unused(past, quota, now) => past.extra.saturating_add(1).min(u64::BITS - 1),
        _ => 0,
    };
    let length = length(quota, doubled);
    let end = now.saturating_add(Duration::from_nanos(length));
    (CounterState { word: end.as_nanos(), extra: doubled }, Duration::from_nanos(length))
}

/// Time since the running ban began; `None` if none runs.
pub(crate) fn age(state: Option<CounterState>, quota: &Quota, now: Timestamp) -> Option<Duration> {
    let CounterState { word, extra } = state.filter(|state| state.word > now.as_nanos())?;
    let length = length(quota, extra);
    Some(now.since(Timestamp::from_nanos(word.saturating_sub(length))))
}

/// Length of a ban after `doubled` doublings, in nanoseconds.
fn length(quota: &Quota, doubled: u32) -> u64 {
    let (first, most) = (quota.interval().nanos, quota.tolerance().nanos);
    first.saturating_mul(1 << doubled.min(u64::BITS - 1)).min(most)
}

/// Applies the fleet's ban until `until`. A local ban that runs longer is unchanged.
pub(crate) fn extended_until(state: Option<CounterState>, until: Timestamp, doubled: u32) -> CounterState {
    state
        .filter(|own| own.word >= until.as_nanos())
        .unwrap_or(CounterState { word: until.as_nanos(), extra: doubled })
}

/// Does nothing: a ban cannot be charged or given back.
pub(super) fn charge(state: Option<CounterState>) -> CounterState {
    state.unwrap_or(CounterState { word: 0, extra: 0 })
}

/// One unit, in use while the ban runs.
pub(super) fn usage(state: Option<CounterState>, now: Timestamp) -> CounterUsage {
    let rest = state.map_or(Duration::ZERO, |state| Timestamp::from_nanos(state.word).since(now));
    let used = u32::from(!rest.is_zero());
    CounterUsage { used, remaining: 1 - used, reset: rest }
}

pub(super) fn is_unused(state: CounterState, quota: &Quota, now: Timestamp) -> bool {
    now.as_nanos() > state.word.saturating_add(quota.tolerance().nanos)
}
