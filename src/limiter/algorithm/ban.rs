//! A key that is refused everything for a while, longer each time it comes to that.
//!
//! The state is the moment at which the ban ends, and how often it has been doubled. It is kept for as long
//! again as the longest ban after its end, so that the next one can be twice as long. Requests neither extend
//! nor repeat a ban that runs: only [`begin`] writes.

use std::time::Duration;

use super::{Outcome, State, Usage};
use crate::limiter::quota::Quota;
use crate::limiter::timestamp::Timestamp;

/// Refused until the end; what passes changes nothing.
pub(super) fn evaluate(state: Option<State>, now: Timestamp) -> (State, Outcome) {
    let kept = state.unwrap_or(State { word: 0, extra: 0 });
    let rest = Timestamp::from_nanos(kept.word).since(now);
    let outcome = if rest.is_zero() { Outcome::Conform } else { Outcome::Exceed { retry_after: Some(rest) } };
    (kept, outcome)
}

/// The ban that a refusal at `now` begins, and how long it is. One that runs goes on as it is.
pub(in crate::limiter) fn begin(state: Option<State>, quota: &Quota, now: Timestamp) -> (State, Duration) {
    let doubled = match state {
        Some(running) if running.word > now.as_nanos() => {
            return (running, Timestamp::from_nanos(running.word).since(now));
        }
        // At most so often that nothing is left to double.
        Some(past) if !is_unused(past, quota, now) => past.extra.saturating_add(1).min(u64::BITS - 1),
        _ => 0,
    };
    let length = length(quota, doubled);
    let end = now.saturating_add(Duration::from_nanos(length));
    (State { word: end.as_nanos(), extra: doubled }, Duration::from_nanos(length))
}

/// How long ago the ban began that runs.
pub(in crate::limiter) fn age(state: Option<State>, quota: &Quota, now: Timestamp) -> Option<Duration> {
    let State { word, extra } = state.filter(|state| state.word > now.as_nanos())?;
    let length = length(quota, extra);
    Some(now.since(Timestamp::from_nanos(word.saturating_sub(length))))
}

/// How long a ban is that was doubled so often, in nanoseconds.
fn length(quota: &Quota, doubled: u32) -> u64 {
    let (first, most) = (quota.interval().whole, quota.tolerance().whole);
    first.saturating_mul(1 << doubled.min(u64::BITS - 1)).min(most)
}

/// The ban of all instances, until this moment; one that runs longer here goes on as it is.
pub(in crate::limiter) fn running(state: Option<State>, until: Timestamp, doubled: u32) -> State {
    state
        .filter(|own| own.word >= until.as_nanos())
        .unwrap_or(State { word: until.as_nanos(), extra: doubled })
}

/// A ban is nothing that could be charged or given back.
pub(super) fn charge(state: Option<State>) -> State {
    state.unwrap_or(State { word: 0, extra: 0 })
}

/// One unit, in use while the ban runs.
pub(super) fn usage(state: Option<State>, now: Timestamp) -> Usage {
    let rest = state.map_or(Duration::ZERO, |state| Timestamp::from_nanos(state.word).since(now));
    let used = u32::from(!rest.is_zero());
    Usage { used, remaining: 1 - used, reset: rest }
}

pub(super) fn is_unused(state: State, quota: &Quota, now: Timestamp) -> bool {
    now.as_nanos() > state.word.saturating_add(quota.tolerance().whole)
}
