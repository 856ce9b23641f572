//! Stored responses that may replace the rejection of a request.

use std::sync::Arc;

use super::{Fallbacks, IncomingRequest};
use weir_limiter::timestamp::Timestamp;
use weir_limits::PendingLimits;
use weir_policy::response::fallback::CachedResponse;
use weir_policy::rules::RuleIndex;

/// Stored responses for requests that a rate limit service rejects.
#[derive(Debug, Default)]
pub(in crate::proxy) struct CachedFallbacks(Vec<(RuleIndex, Arc<CachedResponse>)>);

impl CachedFallbacks {
    /// Looks up the stored responses for rules whose limits a rate limit service counts. Must be called before the
    /// request is rewritten for the upstream.
    pub(in crate::proxy) fn look_up(
        fallbacks: &Fallbacks,
        pending: &PendingLimits,
        request: IncomingRequest<'_, '_>,
        now: Timestamp,
    ) -> Self {
        let cached = |rule| Some((rule, fallbacks.look_up(rule, request, now)?));
        Self(pending.pending_rules().filter_map(cached).collect())
    }

    /// Returns the stored response that replaces a rejection by `rule`.
    pub(in crate::proxy) fn take_for_rule(self, rule: RuleIndex) -> Option<Arc<CachedResponse>> {
        self.0.into_iter().find(|(of, _)| *of == rule).map(|(_, cached)| cached)
    }
}
