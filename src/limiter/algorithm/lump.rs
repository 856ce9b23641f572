//! A history in short: all units in one lump, which leaves as a whole when the last of them would.
//!
//! What counters of a log or a precise window say in verdicts and in saved state, and how they count where there
//! is no memory for a history. It never admits more than the history would: units only stay longer. Of a debt each
//! round of the count is a lump.

use std::time::Duration;

use super::lookback::LookbackWindow;
use super::{Outcome, State, Usage};
use crate::limiter::quota::Quota;
use crate::limiter::timestamp::Timestamp;

/// Set beside the moment at which a lump leaves, where what is beyond the count is no debt and leaves with it. Nothing
/// else is beyond the count: as long as no more than that is in use, the bit is part of the time.
const LAPSES: u64 = 1;

pub(super) fn evaluate(state: Option<State>, quota: &Quota, cost: u32, now: Timestamp) -> (State, Outcome) {
    let lump = at(state, quota, now);
    if u64::from(lump.extra) + u64::from(cost) <= quota.count() {
        return (charge(state, quota, cost.into(), now), Outcome::Conform);
    }
    let retry_after = (u64::from(cost) <= quota.count()).then(|| left(lump, now));
    (lump, Outcome::Exceed { retry_after })
}

/// What is beyond the count is a debt, and leaves a period later for each round of the count; beside what lapses it
/// lapses too.
pub(super) fn charge(state: Option<State>, quota: &Quota, amount: i64, now: Timestamp) -> State {
    let lump = at(state, quota, now);
    let units = i64::from(lump.extra).saturating_add(amount).clamp(0, i64::from(u32::MAX));
    let Some(extra) = u32::try_from(units).ok().filter(|units| *units > 0) else {
        return State { word: 0, extra: 0 };
    };
    if amount <= 0 {
        return State { extra, ..lump };
    }
    let lapses = is_beyond(lump, quota) && lump.word & LAPSES != 0;
    let rounds = if lapses { 0 } else { (u64::from(extra) - 1) / quota.count() };
    let state = State { word: lump.word.max(LookbackWindow::of(quota).end_after(rounds, now)), extra };
    if lapses { lapsing(state, quota, now) } else { owing(state, quota) }
}

/// Gives back what the time since has not.
pub(super) fn refund(
    state: Option<State>,
    quota: &Quota,
    amount: u32,
    (charged, now): (Timestamp, Timestamp),
) -> State {
    let still_counts = LookbackWindow::of(quota).end_from(charged) > now.as_nanos();
    charge(state, quota, if still_counts { -i64::from(amount) } else { 0 }, now)
}

/// As many as the larger, for as long as either.
pub(super) fn fuller(a: State, b: State, quota: &Quota, now: Timestamp) -> State {
    let (a, b) = (at(Some(a), quota, now), at(Some(b), quota, now));
    let both = State { word: a.word.max(b.word), extra: a.extra.max(b.extra) };
    let lapses = [a, b].iter().any(|lump| is_beyond(*lump, quota) && !is_in_debt(*lump, quota, now));
    if lapses { State { word: both.word | LAPSES, ..both } } else { owing(both, quota) }
}

/// Whether more is in use than the count, which has to be paid round by round.
pub(super) fn is_in_debt(state: State, quota: &Quota, now: Timestamp) -> bool {
    let lump = at(Some(state), quota, now);
    is_beyond(lump, quota) && lump.word & LAPSES == 0
}

/// What is in use beyond the count is a debt, paid round by round.
pub(super) fn owing(state: State, quota: &Quota) -> State {
    let odd = state.word & LAPSES;
    State {
        word: if is_beyond(state, quota) { state.word.saturating_add(odd) & !LAPSES } else { state.word },
        ..state
    }
}

/// What is in use beyond the count is no debt: all of it leaves when what is charged now would.
pub(super) fn lapsing(state: State, quota: &Quota, now: Timestamp) -> State {
    match is_beyond(state, quota) {
        true => State { word: state.word.min(LookbackWindow::of(quota).end_from(now)) | LAPSES, ..state },
        false => state,
    }
}

/// What is in use beyond the count is no debt, and all of it leaves at its moment.
pub(super) fn leaving(state: State, quota: &Quota) -> State {
    State { word: if is_beyond(state, quota) { state.word | LAPSES } else { state.word }, ..state }
}

pub(super) fn usage(state: Option<State>, quota: &Quota, now: Timestamp) -> Usage {
    let lump = at(state, quota, now);
    let remaining = quota.count().saturating_sub(lump.extra.into());
    Usage {
        used: lump.extra,
        remaining: u32::try_from(remaining).unwrap_or(u32::MAX),
        reset: left(lump, now),
    }
}

pub(super) fn is_unused(state: State, now: Timestamp) -> bool {
    state.extra == 0 || state.word <= now.as_nanos()
}

/// The lump at `now`: of a debt the rounds that are still to be paid.
pub(super) fn at(state: Option<State>, quota: &Quota, now: Timestamp) -> State {
    let Some(lump) = state.filter(|lump| lump.extra > 0 && lump.word > now.as_nanos()) else {
        return State { word: 0, extra: 0 };
    };
    if !is_beyond(lump, quota) || lump.word & LAPSES != 0 {
        return lump;
    }
    let rounds = (lump.word - now.as_nanos()).div_ceil(LookbackWindow::of(quota).full.max(1));
    let due = u32::try_from(rounds.saturating_mul(quota.count())).unwrap_or(u32::MAX);
    State { extra: lump.extra.min(due), ..lump }
}

fn is_beyond(lump: State, quota: &Quota) -> bool {
    u64::from(lump.extra) > quota.count()
}

fn left(lump: State, now: Timestamp) -> Duration {
    Duration::from_nanos(if lump.extra > 0 { lump.word.saturating_sub(now.as_nanos()) } else { 0 })
}
