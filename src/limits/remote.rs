//! Limits that other rate limit services count: what those are asked, and what becomes of a request by what they say.
//!
//! They are asked when all limits that are counted here have let a request pass, all of them at once, and each once for
//! all rules of a domain. If one of them rejects, what the request was charged here is given back. For rules in shadow
//! mode they are asked when the request goes on: it does not wait for that.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use smallvec::SmallVec;
use tokio::task::JoinSet;

use super::{Limits, Reason, Rejected, View};
use crate::headers::append_all;
use crate::limiter::algorithm::Usage;
use crate::limiter::decision::Verdict;
use crate::remote::service::{
    Descriptor, Failure, Service, ServiceRequest, ServiceResponse, Status, Urgency,
};
use crate::response::ietf::{Policy, QuotaUnit};
use crate::response::rate_limit_headers::Notation;
use crate::rules::RuleIndex;
use crate::rules::outcome::DecisionOutcome;
use crate::rules::remote_limit::{OnError, RemoteQuery};
use crate::rules::selection::Selected;
use crate::throttle;

/// The part of other services in the limits of a request.
#[derive(Debug)]
pub(super) enum Remote {
    /// They have none.
    None,
    /// This is to be asked of them.
    Pending(Vec<RemoteQuery>),
    /// They have been asked.
    Decided(Box<RemoteVerdicts>),
}

/// What other services have said of a request.
#[derive(Debug, Default)]
pub(super) struct RemoteVerdicts {
    /// They reject it, or did not respond and the rule then rejects.
    pub(super) rejects: bool,
    /// How the client stands with them.
    pub(super) standings: Vec<(Notation, Policy, Usage)>,
    /// For the response to the client.
    pub(super) headers: HeaderMap,
}

/// The limits of a request that has passed those that are counted here, and not yet those of other services.
#[derive(Debug)]
pub struct Undecided<'a> {
    view: &'a Rc<View>,
    limits: &'a mut Limits,
}

/// What other services are asked about one request.
#[derive(Debug)]
pub struct Query(Vec<Group>);

/// What they responded.
#[derive(Debug)]
pub struct Responses(Vec<Response>);

/// What one service is asked about one request: by rules with the same service and domain.
#[derive(Debug)]
struct Group {
    service: Rc<Service>,
    domain: Box<str>,
    queries: Vec<RemoteQuery>,
}

type Response = (Vec<RemoteQuery>, Result<ServiceResponse, Failure>);

/// What is said about one rule; nothing without a response.
struct Said {
    query: RemoteQuery,
    verdict: Option<RemoteVerdict>,
}

struct RemoteVerdict {
    rejects: bool,
    status: Status,
    body: Bytes,
}

/// A request that waits for other services is counted when that is over, however it ends.
struct Recording<'a> {
    view: &'a View,
    limits: &'a mut Limits,
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        self.limits.record(self.view);
    }
}

impl Remote {
    pub(super) fn queries(&self) -> &[RemoteQuery] {
        match self {
            Self::Pending(queries) => queries,
            Self::None | Self::Decided(_) => &[],
        }
    }
}

impl<'a> Undecided<'a> {
    pub(super) const fn new(view: &'a Rc<View>, limits: &'a mut Limits) -> Self {
        Self { view, limits }
    }

    /// Decides by what other services say, for which `hold` sends the query while it holds the request. Returns what
    /// the request is to have besides on its way to the upstream.
    ///
    /// # Errors
    /// Why the request does not go on.
    pub async fn resolve(
        self,
        hold: impl AsyncFnOnce(Query) -> Responses,
    ) -> Result<(&'a mut Limits, HeaderMap), Rejected<'a>> {
        let Self { view, limits } = self;
        let recording = Recording { view, limits: &mut *limits };
        let queries = match std::mem::replace(&mut recording.limits.remote, Remote::None) {
            Remote::Pending(queries) => queries,
            Remote::None | Remote::Decided(_) => Vec::new(),
        };
        let (enforced, shadow): (Vec<_>, Vec<_>) = queries.into_iter().partition(|query| query.is_enforced);
        let responses = hold(Query(groups(view, enforced))).await;
        let decided = decide(view, recording.limits, responses.0);
        drop(recording);
        match decided {
            Ok(added) => {
                for group in groups(view, shadow) {
                    tokio::task::spawn_local(shadow_check(Rc::clone(view), group));
                }
                Ok((limits, added))
            }
            Err((rule, retry_after, reason)) => Err(Rejected { limits, rule, retry_after, reason }),
        }
    }
}

impl Query {
    /// Asks all services at once. Dropped, it takes what was asked back.
    pub async fn send(self) -> Responses {
        let mut sending = JoinSet::new();
        for group in self.0 {
            sending.spawn_local(group.send(Urgency::Awaited));
        }
        let mut responses = sending.join_all().await;
        responses.sort_by_key(|(queries, _)| queries.first().map(|query| query.rule));
        Responses(responses)
    }
}

fn groups(view: &View, queries: Vec<RemoteQuery>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for query in queries {
        let Some((remote, service)) = view.remote_limit(query.rule) else { continue };
        let same = |group: &&mut Group| Rc::ptr_eq(&group.service, service) && group.domain == remote.domain;
        match groups.iter_mut().find(same) {
            Some(group) => group.queries.push(query),
            None => {
                let (service, domain) = (Rc::clone(service), remote.domain.clone());
                groups.push(Group { service, domain, queries: vec![query] });
            }
        }
    }
    groups
}

impl Group {
    async fn send(mut self, urgency: Urgency) -> Response {
        let descriptors = self
            .queries
            .iter_mut()
            .map(|query| Descriptor { entries: std::mem::take(&mut query.entries), hits: query.hits });
        let request = ServiceRequest { domain: self.domain.into(), descriptors: descriptors.collect() };
        let response = self.service.ask(request, urgency).await;
        (self.queries, response)
    }
}

/// What is said about each rule, in the order of the file.
fn by_rule(responses: Vec<Response>) -> Vec<Said> {
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
            all.push(Said { query, verdict });
        }
    }
    all.sort_by_key(|said| said.query.rule);
    all
}

