//! The parts of a generation that need the system: connections, TLS, files and threads. They are built before a
//! configuration is applied, so that a failure leaves the one in force unchanged.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::proxy::Generation;
use weir_config::reload::UnusableSetting;
use weir_config::{Config, ListenerConfig, UpstreamConfig};
use weir_net::tls::client::{self, TlsClient};
use weir_net::tls::server::TlsServer;
use weir_policy::decision::DecisionProtocol;
use weir_policy::rules::own_limits::OwnLimits;
use weir_telemetry::access_log::{AccessLog, AccessLogManager};
use weir_telemetry::metrics::Metrics;
use weir_telemetry::spans::Tracer;
use weir_upstream::UpstreamSettings;
use weir_upstream::cluster::Cluster;
use weir_upstream::forward_proxy::ForwardProxy;
use weir_upstream::forward_proxy::identity::ProxyIdentity;

/// What the parts are built with.
#[derive(Debug)]
pub(in crate::app) struct PartResources {
    pub(in crate::app) metrics: Arc<Metrics>,
    pub(in crate::app) access_logs: Arc<AccessLogManager>,
    /// The runtime for the background tasks of upstreams.
    pub(in crate::app) runtime: Option<Handle>,
    /// Names of this process as a forward proxy.
    pub(in crate::app) identity: Arc<ProxyIdentity>,
}

/// Parts of a generation. Those whose settings have not changed are taken over from the one before.
#[derive(Debug)]
pub(in crate::app) struct GenerationParts {
    pub(super) upstreams: Box<[Arc<Cluster>]>,
    pub(super) listeners: Box<[Box<str>]>,
    pub(super) tls: Box<[Option<Arc<TlsServer>>]>,
    pub(super) forward_proxies: Box<[Option<Arc<ForwardProxy>>]>,
    pub(super) decisions: Box<[Option<DecisionProtocol>]>,
    pub(super) own_limits: Box<[Option<Arc<OwnLimits>>]>,
    pub(super) access_log: Option<AccessLog>,
    pub(super) tracer: Option<Arc<Tracer>>,
}

impl GenerationParts {
    /// Builds the parts of `config`.
    ///
    /// # Errors
    /// The first setting that cannot be used.
    pub(super) fn build(
        config: &Config,
        before: Option<&Generation>,
        resources: &PartResources,
    ) -> Result<Self, UnusableSetting> {
        let PartResources { metrics, access_logs, runtime, identity } = resources;
        let access_log = open_access_log(access_logs, config)?;
        let tracer = build_tracer(config, before.and_then(|before| before.tracer.as_ref()), metrics)?;
        let listeners = metrics.listener_names();
        let tls = build_listener_tls(config, &listeners, before.map_or(&[], |before| &before.tls));
        let tls = tls.map_err(cannot_set_up_tls("listeners"))?;
        let proxies_before = before.map_or(&[][..], |before| &before.forward_proxies);
        let forward_proxies = build_forward_proxies(config, &listeners, proxies_before, identity);
        let forward_proxies = forward_proxies.map_err(cannot_set_up_tls("listeners"))?;
        let decisions =
            decision_protocols(config, &listeners, before.map_or(&[], |before| &before.decisions));
        let own_limits =
            build_own_limits(config, &listeners, before.map_or(&[], |before| &before.own_limits));
        // Last, because it changes upstreams that are kept.
        let clusters_before = before.map_or(&[][..], |before| &before.upstreams);
        let upstreams = build_clusters(config, clusters_before, metrics, runtime.as_ref());
        let upstreams = upstreams.map_err(cannot_set_up_tls("upstreams"))?;
        Ok(Self { upstreams, listeners, tls, forward_proxies, decisions, own_limits, access_log, tracer })
    }
}

fn cannot_set_up_tls(key: &'static str) -> impl FnOnce(rustls::Error) -> UnusableSetting {
    move |error| UnusableSetting { key: key.to_owned(), message: format!("cannot set up TLS: {error}") }
}

fn open_access_log(logs: &AccessLogManager, config: &Config) -> Result<Option<AccessLog>, UnusableSetting> {
    let settings = config.access_log.as_ref();
    logs.open(settings).map_err(|error| {
        let sink = settings.map(|settings| settings.sink.to_string()).unwrap_or_default();
        UnusableSetting { key: "access_log".to_owned(), message: format!("cannot open {sink}: {error}") }
    })
}

