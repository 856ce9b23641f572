//! Adaptive concurrency limits: `in_flight: auto`.
//!
//! The maximum number of requests in flight follows the latency of the upstream, between two bounds. Permits are counted
//! as those of any concurrency limit; the limit in force is an argument of the check. [`controller`] computes it, and
//! [`limits`] holds the state of each key.

pub mod controller;
pub mod limits;

use std::fmt;
use std::num::NonZeroU32;

/// Default of the minimum: the concurrency at which latency can be measured without a queue in most services.
pub const DEFAULT_MIN: NonZeroU32 = NonZeroU32::MIN.saturating_add(3);
/// Default of the maximum.
pub const DEFAULT_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(999);

/// Bounds of an adaptive concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveRange {
    min: NonZeroU32,
    max: NonZeroU32,
}

impl AdaptiveRange {
    /// Creates the range; `None` unless `min` is at most `max`.
    pub fn new(min: NonZeroU32, max: NonZeroU32) -> Option<Self> {
        (min <= max).then_some(Self { min, max })
    }

    /// Returns the minimum of the limit.
    pub const fn min(self) -> NonZeroU32 {
        self.min
    }

    /// Returns the maximum of the limit.
    pub const fn max(self) -> NonZeroU32 {
        self.max
    }
}

impl Default for AdaptiveRange {
    fn default() -> Self {
        Self { min: DEFAULT_MIN, max: DEFAULT_MAX }
    }
}

impl fmt::Display for AdaptiveRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "auto, {} to {}", self.min, self.max)
    }
}
