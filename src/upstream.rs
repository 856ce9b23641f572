//! The services beside us: connections to them, and one request and answer over one of them.
//!
//! A [`Cluster`] is an upstream as all workers share it: its settings and where it is. Each worker has an
//! [`Upstream`] of its own for it with an [`Endpoint`] for each place, so connections never cross threads.

pub mod answer;
pub mod cluster;
pub mod endpoint;
pub mod error;
pub mod host;
pub mod outgoing;
pub mod settings;
pub mod stream;
pub mod tunnel;

mod background;
mod carry_over;
mod circuit_breaker;
mod connect;
mod echo;
mod endpoints;
mod halves;
mod health;
mod http1;
mod http2;
mod in_flight;
mod outlier_detection;
mod pool;
mod resolve;

use std::cell::Cell;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::Arc;

use self::circuit_breaker::{Permit, Resource};
use self::cluster::Cluster;
use self::endpoint::Endpoint;
use self::endpoints::Endpoints;
use self::error::Error;
use self::host::Host;
pub use self::settings::{Address, Settings};
use crate::telemetry::metrics::{Metrics, Overflow};

/// A retry under way, until this is dropped.
#[derive(Debug)]
pub struct Retrying(#[expect(dead_code, reason = "held")] Permit);

/// One worker's way to an upstream.
#[derive(Debug)]
pub struct Upstream {
    cluster: Arc<Cluster>,
    endpoints: Endpoints,
    /// Whether it has failed since it last answered: its failure is logged once.
    fails: Cell<bool>,
    scarcity: Option<Rc<Scarcity>>,
}

/// Whether an upstream's requests are scarce, so that slow clients must not hold them.
#[derive(Debug)]
pub struct Scarcity {
    cluster: Arc<Cluster>,
    rate: NonZeroU32,
    is_scarce: Cell<bool>,
}

impl Scarcity {
    /// Bytes a second that a client must send or take while requests are scarce.
    pub const fn rate(&self) -> NonZeroU32 {
        self.rate
    }

    /// Whether they were at the last tick.
    pub fn is_scarce(&self) -> bool {
        self.is_scarce.get()
    }

    /// Says whether they are.
    pub fn set(&self, is_scarce: bool) {
        self.is_scarce.set(is_scarce);
    }

    /// A request was ended since its client was too slow.
    pub fn note_slow_client(&self) {
        self.cluster.metrics.overflowed(Overflow::ClientRate);
    }
}

impl Upstream {
    /// A way to `cluster` without connections yet.
    pub fn new(cluster: &Arc<Cluster>, metrics: &Arc<Metrics>) -> Self {
        let endpoints = Endpoints::new(cluster, metrics);
        let scarcity =
            |rate| Rc::new(Scarcity { cluster: Arc::clone(cluster), rate, is_scarce: Cell::new(false) });
        let scarcity = cluster.settings().limits.min_client_rate.map(scarcity);
        Self { cluster: Arc::clone(cluster), endpoints, fails: Cell::new(false), scarcity }
    }

    /// Whether its requests are scarce; `None` where slow clients may hold them all the same.
    pub const fn scarcity(&self) -> Option<&Rc<Scarcity>> {
        self.scarcity.as_ref()
    }

    /// What all workers share of it.
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    /// The settings it was made from.
    pub fn settings(&self) -> &Settings {
        self.cluster.settings()
    }

    /// A second has passed.
    pub fn age(&self) {
        self.endpoints.age(&self.cluster);
    }

    /// A tick has passed: where somebody waits for a connection, unused ones are closed for them.
    pub fn tick(&self) {
        if let Some(scarcity) = &self.scarcity {
            scarcity.set(self.cluster.breaker.is_scarce());
        }
        if self.cluster.breaker.used(Resource::Pending) > 0 {
            self.endpoints.close_unused();
        }
    }

    /// The endpoint for the next request; another one than those at `tried`, if there is one.
    pub fn pick(&self, tried: &[Arc<Host>]) -> Option<Rc<Endpoint>> {
        self.endpoints.pick(&self.cluster, tried)
    }

    /// A permit for a retry, if there is one: so many at once, or a share of the requests in flight.
    pub fn retry(&self) -> Option<Retrying> {
        let Cluster { breaker, .. } = &*self.cluster;
        let budget = u64::from(self.settings().retries.budget);
        let share = u64::from(breaker.used(Resource::Request)).saturating_mul(budget) / 100;
        let permit = breaker.acquire_retry(u32::try_from(share).unwrap_or(u32::MAX));
        if permit.is_none() {
            self.cluster.metrics.overflowed(Overflow::Retries);
        }
        permit.map(Retrying)
    }

    /// Whether a request has somewhere else to go than to those at `tried`.
    pub fn has_other(&self, tried: &[Arc<Host>]) -> bool {
        self.endpoints.has_other(tried)
    }

    /// The same once it is known where the upstream is; `None` if nobody can say, or not in time.
    pub async fn find(&self) -> Option<Rc<Endpoint>> {
        let known = tokio::time::timeout(self.settings().connect_timeout, self.cluster.settled());
        known.await.ok()?;
        self.pick(&[])
    }

    /// A request got no answer.
    pub fn note_failure(&self, error: &Error) {
        if !self.fails.replace(true) {
            let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            tracing::warn!(upstream = %self.settings().name, %error, cause, "upstream fails");
        }
    }

    /// A request was answered.
    pub fn note_success(&self) {
        if self.fails.replace(false) {
            tracing::info!(upstream = %self.settings().name, "upstream answers again");
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
