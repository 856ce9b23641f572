//! What other rate limit services are asked, and what becomes of a request by what they say.
//!
//! They are asked when all limits that are kept here have let a request pass, all of them at once, and each once for
//! all rules of a domain. Refuses one of them, what the request was charged here is given back. Rules that only look on
//! have theirs asked on the side: no request waits for that.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, request};
use smallvec::SmallVec;
use tokio::task::JoinSet;

use super::exchange::Exchange;
use super::headers::append;
use super::limits::{Limits, Told};
use super::{Shared, View};
use crate::limiter::algorithm::Usage;
use crate::limiter::timestamp::Timestamp;
use crate::remote::service::{Answer, Descriptor, Failure, Question, Service, Status};
use crate::response::fallback::Kept;
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
    pub(super) fn of(limits: &Limits, view: &View, head: &request::Parts, now: Timestamp) -> Self {
        let kept = |ask: &Ask| Some((ask.rule, view.fallbacks.recall(ask.rule, head, now)?));
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

/// Asks whoever keeps limits of the request; what the upstream is to be told is added to `headers`.
///
/// # Errors
/// Why the request does not go on.
pub(super) fn ask<'a>(
    view: &'a Rc<View>,
    exchange: &'a mut Exchange,
    limits: &'a mut Limits,
    headers: &'a mut HeaderMap,
) -> Pin<Box<impl Future<Output = Result<(), Refusal>> + use<'a>>> {
    // In memory of its own: few requests have it, and all would carry it.
    Box::pin(async move {
        let shared = exchange.shared();
        let asks = limits.asks().iter().cloned();
        let (enforced, onlooking): (Vec<_>, Vec<_>) = asks.partition(|ask| ask.is_enforced);
        for group in groups(view, onlooking) {
            tokio::task::spawn_local(look_on(Rc::clone(view), Arc::clone(&shared), group));
        }
        let asked = exchange.hold(all(groups(view, enforced))).await;
        let decided = decide(view, &shared, limits, asked);
        limits.record(view);
        match decided {
            Ok(added) => append(headers, &added),
            Err(refusal) => {
                exchange.settle(&Ending::Refused, limits);
                exchange.note_refused_by(view.rule_name(refusal.rule(limits)));
                return Err(refusal);
            }
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

/// Asks all of them at once. Who leaves takes the questions with him.
async fn all(groups: Vec<Group>) -> Vec<Asked> {
    let mut asking = JoinSet::new();
    for group in groups {
        asking.spawn_local(group.ask());
    }
    asking.join_all().await
}

impl Group {
    async fn ask(mut self) -> Asked {
        let descriptors = self
            .asks
            .iter_mut()
            .map(|ask| Descriptor { entries: std::mem::take(&mut ask.entries), hits: ask.hits });
        let question = Question { domain: self.domain.into(), descriptors: descriptors.collect() };
        let answer = self.service.ask(question).await;
        (self.asks, answer)
    }
}

/// What the answers come to, in the order of the rules where that matters.
fn decide(
    view: &View,
    shared: &Shared,
    limits: &mut Limits,
    asked: Vec<Asked>,
) -> Result<HeaderMap, Refusal> {
    let (mut told, mut added) = (Told::default(), HeaderMap::new());
    let (mut refusal, mut undecided) = (None, None);
    let mut passing: SmallVec<[RuleIndex; 2]> = SmallVec::new();
    let mut otherwise: SmallVec<[Selected; 2]> = SmallVec::new();
    for (asks, answer) in asked {
        let Ok(answer) = answer else {
            for ask in asks {
                match remote(view, ask.rule).map(|remote| remote.on_error).unwrap_or_default() {
                    OnError::Allow => passing.push(ask.rule),
                    OnError::Deny => undecided = Some(undecided.unwrap_or(ask.rule).min(ask.rule)),
                    OnError::Local => otherwise.extend(ask.otherwise),
                }
            }
            continue;
        };
        for (ask, status) in asks.iter().zip(&answer.statuses) {
            told.standings.extend(standing(view.rule_name(ask.rule), status));
            if refuses(&answer, status) {
                view.record(ask.rule, DecisionOutcome::Limited);
                strengthen(&mut refusal, (ask.rule, status.reset), &answer.body);
            } else {
                passing.push(ask.rule);
            }
        }
        append(&mut told.headers, &answer.response_headers);
        append(&mut added, &answer.request_headers);
    }
    let refusal = refusal.or_else(|| undecided.map(|by| Refusal::Undecided { by }));
    told.refused = refusal.is_some();
    limits.note_told(told);
    let refusal = refusal.or_else(|| check_otherwise(shared, limits, otherwise));
    match refusal {
        Some(refusal) => {
            if let Refusal::Undecided { by } = refusal {
                view.record(by, DecisionOutcome::Denied);
            }
            Err(refusal)
        }
        None => {
            passing.iter().for_each(|rule| view.record(*rule, DecisionOutcome::Allowed));
            Ok(added)
        }
    }
}

/// Whether a descriptor is one of those for which the request is refused: where none is named, all are.
fn refuses(answer: &Answer, status: &Status) -> bool {
    answer.is_over && (status.is_over || !answer.statuses.iter().any(|status| status.is_over))
}

/// The longest wait answers; ties go to file order.
fn strengthen(refusal: &mut Option<Refusal>, (by, retry_after): (RuleIndex, Duration), body: &Bytes) {
    let is_stronger = match refusal {
        Some(Refusal::Told { by: other, retry_after: longest, .. }) => {
            retry_after > *longest || (retry_after == *longest && by < *other)
        }
        _ => true,
    };
    if is_stronger {
        *refusal = Some(Refusal::Told { by, retry_after, body: body.clone() });
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

fn standing(rule: &str, status: &Status) -> Option<(Notation, Usage)> {
    let (count, window) = status.limit?;
    let Status { remaining, reset, .. } = *status;
    let usage = Usage { used: count.saturating_sub(remaining), remaining, reset };
    Some((Notation::of(rule, count, window), usage))
}

/// Asks for rules that only look on, and counts what they would have done.
async fn look_on(view: Rc<View>, shared: Arc<Shared>, group: Group) {
    let (asks, answer) = group.ask().await;
    let statuses = answer.as_ref().map(|answer| &*answer.statuses).unwrap_or_default();
    for (position, ask) in asks.into_iter().enumerate() {
        let would_refuse = match (&answer, statuses.get(position)) {
            (Ok(answer), Some(status)) => refuses(answer, status),
            _ => match remote(&view, ask.rule).map(|remote| remote.on_error).unwrap_or_default() {
                OnError::Allow => false,
                OnError::Deny => true,
                OnError::Local => {
                    let checks: SmallVec<[_; 2]> = ask.otherwise.iter().map(|one| one.check).collect();
                    let decision = shared.limiter.check(&checks, shared.clock.now());
                    decision.verdicts().iter().any(|verdict| verdict.exceeds())
                }
            },
        };
        let outcome = if would_refuse { DecisionOutcome::Shadow } else { DecisionOutcome::Allowed };
        view.record(ask.rule, outcome);
    }
}
