//! A request whose descriptors and limits have been looked up, and the decision about it.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::RlsDecider;
use crate::native::{self, NativeChecks};
use crate::request::RlsRequest;
use crate::response::{Code, CurrentLimit, RlsDescriptorStatus, RlsResponse};
use crate::rules::{DescriptorRule, UnitRate};
use crate::settings::RlsSettings;
use crate::shared_limits::{self, CounterPosition, CounterPositions, LeaseNeed};
use crate::stats::{DescriptorStats, KeyDecision, LimitCrossing, near_threshold};
use weir_limiter::decision::Verdict;
use weir_limiter::key::KeyHash;
use weir_limiter::leases::acquisition::{LeaseDecision, LeasedRequest};
use weir_limiter::timestamp::Timestamp;
use weir_limiter::unconditional_count::{self, CountOperation, CountResult};
use weir_limiter::{JointOutcome, Limiter};
use weir_policy::rules::outcome::DecisionOutcome;

/// A request with everything that was looked up for it.
pub(super) struct ResolvedRequest<'r> {
    pub(super) decider: &'r RlsDecider,
    pub(super) request: &'r RlsRequest,
    pub(super) limits: DescriptorLimits<'r>,
    pub(super) count_operations: SmallVec<[CountOperation; 4]>,
    pub(super) native_checks: Option<NativeChecks<'r>>,
    /// Counters that get no units.
    pub(super) rejected: CounterPositions,
}

/// Result of the lookup for one descriptor.
#[derive(Debug)]
pub(super) enum DescriptorLimit<'r> {
    Unlimited,
    NoLimit,
    Counted(CountedDescriptor<'r>),
}

/// Results for all descriptors; most requests have one.
pub(super) type DescriptorLimits<'r> = SmallVec<[DescriptorLimit<'r>; 1]>;

/// A descriptor with a limit.
#[derive(Debug)]
pub(super) struct CountedDescriptor<'r> {
    /// The rule; `None` for a limit that came with the request.
    pub(super) rule: Option<&'r DescriptorRule>,
    pub(super) rate: UnitRate,
    pub(super) stat_key: Arc<str>,
    pub(super) hits: u64,
    /// The limit that applies here, which is less if it is divided while the store is unreachable.
    pub(super) effective_limit: u32,
    /// Key of its counter.
    pub(super) key: KeyHash,
}

impl CountedDescriptor<'_> {
    pub(super) fn is_shadow(&self) -> bool {
        self.rule.is_some_and(|rule| rule.shadow_mode)
    }

    pub(super) fn is_quota(&self, settings: &RlsSettings) -> bool {
        settings.quota_mode || self.rule.is_some_and(|rule| rule.quota_mode)
    }
}

