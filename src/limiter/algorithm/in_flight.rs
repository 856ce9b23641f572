//! So many at once: what has been taken and not yet been given back, however long that is.
//!
//! Time plays no part. Whoever takes a unit must give it back, or the counter says for ever that it is in use.

use std::time::Duration;

use super::{Outcome, State, Usage};
use crate::limiter::quota::Quota;

/// Nobody knows when a unit comes back; the least that clients are told to wait.
const RETRY: Duration = Duration::from_secs(1);

pub(super) fn evaluate(state: Option<State>, quota: &Quota, cost: u32) -> (State, Outcome) {
    let taken = taken(state);
    let most = quota.burst().get();
    match taken.checked_add(cost).filter(|taken| *taken <= most) {
        Some(taken) => (pack(taken), Outcome::Conform),
        None => (pack(taken), Outcome::Exceed { retry_after: (cost <= most).then_some(RETRY) }),
    }
}

pub(super) fn charge(state: Option<State>, amount: i64) -> State {
    let taken = i64::from(taken(state)).saturating_add(amount).clamp(0, i64::from(u32::MAX));
    pack(u32::try_from(taken).unwrap_or(u32::MAX))
}

pub(super) fn usage(state: Option<State>, quota: &Quota) -> Usage {
    let used = taken(state);
    Usage { used, remaining: quota.burst().get().saturating_sub(used), reset: Duration::ZERO }
}

pub(super) fn is_unused(state: State) -> bool {
    state.extra == 0
}

fn taken(state: Option<State>) -> u32 {
    state.map_or(0, |state| state.extra)
}

fn pack(taken: u32) -> State {
    State { word: 0, extra: taken }
}