/// Returns the tracer of `config`: the one before if it exports to the same collector.
fn build_tracer(
    config: &Config,
    before: Option<&Arc<Tracer>>,
    metrics: &Metrics,
) -> Result<Option<Arc<Tracer>>, UnusableSetting> {
    let Some(settings) = &config.tracing else { return Ok(None) };
    if let Some(kept) = before.filter(|before| before.exports_as(settings)) {
        return Ok(Some(Arc::clone(kept)));
    }
    Tracer::start(settings, metrics.spans()).map(|tracer| Some(Arc::new(tracer))).map_err(|error| {
        UnusableSetting { key: "tracing".to_owned(), message: format!("cannot export spans: {error}") }
    })
}

/// State of each listener by its position among `listeners`: what `build` makes of its part of `config` and its state
/// before. A listener that is missing from `config` keeps its state if its connections need that.
fn build_for_listeners<T>(
    config: &Config,
    listeners: &[Box<str>],
    before: &[Option<Arc<T>>],
    keeps_removed: bool,
    build: impl Fn(&ListenerConfig, Option<&Arc<T>>) -> Result<Option<Arc<T>>, rustls::Error>,
) -> Result<Box<[Option<Arc<T>>]>, rustls::Error> {
    let one = |(index, name): (usize, &str)| {
        let before = before.get(index).and_then(Option::as_ref);
        match config.listeners.iter().find(|listener| *listener.settings.name == *name) {
            Some(listener) => build(listener, before),
            None => Ok(before.filter(|_| keeps_removed).cloned()),
        }
    };
    listeners.iter().map(|name| &**name).enumerate().map(one).collect()
}

/// TLS of the listeners. One with the same settings keeps its state.
fn build_listener_tls(
    config: &Config,
    listeners: &[Box<str>],
    before: &[Option<Arc<TlsServer>>],
) -> Result<Box<[Option<Arc<TlsServer>>]>, rustls::Error> {
    build_for_listeners(config, listeners, before, false, |listener, before| match (&listener.tls, before) {
        (None, _) => Ok(None),
        (Some(settings), Some(before)) if before.settings() == settings => Ok(Some(Arc::clone(before))),
        (Some(settings), before) => TlsServer::new(settings.clone(), before.map(|before| &**before))
            .map(|server| Some(Arc::new(server))),
    })
}

/// Forward proxies of the listeners. One with the same settings keeps its state.
fn build_forward_proxies(
    config: &Config,
    listeners: &[Box<str>],
    before: &[Option<Arc<ForwardProxy>>],
    identity: &Arc<ProxyIdentity>,
) -> Result<Box<[Option<Arc<ForwardProxy>>]>, rustls::Error> {
    build_for_listeners(config, listeners, before, true, |listener, before| {
        match (&listener.forward_proxy, before) {
            (None, _) => Ok(None),
            (Some(settings), Some(before)) if before.settings() == settings => Ok(Some(Arc::clone(before))),
            (Some(settings), _) => ForwardProxy::new(settings.clone(), identity).map(Some),
        }
    })
}

/// Returns how other proxies ask for decisions on the listeners. A listener that is missing from `config` still decides for
/// its connections.
fn decision_protocols(
    config: &Config,
    listeners: &[Box<str>],
    before: &[Option<DecisionProtocol>],
) -> Box<[Option<DecisionProtocol>]> {
    let one = |(index, name): (usize, &str)| {
        let listener = config.listeners.iter().find(|listener| *listener.settings.name == *name);
        listener.map_or_else(|| before.get(index).copied().flatten(), |listener| listener.decide)
    };
    listeners.iter().map(|name| &**name).enumerate().map(one).collect()
}

/// Returns where callers read their own limits. What callers have used of an unchanged one stays used.
fn build_own_limits(
    config: &Config,
    listeners: &[Box<str>],
    before: &[Option<Arc<OwnLimits>>],
) -> Box<[Option<Arc<OwnLimits>>]> {
    let one = |(index, name): (usize, &str)| {
        let before = before.get(index).cloned().flatten();
        let Some(listener) = config.listeners.iter().find(|listener| *listener.settings.name == *name) else {
            return before;
        };
        let settings = listener.own_limits.as_ref()?;
        let kept = before.filter(|before| before.settings() == settings);
        Some(kept.unwrap_or_else(|| Arc::new(OwnLimits::new(settings.clone()))))
    };
    listeners.iter().map(|name| &**name).enumerate().map(one).collect()
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
