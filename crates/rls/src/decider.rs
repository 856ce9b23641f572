//! Decides requests of the rate limit service, and computes the values for statistics.
//!
//! First all descriptors are looked up, then all counters are checked and incremented atomically, and the response is
//! built from their values. So two requests cannot both take the last hit. If native rules have the domain, their
//! checks are part of the same atomic decision.

mod counter;
mod preview;
mod resolved_request;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::FixedState;
use smallvec::SmallVec;

pub use self::counter::{DocumentCounter, UnknownLimit};
pub use self::preview::{DocumentPreview, PreviewedLimit};
use self::resolved_request::{
    CountedDescriptor, DescriptorLimit, DescriptorLimits, EMPTY_COUNT_RESULT, LeasedRlsRequest,
    ResolvedRequest, counted_descriptors,
};
use super::descriptor_match::{self, MatchedLimit};
use super::native::NativeChecks;
use super::request::RlsRequest;
use super::response::{self, Code, RlsDescriptorStatus, RlsError, RlsResponse};
use super::rules::{DescriptorLevel, DescriptorRules, UnitRate};
use super::settings::{Counting, RlsSettings, Smoothing};
use super::shared_limits::{CounterPositions, LeaseNeed, SharedDocumentLimits};
use super::stats::RlsRequestStats;
use super::unit_limits::UnitLimits;
use weir_limiter::Limiter;
use weir_limiter::decision::Verdict;
use weir_limiter::leases::acquisition::{self, LeaseDecision};
use weir_limiter::timestamp::Timestamp;
use weir_limiter::unconditional_count::{self, CountOperation, CountResult};
use weir_policy::engine::Policy;

/// The rules, settings and limit handles that decide; created anew for each generation.
#[derive(Clone, Debug)]
pub struct RlsDecider {
    /// Rules of documents; `None` before any have been loaded.
    pub rules: Option<Arc<DescriptorRules>>,
    /// Settings of the service.
    pub settings: Arc<RlsSettings>,
    /// Limit handles for this instance's counters.
    pub unit_limits: UnitLimits,
    /// How instances share the limits of documents; `None` to count per instance.
    pub shared_limits: Option<Arc<SharedDocumentLimits>>,
    /// The rules of the configuration, some of which may be for domains of the rate limit service.
    pub native_policy: Option<Arc<Policy>>,
}

/// Parameters of one attempt to decide a request.
#[derive(Clone, Copy, Debug)]
pub struct DecisionAttempt {
    /// Time of the limits.
    pub now: Timestamp,
    /// Wall-clock time.
    pub civil: Timestamp,
    /// Whether this is the first attempt, which is the only one that applies refunds.
    pub is_first: bool,
}

impl RlsDecider {
    /// Decides and counts one request.
    ///
    /// # Errors
    /// [`RlsError`] if there is no response; nothing is counted then.
    pub fn decide(
        &self,
        request: &RlsRequest,
        limiter: &Limiter,
        now: Timestamp,
    ) -> Result<RlsResponse, RlsError> {
        self.decide_at(request, limiter, now, now)
    }

    /// Decides like [`Self::decide`], with the wall-clock time `civil`. Shared limits are decided by the units that
    /// this instance has already been granted.
    ///
    /// # Errors
    /// As [`Self::decide`].
    pub fn decide_at(
        &self,
        request: &RlsRequest,
        limiter: &Limiter,
        now: Timestamp,
        civil: Timestamp,
    ) -> Result<RlsResponse, RlsError> {
        let attempt = DecisionAttempt { now, civil, is_first: true };
        let no_units = |_: LeaseNeed<'_>| LeaseDecision::Rejected(Duration::ZERO);
        let response = self.decide_with_leases(request, limiter, attempt, no_units)?;
        Ok(response.unwrap_or_default())
    }

