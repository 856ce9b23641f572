//! Upstreams: connections to the services behind Weir, and requests and responses over them.
//!
//! A [`Cluster`] is the part of an upstream that all workers share: its settings and its endpoints' state. Each worker
//! has an [`Upstream`] of its own for it, with one [`Endpoint`] for each host, so connections never cross threads.
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod cluster;
pub mod coalesced_write;
pub mod endpoint;
pub mod error;
pub mod forward_proxy;
pub mod host;
pub mod outgoing;
pub mod response_body;
pub mod settings;
pub mod tunnel;

mod background;
mod carry_over;
mod circuit_breaker;
mod connect;
mod echo;
mod endpoints;
mod halves;
mod health_check;
mod http1;
mod http1_pool;
mod http2;
mod in_flight;
mod outlier_detection;
mod resolve;
mod server_names;

use std::cell::Cell;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::Arc;

use self::circuit_breaker::{Permit, Resource};
use self::cluster::Cluster;
use self::endpoint::Endpoint;
use self::endpoints::Endpoints;
use self::error::{NoAddress, UpstreamError};
use self::host::UpstreamHost;
use self::server_names::UpstreamsByName;
pub use self::settings::{UpstreamAddress, UpstreamSettings};
use weir_net::outage::Outage;
use weir_telemetry::metrics::{Metrics, UpstreamOverflow};