impl ResolvedRequest<'_> {
    /// Decides and counts. If counters are out of units and may get some, does neither and returns them.
    pub(super) fn try_decide(
        &self,
        limiter: &Limiter,
        now: Timestamp,
        may_request_units: bool,
    ) -> Result<RlsResponse, CounterPositions> {
        let Self { decider, request, limits, count_operations, .. } = self;
        let (mut missing, mut rejected) = (CounterPositions::new(), false);
        let mut evaluate = |verdicts: &[Verdict], results: &[CountResult]| {
            if may_request_units {
                missing = shared_limits::counters_without_units(verdicts, results, &self.rejected);
            }
            if !missing.is_empty() {
                return JointOutcome {
                    passes: false,
                    count_selection: unconditional_count::CountSelection::Nothing,
                };
            }
            let native = self.native_checks.as_ref();
            let by_native = native.is_some_and(|it| it.is_denied() || it.is_over_limit(request, verdicts));
            rejected = by_native || decider.is_rejected(limits, results);
            JointOutcome {
                passes: !rejected || decider.settings.shadow_mode,
                count_selection: decider.count_selection(request, limits, results, by_native),
            }
        };
        let Some(native) = &self.native_checks else {
            let results = limiter.count_unconditionally(
                count_operations,
                |read| evaluate(&[], read).count_selection,
                now,
            );
            if !missing.is_empty() {
                return Err(missing);
            }
            let rejected = decider.is_rejected(limits, &results);
            return Ok(decider.build_response(request, limits, &results, rejected, None, now));
        };
        let (decision, results) = limiter.check_and_count(&native.checks, count_operations, evaluate, now);
        if !missing.is_empty() {
            return Err(missing);
        }
        Ok(decider.build_response(
            request,
            limits,
            &results,
            rejected,
            Some((native, decision.verdicts())),
            now,
        ))
    }

    /// Returns what a counter needs; `None` if it cannot need units.
    fn lease_need(&self, position: CounterPosition) -> Option<LeaseNeed<'_>> {
        match position {
            CounterPosition::Count(at) => {
                let shared_limits = self.decider.shared_limits.as_ref()?;
                Some(LeaseNeed::Count(&self.count_operations[at], shared_limits.settings.wait))
            }
            CounterPosition::Check(at) => {
                let native = self.native_checks.as_ref()?;
                Some(LeaseNeed::Check(&native.checks[at], native.rule(at), native.max_wait(at)))
            }
        }
    }

    /// Replaces a limit by the one for an unreachable store; returns false if it rejects everything.
    fn use_store_loss_fallback(&mut self, position: CounterPosition) -> bool {
        match position {
            CounterPosition::Count(at) => self.use_document_fallback(at),
            CounterPosition::Check(at) => {
                self.native_checks.as_mut().is_some_and(|native| native.use_store_loss_fallback(at))
            }
        }
    }

    fn use_document_fallback(&mut self, position: usize) -> bool {
        let Some(shared_limits) = &self.decider.shared_limits else { return false };
        let smoothing = self.decider.settings.smoothing_of(&self.request.domain);
        let mut counted = self.limits.iter_mut().filter_map(|limit| match limit {
            DescriptorLimit::Counted(counted) => Some(counted),
            DescriptorLimit::Unlimited | DescriptorLimit::NoLimit => None,
        });
        let Some(counted) = counted.nth(position) else { return false };
        let unit = counted.rate.unit;
        let fallback = shared_limits.store_loss_fallback(
            &self.count_operations[position],
            self.decider.unit_limits,
            unit,
            smoothing,
        );
        let Some(fallback) = fallback else { return false };
        counted.effective_limit = counted.effective_limit.min(fallback.limit);
        self.count_operations[position] = fallback;
        true
    }
}

/// A request that gets units with `request_units`.
pub(super) struct LeasedRlsRequest<'r, F> {
    pub(super) resolved: ResolvedRequest<'r>,
    pub(super) limiter: &'r Limiter,
    pub(super) now: Timestamp,
    pub(super) request_units: F,
    /// `None` until it is decided.
    pub(super) response: Option<RlsResponse>,
}

impl<F> LeasedRlsRequest<'_, F> {
    /// Returns the response. Counters that are still out of units, because other requests have taken them, are over
    /// their limits.
    pub(super) fn response(self) -> Option<RlsResponse> {
        let Self { resolved, limiter, now, response, .. } = self;
        response.or_else(|| resolved.try_decide(limiter, now, false).ok())
    }
}

