//! The state of one counter, whatever the algorithm.

use std::num::NonZeroU32;
use std::time::Duration;

use super::history::History;
use crate::quota::Quota;
use crate::timestamp::Timestamp;

/// Twelve bytes of state that only the quota's algorithm can read. For most algorithms it is the whole state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterState {
    pub(crate) word: u64,
    pub(crate) extra: u32,
}

/// The state of one counter, as it is stored.
#[derive(Clone, Copy, Debug)]
pub enum Counter<'a> {
    /// Unused: the whole quota is left.
    Unused,
    /// Twelve bytes.
    Compact(CounterState),
    /// Charges with their times, for logs and precise windows.
    WithHistory(&'a History),
}

impl From<Option<CounterState>> for Counter<'_> {
    fn from(state: Option<CounterState>) -> Self {
        state.map_or(Self::Unused, Self::Compact)
    }
}

impl<'a> From<&'a History> for Counter<'a> {
    fn from(history: &'a History) -> Self {
        Self::WithHistory(history)
    }
}

impl Counter<'_> {
    /// Returns the counter in twelve bytes, as of `now`.
    pub fn compact_state(self, quota: &Quota, now: Timestamp) -> Option<CounterState> {
        match self {
            Self::Unused => None,
            Self::Compact(state) => Some(state),
            Self::WithHistory(history) => Some(history.compact_state(quota, now)),
        }
    }
}

/// Usage of a counter, for reporting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterUsage {
    /// Units in use, rounded up; may exceed the burst after a late charge or a lowered limit.
    pub used: u32,
    /// Units that would be admitted now, rounded down.
    pub remaining: u32,
    /// Time until the quota is whole again: full (gcra, buckets) or the window's end.
    pub reset: Duration,
}

impl CounterUsage {
    /// Adds `held` units that are only reserved.
    pub fn with_held(self, held: u32) -> Self {
        let (used, remaining) = (self.used.saturating_add(held), self.remaining.saturating_sub(held));
        Self { used, remaining, ..self }
    }

    /// Converts units to requests that cost `price` units each.
    #[inline]
    pub fn in_requests(self, price: NonZeroU32) -> Self {
        // Nearly always, and without two divisions.
        if price == NonZeroU32::MIN {
            return self;
        }
        Self { used: self.used.div_ceil(price.get()), remaining: self.remaining / price, ..self }
    }
}
