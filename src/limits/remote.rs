//! What other rate limit services are asked, and what becomes of a request by what they say.
//!
//! They are asked when all limits that are kept here have let a request pass, all of them at once, and each once for
//! all rules of a domain. Refuses one of them, what the request was charged here is given back. For rules that only look
//! on they are asked when the request goes on: it does not wait for that.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use smallvec::SmallVec;
use tokio::task::JoinSet;

use super::exchange::Exchange;
use super::fallback::Arrived;
use super::headers::append;
use super::limits::{Limits, Recording, Told};
use super::{Shared, View};
use crate::limiter::algorithm::Usage;
use crate::limiter::decision::Verdict;
use crate::limiter::timestamp::Timestamp;
use crate::remote::service::{Answer, Descriptor, Failure, Question, Service, Status, Urgency};
use crate::response::fallback::Kept;
use crate::response::ietf::{Policy, QuotaUnit};
use crate::response::rate_limit_headers::Notation;
use crate::rules::RuleIndex;
use crate::rules::elsewhere::{Ask, OnError, Remote};
use crate::rules::rule::Action;
use crate::rules::selection::Selected;
use crate::rules::tariff::Ending;
use crate::telemetry::metrics::DecisionOutcome;
use crate::throttle;

/// Why a request does not go on that had passed all limits here.
#[derive(Debug)]
pub(super) enum Refusal {
    /// A service says that this rule's limit is reached.
    Told {
        /// The rule.
        by: RuleIndex,
        /// How long the client should wait.
        retry_after: Duration,
        /// What the service would answer; empty where it leaves that to us.
        body: Bytes,
    },
    /// The check at this position refuses, in place of a service that did not answer.
    Otherwise {
        /// Among the checks of the request.
        by: usize,
        /// How long the client should wait.
        retry_after: Duration,
    },
    /// Nobody knows whether this rule's limit is reached, and then it is refused.
    Undecided {
        /// The rule.
        by: RuleIndex,
    },
}

/// Answers that are kept for those whom a rule refuses.
#[derive(Debug, Default)]
pub(super) struct Recalled(Vec<(RuleIndex, Arc<Kept>)>);

impl Recalled {
    /// What is kept for a request, in place of the refusals of the rules that others are asked about. Looked for before
    /// its head is made into what the upstream sees.
    pub(super) fn of(limits: &Limits, view: &View, arrived: Arrived<'_>, now: Timestamp) -> Self {
        let kept = |ask: &Ask| Some((ask.rule, view.fallbacks.recall(ask.rule, arrived, view, now)?));
        Self(limits.asks().iter().filter_map(kept).collect())
    }

    /// What is kept in place of a refusal by `rule`.
    pub(super) fn take(self, rule: RuleIndex) -> Option<Arc<Kept>> {
        self.0.into_iter().find(|(of, _)| *of == rule).map(|(_, kept)| kept)
    }
}

/// What one service is asked about one request.
struct Group {
    service: Rc<Service>,
    domain: Box<str>,
    asks: Vec<Ask>,
}

/// What came of it.
type Asked = (Vec<Ask>, Result<Answer, Failure>);

/// What is said about one rule; nothing without an answer.
struct Reply {
    ask: Ask,
    said: Option<Said>,
}

struct Said {
    refuses: bool,
    status: Status,
    body: Bytes,
}

