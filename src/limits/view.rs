//! A worker's view of one configuration generation: the data for decisions and headers, in addition to the rules.

use std::rc::Rc;
use std::sync::Arc;

use super::header_tables::HeaderTables;
use crate::clock::Clock;
use crate::engine::Policy;
use crate::limiter::Limiter;
use crate::remote::service::{self, RemoteService};
use crate::response::Visibility;
use crate::response::rate_limit_headers::Notation;
use crate::response::rejection::{PreparedHeaders, RejectionResponse};
use crate::rules::RuleIndex;
use crate::rules::outcome::DecisionOutcome;
use crate::rules::remote_limit::RemoteLimit;
use crate::rules::rule::{Action, LimitSource, Rule};
use crate::store::handle::StoreHandle;
use crate::telemetry::metrics::{Metrics, RuleMetrics};

/// The limits of one configuration generation, as a worker uses them.
#[derive(Debug)]
pub struct LimitsView {
    pub(super) policy: Arc<Policy>,
    pub(super) limiter: Arc<Limiter>,
    pub(super) clock: Arc<Clock>,
    /// The store of shared limits, if configured.
    pub(super) store: Option<StoreHandle>,
    metrics: Box<[RuleMetrics]>,
    /// Names and notations of the limits in headers.
    pub(super) header_tables: HeaderTables,
    /// Precomputed headers of each rule's rejections, if possible.
    prepared: Box<[Option<PreparedHeaders>]>,
    services: Box<[Rc<RemoteService>]>,
    default_rejection: RejectionResponse,
}

/// Resources that all generations share.
#[derive(Clone, Copy, Debug)]
pub struct LimitResources<'a> {
    /// The counters of this process.
    pub limiter: &'a Arc<Limiter>,
    /// The process's clock.
    pub clock: &'a Arc<Clock>,
    /// Metrics in which decisions are recorded.
    pub metrics: &'a Metrics,
    /// The store of shared limits, if configured.
    pub store: Option<&'a StoreHandle>,
}

impl LimitsView {
    /// Creates a view of `policy`, whose rules refer to `services`. Connections of `before` to unchanged services are
    /// kept.
    pub fn new(
        policy: &Arc<Policy>,
        services: &[service::RemoteServiceSettings],
        before: Option<&Self>,
        LimitResources { limiter, clock, metrics, store }: LimitResources<'_>,
    ) -> Self {
        let rules = policy.rules.rules();
        let header_tables = HeaderTables::new(policy, limiter.hasher());
        let visible = policy.response.ratelimit_headers != Visibility::Off && !policy.response.ietf_headers;
        let prepare =
            |((rule, rejection), notations): ((&Rule, &RejectionResponse), &[Notation])| match notations {
                [only] if visible && !rule.is_elastic() => PreparedHeaders::new(&rejection.headers, only),
                _ => None,
            };
        let prepared = rules
            .iter()
            .zip(&policy.rejections)
            .zip(header_tables.notations.iter().map(|of| &**of))
            .map(prepare);
        let service = |settings| {
            let mut known = before.into_iter().flat_map(|before| &before.services);
            let connect = || connect(settings, clock, metrics);
            known.find(|kept| kept.settings() == settings).map_or_else(connect, Rc::clone)
        };
        Self {
            prepared: prepared.collect(),
            metrics: rules.iter().map(|rule| metrics.rule(&rule.name)).collect(),
            header_tables,
            services: services.iter().map(service).collect(),
            default_rejection: RejectionResponse::default(),
            policy: Arc::clone(policy),
            limiter: Arc::clone(limiter),
            clock: Arc::clone(clock),
            store: store.cloned(),
        }
    }

    /// Records the decision of a rule.
    pub fn record(&self, rule: RuleIndex, outcome: DecisionOutcome) {
        if let Some(metrics) = self.metrics.get(rule.0) {
            metrics.record(outcome);
        }
    }

    /// Returns the rule's name.
    pub fn rule_name(&self, rule: RuleIndex) -> &str {
        self.policy.rules.get(rule).map_or("", |rule| &rule.name)
    }

    /// Returns the rule's local reply for rejections.
    pub fn rejection(&self, rule: RuleIndex) -> &RejectionResponse {
        self.policy.rejection(rule).unwrap_or(&self.default_rejection)
    }

    pub(super) fn prepared(&self, rule: RuleIndex) -> Option<&PreparedHeaders> {
        self.prepared.get(rule.0)?.as_ref()
    }

    /// Returns the rule's remote limit and its service, if it has one.
    pub(super) fn remote_limit(&self, rule: RuleIndex) -> Option<(&RemoteLimit, &Rc<RemoteService>)> {
        let Action::Limit(limiting) = &self.policy.rules.get(rule)?.action else { return None };
        match &limiting.source {
            LimitSource::Remote(remote) => Some((remote, self.services.get(remote.service)?)),
            LimitSource::Local | LimitSource::Shared(_) => None,
        }
    }
}

/// Creates a service and starts to connect to it.
fn connect(
    settings: &service::RemoteServiceSettings,
    clock: &Arc<Clock>,
    metrics: &Metrics,
) -> Rc<RemoteService> {
    let metrics = metrics.remote(&settings.address.to_string());
    let service = RemoteService::new(settings.clone(), Arc::clone(clock), metrics);
    tokio::task::spawn_local(service.connect());
    Rc::new(service)
}
