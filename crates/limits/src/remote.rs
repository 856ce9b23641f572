//! Limits that other rate limit services count: queries, and decisions by their responses.
//!
//! The services are queried once the local limits have admitted a request: all of them in parallel, and each once for
//! all rules with the same domain. If one of them rejects the request, its local charges are refunded. Rules in shadow
//! mode are queried when the request is forwarded, without delaying it.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use smallvec::SmallVec;
use tokio::task::JoinSet;

use super::record::DecisionRecorder;
use super::summary::Standing;
use super::{AppliedLimits, LimitRejection, LimitsView, RejectionReason};
use weir_http::headers::append_all;
use weir_limiter::algorithm::CounterUsage;
use weir_limiter::decision::Verdict;
use weir_limiter::key::KeyHash;
use weir_policy::response::ietf::{QuotaPolicy, QuotaUnit};
use weir_policy::response::rate_limit_headers::Notation;
use weir_policy::rules::RuleIndex;
use weir_policy::rules::outcome::DecisionOutcome;
use weir_policy::rules::remote_limit::{OnError, RemoteQuery};
use weir_policy::rules::selection::SelectedCheck;
use weir_policy::throttle;
use weir_store::remote::service::{
    RemoteService, ServiceDescriptor, ServiceDescriptorStatus, ServiceError, ServiceRequest, ServiceResponse,
    Urgency,
};

/// State of the limits that other services count.
#[derive(Debug)]
pub(super) enum RemoteState {
    /// There are none.
    None,
    /// The queries to send.
    Pending(Vec<RemoteQuery>),
    /// The responses have been evaluated.
    Decided(Box<RemoteVerdicts>),
}

/// Results of other services for a request.
#[derive(Debug, Default)]
pub(super) struct RemoteVerdicts {
    /// Whether the request is rejected, by a service or because a service did not respond and the rule fails closed.
    pub(super) rejects: bool,
    /// State of the limits, for headers.
    pub(super) limit_statuses: Vec<(Notation, QuotaPolicy, CounterUsage)>,
    /// Headers for the response to the client.
    pub(super) headers: HeaderMap,
    /// What each rule decided.
    pub(super) outcomes: SmallVec<[RuleOutcome; 2]>,
}

/// Decision of another service for one rule.
#[derive(Clone, Copy, Debug)]
pub(super) struct RuleOutcome {
    pub(super) rule: RuleIndex,
    pub(super) outcome: DecisionOutcome,
    /// Limit and remaining units, if the service reports them.
    pub(super) standing: Option<Standing>,
}

/// The limits of a request that the local limits admit and that other services have yet to decide.
#[derive(Debug)]
pub struct PendingRemote<'a> {
    view: &'a Rc<LimitsView>,
    limits: &'a mut AppliedLimits,
}

/// The queries for one request.
#[derive(Debug)]
pub struct ServiceQueries(Vec<ServiceQuery>);

/// The responses to a query.
#[derive(Debug)]
pub struct ServiceResponses(Vec<QueryResult>);

/// A query to one service, for all rules with the same service and domain.
#[derive(Debug)]
struct ServiceQuery {
    service: Rc<RemoteService>,
    domain: Box<str>,
    queries: Vec<RemoteQuery>,
}

type QueryResult = (Vec<RemoteQuery>, Result<ServiceResponse, ServiceError>);

/// Result for one rule; without a verdict if there was no response.
struct RuleResponse {
    query: RemoteQuery,
    verdict: Option<RemoteVerdict>,
}

struct RemoteVerdict {
    rejects: bool,
    status: ServiceDescriptorStatus,
    body: Bytes,
}

/// Records the decision when the wait for other services ends, also if it is cancelled.
struct RecordOnDrop<'a> {
    view: &'a LimitsView,
    limits: &'a mut AppliedLimits,
}

impl Drop for RecordOnDrop<'_> {
    fn drop(&mut self) {
        self.limits.record_copied(self.view);
    }
}

impl RemoteState {
    pub(super) fn queries(&self) -> &[RemoteQuery] {
        match self {
            Self::Pending(queries) => queries,
            Self::None | Self::Decided(_) => &[],
        }
    }
}

impl<'a> PendingRemote<'a> {
    pub(super) const fn new(view: &'a Rc<LimitsView>, limits: &'a mut AppliedLimits) -> Self {
        Self { view, limits }
    }

