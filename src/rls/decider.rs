//! Decides requests of the rate limit service, and computes the values for statistics.
//!
//! First all descriptors are looked up, then all counters are checked and incremented atomically, and the response is
//! built from their values. So two requests cannot both take the last hit. If native rules have the domain, their
//! checks are part of the same atomic decision.

use std::collections::HashSet;
use std::sync::Arc;

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use super::descriptor_match::{self, MatchedLimit};
use super::native::{self, NativeChecks};
use super::request::RlsRequest;
use super::response::{self, Code, CurrentLimit, RlsDescriptorStatus, RlsError, RlsResponse};
use super::rules::{DescriptorLevel, DescriptorRule, DescriptorRules, UnitRate};
use super::settings::{Counting, RlsSettings, Smoothing};
use super::shared_limits::{
    LeaseAvailability, LeaseNeed, MissingLeases, RejectedLeases, SharedDocumentLimits,
};
use super::stats::{DescriptorStats, LimitCrossing, RlsRequestStats, near_threshold};
use super::unit_limits::UnitLimits;
use crate::engine::Policy;
use crate::limiter::decision::Verdict;
use crate::limiter::timestamp::Timestamp;
use crate::limiter::unconditional_count::{self, CountOperation, CountResult};
use crate::limiter::{JointOutcome, Limiter};

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

/// Maximum attempts of a request to take units of a reserve before it is over; other requests may take them first.
const MAX_ATTEMPTS: usize = 4;

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

/// A request with everything that was looked up for it.
struct ResolvedRequest<'r> {
    decider: &'r RlsDecider,
    request: &'r RlsRequest,
    limits: DescriptorLimits<'r>,
    count_operations: SmallVec<[CountOperation; 4]>,
    native_checks: Option<NativeChecks<'r>>,
    rejected: RejectedLeases,
}

/// Result of the lookup for one descriptor.
#[derive(Debug)]
enum DescriptorLimit<'r> {
    Unlimited,
    NoLimit,
    Counted(CountedDescriptor<'r>),
}

/// Results for all descriptors; most requests have one.
type DescriptorLimits<'r> = SmallVec<[DescriptorLimit<'r>; 1]>;

/// A descriptor with a limit.
#[derive(Debug)]
struct CountedDescriptor<'r> {
    /// The rule; `None` for a limit that came with the request.
    rule: Option<&'r DescriptorRule>,
    rate: UnitRate,
    stat_key: Arc<str>,
    hits: u64,
    /// The limit that applies here, which is less if it is divided while the store is unreachable.
    effective_limit: u32,
}

