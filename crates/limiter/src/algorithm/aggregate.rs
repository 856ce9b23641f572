//! Aggregate: a compressed charge history, whose units all expire when the youngest of them would.
//!
//! Verdicts and saved state contain the aggregate of a log or a precise window. It is also the counter if there is no
//! memory for a history. It never admits more than the history would: units only stay longer. A debt is an aggregate
//! per round of the count.

use std::time::Duration;

use super::lookback::LookbackWindow;
use super::{CounterState, CounterUsage, Outcome, sliding_log, sliding_window};
use crate::quota::Quota;
use crate::timestamp::Timestamp;

/// Set in the expiry time if units beyond the count are no debt and expire with the others. Otherwise nothing is beyond
/// the count, or the time of a debt is even: up to the count the bit is part of the time.
const EXCESS_LAPSES: u64 = 1;

/// Returns how far back a quota with a history looks.
pub(super) fn lookback(quota: &Quota) -> LookbackWindow {
    sliding_window::lookback(quota).unwrap_or_else(|| sliding_log::lookback(quota))
}

pub(super) fn evaluate(
    state: Option<CounterState>,
    quota: &Quota,
    cost: u32,
    now: Timestamp,
) -> (CounterState, Outcome) {
    let lump = state_at(state, quota, now);
    if u64::from(lump.extra) + u64::from(cost) <= quota.count() {
        return (charge(state, quota, cost.into(), now), Outcome::Conform);
    }
    let retry_after = (u64::from(cost) <= quota.count()).then(|| left(lump, now));
    (lump, Outcome::Exceed { retry_after })
}

/// Units beyond the count are a debt, which expires one period later for each round of the count. If the existing
/// excess is no debt, the new excess is none either.
pub(super) fn charge(
    state: Option<CounterState>,
    quota: &Quota,
    amount: i64,
    now: Timestamp,
) -> CounterState {
    let lump = state_at(state, quota, now);
    let units = i64::from(lump.extra).saturating_add(amount).clamp(0, i64::from(u32::MAX));
    let Some(extra) = u32::try_from(units).ok().filter(|units| *units > 0) else {
        return CounterState { word: 0, extra: 0 };
    };
    if amount <= 0 {
        return CounterState { extra, ..lump };
    }
    let lapses = is_beyond(lump, quota) && lump.word & EXCESS_LAPSES != 0;
    let rounds = if lapses { 0 } else { (u64::from(extra) - 1) / quota.count() };
    let state = CounterState { word: lump.word.max(lookback(quota).end_after(rounds, now)), extra };
    if lapses { with_lapsing_excess(state, quota, now) } else { with_excess_as_debt(state, quota) }
}

/// Gives back `amount` units, unless they have expired since they were charged.
pub(super) fn refund(
    state: Option<CounterState>,
    quota: &Quota,
    amount: u32,
    charged: Timestamp,
    now: Timestamp,
) -> CounterState {
    let still_counts = lookback(quota).end_from(charged) > now.as_nanos();
    charge(state, quota, if still_counts { -i64::from(amount) } else { 0 }, now)
}

/// Returns the larger number of units and the later expiry.
pub(super) fn merge_fuller(a: CounterState, b: CounterState, quota: &Quota, now: Timestamp) -> CounterState {
    let (a, b) = (state_at(Some(a), quota, now), state_at(Some(b), quota, now));
    let both = CounterState { word: a.word.max(b.word), extra: a.extra.max(b.extra) };
    let lapses = [a, b].iter().any(|lump| is_beyond(*lump, quota) && !is_in_debt(*lump, quota, now));
    if lapses {
        CounterState { word: both.word | EXCESS_LAPSES, ..both }
    } else {
        with_excess_as_debt(both, quota)
    }
}

/// Whether units beyond the count are in use and have to be paid round by round.
pub(super) fn is_in_debt(state: CounterState, quota: &Quota, now: Timestamp) -> bool {
    let lump = state_at(Some(state), quota, now);
    is_beyond(lump, quota) && lump.word & EXCESS_LAPSES == 0
}

/// Marks units beyond the count as a debt, paid round by round.
pub(super) fn with_excess_as_debt(state: CounterState, quota: &Quota) -> CounterState {
    let odd = state.word & EXCESS_LAPSES;
    CounterState {
        word: if is_beyond(state, quota) {
            state.word.saturating_add(odd) & !EXCESS_LAPSES
        } else {
            state.word
        },
        ..state
    }
}

/// Marks units beyond the count as no debt: all units expire when a unit charged now would, or earlier.
pub(super) fn with_lapsing_excess(state: CounterState, quota: &Quota, now: Timestamp) -> CounterState {
    match is_beyond(state, quota) {
        true => CounterState { word: state.word.min(lookback(quota).end_from(now)) | EXCESS_LAPSES, ..state },
        false => state,
    }
}

/// Marks units beyond the count as no debt, without changing their expiry.
pub(super) fn with_excess_until_expiry(state: CounterState, quota: &Quota) -> CounterState {
    CounterState {
        word: if is_beyond(state, quota) { state.word | EXCESS_LAPSES } else { state.word },
        ..state
    }
}

pub(super) fn usage(state: Option<CounterState>, quota: &Quota, now: Timestamp) -> CounterUsage {
    let lump = state_at(state, quota, now);
    let remaining = quota.count().saturating_sub(lump.extra.into());
    CounterUsage {
        used: lump.extra,
        remaining: u32::try_from(remaining).unwrap_or(u32::MAX),
        reset: left(lump, now),
    }
}

pub(super) fn is_unused(state: CounterState, now: Timestamp) -> bool {
    state.extra == 0 || state.word <= now.as_nanos()
}

/// The aggregate at `now`; of a debt, only the rounds that are still to be paid.
pub(super) fn state_at(state: Option<CounterState>, quota: &Quota, now: Timestamp) -> CounterState {
    let Some(lump) = state.filter(|lump| lump.extra > 0 && lump.word > now.as_nanos()) else {
        return CounterState { word: 0, extra: 0 };
    };
    if !is_beyond(lump, quota) || lump.word & EXCESS_LAPSES != 0 {
        return lump;
    }
    let rounds = (lump.word - now.as_nanos()).div_ceil(lookback(quota).full.max(1));
    let due = u32::try_from(rounds.saturating_mul(quota.count())).unwrap_or(u32::MAX);
    CounterState { extra: lump.extra.min(due), ..lump }
}

fn is_beyond(lump: CounterState, quota: &Quota) -> bool {
    u64::from(lump.extra) > quota.count()
}

fn left(lump: CounterState, now: Timestamp) -> Duration {
    Duration::from_nanos(if lump.extra > 0 { lump.word.saturating_sub(now.as_nanos()) } else { 0 })
}