/// What the responses come to: what the upstream is to be told, or which rule rejects, for how long and why.
fn decide(
    view: &View,
    limits: &mut Limits,
    responses: Vec<Response>,
) -> Result<HeaderMap, (RuleIndex, Duration, Reason)> {
    let (mut verdicts, mut added) = (RemoteVerdicts::default(), HeaderMap::new());
    for response in responses.iter().filter_map(|(_, response)| response.as_ref().ok()) {
        append_all(&mut verdicts.headers, &response.response_headers);
        append_all(&mut added, &response.request_headers);
    }
    let (mut rejection, mut unanswered) = (None, None);
    let mut passing: SmallVec<[RuleIndex; 2]> = SmallVec::new();
    let mut local_fallback: SmallVec<[Selected; 2]> = SmallVec::new();
    for Said { query: RemoteQuery { rule, local_fallback: local, .. }, verdict } in by_rule(responses) {
        match verdict {
            Some(RemoteVerdict { rejects, status, body }) => {
                verdicts.standings.extend(standing(view.rule_name(rule), &status));
                if rejects {
                    view.record(rule, DecisionOutcome::Limited);
                    strengthen(&mut rejection, rule, status.reset, body);
                } else {
                    passing.push(rule);
                }
            }
            None => match on_error(view, rule) {
                OnError::Allow => passing.push(rule),
                OnError::Deny => {
                    view.record(rule, DecisionOutcome::Denied);
                    unanswered.get_or_insert(rule);
                }
                OnError::Local => local_fallback.extend(local),
            },
        }
    }
    let rejection = rejection.or_else(|| unanswered.map(|rule| (rule, Duration::ZERO, Reason::Unanswered)));
    verdicts.rejects = rejection.is_some();
    limits.remote = Remote::Decided(Box::new(verdicts));
    match rejection.or_else(|| check_local_fallback(view, limits, local_fallback)) {
        Some(rejection) => Err(rejection),
        None => {
            passing.iter().for_each(|rule| view.record(*rule, DecisionOutcome::Allowed));
            Ok(added)
        }
    }
}

fn on_error(view: &View, rule: RuleIndex) -> OnError {
    view.remote_limit(rule).map(|(remote, _)| remote.on_error).unwrap_or_default()
}

/// Whether a descriptor is one of those for which the request is rejected: where none is named, all are.
fn rejects(response: &ServiceResponse, status: &Status) -> bool {
    response.is_over && (status.is_over || !response.statuses.iter().any(|status| status.is_over))
}

/// The longest wait decides; ties go to the first.
fn strengthen(
    rejection: &mut Option<(RuleIndex, Duration, Reason)>,
    rule: RuleIndex,
    retry_after: Duration,
    body: Bytes,
) {
    match rejection {
        Some((_, longest, _)) if retry_after <= *longest => {}
        _ => *rejection = Some((rule, retry_after, Reason::Remote(body))),
    }
}

/// Has the limits decide that hold where a service has not responded.
fn check_local_fallback(
    view: &View,
    limits: &mut Limits,
    local_fallback: SmallVec<[Selected; 2]>,
) -> Option<(RuleIndex, Duration, Reason)> {
    if local_fallback.is_empty() {
        return None;
    }
    limits.check_more(&view.limiter, local_fallback, view.clock.now());
    match throttle::resolve(&limits.decision) {
        throttle::Action::Refuse { by, retry_after } => Some((limits.rule(by), retry_after, Reason::Limit)),
        throttle::Action::Forward | throttle::Action::Delay(_) => None,
    }
}

fn standing(rule: &str, status: &Status) -> Option<(Notation, Policy, Usage)> {
    let (count, window) = status.limit?;
    let Status { remaining, reset, .. } = *status;
    let usage = Usage { used: count.saturating_sub(remaining), remaining, reset };
    let policy = Policy::new(rule, count, QuotaUnit::Requests, Some(window));
    Some((Notation::of(rule, count, window), policy, usage))
}

/// Asks for rules in shadow mode, and counts what they would have done.
async fn shadow_check(view: Rc<View>, group: Group) {
    let response = group.send(Urgency::Background).await;
    for Said { query, verdict } in by_rule(vec![response]) {
        let would_reject = match verdict {
            Some(verdict) => verdict.rejects,
            None => match on_error(&view, query.rule) {
                OnError::Allow => false,
                OnError::Deny => true,
                OnError::Local => {
                    let decision = super::check(&view.limiter, &query.local_fallback, view.clock.now());
                    decision.verdicts().iter().any(Verdict::exceeds)
                }
            },
        };
        let outcome = if would_reject { DecisionOutcome::Shadow } else { DecisionOutcome::Allowed };
        view.record(query.rule, outcome);
    }
}
