//! Applies valid configurations: to the engine, and to the listeners and upstreams around it.

use std::io;
use std::sync::Arc;

use tokio::runtime::Handle;

use crate::proxy::Generation;
use crate::proxy::fallback::Fallbacks;
use weir_config::{Config, ListenerConfig, UpstreamConfig};
use weir_limiter::Limiter;
use weir_limiter::key::KeyHasher;
use weir_limits::LimitTables;
use weir_net::clock::Clock;
use weir_net::tls::client::{self, TlsClient};
use weir_net::tls::server::TlsServer;
use weir_policy::engine::{Engine, Policy};
use weir_rls::unit_limits::UnitLimits;
use weir_telemetry::access_log::AccessLog;
use weir_telemetry::metrics::Metrics;
use weir_telemetry::observe::key_writer::LogKeys;
use weir_telemetry::observe::top_keys::TopKeys;
use weir_upstream::UpstreamSettings;
use weir_upstream::cluster::Cluster;
use weir_upstream::forward_proxy::ForwardProxy;
use weir_upstream::forward_proxy::identity::ProxyIdentity;

/// The current generation, and the means to replace it.
#[derive(Debug)]
pub(super) struct Generations {
    pub(super) engine: Engine<Generation>,
    /// Names of the bound listeners.
    listeners: Box<[Box<str>]>,
    clock: Arc<Clock>,
    metrics: Arc<Metrics>,
    top_keys: Arc<TopKeys>,
    hasher: KeyHasher,
    /// The runtime for the background tasks of upstreams.
    runtime: Option<Handle>,
    /// Names of this process as a forward proxy.
    identity: Arc<ProxyIdentity>,
}

/// Parts of a generation that keep state across reloads.
struct Carried {
    upstreams: Box<[Arc<Cluster>]>,
    tls: Box<[Option<Arc<TlsServer>>]>,
    forward_proxies: Box<[Option<Arc<ForwardProxy>>]>,
}

