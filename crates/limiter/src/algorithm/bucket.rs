//! State of both token buckets: the number of missing tokens, and the time of the last refill.

use super::CounterState;
use crate::timestamp::Timestamp;

#[derive(Clone, Copy)]
pub(super) struct BucketState {
    /// Time of the last refill, in nanoseconds since the epoch.
    pub(super) since: u64,
    pub(super) missing: u32,
}

impl BucketState {
    pub(super) const fn full(now: Timestamp) -> Self {
        Self { since: now.as_nanos(), missing: 0 }
    }

    /// Takes `tokens`; `None` if fewer are left of `burst`.
    pub(super) fn take_tokens(self, tokens: u32, burst: u32) -> Option<Self> {
        let missing = self.missing.checked_add(tokens).filter(|missing| *missing <= burst)?;
        Some(Self { missing, ..self })
    }

    /// Takes `amount` tokens even if fewer are left; a negative `amount` adds tokens, up to a full bucket.
    pub(super) fn charge(self, amount: i64) -> Self {
        let missing = i64::from(self.missing).saturating_add(amount).clamp(0, i64::from(u32::MAX));
        Self { missing: u32::try_from(missing).unwrap_or(u32::MAX), ..self }
    }
}

impl From<BucketState> for CounterState {
    fn from(bucket: BucketState) -> Self {
        Self { word: bucket.since, extra: bucket.missing }
    }
}
