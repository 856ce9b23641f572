//! A history in short: all units in one lump, which leaves as a whole when the last of them would.
//!
//! What counters of a log or a precise window say in verdicts and in saved state, and how they count where there
//! is no memory for a history. It never admits more than the history would: units only stay longer.

use std::time::Duration;

use super::history::Sight;
use super::{Outcome, State, Usage};
use crate::limiter::quota::Quota;
use crate::limiter::timestamp::Timestamp;

pub(super) fn evaluate(state: Option<State>, quota: &Quota, cost: u32, now: Timestamp) -> (State, Outcome) {
    let lump = at(state, now);
    if u64::from(lump.extra) + u64::from(cost) <= quota.count() {
        return (charge(state, quota, cost.into(), now), Outcome::Conform);
    }
    let retry_after = (u64::from(cost) <= quota.count()).then(|| left(lump, now));
    (lump, Outcome::Exceed { retry_after })
}

pub(super) fn charge(state: Option<State>, quota: &Quota, amount: i64, now: Timestamp) -> State {
    let lump = at(state, now);
    let units = i64::from(lump.extra).saturating_add(amount).clamp(0, i64::from(u32::MAX));
    let end = if amount > 0 { Sight::of(quota).end_from(now) } else { 0 };
    match u32::try_from(units).unwrap_or(u32::MAX) {
        0 => State { word: 0, extra: 0 },
        extra => State { word: lump.word.max(end), extra },
    }
}

/// Gives back what the time since has not.
pub(super) fn refund(
    state: Option<State>,
    quota: &Quota,
    amount: u32,
    (charged, now): (Timestamp, Timestamp),
) -> State {
    let still_counts = Sight::of(quota).end_from(charged) > now.as_nanos();
    charge(state, quota, if still_counts { -i64::from(amount) } else { 0 }, now)
}

/// As many as the larger, for as long as either.
pub(super) fn fuller(a: State, b: State, now: Timestamp) -> State {
    let (a, b) = (at(Some(a), now), at(Some(b), now));
    State { word: a.word.max(b.word), extra: a.extra.max(b.extra) }
}

pub(super) fn usage(state: Option<State>, quota: &Quota, now: Timestamp) -> Usage {
    let lump = at(state, now);
    let remaining = quota.count().saturating_sub(lump.extra.into());
    Usage {
        used: lump.extra,
        remaining: u32::try_from(remaining).unwrap_or(u32::MAX),
        reset: left(lump, now),
    }
}

pub(super) fn is_unused(state: State, now: Timestamp) -> bool {
    at(Some(state), now).extra == 0
}

fn at(state: Option<State>, now: Timestamp) -> State {
    state.filter(|state| state.word > now.as_nanos()).unwrap_or(State { word: 0, extra: 0 })
}

fn left(lump: State, now: Timestamp) -> Duration {
    Duration::from_nanos(if lump.extra > 0 { lump.word.saturating_sub(now.as_nanos()) } else { 0 })
}
