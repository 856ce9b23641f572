//! Sliding log: at most the count in any span of one period, wherever it begins.
//!
//! The only exact algorithm for this, because it stores the time of every charge. Its memory grows with the count,
//! which is bounded; it is meant for low limits over long periods. Requests in the same nanosecond share an entry.

use super::lookback::LookbackWindow;
use crate::quota::Quota;

/// Returns a lookback with a resolution of one nanosecond, in which units expire after exactly one period.
pub(super) fn lookback(quota: &Quota) -> LookbackWindow {
    LookbackWindow { tick: 1, full: quota.period_nanos().saturating_sub(1) }
}