impl<F: FnMut(LeaseNeed<'_>) -> LeaseDecision> LeasedRequest for LeasedRlsRequest<'_, F> {
    type Counter = CounterPosition;

    fn counters_without_units(&mut self) -> CounterPositions {
        match self.resolved.try_decide(self.limiter, self.now, true) {
            Ok(response) => {
                self.response = Some(response);
                CounterPositions::new()
            }
            Err(missing) => missing,
        }
    }

    fn acquire(&mut self, position: CounterPosition) -> LeaseDecision {
        self.resolved.lease_need(position).map_or(LeaseDecision::Available, &mut self.request_units)
    }

    fn use_store_loss_fallback(&mut self, position: CounterPosition) {
        if !self.resolved.use_store_loss_fallback(position) {
            self.resolved.rejected.push(position);
        }
    }

    /// Limits of documents count rejected requests, too, so the other counters still need units.
    fn reject(&mut self, rejected: &[(CounterPosition, Duration)]) -> bool {
        self.resolved.rejected.extend(rejected.iter().map(|(position, _)| *position));
        false
    }
}

/// Reading of a limit that has just been removed, which limits nothing.
pub(super) const EMPTY_COUNT_RESULT: CountResult =
    CountResult { before: 0, after: 0, is_over: false, reset: None, needs_lease: false };

impl CountedDescriptor<'_> {
    pub(super) fn status(&self, result: CountResult, now: Timestamp) -> RlsDescriptorStatus {
        let UnitRate { requests_per_unit, unit } = self.rate;
        let name = self.rule.map_or_else(|| Arc::from(""), |rule| Arc::clone(&rule.name));
        let left = u64::from(self.effective_limit).saturating_sub(result.after);
        let is_rejected = result.is_over && !self.is_shadow();
        RlsDescriptorStatus {
            code: if is_rejected { Code::OverLimit } else { Code::Ok },
            current_limit: Some(CurrentLimit { requests_per_unit, unit: Some(unit), name }),
            limit_remaining: u32::try_from(left).unwrap_or(u32::MAX),
            duration_until_reset: Some(
                result.reset.map_or_else(|| unit.time_until_reset(now), native::ceil_seconds),
            ),
        }
    }

    /// Returns the decision on the key of the descriptor at this position, given whether the request is rejected. As with
    /// rules, a limit with room has no decision about a request that another limit rejects. Nor has one without hits: a
    /// refund, or a call that only asks.
    pub(super) fn key_decision(
        &self,
        descriptor: usize,
        result: CountResult,
        is_rejected: bool,
        is_shadow: bool,
    ) -> Option<KeyDecision> {
        let outcome = match result.is_over {
            true if is_shadow || self.is_shadow() => DecisionOutcome::Shadow,
            true if is_rejected => DecisionOutcome::Limited,
            false if is_rejected && !is_shadow => return None,
            // Also a quota that is exceeded while another has room.
            true | false => DecisionOutcome::Allowed,
        };
        let limit = self.rule.filter(|_| self.hits > 0)?.position;
        Some(KeyDecision { limit, descriptor, key: self.key, outcome })
    }

    pub(super) fn stats(&self, result: CountResult, near_limit_ratio: f32) -> DescriptorStats {
        let limit = self.rate.requests_per_unit;
        let near = near_threshold(limit, near_limit_ratio);
        let CountResult { before, after, is_over, .. } = result;
        let crossing = LimitCrossing { before, after, hits: self.hits, limit, near_threshold: near };
        DescriptorStats {
            key: Arc::clone(&self.stat_key),
            has_values: !self.rule.is_some_and(|rule| Arc::ptr_eq(&rule.stat_key, &self.stat_key)),
            total_hits: self.hits,
            over_limit: if is_over { crossing.over_limit_hits() } else { 0 },
            near_limit: crossing.near_limit_hits(),
            within_limit: if is_over { 0 } else { self.hits },
            shadow_mode: if is_over && self.is_shadow() { crossing.over_limit_hits() } else { 0 },
        }
    }
}

pub(super) fn counted_descriptors<'a, 'r>(
    limits: &'a [DescriptorLimit<'r>],
) -> impl Iterator<Item = &'a CountedDescriptor<'r>> {
    limits.iter().filter_map(|limit| match limit {
        DescriptorLimit::Counted(counted) => Some(counted),
        DescriptorLimit::Unlimited | DescriptorLimit::NoLimit => None,
    })
}
