//! Sliding log: never more than the count in any span as long as the period, wherever it begins.
//!
//! The one algorithm that is exact about that, for it remembers when every unit was charged. So its memory grows
//! with the count, which is bounded; it is for low limits over long periods. Requests of one nanosecond share
//! an entry.

use super::lookback::LookbackWindow;
use crate::limiter::quota::Quota;

/// Every nanosecond is told apart, and what was charged a period ago counts no more.
pub(super) fn lookback(quota: &Quota) -> LookbackWindow {
    LookbackWindow { tick: 1, full: quota.period().saturating_sub(1) }
}
