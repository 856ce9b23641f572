//! From a valid configuration to one in force: what the engine decides by, and what the shell has beside it.

use std::io;
use std::sync::Arc;

use tokio::runtime::Handle;

use crate::clock::Clock;
use crate::config::Config;
use crate::engine::{Engine, Policy};
use crate::limiter::Limiter;
use crate::proxy::Generation;
use crate::proxy::fallback::Fallbacks;
use crate::rls::windows::Windows;
use crate::telemetry::metrics::Metrics;
use crate::tls::client::{self, Client};
use crate::tls::server::Server;
use crate::upstream::Settings;
use crate::upstream::cluster::Cluster;

/// The generation in force and the means to replace it.
#[derive(Debug)]
pub(super) struct Generations {
    pub(super) engine: Engine<Generation>,
    /// The names of the listeners that are bound.
    listeners: Box<[Box<str>]>,
    clock: Arc<Clock>,
    metrics: Arc<Metrics>,
    /// Where upstreams do what is to be done beside requests.
    runtime: Option<Handle>,
}

impl Generations {
    /// Puts the first configuration in force.
    pub(super) fn first(
        config: &Config,
        limiter: &Arc<Limiter>,
        clock: &Arc<Clock>,
        metrics: &Arc<Metrics>,
    ) -> io::Result<Self> {
        let runtime = Handle::try_current().ok();
        let listeners: Box<[Box<str>]> =
            config.listeners.iter().map(|listener| listener.name.clone()).collect();
        let mut windows = config.rls.as_ref().map(|_| Windows::specs()).unwrap_or_default();
        if let Some(scope) = config.rls.as_ref().and_then(|rls| rls.scope.as_ref()) {
            windows.extend(Windows::shared_specs(scope.sharing()));
        }
        let first = |policy| {
            let upstreams = clusters(config, &[], metrics, runtime.as_ref())?;
            let tls = secured(config, &listeners, &[])?;
            Ok(generation(config, policy, upstreams, tls, &Fallbacks::default()))
        };
        let engine = Engine::start(&config.policy, limiter, &windows, clock.now(), first);
        let engine = engine.map_err(io::Error::other::<rustls::Error>)?;
        let (clock, metrics) = (Arc::clone(clock), Arc::clone(metrics));
        Ok(Self { engine, listeners, clock, metrics, runtime })
    }

    /// Where Envoy's rate limit service counts, if there is one: through all generations.
    pub(super) fn windows(&self) -> Option<Windows> {
        Windows::of(self.engine.permanent())
    }

    /// The same where it counts together with other instances, if it does.
    pub(super) fn shared_windows(&self) -> Option<Windows> {
        Windows::shared_of(self.engine.permanent())
    }

    /// Puts another configuration in force; returns its number.
    pub(super) fn apply(&self, config: &Config) -> u64 {
        let next = |policy, current: &Generation| {
            let upstreams = clusters(config, &current.upstreams, &self.metrics, self.runtime.as_ref());
            let upstreams = upstreams.unwrap_or_else(|error| {
                tracing::error!(%error, "cannot set up TLS towards an upstream, the upstreams of before stay");
                current.upstreams.clone()
            });
            let tls = secured(config, &self.listeners, &current.tls).unwrap_or_else(|error| {
                tracing::error!(%error, "cannot set up TLS, that of before stays");
                current.tls.clone()
            });
            generation(config, policy, upstreams, tls, &current.fallbacks)
        };
        self.engine.apply(&config.policy, || self.clock.now(), next)
    }

    /// Puts the configuration in force anew: what limits have in common with those of other instances has changed.
    pub(super) fn rebind(&self) -> u64 {
        let next = |policy: Arc<Policy>, current: &Generation| Generation {
            fallbacks: Arc::new(Fallbacks::of(&policy, &current.fallbacks)),
            policy,
            upstreams: current.upstreams.clone(),
            elastic: current.elastic,
            tls: current.tls.clone(),
            services: current.services.clone(),
        };
        self.engine.rebind(|| self.clock.now(), next)
    }
}

fn generation(
    config: &Config,
    policy: Arc<Policy>,
    upstreams: Box<[Arc<Cluster>]>,
    tls: Box<[Option<Arc<Server>>]>,
    fallbacks: &Fallbacks,
) -> Generation {
    Generation {
        fallbacks: Arc::new(Fallbacks::of(&policy, fallbacks)),
        policy,
        upstreams,
        elastic: config.elastic,
        tls,
        services: config.services.clone().into(),
    }
}

/// TLS of the listeners that are bound, by `config`. One that it does not name stays as it was until the restart that
/// this takes, and one whose settings are the same keeps what it has.
fn secured(
    config: &Config,
    listeners: &[Box<str>],
    before: &[Option<Arc<Server>>],
) -> Result<Box<[Option<Arc<Server>>]>, rustls::Error> {
    let one = |(index, name): (usize, &str)| {
        let before = before.get(index).and_then(Option::as_ref);
        let Some(place) = config.listeners.iter().position(|listener| *listener.name == *name) else {
            return Ok(before.cloned());
        };
        let settings = config.tls.get(place).and_then(Option::as_ref);
        match (settings, before) {
            (None, _) => Ok(None),
            (Some(settings), Some(before)) if before.settings() == settings => Ok(Some(Arc::clone(before))),
            (Some(settings), before) => Server::new(settings.clone(), before.map(|before| &**before))
                .map(|server| Some(Arc::new(server))),
        }
    };
    listeners.iter().map(|name| &**name).enumerate().map(one).collect()
}

/// The upstreams of `config`; those of `before` that stay as they are are kept. One of which only TLS has changed stays
/// too, with all that is known of it; one with other settings knows of its endpoints what its predecessor knew.
fn clusters(
    config: &Config,
    before: &[Arc<Cluster>],
    metrics: &Metrics,
    runtime: Option<&Handle>,
) -> Result<Box<[Arc<Cluster>]>, rustls::Error> {
    let client = |settings: &client::Settings| Client::new(settings.clone()).map(Arc::new);
    let fresh = |settings: &Settings, tls: Option<&client::Settings>| {
        let before = before.iter().find(|before| before.settings().name == settings.name);
        let tls = tls.map(client).transpose()?;
        let cluster = Cluster::new(settings.clone(), tls, before.map(|before| &**before), metrics);
        if let Some(runtime) = runtime {
            cluster.start(runtime);
        }
        Ok(cluster)
    };
    let cluster = |(index, settings): (usize, &Settings)| {
        let tls = config.upstream_tls.get(index).and_then(Option::as_ref);
        let kept =
            before.iter().find(|kept| kept.settings() == settings && kept.tls().is_some() == tls.is_some());
        let Some(kept) = kept else { return fresh(settings, tls) };
        match (tls, kept.tls()) {
            (Some(tls), Some(now)) if now.settings() != tls => kept.secure(client(tls)?),
            _ => {}
        }
        Ok(Arc::clone(kept))
    };
    config.upstreams.iter().enumerate().map(cluster).collect()
}