    /// Decides like [`Self::decide_at`]. `request_units` gets units for counters that are out of units.
    /// `None` if it queries the store and must wait: then nothing is counted, and the request must be decided
    /// again.
    ///
    /// # Errors
    /// As [`Self::decide`].
    pub fn decide_with_leases(
        &self,
        request: &RlsRequest,
        limiter: &Limiter,
        DecisionAttempt { now, civil, is_first }: DecisionAttempt,
        request_units: impl FnMut(LeaseNeed<'_>) -> LeaseDecision,
    ) -> Result<Option<RlsResponse>, RlsError> {
        if request.domain.is_empty() {
            return Err(RlsError::NoDomain);
        }
        if request.descriptors.is_empty() {
            return Err(RlsError::NoDescriptors);
        }
        request.check_size()?;
        let native = self.native_policy.as_deref();
        let native = native
            .and_then(|policy| NativeChecks::for_request(policy, request, self.settings.shadow_mode, civil));
        let domain = match (&self.rules, &native) {
            (Some(rules), _) => rules.domain(&request.domain),
            (None, Some(_)) => None,
            (None, None) => return Err(RlsError::NoRules),
        };
        if domain.is_none() && native.is_none() {
            return Ok(Some(self.unknown_domain_response(request)));
        }
        let (limits, count_operations) = self.resolve_descriptors(domain, request, limiter)?;
        if let Some(native) = native.as_ref().filter(|_| is_first) {
            native.refund_hits(request, limiter, now);
        }
        let resolved = ResolvedRequest {
            decider: self,
            request,
            limits,
            count_operations,
            native_checks: native,
            rejected: CounterPositions::new(),
        };
        let mut leased = LeasedRlsRequest { resolved, limiter, now, request_units, response: None };
        let must_wait = acquisition::acquire_units(&mut leased);
        Ok(if must_wait { None } else { leased.response() })
    }

    /// Returns the response for an unknown domain, which has no limits.
    fn unknown_domain_response(&self, request: &RlsRequest) -> RlsResponse {
        let statuses = vec![RlsDescriptorStatus::default(); request.descriptors.len()];
        let stats = RlsRequestStats {
            domain_not_found: request.descriptors.len() as u64,
            ..RlsRequestStats::default()
        };
        RlsResponse {
            statuses,
            stats,
            metadata: self.dynamic_metadata(request, &[], &[]),
            ..RlsResponse::default()
        }
    }

    /// Looks up all descriptors, and returns the counters of those with a limit, in order.
    fn resolve_descriptors<'r>(
        &self,
        domain: Option<&'r DescriptorLevel>,
        request: &RlsRequest,
        limiter: &Limiter,
    ) -> Result<(DescriptorLimits<'r>, SmallVec<[CountOperation; 4]>), RlsError> {
        let mut matched: SmallVec<[MatchedLimit<'r>; 4]> = SmallVec::new();
        for (index, descriptor) in request.descriptors.iter().enumerate() {
            matched.push(match descriptor.limit {
                None => domain.map_or(MatchedLimit::NoLimit, |level| {
                    descriptor_match::find_limit(level, &descriptor.entries)
                }),
                Some(limit) => {
                    let unit = limit.unit.ok_or(RlsError::NoUnit(index))?;
                    MatchedLimit::Override(UnitRate { requests_per_unit: limit.requests_per_unit, unit })
                }
            });
        }
        let replaced_names = replaced_names(&matched);
        let smoothing = self.settings.smoothing_of(&request.domain);
        let mut count_operations = SmallVec::new();
        let limits = matched.iter().zip(&request.descriptors).map(|(met, descriptor)| {
            let hits = request.hits(descriptor);
            let (path, rule, rate, stat_key): (&[_], _, _, _) = match met {
                MatchedLimit::NoLimit => return DescriptorLimit::NoLimit,
                MatchedLimit::Rule { rule, path } => {
                    let Some(rate) = rule.rate else { return DescriptorLimit::Unlimited };
                    if replaced_names.contains(&*rule.name) {
                        return DescriptorLimit::NoLimit;
                    }
                    let stat_key =
                        descriptor_match::stat_key(&request.domain, &descriptor.entries, rule, path);
                    (path, Some(*rule), rate, stat_key)
                }
                MatchedLimit::Override(rate) => {
                    let stat_key = descriptor_match::override_stat_key(&request.domain, descriptor);
                    (&[], None, *rate, stat_key)
                }
            };
            let unit = rate.unit;
            let (unit_limits, hasher, suffix): (_, _, &[u8]) = match &self.shared_limits {
                Some(shared_limits) => {
                    (shared_limits.unit_limits, shared_limits.hasher(), &[unit as u8, smoothing as u8])
                }
                None => (self.unit_limits, limiter.hasher(), &[]),
            };
            let (entries, effective_limit) = (&descriptor.entries, rate.requests_per_unit);
            let key = descriptor_match::counter_key(&request.domain, entries, path, hasher, suffix);
            let (handle, amount) = (unit_limits.handle_for(unit, smoothing), hits.signed_amount());
            count_operations.push(CountOperation { handle, key, amount, limit: effective_limit });
            let hits = hits.counted_hits();
            DescriptorLimit::Counted(CountedDescriptor { rule, rate, stat_key, hits, effective_limit, key })
        });
        let limits = limits.collect();
        Ok((limits, count_operations))
    }

    /// Returns which descriptors count, given whether native rules have `rejected` the request.
    fn count_selection(
        &self,
        request: &RlsRequest,
        limits: &[DescriptorLimit<'_>],
        results: &[CountResult],
        rejected: bool,
    ) -> unconditional_count::CountSelection {
        let is_any_over = results.iter().any(|read| read.is_over);
        let is_smooth = self.settings.smoothing_of(&request.domain) == Smoothing::Gcra;
        match self.settings.counting_of(&request.domain) {
            // With GCRA, counting exceeded limits would reject a client for as long as it continues to send requests.
            Counting::Everything | Counting::OnlyOver if is_smooth => {
                unconditional_count::CountSelection::Within
            }
            Counting::Everything => unconditional_count::CountSelection::All,
            Counting::OnlyOver if is_any_over => unconditional_count::CountSelection::Over,
            Counting::OnlyOver => unconditional_count::CountSelection::All,
            Counting::AllOrNothing if rejected || self.is_rejected(limits, results) => {
                unconditional_count::CountSelection::Nothing
            }
            // Exceeded limits that do not reject the request are not charged either, as everywhere in Weir.
            Counting::AllOrNothing => unconditional_count::CountSelection::Within,
        }
    }

    /// Returns whether the limits together reject: one that is not a quota, or all quotas.
    fn is_rejected(&self, limits: &[DescriptorLimit<'_>], results: &[CountResult]) -> bool {
        let (mut quotas, mut quotas_over) = (0_usize, 0_usize);
        for (counted, result) in counted_descriptors(limits).zip(results) {
            let is_over = result.is_over && !counted.is_shadow();
            if counted.is_quota(&self.settings) {
                quotas += 1;
                quotas_over += usize::from(is_over);
            } else if is_over {
                return true;
            }
        }
        quotas > 0 && quotas == quotas_over
    }

    /// Builds the response to a request, given whether it is `rejected`.
    fn build_response(
        &self,
        request: &RlsRequest,
        limits: &[DescriptorLimit<'_>],
        results: &[CountResult],
        rejected: bool,
        native: Option<(&NativeChecks<'_>, &[Verdict])>,
        now: Timestamp,
    ) -> RlsResponse {
        let shadow = self.settings.shadow_mode;
        let mut stats =
            RlsRequestStats { global_shadow_mode: rejected && shadow, ..RlsRequestStats::default() };
        let overall = if rejected && !shadow { Code::OverLimit } else { Code::Ok };
        let mut results_iter = results.iter();
        let mut statuses: Vec<RlsDescriptorStatus> = limits
            .iter()
            .enumerate()
            .map(|(index, limit)| match limit {
                DescriptorLimit::NoLimit => RlsDescriptorStatus::default(),
                DescriptorLimit::Unlimited => {
                    RlsDescriptorStatus { limit_remaining: u32::MAX, ..RlsDescriptorStatus::default() }
                }
                DescriptorLimit::Counted(counted) => {
                    let result = results_iter.next().copied().unwrap_or(EMPTY_COUNT_RESULT);
                    stats.descriptors.push(counted.stats(result, self.settings.near_limit_ratio));
                    stats.key_decisions.extend(counted.key_decision(index, result, rejected, shadow));
                    counted.status(result, now)
                }
            })
            .collect();
        let is_quota = |index: usize| matches!(&limits[index], DescriptorLimit::Counted(counted) if counted.is_quota(&self.settings));
        let mut rejects: SmallVec<[bool; 4]> = statuses
            .iter()
            .enumerate()
            .map(|(index, status)| status.is_over_limit() && !is_quota(index))
            .collect();
        let metadata = self.dynamic_metadata(request, limits, &statuses);
        if let Some((native, verdicts)) = native {
            stats.rule_decisions = native.rule_decisions(request, verdicts, rejected && !shadow);
            for (index, status) in native.statuses(request, verdicts, now).enumerate() {
                rejects[index] |= status.is_over_limit();
                statuses[index].keep_stricter(status);
            }
        }
        let has_no_limit = |(limit, status): &(&DescriptorLimit<'_>, &RlsDescriptorStatus)| {
            matches!(limit, DescriptorLimit::NoLimit)
                && status.current_limit.is_none()
                && !status.is_over_limit()
        };
        stats.without_limit = limits.iter().zip(&statuses).filter(has_no_limit).count() as u64;
        let names = self.settings.header_names.as_ref();
        let headers =
            names.map(|names| response::rate_limit_headers(names, &statuses, |index| rejects[index]));
        RlsResponse { overall_code: overall, statuses, headers: headers.unwrap_or_default(), metadata, stats }
    }

    fn dynamic_metadata(
        &self,
        request: &RlsRequest,
        limits: &[DescriptorLimit<'_>],
        statuses: &[RlsDescriptorStatus],
    ) -> Option<serde_json::Map<String, serde_json::Value>> {
        let passed = limits.iter().zip(statuses).filter(|(_, status)| status.code == Code::Ok);
        let limit_metadata = passed.filter_map(|(limit, _)| match limit {
            DescriptorLimit::Counted(counted) => counted.rule?.metadata.as_ref(),
            DescriptorLimit::Unlimited | DescriptorLimit::NoLimit => None,
        });
        self.settings.dynamic_metadata.then(|| response::dynamic_metadata(request, limit_metadata))
    }
}

/// Returns the names that the rules found replace, even a rule that is replaced itself. Clients cannot choose these
/// names.
fn replaced_names<'r>(matched: &[MatchedLimit<'r>]) -> HashSet<&'r str, FixedState> {
    let rules = matched.iter().filter_map(|met| match met {
        MatchedLimit::Rule { rule, .. } => Some(*rule),
        MatchedLimit::NoLimit | MatchedLimit::Override(_) => None,
    });
    rules.flat_map(|rule| rule.replaces.iter().map(|name| &**name)).collect()
}