impl Generations {
    /// Applies the first configuration, whose access log is `access_log`.
    pub(super) fn new(
        config: &Config,
        limiter: &Arc<Limiter>,
        clock: &Arc<Clock>,
        metrics: &Arc<Metrics>,
        top_keys: &Arc<TopKeys>,
        access_log: Option<&AccessLog>,
        identity: ProxyIdentity,
    ) -> io::Result<Self> {
        let identity = Arc::new(identity);
        let runtime = Handle::try_current().ok();
        let listeners: Box<[Box<str>]> =
            config.listeners.iter().map(|listener| listener.settings.name.clone()).collect();
        let mut limit_specs = config.rls.as_ref().map(|_| UnitLimits::specs()).unwrap_or_default();
        if let Some(scope) = config.rls.as_ref().and_then(|rls| rls.shared_limit.as_ref()) {
            limit_specs.extend(UnitLimits::shared_specs(scope.lease_policy(false)));
        }
        let first = |policy: Arc<Policy>| {
            let limits = LimitTables::new(&policy, limiter.hasher(), metrics, top_keys, config.log_keys);
            let upstreams = build_clusters(config, &[], metrics, runtime.as_ref())?;
            let tls = build_listener_tls(config, &listeners, &[])?;
            let forward_proxies = build_forward_proxies(config, &listeners, &[], &identity)?;
            let carried = Carried { upstreams, tls, forward_proxies };
            let built = build_generation(config, policy, limits, carried, &Fallbacks::default());
            Ok(Generation { access_log: access_log.cloned(), ..built })
        };
        let engine = Engine::start(&config.policy, limiter, &limit_specs, clock.now(), first);
        let engine = engine.map_err(io::Error::other::<rustls::Error>)?;
        let (clock, metrics, top_keys) = (Arc::clone(clock), Arc::clone(metrics), Arc::clone(top_keys));
        Ok(Self { engine, listeners, clock, metrics, top_keys, hasher: limiter.hasher(), runtime, identity })
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

    /// Applies a new configuration, whose access log is `access_log`; returns its generation number.
    pub(super) fn apply(&self, config: &Config, access_log: Option<&AccessLog>) -> u64 {
        let next = |policy: Arc<Policy>, current: &Generation| {
            let limits = self.limit_tables(&policy, config.log_keys);
            let upstreams = build_clusters(config, &current.upstreams, &self.metrics, self.runtime.as_ref());
            let upstreams = upstreams.unwrap_or_else(|error| {
                tracing::error!(
                    %error,
                    "cannot set up TLS for an upstream: the previous upstreams stay in force"
                );
                current.upstreams.clone()
            });
            let tls = build_listener_tls(config, &self.listeners, &current.tls).unwrap_or_else(|error| {
                tracing::error!(%error, "cannot set up TLS: the previous TLS settings stay in force");
                current.tls.clone()
            });
            let forward_proxies =
                build_forward_proxies(config, &self.listeners, &current.forward_proxies, &self.identity);
            let forward_proxies = forward_proxies.unwrap_or_else(|error| {
                tracing::error!(
                    %error,
                    "cannot set up TLS of a forward proxy: the previous forward proxies stay in force"
                );
                current.forward_proxies.clone()
            });
            let carried = Carried { upstreams, tls, forward_proxies };
            let built = build_generation(config, policy, limits, carried, &current.fallbacks);
            Generation { access_log: access_log.cloned(), ..built }
        };
        self.engine.apply(&config.policy, || self.clock.now(), next)
    }

    /// Applies the current configuration again, after the division of limits between instances has changed.
    pub(super) fn rebind(&self) -> u64 {
        let next = |policy: Arc<Policy>, current: &Generation| Generation {
            fallbacks: Arc::new(Fallbacks::new(&policy, &current.fallbacks)),
            limits: Arc::new(self.limit_tables(&policy, current.limits.log_keys())),
            policy,
            upstreams: current.upstreams.clone(),
            elastic: current.elastic,
            tls: current.tls.clone(),
            forward_proxies: current.forward_proxies.clone(),
            access_log: current.access_log.clone(),
            rate_limit_services: current.rate_limit_services.clone(),
        };
        self.engine.rebind(|| self.clock.now(), next)
    }

    fn limit_tables(&self, policy: &Policy, log_keys: Option<LogKeys>) -> LimitTables {
        LimitTables::new(policy, self.hasher, &self.metrics, &self.top_keys, log_keys)
    }
}

fn build_generation(
    config: &Config,
    policy: Arc<Policy>,
    limits: LimitTables,
    Carried { upstreams, tls, forward_proxies }: Carried,
    fallbacks: &Fallbacks,
) -> Generation {
    Generation {
        fallbacks: Arc::new(Fallbacks::new(&policy, fallbacks)),
        policy,
        limits: Arc::new(limits),
        upstreams,
        elastic: config.elastic_signals,
        tls,
        forward_proxies,
        access_log: None,
        rate_limit_services: config.remote_services.clone().into(),
    }
}

/// State of each bound listener: what `build` makes of its part of `config` and its state before. A listener that is
/// missing from `config` keeps its state until the restart that its removal needs.
fn build_for_listeners<T>(
    config: &Config,
    listeners: &[Box<str>],
    before: &[Option<Arc<T>>],
    build: impl Fn(&ListenerConfig, Option<&Arc<T>>) -> Result<Option<Arc<T>>, rustls::Error>,
) -> Result<Box<[Option<Arc<T>>]>, rustls::Error> {
    let one = |(index, name): (usize, &str)| {
        let before = before.get(index).and_then(Option::as_ref);
        match config.listeners.iter().find(|listener| *listener.settings.name == *name) {
            Some(listener) => build(listener, before),
            None => Ok(before.cloned()),
        }
    };
    listeners.iter().map(|name| &**name).enumerate().map(one).collect()
}

/// TLS of the bound listeners. One with the same settings keeps its state.
fn build_listener_tls(
    config: &Config,
    listeners: &[Box<str>],
    before: &[Option<Arc<TlsServer>>],
) -> Result<Box<[Option<Arc<TlsServer>>]>, rustls::Error> {
    build_for_listeners(config, listeners, before, |listener, before| match (&listener.tls, before) {
        (None, _) => Ok(None),
        (Some(settings), Some(before)) if before.settings() == settings => Ok(Some(Arc::clone(before))),
        (Some(settings), before) => TlsServer::new(settings.clone(), before.map(|before| &**before))
            .map(|server| Some(Arc::new(server))),
    })
}

/// Forward proxies of the bound listeners. One with the same settings keeps its state.
fn build_forward_proxies(
    config: &Config,
    listeners: &[Box<str>],
    before: &[Option<Arc<ForwardProxy>>],
    identity: &Arc<ProxyIdentity>,
) -> Result<Box<[Option<Arc<ForwardProxy>>]>, rustls::Error> {
    build_for_listeners(config, listeners, before, |listener, before| {
        match (&listener.forward_proxy, before) {
            (None, _) => Ok(None),
            (Some(settings), Some(before)) if before.settings() == settings => Ok(Some(Arc::clone(before))),
            (Some(settings), _) => ForwardProxy::new(settings.clone(), identity).map(Some),
        }
    })
}

/// Returns the upstreams of `config`. Unchanged ones of `before` are kept with their state, also if only
/// their TLS settings differ. An upstream with other settings takes over what is known of its endpoints.
fn build_clusters(
    config: &Config,
    before: &[Arc<Cluster>],
    metrics: &Metrics,
    runtime: Option<&Handle>,
) -> Result<Box<[Arc<Cluster>]>, rustls::Error> {
    let client = |settings: &client::TlsClientSettings| TlsClient::new(settings.clone()).map(Arc::new);
    let fresh = |settings: &UpstreamSettings, tls: Option<&client::TlsClientSettings>| {
        let before = before.iter().find(|before| before.settings().name == settings.name);
        let tls = tls.map(client).transpose()?;
        let cluster = Cluster::new(settings.clone(), tls, before.map(|before| &**before), metrics);
        if let Some(runtime) = runtime {
            cluster.start_background_tasks(runtime);
        }
        Ok(cluster)
    };
    let cluster = |UpstreamConfig { settings, tls }: &UpstreamConfig| {
        let tls = tls.as_ref();
        let kept =
            before.iter().find(|kept| kept.settings() == settings && kept.tls().is_some() == tls.is_some());
        let Some(kept) = kept else { return fresh(settings, tls) };
        match (tls, kept.tls()) {
            (Some(tls), Some(now)) if now.settings() != tls => kept.set_tls(client(tls)?),
            _ => {}
        }
        Ok(Arc::clone(kept))
    };
    config.upstreams.iter().map(cluster).collect()
}
