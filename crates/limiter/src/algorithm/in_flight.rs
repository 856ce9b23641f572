//! Concurrency limit: units that were taken and not yet returned, regardless of time.
//!
//! Every unit that is taken must be returned; otherwise it counts as in use for ever.

use std::time::Duration;

use super::{CounterState, CounterUsage, Outcome};
use crate::quota::Quota;

/// Retry-after of a rejection. It is not known when a unit is returned, so this is a minimum wait.
const RETRY: Duration = Duration::from_secs(1);

pub(super) fn evaluate(state: Option<CounterState>, quota: &Quota, cost: u32) -> (CounterState, Outcome) {
    let taken = taken(state);
    let max_units = quota.burst().get();
    match taken.checked_add(cost).filter(|taken| *taken <= max_units) {
        Some(taken) => (pack(taken), Outcome::Conform),
        None => (pack(taken), Outcome::Exceed { retry_after: (cost <= max_units).then_some(RETRY) }),
    }
}

pub(super) fn charge(state: Option<CounterState>, amount: i64) -> CounterState {
    let taken = i64::from(taken(state)).saturating_add(amount).clamp(0, i64::from(u32::MAX));
    pack(u32::try_from(taken).unwrap_or(u32::MAX))
}

pub(super) fn usage(state: Option<CounterState>, quota: &Quota) -> CounterUsage {
    let used = taken(state);
    CounterUsage { used, remaining: quota.burst().get().saturating_sub(used), reset: Duration::ZERO }
}

pub(super) fn is_unused(state: CounterState) -> bool {
    state.extra == 0
}

fn taken(state: Option<CounterState>) -> u32 {
    state.map_or(0, |state| state.extra)
}

fn pack(taken: u32) -> CounterState {
    CounterState { word: 0, extra: taken }
}
