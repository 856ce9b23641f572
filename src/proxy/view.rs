//! One generation of the configuration on one worker: limits, upstreams, stored responses and TLS.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::fallback::Fallbacks;
use super::{Generation, ProxyState};
use weir_limits::{self as limits, LimitResources};
use weir_policy::decision::DecisionProtocol;
use weir_policy::engine::Policy;
use weir_policy::identify::Attributes;
use weir_policy::identify::geo::{GeoLocation, LocationCache};
use weir_policy::rules::RuleIndex;
use weir_policy::rules::own_limits::OwnLimits;
use weir_policy::rules::rule::Rule;
use weir_telemetry::access_log::AccessLog;
use weir_telemetry::observe::top_keys::WorkerId;
use weir_telemetry::spans::Tracer;
use weir_upstream::Upstream;
use weir_upstream::forward_proxy::ForwardProxy;
use weir_upstream::forward_proxy::pool::DestinationPool;

/// Stream idle timeout if there is no upstream, and every listener decides for another proxy.
const DECISION_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// One generation of the configuration on one worker. A request keeps the view with which it started.
#[derive(Debug)]
pub(super) struct GenerationView {
    pub(super) policy: Arc<Policy>,
    pub(super) limits: Rc<limits::LimitsView>,
    pub(super) upstreams: Box<[Rc<Upstream>]>,
    /// By rule, the upstream that receives requests over its limit. Empty if there is none.
    diversions: Box<[Option<Rc<Upstream>>]>,
    /// Stream idle timeout until the upstream is chosen: the longest of all upstreams.
    pub(super) stream_idle_timeout: Duration,
    pub(super) fallbacks: Arc<Fallbacks>,
    /// Locations of clients, if there is a database of countries.
    locations: Option<LocationCache>,
    /// Destinations of forward proxies, by listener.
    pub(super) forward_proxies: Box<[Option<Rc<DestinationPool>>]>,
    /// The access log, if one is configured.
    pub(super) access_log: Option<AccessLog>,
    /// The tracer, if tracing is configured.
    pub(super) tracer: Option<Arc<Tracer>>,
    /// Held so that the thread that reloads is the last to use it, and drops what belongs to thousands of rules.
    generation: Arc<Generation>,
}

impl GenerationView {
    /// Creates a view of `generation`. Upstreams that have not changed are taken over from `before`, together with
    /// their connections.
    pub(super) fn new(
        generation: &Arc<Generation>,
        before: Option<&Self>,
        shared: &ProxyState,
        worker: WorkerId,
    ) -> Self {
        let policy = &generation.policy;
        let upstream = |cluster| {
            let mut known = before.into_iter().flat_map(|before| &before.upstreams);
            let kept = known.find(|kept| Arc::ptr_eq(kept.cluster(), cluster));
            kept.map_or_else(|| Rc::new(Upstream::new(cluster, &shared.metrics)), Rc::clone)
        };
        let upstreams: Box<[_]> = generation.upstreams.iter().map(upstream).collect();
        let forward_proxy = |proxy: &Option<Arc<ForwardProxy>>| {
            let proxy = proxy.as_ref()?;
            let mut known = before.into_iter().flat_map(|before| before.forward_proxies.iter().flatten());
            let kept = known.find(|kept| Arc::ptr_eq(kept.proxy(), proxy));
            Some(kept.map_or_else(|| Rc::new(DestinationPool::new(proxy, &shared.metrics)), Rc::clone))
        };
        let forwarding = generation.forward_proxies.iter().flatten();
        let forward_timeouts = forwarding.map(|proxy| proxy.settings().upstream.idle_timeout);
        let idle_timeouts = generation.upstreams.iter().map(|cluster| cluster.settings().idle_timeout);
        Self {
            policy: Arc::clone(policy),
            limits: Rc::new(limits::LimitsView::new(
                policy,
                &generation.limits,
                &generation.rate_limit_services,
                before.map(|before| &*before.limits),
                LimitResources {
                    limiter: &shared.limiter,
                    clock: &shared.clock,
                    metrics: &shared.metrics,
                    store: shared.store.as_ref(),
                    top_keys: &shared.top_keys,
                    worker,
                },
            )),
            stream_idle_timeout: idle_timeouts.chain(forward_timeouts).max().unwrap_or(DECISION_IDLE_TIMEOUT),
            diversions: diversions(policy, &upstreams),
            upstreams,
            fallbacks: Arc::clone(&generation.fallbacks),
            locations: policy.identify.geo.locations.as_ref().map(|_| LocationCache::default()),
            forward_proxies: generation.forward_proxies.iter().map(forward_proxy).collect(),
            access_log: generation.access_log.clone(),
            tracer: generation.tracer.clone(),
            generation: Arc::clone(generation),
        }
    }

    /// Returns the location of a client; `None` without a database of countries.
    pub(super) fn locate(&self, client: IpAddr) -> Option<GeoLocation> {
        let database = self.policy.identify.geo.locations.as_ref()?;
        Some(self.locations.as_ref()?.find(client, database))
    }

    /// Returns the forward proxy of a listener; `None` for a reverse proxy.
    pub(super) fn forward_proxy(&self, listener: usize) -> Option<&Rc<DestinationPool>> {
        self.forward_proxies.get(listener)?.as_ref()
    }

    /// Returns how another proxy asks for decisions on a listener; `None` if that forwards requests.
    pub(super) fn decision_protocol(&self, listener: usize) -> Option<DecisionProtocol> {
        *self.generation.decisions.get(listener)?
    }

    /// Returns the path of a listener at which callers read their own limits, if it has one.
    pub(super) fn own_limits(&self, listener: usize) -> Option<&OwnLimits> {
        self.generation.own_limits.get(listener)?.as_deref()
    }

    /// Returns the name of the listener at this position.
    pub(super) fn listener_name(&self, position: usize) -> Option<&str> {
        self.generation.listeners.get(position).map(|name| &**name)
    }

    /// Returns the position of the listener with this name.
    pub(super) fn listener_position(&self, name: &str) -> Option<usize> {
        self.generation.listeners.iter().position(|known| **known == *name)
    }

    /// Returns the upstream that is configured for the destination that the request names.
    pub(super) fn upstream_for_destination(&self, request: &Attributes<'_>) -> Option<&Rc<Upstream>> {
        self.upstreams.get(self.policy.routes.choose_for_destination(request)?)
    }

    /// Returns the upstream that receives requests over the limit of `rule`.
    pub(super) fn diversion(&self, rule: RuleIndex) -> Option<&Rc<Upstream>> {
        self.diversions.get(rule.0)?.as_ref()
    }

    /// Returns the upstream of the route that the request matches.
    pub(super) fn upstream(&self, request: &Attributes<'_>) -> Option<&Rc<Upstream>> {
        self.upstreams.get(self.policy.routes.choose(request)?)
    }
}

/// Returns for each rule the upstream that receives requests over its limit; nothing if no rule has one.
fn diversions(policy: &Policy, upstreams: &[Rc<Upstream>]) -> Box<[Option<Rc<Upstream>>]> {
    let rules = policy.rules.rules();
    if rules.iter().all(|rule| rule.divert_to().is_none()) {
        return Box::default();
    }
    let find = |name: &str| upstreams.iter().find(|upstream| *upstream.settings().name == *name).cloned();
    rules.iter().map(|rule: &Rule| rule.divert_to().and_then(find)).collect()
}