/// Holds the request back for its delay and asks whoever else keeps limits of it; what the upstream is to be told is added
/// to `headers`.
///
/// # Errors
/// Why the request does not go on.
pub(super) fn ask<'a>(
    view: &'a Rc<View>,
    exchange: &'a mut Exchange,
    limits: &'a mut Limits,
    (delay, headers): (Option<Duration>, &'a mut HeaderMap),
) -> Pin<Box<impl Future<Output = Result<(), Refusal>> + use<'a>>> {
    // In memory of its own: few requests have it, and all would carry it.
    Box::pin(async move {
        let mut recording = Recording::of(view, limits);
        if let Some(delay) = delay {
            exchange.wait(delay).await;
        }
        let asks = recording.limits().asks().iter().cloned();
        let (enforced, onlooking): (Vec<_>, Vec<_>) = asks.partition(|ask| ask.is_enforced);
        let asked = exchange.hold(all(groups(view, enforced))).await;
        let shared = exchange.shared();
        let limits = recording.limits();
        match decide(view, &shared, limits, asked) {
            Ok(added) => {
                if !added.is_empty() {
                    // What the upstream learns from a service may be about this client.
                    exchange.listen(None);
                }
                append(headers, &added);
            }
            Err(refusal) => {
                exchange.settle(&Ending::Refused, limits);
                exchange.note_refused_by(view.rule_name(refusal.rule(limits)));
                return Err(refusal);
            }
        }
        for group in groups(view, onlooking) {
            tokio::task::spawn_local(look_on(Rc::clone(view), Arc::clone(&shared), group));
        }
        Ok(())
    })
}

impl Refusal {
    fn rule(&self, limits: &Limits) -> RuleIndex {
        match self {
            Self::Told { by, .. } | Self::Undecided { by } => *by,
            Self::Otherwise { by, .. } => limits.rule(*by),
        }
    }
}

/// Those who are asked in one go: rules with the same service and domain.
fn groups(view: &View, asks: Vec<Ask>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for ask in asks {
        let Some(remote) = remote(view, ask.rule) else { continue };
        let Some(service) = view.services.get(remote.service) else { continue };
        let same = |group: &&mut Group| Rc::ptr_eq(&group.service, service) && group.domain == remote.domain;
        match groups.iter_mut().find(same) {
            Some(group) => group.asks.push(ask),
            None => {
                let (service, domain) = (Rc::clone(service), remote.domain.clone());
                groups.push(Group { service, domain, asks: vec![ask] });
            }
        }
    }
    groups
}

fn remote(view: &View, rule: RuleIndex) -> Option<&Remote> {
    match &view.policy.rules.get(rule)?.action {
        Action::Limit(limiting) => limiting.remote.as_deref(),
        Action::Allow | Action::Deny => None,
    }
}

/// Asks all of them at once; answers in the order of the file. Who leaves takes the questions with him.
async fn all(groups: Vec<Group>) -> Vec<Asked> {
    let mut asking = JoinSet::new();
    for group in groups {
        asking.spawn_local(group.ask(Urgency::Awaited));
    }
    let mut asked = asking.join_all().await;
    asked.sort_by_key(|(asks, _)| asks.first().map(|ask| ask.rule));
    asked
}

impl Group {
    async fn ask(mut self, urgency: Urgency) -> Asked {
        let descriptors = self
            .asks
            .iter_mut()
            .map(|ask| Descriptor { entries: std::mem::take(&mut ask.entries), hits: ask.hits });
        let question = Question { domain: self.domain.into(), descriptors: descriptors.collect() };
        let answer = self.service.ask(question, urgency).await;
        (self.asks, answer)
    }
}

/// What is said about each rule, in the order of the file.
fn replies(asked: Vec<(Vec<Ask>, Option<Answer>)>) -> Vec<Reply> {
    let mut replies = Vec::new();
    for (asks, answer) in asked {
        for (position, ask) in asks.into_iter().enumerate() {
            let said = answer.as_ref().and_then(|answer| {
                let status = *answer.statuses.get(position)?;
                Some(Said { refuses: refuses(answer, &status), status, body: answer.body.clone() })
            });
            replies.push(Reply { ask, said });
        }
    }
    replies.sort_by_key(|reply| reply.ask.rule);
    replies
}

