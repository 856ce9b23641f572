//! Applies valid configurations: to the engine, and to the listeners and upstreams around it.

mod parts;

use std::net::SocketAddr;
use std::sync::Arc;

pub(super) use self::parts::{GenerationParts, PartResources};
use crate::proxy::Generation;
use crate::proxy::fallback::Fallbacks;
use weir_config::Config;
use weir_config::reload::UnusableSetting;
use weir_limiter::Limiter;
use weir_limiter::key::KeyHasher;
use weir_limits::LimitTables;
use weir_net::clock::Clock;
use weir_policy::engine::{Engine, Policy};
use weir_rls::unit_limits::UnitLimits;
use weir_telemetry::observe::key_writer::LogKeys;
use weir_telemetry::observe::top_keys::TopKeys;

/// The current generation, and the means to replace it.
#[derive(Debug)]
pub(super) struct Generations {
    pub(super) engine: Engine<Generation>,
    clock: Arc<Clock>,
    top_keys: Arc<TopKeys>,
    hasher: KeyHasher,
    resources: PartResources,
}

impl Generations {
    /// Applies the first configuration.
    ///
    /// # Errors
    /// If a part cannot be set up.
    pub(super) fn new(
        config: &Config,
        limiter: &Arc<Limiter>,
        clock: &Arc<Clock>,
        top_keys: &Arc<TopKeys>,
        resources: PartResources,
    ) -> Result<Self, UnusableSetting> {
        let mut limit_specs = config.rls.as_ref().map(|_| UnitLimits::specs()).unwrap_or_default();
        if let Some(scope) = config.rls.as_ref().and_then(|rls| rls.shared_limit.as_ref()) {
            limit_specs.extend(UnitLimits::shared_specs(scope.lease_policy(false)));
        }
        let first = |policy: Arc<Policy>| {
            let metrics = &resources.metrics;
            let limits = LimitTables::new(&policy, limiter.hasher(), metrics, top_keys, config.log_keys);
            let parts = GenerationParts::build(config, None, &resources)?;
            Ok::<_, UnusableSetting>(build_generation(config, policy, limits, parts, &Fallbacks::default()))
        };
        let engine = Engine::start(&config.policy, limiter, &limit_specs, clock.now(), first)?;
        let (clock, top_keys) = (Arc::clone(clock), Arc::clone(top_keys));
        Ok(Self { engine, clock, top_keys, hasher: limiter.hasher(), resources })
    }

    /// Returns the limit handles of Envoy's rate limit service, which persist through all generations; `None`
    /// without the service.
    pub(super) fn rls_limits(&self) -> Option<UnitLimits> {
        UnitLimits::from_handles(self.engine.permanent())
    }

    /// Returns the limit handles that the service shares with other instances; `None` if it does not share.
    pub(super) fn shared_rls_limits(&self) -> Option<UnitLimits> {
        UnitLimits::shared_from_handles(self.engine.permanent())
    }

    /// Builds the parts of a new configuration that need the system, before it is applied.
    ///
    /// # Errors
    /// If a part cannot be set up.
    pub(super) fn prepare(&self, config: &Config) -> Result<GenerationParts, UnusableSetting> {
        GenerationParts::build(config, Some(&self.engine.current().load()), &self.resources)
    }

    /// Applies a new configuration with its parts; returns its generation number.
    pub(super) fn apply(&self, config: &Config, parts: GenerationParts) -> u64 {
        if let (Some(tracer), Some(settings)) = (&parts.tracer, &config.tracing) {
            tracer.set_sampling_ratio(settings.sampling_ratio);
        }
        let next = |policy: Arc<Policy>, current: &Generation| {
            let limits = self.limit_tables(&policy, config.log_keys);
            build_generation(config, policy, limits, parts, &current.fallbacks)
        };
        self.engine.apply(&config.policy, || self.clock.now(), next)
    }

    /// Sets the addresses on which the process listens, by which a forward proxy detects loops.
    pub(super) fn set_own_addresses(&self, addresses: impl IntoIterator<Item = SocketAddr>) {
        self.resources.identity.set_addresses(addresses);
    }

    /// Applies the current configuration again, after the division of limits between instances has changed.
    pub(super) fn rebind(&self) -> u64 {
        let next = |policy: Arc<Policy>, current: &Generation| Generation {
            fallbacks: Arc::new(Fallbacks::new(&policy, &current.fallbacks)),
            limits: Arc::new(self.limit_tables(&policy, current.limits.log_keys())),
            policy,
            upstreams: current.upstreams.clone(),
            elastic: current.elastic,
            drain: current.drain,
            listeners: current.listeners.clone(),
            tls: current.tls.clone(),
            forward_proxies: current.forward_proxies.clone(),
            decisions: current.decisions.clone(),
            own_limits: current.own_limits.clone(),
            access_log: current.access_log.clone(),
            tracer: current.tracer.clone(),
            rate_limit_services: current.rate_limit_services.clone(),
        };
        self.engine.rebind(|| self.clock.now(), next)
    }

    fn limit_tables(&self, policy: &Policy, log_keys: Option<LogKeys>) -> LimitTables {
        LimitTables::new(policy, self.hasher, &self.resources.metrics, &self.top_keys, log_keys)
    }
}

fn build_generation(
    config: &Config,
    policy: Arc<Policy>,
    limits: LimitTables,
    parts: GenerationParts,
    fallbacks: &Fallbacks,
) -> Generation {
    let GenerationParts {
        upstreams,
        listeners,
        tls,
        forward_proxies,
        decisions,
        own_limits,
        access_log,
        tracer,
    } = parts;
    Generation {
        fallbacks: Arc::new(Fallbacks::new(&policy, fallbacks)),
        policy,
        limits: Arc::new(limits),
        upstreams,
        elastic: config.elastic_signals,
        drain: config.drain,
        listeners,
        tls,
        forward_proxies,
        decisions,
        own_limits,
        access_log,
        tracer,
        rate_limit_services: config.remote_services.clone().into(),
    }
}
