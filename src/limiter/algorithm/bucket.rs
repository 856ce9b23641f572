//! What both token buckets remember: how many tokens are missing, and since when the next are due.

use super::State;
use crate::limiter::timestamp::Timestamp;

#[derive(Clone, Copy)]
pub(super) struct Bucket {
    /// Nanoseconds at which the last tokens came.
    pub(super) since: u64,
    pub(super) missing: u32,
}

impl Bucket {
    pub(super) const fn full(now: Timestamp) -> Self {
        Self { since: now.as_nanos(), missing: 0 }
    }

    /// With so many tokens less, if that many are there of `burst`.
    pub(super) fn take(self, tokens: u32, burst: u32) -> Option<Self> {
        let missing = self.missing.checked_add(tokens).filter(|missing| *missing <= burst)?;
        Some(Self { missing, ..self })
    }

    /// With so many tokens less, whether they are there or not; with more where `amount` is negative.
    pub(super) fn charge(self, amount: i64) -> Self {
        let missing = i64::from(self.missing).saturating_add(amount).clamp(0, i64::from(u32::MAX));
        Self { missing: u32::try_from(missing).unwrap_or(u32::MAX), ..self }
    }
}

impl From<Bucket> for State {
    fn from(bucket: Bucket) -> Self {
        Self { word: bucket.since, extra: bucket.missing }
    }
}