    /// Decides by the responses of other services. `hold` sends the query while it holds the request. Returns the
    /// headers to add to the request to the upstream.
    ///
    /// # Errors
    /// The rule that rejects the request, with the reason.
    pub async fn resolve(
        self,
        hold: impl AsyncFnOnce(ServiceQueries) -> ServiceResponses,
    ) -> Result<(&'a mut AppliedLimits, HeaderMap), LimitRejection<'a>> {
        let Self { view, limits } = self;
        let recording = RecordOnDrop { view, limits: &mut *limits };
        let queries = match std::mem::replace(&mut recording.limits.remote, RemoteState::None) {
            RemoteState::Pending(queries) => queries,
            RemoteState::None | RemoteState::Decided(_) => Vec::new(),
        };
        let (enforced, shadow): (Vec<_>, Vec<_>) = queries.into_iter().partition(|query| query.is_enforced);
        let responses = hold(ServiceQueries(groups(view, enforced))).await;
        let decided = decide(view, recording.limits, responses.0);
        drop(recording);
        match decided {
            Ok(added) => {
                for group in groups(view, shadow) {
                    tokio::task::spawn_local(shadow_check(limits.recorder(view), group));
                }
                Ok((limits, added))
            }
            Err((rule, retry_after, reason)) => Err(LimitRejection { limits, rule, retry_after, reason }),
        }
    }
}

impl ServiceQueries {
    /// Queries all services in parallel. Dropping the future cancels the queries.
    pub async fn send(self) -> ServiceResponses {
        let mut sending = JoinSet::new();
        for group in self.0 {
            sending.spawn_local(group.send(Urgency::Awaited));
        }
        let mut responses = sending.join_all().await;
        responses.sort_by_key(|(queries, _)| queries.first().map(|query| query.rule));
        ServiceResponses(responses)
    }
}

fn groups(view: &LimitsView, queries: Vec<RemoteQuery>) -> Vec<ServiceQuery> {
    let mut groups: Vec<ServiceQuery> = Vec::new();
    for query in queries {
        let Some((remote, service)) = view.remote_limit(query.rule) else { continue };
        let same =
            |group: &&mut ServiceQuery| Rc::ptr_eq(&group.service, service) && group.domain == remote.domain;
        match groups.iter_mut().find(same) {
            Some(group) => group.queries.push(query),
            None => {
                let (service, domain) = (Rc::clone(service), remote.domain.clone());
                groups.push(ServiceQuery { service, domain, queries: vec![query] });
            }
        }
    }
    groups
}

impl ServiceQuery {
    async fn send(mut self, urgency: Urgency) -> QueryResult {
        let descriptors = self
            .queries
            .iter_mut()
            .map(|query| ServiceDescriptor { entries: std::mem::take(&mut query.entries), hits: query.hits });
        let request = ServiceRequest { domain: self.domain.into(), descriptors: descriptors.collect() };
        let response = self.service.should_rate_limit(request, urgency).await;
        (self.queries, response)
    }
}

/// Returns the results by rule, in file order.
fn by_rule(responses: Vec<QueryResult>) -> Vec<RuleResponse> {
    let mut all = Vec::new();
    for (queries, response) in responses {
        for (position, query) in queries.into_iter().enumerate() {
            let verdict = response.as_ref().ok().and_then(|response| {
                let status = *response.statuses.get(position)?;
                Some(RemoteVerdict {
                    rejects: rejects(response, &status),
                    status,
                    body: response.body.clone(),
                })
            });
            all.push(RuleResponse { query, verdict });
        }
    }
    all.sort_by_key(|said| said.query.rule);
    all
}

/// Evaluates the responses. Returns the headers to add for the upstream, or the rule that rejects, with the retry-after
/// and the reason.
fn decide(
    view: &Rc<LimitsView>,
    limits: &mut AppliedLimits,
    responses: Vec<QueryResult>,
) -> Result<HeaderMap, (RuleIndex, Duration, RejectionReason)> {
    let (mut verdicts, mut added) = (RemoteVerdicts::default(), HeaderMap::new());
    for response in responses.iter().filter_map(|(_, response)| response.as_ref().ok()) {
        append_all(&mut verdicts.headers, &response.response_headers);
        append_all(&mut added, &response.request_headers);
    }
    let (mut rejection, mut unanswered) = (None, None);
    let mut passing: SmallVec<[(RuleIndex, KeyHash); 2]> = SmallVec::new();
    let mut local_fallback: SmallVec<[SelectedCheck; 2]> = SmallVec::new();
    let recorder = limits.recorder(view);
    for RuleResponse { query: RemoteQuery { rule, key, local_fallback: local, .. }, verdict } in
        by_rule(responses)
    {
        let standing = verdict.as_ref().and_then(|verdict| Standing::from_service(&verdict.status));
        let mut note = |outcome| verdicts.outcomes.push(RuleOutcome { rule, outcome, standing });
        match verdict {
            Some(RemoteVerdict { rejects, status, body }) => {
                verdicts.limit_statuses.extend(limit_status(view.rule_name(rule), &status));
                if rejects {
                    recorder.record(rule, DecisionOutcome::Limited, key);
                    note(DecisionOutcome::Limited);
                    keep_longest_rejection(&mut rejection, rule, status.reset, body);
                } else {
                    note(DecisionOutcome::Allowed);
                    passing.push((rule, key));
                }
            }
            None => match on_error(view, rule) {
                OnError::Allow => {
                    note(DecisionOutcome::Allowed);
                    passing.push((rule, key));
                }
                OnError::Deny => {
                    recorder.record(rule, DecisionOutcome::Denied, key);
                    note(DecisionOutcome::Denied);
                    unanswered.get_or_insert(rule);
                }
                OnError::Local => local_fallback.extend(local),
            },
        }
    }
    let rejection =
        rejection.or_else(|| unanswered.map(|rule| (rule, Duration::ZERO, RejectionReason::NoResponse)));
    verdicts.rejects = rejection.is_some();
    limits.remote = RemoteState::Decided(Box::new(verdicts));
    match rejection.or_else(|| check_local_fallback(view, limits, local_fallback)) {
        Some(rejection) => Err(rejection),
        None => {
            passing.iter().for_each(|(rule, key)| recorder.record(*rule, DecisionOutcome::Allowed, *key));
            Ok(added)
        }
    }
}

fn on_error(view: &LimitsView, rule: RuleIndex) -> OnError {
    view.remote_limit(rule).map(|(remote, _)| remote.on_error).unwrap_or_default()
}

/// Returns whether the request is rejected because of this descriptor. If the service names no descriptor, all count.
fn rejects(response: &ServiceResponse, status: &ServiceDescriptorStatus) -> bool {
    response.is_over_limit
        && (status.is_over_limit || !response.statuses.iter().any(|status| status.is_over_limit))
}

/// Keeps the rejection with the longest wait, and the first of equals.
fn keep_longest_rejection(
    rejection: &mut Option<(RuleIndex, Duration, RejectionReason)>,
    rule: RuleIndex,
    retry_after: Duration,
    body: Bytes,
) {
    match rejection {
        Some((_, longest, _)) if retry_after <= *longest => {}
        _ => *rejection = Some((rule, retry_after, RejectionReason::Remote(body))),
    }
}

/// Checks the local limits that apply if a service does not respond.
fn check_local_fallback(
    view: &LimitsView,
    limits: &mut AppliedLimits,
    local_fallback: SmallVec<[SelectedCheck; 2]>,
) -> Option<(RuleIndex, Duration, RejectionReason)> {
    if local_fallback.is_empty() {
        return None;
    }
    limits.check_more(&view.limiter, local_fallback, view.clock.now());
    match throttle::resolve(&limits.decision) {
        throttle::ThrottleAction::Reject { position: by, retry_after } => {
            Some((limits.rule(by), retry_after, RejectionReason::Limit))
        }
        throttle::ThrottleAction::Forward | throttle::ThrottleAction::Delay(_) => None,
    }
}

fn limit_status(
    rule: &str,
    status: &ServiceDescriptorStatus,
) -> Option<(Notation, QuotaPolicy, CounterUsage)> {
    let (count, window) = status.limit?;
    let ServiceDescriptorStatus { remaining, reset, .. } = *status;
    let usage = CounterUsage { used: count.saturating_sub(remaining), remaining, reset };
    let policy = QuotaPolicy::new(rule, count, QuotaUnit::Requests, Some(window));
    Some((Notation::from_count(rule, count, window), policy, usage))
}

/// Queries a service for rules in shadow mode, and records what they would have decided.
async fn shadow_check(recorder: DecisionRecorder, group: ServiceQuery) {
    let view = recorder.view();
    let response = group.send(Urgency::Background).await;
    for RuleResponse { query, verdict } in by_rule(vec![response]) {
        let would_reject = match verdict {
            Some(verdict) => verdict.rejects,
            None => match on_error(view, query.rule) {
                OnError::Allow => false,
                OnError::Deny => true,
                OnError::Local => {
                    let decision = super::check(&view.limiter, &query.local_fallback, view.clock.now());
                    decision.verdicts().iter().any(Verdict::exceeds)
                }
            },
        };
        let outcome = if would_reject { DecisionOutcome::Shadow } else { DecisionOutcome::Allowed };
        recorder.record(query.rule, outcome, query.key);
    }
}