/// What the answers come to.
fn decide(
    view: &View,
    shared: &Shared,
    limits: &mut Limits,
    asked: Vec<Asked>,
) -> Result<HeaderMap, Refusal> {
    let (mut told, mut added) = (Told::default(), HeaderMap::new());
    for answer in asked.iter().filter_map(|(_, answer)| answer.as_ref().ok()) {
        append(&mut told.headers, &answer.response_headers);
        append(&mut added, &answer.request_headers);
    }
    let (mut refusal, mut undecided) = (None, None);
    let mut passing: SmallVec<[RuleIndex; 2]> = SmallVec::new();
    let mut otherwise: SmallVec<[Selected; 2]> = SmallVec::new();
    for Reply { ask, said } in replies(asked.into_iter().map(|(asks, answer)| (asks, answer.ok())).collect())
    {
        match said {
            Some(Said { refuses, status, body }) => {
                told.standings.extend(standing(view.rule_name(ask.rule), &status));
                if refuses {
                    view.record(ask.rule, DecisionOutcome::Limited);
                    strengthen(&mut refusal, (ask.rule, status.reset), body);
                } else {
                    passing.push(ask.rule);
                }
            }
            None => match on_error(view, ask.rule) {
                OnError::Allow => passing.push(ask.rule),
                OnError::Deny => {
                    view.record(ask.rule, DecisionOutcome::Denied);
                    undecided.get_or_insert(ask.rule);
                }
                OnError::Local => otherwise.extend(ask.otherwise),
            },
        }
    }
    let refusal = refusal.or_else(|| undecided.map(|by| Refusal::Undecided { by }));
    told.refused = refusal.is_some();
    limits.note_told(told);
    match refusal.or_else(|| check_otherwise(shared, limits, otherwise)) {
        Some(refusal) => Err(refusal),
        None => {
            passing.iter().for_each(|rule| view.record(*rule, DecisionOutcome::Allowed));
            Ok(added)
        }
    }
}

fn on_error(view: &View, rule: RuleIndex) -> OnError {
    remote(view, rule).map(|remote| remote.on_error).unwrap_or_default()
}

/// Whether a descriptor is one of those for which the request is refused: where none is named, all are.
fn refuses(answer: &Answer, status: &Status) -> bool {
    answer.is_over && (status.is_over || !answer.statuses.iter().any(|status| status.is_over))
}

/// The longest wait answers; ties go to the first.
fn strengthen(refusal: &mut Option<Refusal>, (by, retry_after): (RuleIndex, Duration), body: Bytes) {
    match refusal {
        Some(Refusal::Told { retry_after: longest, .. }) if retry_after <= *longest => {}
        _ => *refusal = Some(Refusal::Told { by, retry_after, body }),
    }
}

/// Has the limits decide that hold where nobody has answered.
fn check_otherwise(
    shared: &Shared,
    limits: &mut Limits,
    otherwise: SmallVec<[Selected; 2]>,
) -> Option<Refusal> {
    if otherwise.is_empty() {
        return None;
    }
    limits.check_more(&shared.limiter, otherwise, shared.clock.now());
    match throttle::resolve(limits.decision()) {
        throttle::Action::Refuse { by, retry_after } => Some(Refusal::Otherwise { by, retry_after }),
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

/// Asks for rules that only look on, and counts what they would have done.
async fn look_on(view: Rc<View>, shared: Arc<Shared>, group: Group) {
    let (asks, answer) = group.ask(Urgency::Aside).await;
    for Reply { ask, said } in replies(vec![(asks, answer.ok())]) {
        let would_refuse = match said {
            Some(said) => said.refuses,
            None => match on_error(&view, ask.rule) {
                OnError::Allow => false,
                OnError::Deny => true,
                OnError::Local => {
                    let checks: SmallVec<[_; 2]> = ask.otherwise.iter().map(|one| one.check).collect();
                    let decision = shared.limiter.check(&checks, shared.clock.now());
                    decision.verdicts().iter().any(Verdict::exceeds)
                }
            },
        };
        let outcome = if would_refuse { DecisionOutcome::Shadow } else { DecisionOutcome::Allowed };
        view.record(ask.rule, outcome);
    }
}
