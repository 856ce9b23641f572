//! From a valid configuration to one in force.
//!
//! The limiter learns the new limits first, then requests are switched over; limits that are gone are
//! forgotten when the generation after the next is put in force. A request that began just before is decided
//! by the limits it began with: at no moment is a request decided without the limits of its generation.

use std::io;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::clock::Clock;
use crate::config::Config;
use crate::limiter::{Limiter, Meter};
use crate::policy::Policy;
use crate::proxy::Generation;
use crate::proxy::fallback::Fallbacks;
use crate::response::refusal::Refusal;
use crate::rls::windows::Windows;
use crate::rules::{self, RuleSet};
use crate::telemetry::metrics::Metrics;
use crate::tls::client::{self, Client};
use crate::tls::server::Server;
use crate::upstream::Settings;
use crate::upstream::cluster::Cluster;

/// The generation in force and the means to replace it.
#[derive(Debug)]
pub(super) struct Generations {
    pub(super) current: Arc<ArcSwap<Generation>>,
    /// The names of the listeners that are bound.
    listeners: Box<[Box<str>]>,
    /// Where Envoy's rate limit service counts, if there is one: through all generations.
    pub(super) windows: Option<Windows>,
    /// The limits of the generation in force.
    meters: Mutex<Vec<Meter>>,
    limiter: Arc<Limiter>,
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
        let (policy, mut meters) = compile(config, 1, limiter, clock);
        let windows = config.rls.as_ref().and_then(|_| Windows::install(limiter, clock.now()));
        meters.extend(windows.iter().flat_map(Windows::meters));
        // What an earlier process had and this one has not.
        limiter.retire_others(&meters, clock.now());
        let upstreams = clusters(config, &[], metrics, runtime.as_ref()).map_err(io::Error::other)?;
        let fallbacks = Arc::new(Fallbacks::of(&policy, &Fallbacks::default()));
        let listeners: Box<[Box<str>]> =
            config.listeners.iter().map(|listener| listener.name.clone()).collect();
        let tls = secured(config, &listeners, &[]).map_err(io::Error::other)?;
        let services = config.services.clone().into();
        let generation = Generation {
            policy: Arc::new(policy),
            upstreams,
            fallbacks,
            elastic: config.elastic,
            tls,
            services,
        };
        Ok(Self {
            listeners,
            windows,
            current: Arc::new(ArcSwap::from_pointee(generation)),
            meters: Mutex::new(meters),
            limiter: Arc::clone(limiter),
            clock: Arc::clone(clock),
            metrics: Arc::clone(metrics),
            runtime,
        })
    }

    /// Puts another configuration in force; answers its number.
    pub(super) fn apply(&self, config: &Config) -> u64 {
        let current = self.current.load_full();
        let generation = current.policy.generation + 1;
        let (policy, mut meters) = compile(config, generation, &self.limiter, &self.clock);
        meters.extend(self.windows.iter().flat_map(Windows::meters));
        let upstreams = clusters(config, &current.upstreams, &self.metrics, self.runtime.as_ref());
        let upstreams = upstreams.unwrap_or_else(|error| {
            tracing::error!(%error, "cannot set up TLS towards an upstream, the upstreams of before stay");
            current.upstreams.clone()
        });
        let fallbacks = Arc::new(Fallbacks::of(&policy, &current.fallbacks));
        let tls = secured(config, &self.listeners, &current.tls).unwrap_or_else(|error| {
            tracing::error!(%error, "cannot set up TLS, that of before stays");
            current.tls.clone()
        });
        self.current.store(Arc::new(Generation {
            policy: Arc::new(policy),
            upstreams,
            fallbacks,
            elastic: config.elastic,
            tls,
            services: config.services.clone().into(),
        }));
        let before = std::mem::replace(&mut *self.meters.lock(), meters.clone());
        self.limiter.retire_others(&[meters, before].concat(), self.clock.now());
        generation
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

fn compile(config: &Config, generation: u64, limiter: &Limiter, clock: &Clock) -> (Policy, Vec<Meter>) {
    let meters = limiter.install(&rules::meter_specs(&config.rules), clock.now());
    let policy = Policy {
        generation,
        identify: config.identify.clone(),
        rules: RuleSet::bind(config.rules.clone(), &meters, limiter.hasher()),
        refusals: config.refusals.clone().into(),
        routes: config.routes.clone(),
        denied: Refusal::denied(),
        response: config.response,
    };
    (policy, meters)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use http::{HeaderMap, Method, Uri};

    use super::*;
    use crate::config;
    use crate::identify::identify;
    use crate::limiter;
    use crate::limiter::elastic::Headroom;
    use crate::rules::selection::Selection;

    fn config(rule: &str) -> Config {
        let head = "listeners: 127.0.0.1:0\nupstream: echo\nrules:\n";
        config::from_text(&format!("{head}  - {rule}\n"), Path::new("weir.yaml"), &|_| None).unwrap()
    }

    #[test]
    fn a_request_that_began_before_a_reload_is_decided_by_the_limits_it_began_with() {
        let limiter = Arc::new(Limiter::new(limiter::Settings { max_keys: 100, secret: [1, 2] }));
        let clock = Arc::new(Clock::start());
        let generations = Generations::first(
            &config("{ name: a, key: [], limit: 1/d }"),
            &limiter,
            &clock,
            &Metrics::new(&[]),
        )
        .unwrap();
        let passes = |policy: &Policy| {
            let (uri, headers) = (Uri::from_static("/"), HeaderMap::new());
            let peer = [192, 0, 2, 1].into();
            let request =
                identify(&Method::GET, &uri, &headers, peer, &policy.identify, clock.now()).unwrap();
            let Selection::Limited(selected, _) = policy.rules.select(&request, Headroom::NONE) else {
                panic!()
            };
            let checks: Vec<_> = selected.iter().map(|selected| selected.check).collect();
            !limiter.check(&checks, clock.now()).is_refused()
        };
        let policy = || Arc::clone(&generations.current.load().policy);
        let before = policy();
        assert!(passes(&before));
        generations.apply(&config("{ name: a, key: path, limit: 1/d }"));
        assert!(!passes(&before), "its limit is still there, and used up");
        assert!(passes(&policy()) && !passes(&policy()));
        generations.apply(&config("{ name: a, key: path, limit: 2/d }"));
        assert!(passes(&before), "two generations later it is gone");
        assert!(passes(&policy()) && !passes(&policy()));
    }
}
