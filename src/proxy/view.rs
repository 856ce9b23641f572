//! One generation of the configuration, with what a worker has of it for itself: metrics, upstreams, prepared headers.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::fallback::Fallbacks;
use super::policies::Policies;
use super::{Generation, Shared};
use crate::engine::Policy;
use crate::identify::Attributes;
use crate::remote;
use crate::remote::service::Service;
use crate::response::Visibility;
use crate::response::rate_limit_headers::Notation;
use crate::response::refusal::{Prepared, Refusal};
use crate::rules::RuleIndex;
use crate::rules::rule::{Rule, RuleLimit};
use crate::rules::selection::Selected;
use crate::telemetry::metrics::{DecisionOutcome, RuleMetrics};
use crate::tls::server::Server;
use crate::upstream::Upstream;

/// One generation of the configuration on one worker. A request keeps the view with which it began.
#[derive(Debug)]
pub(super) struct View {
    pub(super) policy: Arc<Policy>,
    pub(super) rules: Box<[RuleMetrics]>,
    /// How each rule's limits are written, beside the rules.
    pub(super) notations: Box<[Box<[Notation]>]>,
    /// The same in the IETF draft's fields.
    pub(super) policies: Policies,
    /// The headers of each rule's refusals, where they can be had ready.
    pub(super) prepared: Box<[Option<Prepared>]>,
    pub(super) upstreams: Box<[Rc<Upstream>]>,
    /// How long bodies may stand still before it is known where they go.
    pub(super) stall: Duration,
    pub(super) fallbacks: Arc<Fallbacks>,
    /// TLS, beside the listeners.
    pub(super) tls: Box<[Option<Arc<Server>>]>,
    pub(super) services: Box<[Rc<Service>]>,
    pub(super) default_refusal: Refusal,
}

impl View {
    /// A view of `generation`. The connections to whatever stays are as good as `before`.
    pub(super) fn new(generation: &Generation, before: Option<&Self>, shared: &Shared) -> Self {
        let (policy, all) = (&generation.policy, &shared.metrics);
        let rules = policy.rules.rules();
        let notations: Box<[_]> = rules.iter().map(notations).collect();
        let visible = policy.response.ratelimit_headers != Visibility::Off && !policy.response.ietf_headers;
        let prepare = |((rule, refusal), notations): ((&Rule, &Refusal), &[Notation])| match notations {
            [only] if visible && !rule.is_elastic() => Prepared::new(&refusal.headers, only),
            _ => None,
        };
        let prepared =
            rules.iter().zip(&policy.rejections).zip(notations.iter().map(|of| &**of)).map(prepare);
        let upstream = |cluster| {
            let mut known = before.into_iter().flat_map(|before| &before.upstreams);
            let kept = known.find(|kept| Arc::ptr_eq(kept.cluster(), cluster));
            kept.map_or_else(|| Rc::new(Upstream::new(cluster, all)), Rc::clone)
        };
        let service = |settings| {
            let mut known = before.into_iter().flat_map(|before| &before.services);
            known.find(|kept| kept.settings() == settings).map_or_else(|| asked(settings, shared), Rc::clone)
        };
        let stalls = generation.upstreams.iter().map(|cluster| cluster.settings().idle_timeout);
        Self {
            policy: Arc::clone(policy),
            prepared: prepared.collect(),
            rules: rules.iter().map(|rule| all.rule(&rule.name)).collect(),
            notations,
            policies: Policies::of(rules, shared.limiter.hasher()),
            stall: stalls.max().unwrap_or_default(),
            upstreams: generation.upstreams.iter().map(upstream).collect(),
            fallbacks: Arc::clone(&generation.fallbacks),
            tls: generation.tls.clone(),
            services: generation.services.iter().map(service).collect(),
            default_refusal: Refusal::default(),
        }
    }

    pub(super) fn record(&self, rule: RuleIndex, outcome: DecisionOutcome) {
        if let Some(metrics) = self.rules.get(rule.0) {
            metrics.record(outcome);
        }
    }

    pub(super) fn rule_name(&self, rule: RuleIndex) -> &str {
        self.policy.rules.get(rule).map_or("", |rule| &rule.name)
    }

    pub(super) fn notation(&self, selected: &Selected) -> Option<&Notation> {
        self.notations.get(selected.rule.0)?.get(selected.part.told()?)
    }

    pub(super) fn prepared(&self, rule: RuleIndex) -> Option<&Prepared> {
        self.prepared.get(rule.0)?.as_ref()
    }

    pub(super) fn refusal(&self, rule: RuleIndex) -> &Refusal {
        self.policy.rejection(rule).unwrap_or(&self.default_refusal)
    }

    /// Which upstream takes the request.
    pub(super) fn upstream(&self, request: &Attributes<'_>) -> Option<&Rc<Upstream>> {
        self.upstreams.get(self.policy.routes.choose(request)?)
    }
}

/// A service that has not been asked before.
fn asked(settings: &remote::service::Settings, shared: &Shared) -> Rc<Service> {
    let metrics = shared.metrics.remote(&settings.place.to_string());
    let service = Service::new(settings.clone(), Arc::clone(&shared.clock), metrics);
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