/// Permit for a retry, released when dropped.
#[derive(Debug)]
pub struct RetryPermit(#[expect(dead_code, reason = "held")] Permit);

/// One worker's connections to an upstream.
#[derive(Debug)]
pub struct Upstream {
    cluster: Arc<Cluster>,
    endpoints: Endpoints,
    outage: Outage,
    scarcity: Option<Rc<RequestScarcity>>,
    /// Connections by server name, if it is the host of each request.
    by_name: Option<UpstreamsByName>,
    metrics: Arc<Metrics>,
}

/// Whether an upstream's capacity for requests is scarce, so that slow clients must not occupy it.
#[derive(Debug)]
pub struct RequestScarcity {
    cluster: Arc<Cluster>,
    min_client_rate: NonZeroU32,
    is_scarce: Cell<bool>,
}

impl RequestScarcity {
    /// Returns the minimum transfer rate of a client while capacity is scarce, in bytes per second.
    pub const fn min_client_rate(&self) -> NonZeroU32 {
        self.min_client_rate
    }

    /// Whether capacity was scarce at the last tick.
    pub fn is_scarce(&self) -> bool {
        self.is_scarce.get()
    }

    /// Sets whether capacity is scarce.
    pub fn set_scarce(&self, is_scarce: bool) {
        self.is_scarce.set(is_scarce);
    }

    /// Records that a request was aborted because its client was too slow.
    pub fn record_slow_client(&self) {
        self.cluster.metrics.record_overflow(UpstreamOverflow::ClientRate);
    }
}

impl Upstream {
    /// Creates the worker's part of `cluster`, without connections.
    pub fn new(cluster: &Arc<Cluster>, metrics: &Arc<Metrics>) -> Self {
        let by_name = cluster.settings().server_name_from_host.then(UpstreamsByName::default);
        Self { by_name, ..Self::with_name(cluster, metrics, None) }
    }

    /// Creates the connections to `cluster` with this server name.
    fn with_name(cluster: &Arc<Cluster>, metrics: &Arc<Metrics>, name: Option<Rc<str>>) -> Self {
        let endpoints = Endpoints::new(cluster, metrics, name);
        let scarcity = |rate| {
            Rc::new(RequestScarcity {
                cluster: Arc::clone(cluster),
                min_client_rate: rate,
                is_scarce: Cell::new(false),
            })
        };
        let scarcity = cluster.settings().limits.min_client_rate.map(scarcity);
        Self {
            cluster: Arc::clone(cluster),
            endpoints,
            outage: Outage::default(),
            scarcity,
            by_name: None,
            metrics: Arc::clone(metrics),
        }
    }

    /// Returns the connections for requests for `host`. They are those of its server name, if that is the host of each
    /// request and a certificate can be valid for it.
    pub fn for_host<'h>(self: &Rc<Self>, host: impl FnOnce() -> &'h str) -> Rc<Self> {
        let Some(by_name) = &self.by_name else { return Rc::clone(self) };
        let rewritten = self.settings().rewrite.host.as_ref().and_then(|host| host.to_str().ok());
        let name = match rewritten {
            Some(rewritten) => server_names::name_of_host(rewritten),
            None => server_names::name_of_host(host()),
        };
        match name {
            Some(name) => {
                by_name.get(&name, || Self::with_name(&self.cluster, &self.metrics, Some((&*name).into())))
            }
            None => Rc::clone(self),
        }
    }

    /// Returns whether capacity is scarce; `None` if no minimum rate is configured.
    pub const fn scarcity(&self) -> Option<&Rc<RequestScarcity>> {
        self.scarcity.as_ref()
    }

    /// Returns the part that all workers share.
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    pub fn settings(&self) -> &UpstreamSettings {
        self.cluster.settings()
    }

    /// Advances the time by one second.
    pub fn tick_second(&self) {
        self.endpoints.tick_second(&self.cluster);
        self.named().for_each(|named| named.tick_second());
    }

    /// Returns the connections of all server names.
    fn named(&self) -> impl Iterator<Item = Rc<Self>> {
        self.by_name.iter().flat_map(UpstreamsByName::all)
    }

    /// Whether there is no connection that could be closed, so that time need not advance.
    pub fn is_unconnected(&self) -> bool {
        self.endpoints.are_unconnected() && self.by_name.as_ref().is_none_or(UpstreamsByName::are_unconnected)
    }

    /// Returns the number of connections without a request.
    pub fn idle_connections(&self) -> usize {
        let named = self.named().map(|named| named.idle_connections()).sum();
        self.endpoints.idle_connections().saturating_add(named)
    }

    /// Closes every idle connection.
    pub fn close_unused(&self) {
        self.endpoints.close_unused();
        self.named().for_each(|named| named.close_unused());
    }

    /// Advances the time by one tick. If requests wait for a connection, closes idle ones to make room.
    pub fn tick(&self) {
        if let Some(scarcity) = &self.scarcity {
            scarcity.set_scarce(self.cluster.breaker.is_scarce());
        }
        if self.cluster.breaker.used(Resource::Pending) > 0 {
            self.endpoints.close_unused();
        }
        self.named().for_each(|named| named.tick());
    }

    /// Selects the endpoint for the next request, if possible other than those at `tried`.
    pub fn pick(&self, tried: &[Arc<UpstreamHost>]) -> Option<Rc<Endpoint>> {
        self.endpoints.pick(&self.cluster, tried)
    }

    /// Acquires a permit for a retry: within the maximum number of retries, or within the retry budget if that is
    /// larger.
    pub fn acquire_retry(&self) -> Option<RetryPermit> {
        let Cluster { breaker, .. } = &*self.cluster;
        let budget = u64::from(self.settings().retries.budget);
        let share = u64::from(breaker.used(Resource::Request)).saturating_mul(budget) / 100;
        let permit = breaker.acquire_retry(u32::try_from(share).unwrap_or(u32::MAX));
        if permit.is_none() {
            self.cluster.metrics.record_overflow(UpstreamOverflow::Retries);
        }
        permit.map(RetryPermit)
    }

    /// Whether there is a usable endpoint other than those at `tried`.
    pub fn has_other(&self, tried: &[Arc<UpstreamHost>]) -> bool {
        self.endpoints.has_other(tried)
    }

    /// Waits until the upstream's addresses are known, then selects an endpoint; `None` if there is none in time.
    pub async fn pick_when_resolved(&self) -> Option<Rc<Endpoint>> {
        let known = tokio::time::timeout(self.settings().connect_timeout, self.cluster.wait_until_resolved());
        known.await.ok()?;
        self.pick(&[])
    }

    /// Returns why there is no endpoint; `None` if there is one, or this is not a destination of a forward proxy.
    pub fn no_address(&self) -> Option<NoAddress> {
        self.cluster.no_address()
    }

    /// Records that a request got no response.
    pub fn record_failure(&self, error: &UpstreamError) {
        if self.outage.record_failure() == 1 {
            let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            tracing::warn!(upstream = %self.settings().name, %error, cause, "upstream requests fail");
        }
    }

    /// Records that a request got a response.
    pub fn record_success(&self) {
        if self.outage.record_success() > 0 {
            tracing::info!(upstream = %self.settings().name, "upstream responds again");
        }
    }
}

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
