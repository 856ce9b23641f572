//! Unconditional counts: count units whether or not there is room, and return what each counter read.
//!
//! A check is charged only if the request passes. Services that count as Envoy's rate limit service does need the
//! opposite: requests over the limit count too, some counters of a request may count and others not, and the response
//! is made from the numbers. All counters of a request are read and written under the locks of all their shards, so the
//! numbers are of one moment and no count is lost. The caller supplies the limits; the limit handle determines only the
//! length of a window or, with `gcra`, the time over which a limit is spread.

mod leased;

use std::time::Duration;

pub(super) use self::leased::count as count_leased;
use super::LimitHandle;
use super::algorithm::{self, Algorithm, CounterState, Outcome};
use super::key::KeyHash;
use super::quota::Quota;
use super::timestamp::Timestamp;

/// One counter that one request counts on.
#[derive(Clone, Copy, Debug)]
pub struct CountOperation {
    /// Handle that determines the windows.
    pub handle: LimitHandle,
    /// Key of the counter.
    pub key: KeyHash,
    /// Units to count; negative ones are given back, at most down to an unused counter.
    pub amount: i64,
    /// Number of units above which the counter is over its limit.
    pub limit: u32,
}

/// Which counters of a request count, once all are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CountSelection {
    /// All.
    #[default]
    All,
    /// Only those that are over their limit with this request.
    Over,
    /// Only those that are not.
    Within,
    /// None.
    Nothing,
}

/// Result of one counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountResult {
    /// Units before the request.
    pub before: u64,
    /// Units with the request. A counter within its limit that does not count reads as before; one that is over reads
    /// as if it had counted.
    pub after: u64,
    /// Whether `after` is more than the limit.
    pub is_over: bool,
    /// For a spread limit: time until there is room for a request that is over, otherwise until all of it is available
    /// again. `None` for windows, whose end is the same for all keys.
    pub reset: Option<Duration>,
    /// Whether it is over only because this instance is out of leased units; the store may have more.
    pub needs_lease: bool,
}

impl CountSelection {
    pub(super) const fn covers(self, is_over: bool) -> bool {
        match self {
            Self::All => true,
            Self::Over => is_over,
            Self::Within => !is_over,
            Self::Nothing => false,
        }
    }
}

impl CountOperation {
    /// Units that are not given back.
    fn cost(&self) -> u32 {
        u32::try_from(self.amount.max(0)).unwrap_or(u32::MAX)
    }
}

/// Returns the next state of a counter and what it reads. For a shared limit, `outside_slot` are the units left in addition
/// to its lease, if known.
pub(super) fn evaluate(
    state: Option<CounterState>,
    quota: &Quota,
    outside_slot: Option<u32>,
    operation: &CountOperation,
    now: Timestamp,
) -> (CounterState, CountResult) {
    if quota.is_leased() {
        return leased::evaluate(state, quota, outside_slot, operation, now);
    }
    let state = normalised(state, quota);
    (algorithm::charge(state, quota, operation.amount, now), reading(state, quota, operation, now))
}

fn reading(
    state: Option<CounterState>,
    quota: &Quota,
    operation: &CountOperation,
    now: Timestamp,
) -> CountResult {
    let before = u64::from(algorithm::usage(state, quota, now).used);
    // Wider than the counter, so that even a full 32-bit counter can be over.
    let after = before.saturating_add_signed(operation.amount);
    let result = CountResult {
        before,
        after,
        is_over: after > u64::from(operation.limit),
        reset: None,
        needs_lease: false,
    };
    if quota.algorithm() == Algorithm::Gcra { spread(result, state, quota, operation, now) } else { result }
}

/// Corrects the result for a spread limit. Units expire gradually there, so the numbers alone do not show whether there
/// is room.
fn spread(
    result: CountResult,
    state: Option<CounterState>,
    quota: &Quota,
    operation: &CountOperation,
    now: Timestamp,
) -> CountResult {
    let cost = operation.cost();
    let (next, outcome) = algorithm::evaluate(state, quota, cost, now);
    let (is_over, reset) = match outcome {
        // A limit of zero admits nothing, except reads.
        _ if operation.limit == 0 => (cost > 0, quota.refill()),
        Outcome::Exceed { retry_after } if cost > 0 => (true, retry_after.unwrap_or_else(|| quota.refill())),
        Outcome::Exceed { .. } | Outcome::Conform => (false, algorithm::usage(Some(next), quota, now).reset),
    };
    // Rounding must not show usage for a rejected count, nor an excess for one within the limit.
    let limit = u64::from(operation.limit);
    let after = if is_over { result.after.max(limit.saturating_add(1)) } else { result.after.min(limit) };
    CountResult { after, is_over, reset: Some(reset), ..result }
}

/// Bounds the remainder of a state, which may come from another limit of the same counter, to the range of `quota`.
pub(super) fn normalised(state: Option<CounterState>, quota: &Quota) -> Option<CounterState> {
    let most = quota.limit().count.get() - 1;
    let fitted = |state: CounterState| CounterState { extra: state.extra.min(most), ..state };
    if quota.algorithm() == Algorithm::Gcra { state.map(fitted) } else { state }
}

#[cfg(test)]
mod tests;
