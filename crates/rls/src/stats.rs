//! Values that each decision adds to the reference's statistics.

use std::sync::Arc;

use smallvec::SmallVec;

use weir_limiter::key::KeyHash;
use weir_policy::rules::RuleIndex;
use weir_policy::rules::outcome::DecisionOutcome;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RlsRequestStats {
    /// Values for each descriptor with a limit, in order.
    pub descriptors: Vec<DescriptorStats>,
    /// `ratelimit.service.rate_limit.DOMAIN.domain_not_found`: descriptors of a domain that is not configured.
    pub domain_not_found: u64,
    /// Descriptors of a known domain to which no limit applies.
    pub without_limit: u64,
    /// `ratelimit.service.global_shadow_mode`: whether the response is OK only because of that mode.
    pub global_shadow_mode: bool,
    /// Decisions of native rules, one for each matching descriptor.
    pub rule_decisions: Vec<RuleDecision>,
    /// Decisions of the documents' limits on the keys of the descriptors.
    pub key_decisions: SmallVec<[KeyDecision; 2]>,
}

/// Decision of a native rule on one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleDecision {
    pub rule: RuleIndex,
    pub outcome: DecisionOutcome,
    /// Position of the descriptor in the request.
    pub descriptor: usize,
    /// Key of the counter; `None` if the rule decided without one.
    pub key: Option<KeyHash>,
    /// Whether the descriptor has hits. A refund, or a call that only reads the limit, is no decision on the key.
    pub has_hits: bool,
}

/// Decision of a document's limit on the key of one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyDecision {
    /// Position of the limit among all limits of all domains.
    pub limit: usize,
    /// Position of the descriptor in the request.
    pub descriptor: usize,
    /// Key of the counter.
    pub key: KeyHash,
    pub outcome: DecisionOutcome,
}

/// `ratelimit.service.rate_limit.KEY.*` of one descriptor. There is no local cache, so `over_limit_with_local_cache`
/// would always be 0 and is omitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescriptorStats {
    /// Domain and entries, e.g. `basic.key1_foo`, unescaped.
    pub key: Arc<str>,
    /// Whether `key` contains values of the request, so that clients determine the number of keys.
    pub has_values: bool,
    /// Requested hits.
    pub total_hits: u64,
    /// Hits above the limit.
    pub over_limit: u64,
    /// Hits above the near-limit threshold, up to the limit.
    pub near_limit: u64,
    /// Hits of a request within the limit.
    pub within_limit: u64,
    /// Hits over the limit that are admitted because the rule is in shadow mode.
    pub shadow_mode: u64,
}

/// Values of a counter before and after a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitCrossing {
    pub(super) before: u64,
    pub(super) after: u64,
    pub(super) hits: u64,
    pub(super) limit: u32,
    /// Threshold from which hits are near the limit.
    pub(super) near_threshold: u32,
}

impl LimitCrossing {
    /// Returns the hits above the limit; all, if the counter had reached it before.
    pub(super) fn over_limit_hits(self) -> u64 {
        let limit = u64::from(self.limit);
        if self.before >= limit { self.hits } else { self.after.saturating_sub(limit) }
    }

    pub(super) fn near_limit_hits(self) -> u64 {
        let (limit, near) = (u64::from(self.limit), u64::from(self.near_threshold));
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

/// Returns the threshold from which hits are near a limit. As in the reference, the product is rounded to single
/// precision before it is rounded down.
pub(super) fn near_threshold(limit: u32, ratio: f32) -> u32 {
    f64::from(limit as f32 * ratio).floor() as u32
}
