//! What a worker needs of one generation to decide by limits and to tell clients of them, beside the rules.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use super::quota_policies::QuotaPolicies;
use crate::clock::Clock;
use crate::engine::Policy;
use crate::limiter::Limiter;
use crate::remote::service::{self, Service};
use crate::response::Visibility;
use crate::response::rate_limit_headers::Notation;
use crate::response::refusal::{Prepared, Refusal};
use crate::rules::RuleIndex;
use crate::rules::outcome::DecisionOutcome;
use crate::rules::remote_limit::RemoteLimit;
use crate::rules::rule::{Action, LimitSource, Rule, RuleLimit};
use crate::rules::selection::Selected;
use crate::telemetry::metrics::{Metrics, RuleMetrics};

/// One generation of limits as a worker sees it.
#[derive(Debug)]
pub struct View {
    pub(super) policy: Arc<Policy>,
    pub(super) limiter: Arc<Limiter>,
    pub(super) clock: Arc<Clock>,
    metrics: Box<[RuleMetrics]>,
    /// How each rule's limits are written.
    notations: Box<[Box<[Notation]>]>,
    /// The same in the IETF draft's fields.
    pub(super) quota_policies: QuotaPolicies,
    /// The headers of each rule's rejections, where they can be had ready.
    prepared: Box<[Option<Prepared>]>,
    services: Box<[Rc<Service>]>,
    default_rejection: Refusal,
}

impl View {
    /// A view of `policy`, whose rules name `services`. The connections to services that stay are those of `before`.
    pub fn new(
        policy: &Arc<Policy>,
        services: &[service::Settings],
        before: Option<&Self>,
        limiter: &Arc<Limiter>,
        clock: &Arc<Clock>,
        metrics: &Metrics,
    ) -> Self {
        let rules = policy.rules.rules();
        let notations: Box<[_]> = rules.iter().map(notations).collect();
        let visible = policy.response.ratelimit_headers != Visibility::Off && !policy.response.ietf_headers;
        let prepare = |((rule, rejection), notations): ((&Rule, &Refusal), &[Notation])| match notations {
            [only] if visible && !rule.is_elastic() => Prepared::new(&rejection.headers, only),
            _ => None,
        };
        let prepared =
            rules.iter().zip(&policy.rejections).zip(notations.iter().map(|of| &**of)).map(prepare);
        let service = |settings| {
            let mut known = before.into_iter().flat_map(|before| &before.services);
            let connect = || connect(settings, clock, metrics);
            known.find(|kept| kept.settings() == settings).map_or_else(connect, Rc::clone)
        };
        Self {
            prepared: prepared.collect(),
            metrics: rules.iter().map(|rule| metrics.rule(&rule.name)).collect(),
            notations,
            quota_policies: QuotaPolicies::new(rules, limiter.hasher()),
            services: services.iter().map(service).collect(),
            default_rejection: Refusal::default(),
            policy: Arc::clone(policy),
            limiter: Arc::clone(limiter),
            clock: Arc::clone(clock),
        }
    }

    /// Counts what a rule did to a request.
    pub fn record(&self, rule: RuleIndex, outcome: DecisionOutcome) {
        if let Some(metrics) = self.metrics.get(rule.0) {
            metrics.record(outcome);
        }
    }

    /// The rule's name.
    pub fn rule_name(&self, rule: RuleIndex) -> &str {
        self.policy.rules.get(rule).map_or("", |rule| &rule.name)
    }

    /// What the rule answers when it rejects.
    pub fn rejection(&self, rule: RuleIndex) -> &Refusal {
        self.policy.rejection(rule).unwrap_or(&self.default_rejection)
    }

    pub(super) fn notation(&self, selected: &Selected) -> Option<&Notation> {
        self.notations.get(selected.rule.0)?.get(selected.part.reported_limit()?)
    }

    pub(super) fn prepared(&self, rule: RuleIndex) -> Option<&Prepared> {
        self.prepared.get(rule.0)?.as_ref()
    }

    /// What the rule asks another service, and that service.
    pub(super) fn remote_limit(&self, rule: RuleIndex) -> Option<(&RemoteLimit, &Rc<Service>)> {
        let Action::Limit(limiting) = &self.policy.rules.get(rule)?.action else { return None };
        match &limiting.source {
            LimitSource::Remote(remote) => Some((remote, self.services.get(remote.service)?)),
            LimitSource::Local | LimitSource::Shared(_) => None,
        }
    }
}

/// A service that has not been asked before.
fn connect(settings: &service::Settings, clock: &Arc<Clock>, metrics: &Metrics) -> Rc<Service> {
    let metrics = metrics.remote(&settings.place.to_string());
    let service = Service::new(settings.clone(), Arc::clone(clock), metrics);
    tokio::task::spawn_local(service.connect());
    Rc::new(service)
}

fn notations(rule: &Rule) -> Box<[Notation]> {
    rule.limits().iter().map(|limit| Notation::new(&limit_name(rule, limit), &limit.quota)).collect()
}

/// Nested networks are told apart by what they are.
fn limit_name<'a>(rule: &'a Rule, limit: &RuleLimit) -> Cow<'a, str> {
    match &limit.nested {
        Some(nested) => format!("{}/{}", rule.counter(), nested.prefix).into(),
        None => Cow::Borrowed(rule.counter()),
    }
}