impl CountedDescriptor<'_> {
    fn is_shadow(&self) -> bool {
        self.rule.is_some_and(|rule| rule.shadow_mode)
    }

    fn is_quota(&self, settings: &RlsSettings) -> bool {
        settings.quota_mode || self.rule.is_some_and(|rule| rule.quota_mode)
    }
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
        self.decide_at(request, limiter, (now, now))
    }

    /// Decides like [`Self::decide`], with the wall-clock time `civil`. Shared limits are decided by the units that
    /// this instance has already been granted.
    ///
    /// # Errors
    /// As [`Service::decide`].
    /// As [`Service::decide`].
    pub fn decide_at(
        &self,
        request: &RlsRequest,
        limiter: &Limiter,
        (now, civil): (Timestamp, Timestamp),
    ) -> Result<RlsResponse, RlsError> {
        let attempt = DecisionAttempt { now, civil, is_first: true };
        let response = self.decide_with_leases(request, limiter, attempt, |_| LeaseAvailability::Rejected)?;
        Ok(response.unwrap_or_default())
    }

    /// Decides like [`Self::decide_at`]. `supply` gets units for counters that are out of units. `None` if it queries
    /// the store and must wait: then nothing is counted, and the request must be decided again.
    ///
    /// # Errors
    /// As [`Service::decide`].
    pub fn decide_with_leases(
        &self,
        request: &RlsRequest,
        limiter: &Limiter,
        DecisionAttempt { now, civil, is_first }: DecisionAttempt,
        mut request_units: impl FnMut(LeaseNeed<'_>) -> LeaseAvailability,
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
        let mut resolved = ResolvedRequest {
            decider: self,
            request,
            limits,
            count_operations,
            native_checks: native,
            rejected: RejectedLeases::default(),
        };
        for _ in 0..MAX_ATTEMPTS {
            match resolved.try_decide(limiter, now, true) {
                Ok(response) => return Ok(Some(response)),
                Err(missing) if resolved.request_missing_units(&missing, &mut request_units) => {
                    return Ok(None);
                }
                Err(_) => {}
            }
        }
        Ok(resolved.try_decide(limiter, now, false).ok())
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
            let (path, counted): (&[_], _) = match met {
                MatchedLimit::NoLimit => return DescriptorLimit::NoLimit,
                MatchedLimit::Rule { rule, path } => {
                    let Some(rate) = rule.rate else { return DescriptorLimit::Unlimited };
                    if replaced_names.contains(&*rule.name) {
                        return DescriptorLimit::NoLimit;
                    }
                    let stat_key =
                        descriptor_match::stat_key(&request.domain, &descriptor.entries, rule, path);
                    let (hits, effective_limit) = (hits.counted_hits(), rate.requests_per_unit);
                    (path, CountedDescriptor { rule: Some(*rule), rate, stat_key, hits, effective_limit })
                }
                MatchedLimit::Override(rate) => {
                    let stat_key = descriptor_match::override_stat_key(&request.domain, descriptor);
                    let (hits, effective_limit) = (hits.counted_hits(), rate.requests_per_unit);
                    (&[], CountedDescriptor { rule: None, rate: *rate, stat_key, hits, effective_limit })
                }
            };
            let unit = counted.rate.unit;
            let (unit_limits, hasher, suffix): (_, _, &[u8]) = match &self.shared_limits {
                Some(shared_limits) => {
                    (shared_limits.unit_limits, shared_limits.hasher(), &[unit as u8, smoothing as u8])
                }
                None => (self.unit_limits, limiter.hasher(), &[]),
            };
            count_operations.push(CountOperation {
                handle: unit_limits.handle_for(unit, smoothing),
                key: descriptor_match::counter_key(
                    &request.domain,
                    &descriptor.entries,
                    path,
                    (hasher, suffix),
                ),
                amount: hits.signed_amount(),
                limit: counted.rate.requests_per_unit,
            });
            DescriptorLimit::Counted(counted)
        });
        let limits = limits.collect();
        Ok((limits, count_operations))
    }

    /// Returns which descriptors count, given whether native rules have `refused` the request.
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

    /// Builds the response to a request, given whether it is `refused`.
    fn build_response(
        &self,
        request: &RlsRequest,
        (limits, results): (&[DescriptorLimit<'_>], &[CountResult]),
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
            .map(|limit| match limit {
                DescriptorLimit::NoLimit => RlsDescriptorStatus::default(),
                DescriptorLimit::Unlimited => {
                    RlsDescriptorStatus { limit_remaining: u32::MAX, ..RlsDescriptorStatus::default() }
                }
                DescriptorLimit::Counted(counted) => {
                    let result = results_iter.next().copied().unwrap_or(EMPTY_COUNT_RESULT);
                    stats.descriptors.push(counted.stats(result, self.settings.near_limit_ratio));
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
            stats.rule_outcomes = native.rule_outcomes(verdicts, rejected && !shadow);
            for (index, status) in native.statuses(request, verdicts, now).enumerate() {
                rejects[index] |= status.is_over_limit();
                statuses[index].keep_stricter(status);
            }
        }
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

impl ResolvedRequest<'_> {
    /// Decides and counts. If counters are out of units and may get some, does neither and returns them.
    fn try_decide(
        &self,
        limiter: &Limiter,
        now: Timestamp,
        may_request_units: bool,
    ) -> Result<RlsResponse, MissingLeases> {
        let Self { decider, request, limits, count_operations, .. } = self;
        let (mut missing, mut rejected) = (MissingLeases::default(), false);
        let mut evaluate = |verdicts: &[Verdict], results: &[CountResult]| {
            if may_request_units {
                missing = MissingLeases::from_results(verdicts, results, &self.rejected);
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
            return Ok(decider.build_response(request, (limits, &results), rejected, None, now));
        };
        let (decision, results) =
            limiter.check_and_count((&native.checks[..], count_operations), evaluate, now);
        if !missing.is_empty() {
            return Err(missing);
        }
        Ok(decider.build_response(
            request,
            (limits, &results),
            rejected,
            Some((native, decision.verdicts())),
            now,
        ))
    }

    /// Gets units for all counters that are out of units; returns whether the store is being queried.
    fn request_missing_units(
        &mut self,
        missing: &MissingLeases,
        request_units: &mut impl FnMut(LeaseNeed<'_>) -> LeaseAvailability,
    ) -> bool {
        let mut is_store_queried = false;
        for &position in &missing.counts {
            let Some(shared_limits) = &self.decider.shared_limits else { continue };
            match request_units(LeaseNeed::Count(
                &self.count_operations[position],
                shared_limits.settings.wait,
            )) {
                LeaseAvailability::Ready => {}
                LeaseAvailability::Requested => is_store_queried = true,
                LeaseAvailability::Rejected => self.rejected.counts.push(position),
                LeaseAvailability::StoreUnreachable
                    if self.use_store_loss_fallback(position, shared_limits) => {}
                LeaseAvailability::StoreUnreachable => self.rejected.counts.push(position),
            }
        }
        for &position in &missing.checks {
            let Some(native_checks) = &mut self.native_checks else { continue };
            match request_units(LeaseNeed::Check(
                &native_checks.checks[position],
                native_checks.max_wait(position),
            )) {
                LeaseAvailability::Ready => {}
                LeaseAvailability::Requested => is_store_queried = true,
                LeaseAvailability::StoreUnreachable if native_checks.use_store_loss_fallback(position) => {}
                LeaseAvailability::StoreUnreachable | LeaseAvailability::Rejected => {
                    self.rejected.checks.push(position)
                }
            }
        }
        is_store_queried
    }

    /// Replaces a document's limit by the one for an unreachable store; returns false if it rejects everything.
    fn use_store_loss_fallback(&mut self, position: usize, shared_limits: &SharedDocumentLimits) -> bool {
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

/// Reading of a limit that has just been removed, which limits nothing.
const EMPTY_COUNT_RESULT: CountResult =
    CountResult { before: 0, after: 0, is_over: false, reset: None, needs_lease: false };

impl CountedDescriptor<'_> {
    fn status(&self, result: CountResult, now: Timestamp) -> RlsDescriptorStatus {
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

    fn stats(&self, result: CountResult, near_limit_ratio: f32) -> DescriptorStats {
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
            shadow_mode: if is_over && self.is_shadow() { self.hits } else { 0 },
        }
    }
}

fn counted_descriptors<'a, 'r>(
    limits: &'a [DescriptorLimit<'r>],
) -> impl Iterator<Item = &'a CountedDescriptor<'r>> {
    limits.iter().filter_map(|limit| match limit {
        DescriptorLimit::Counted(counted) => Some(counted),
        DescriptorLimit::Unlimited | DescriptorLimit::NoLimit => None,
    })
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
