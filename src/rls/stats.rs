//! What each decision adds to the statistics of the reference.

use std::sync::Arc;

use crate::rules::RuleIndex;
use crate::rules::outcome::DecisionOutcome;

/// All that one request adds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// By descriptor that met a limit, in their order.
    pub descriptors: Vec<DescriptorStats>,
    /// `ratelimit.service.rate_limit.DOMAIN.domain_not_found`: descriptors of a domain that nobody configured.
    pub domain_not_found: u64,
    /// `ratelimit.service.global_shadow_mode`: whether the answer is OK only because of that mode.
    pub global_shadow_mode: bool,
    /// What native rules did, once for each descriptor that they met.
    pub rules: Vec<(RuleIndex, DecisionOutcome)>,
}

/// `ratelimit.service.rate_limit.KEY.*` of one descriptor. Without a local cache
/// `over_limit_with_local_cache` is always 0 and left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescriptorStats {
    /// Domain and entries, e.g. `basic.key1_foo`, as they are.
    pub key: Arc<str>,
    /// Whether there are values of the request in `key`, so that clients decide how many such names there are.
    pub has_values: bool,
    /// Hits asked for.
    pub total_hits: u64,
    /// Hits above the limit.
    pub over_limit: u64,
    /// Hits above the share of the limit that counts as near, and not above the limit.
    pub near_limit: u64,
    /// Hits of a request within the limit.
    pub within_limit: u64,
    /// Hits over the limit that passed since the rule is a shadow.
    pub shadow_mode: u64,
}

/// Where a counter stood, for the arithmetic below.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crossing {
    pub(super) before: u64,
    pub(super) after: u64,
    pub(super) hits: u64,
    pub(super) limit: u32,
    /// From here on hits are near the limit.
    pub(super) near: u32,
}

impl Crossing {
    /// Hits above the limit: all, where the counter stood there before.
    pub(super) fn over(self) -> u64 {
        let limit = u64::from(self.limit);
        if self.before >= limit { self.hits } else { self.after.saturating_sub(limit) }
    }

    /// Hits near the limit.
    pub(super) fn near(self) -> u64 {
        let (limit, near) = (u64::from(self.limit), u64::from(self.near));
        if self.after > limit {
            return if self.before >= limit { 0 } else { limit - self.before.max(near) };
        }
        match self.after > near {
            true if self.before >= near => self.hits,
            true => self.after - near,
            false => 0,
        }
    }
}

/// Where hits begin to be near a limit. In single precision, as the reference does it: the product is rounded
/// to single precision before it is rounded down.
pub(super) fn near_threshold(limit: u32, ratio: f32) -> u32 {
    f64::from(limit as f32 * ratio).floor() as u32
}
