//! One worker's endpoints of an upstream, and load balancing between them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cluster::Cluster;
use super::endpoint::Endpoint;
use super::host::UpstreamHost;
use super::settings::Balance;
use weir_telemetry::metrics::Metrics;

/// Endpoints as of the last change of the hosts.
#[derive(Debug)]
pub(super) struct Endpoints {
    current: RefCell<EndpointSet>,
    /// Position of the next endpoint in round-robin order.
    next_index: Cell<usize>,
    random: RefCell<fastrand::Rng>,
    metrics: Arc<Metrics>,
    /// Server name in TLS, in place of the host of the address.
    server_name: Option<Rc<str>>,
}

#[derive(Debug)]
struct EndpointSet {
    epoch: u32,
    all: Vec<Rc<Endpoint>>,
    /// Endpoints that may receive requests.
    usable: Vec<Rc<Endpoint>>,
}

impl Endpoints {
    /// Creates the endpoints of `cluster`, without connections. `server_name` replaces the host of the address in TLS.
    pub(super) fn new(cluster: &Arc<Cluster>, metrics: &Arc<Metrics>, server_name: Option<Rc<str>>) -> Self {
        let mut random = fastrand::Rng::new();
        // A random start, so that not all workers begin with the same endpoint.
        let turn = Cell::new(random.usize(..));
        let endpoints = Self {
            current: RefCell::new(EndpointSet { epoch: 0, all: Vec::new(), usable: Vec::new() }),
            next_index: turn,
            random: RefCell::new(random),
            metrics: Arc::clone(metrics),
            server_name,
        };
        endpoints.rebuild(cluster);
        endpoints
    }

    /// Selects the endpoint for the next request, if possible other than those at `tried`.
    pub(super) fn pick(&self, cluster: &Arc<Cluster>, tried: &[Arc<UpstreamHost>]) -> Option<Rc<Endpoint>> {
        self.refresh(cluster);
        let seen = self.current.borrow();
        if let [only] = &*seen.usable {
            return Some(Rc::clone(only));
        }
        let picked = match cluster.settings().balance {
            Balance::RoundRobin => self.pick_round_robin(&seen.usable, tried),
            Balance::LeastRequest => self.pick_least_request(&seen.usable, tried),
        };
        picked.map(Rc::clone)
    }

    /// Whether there is a usable endpoint other than those at `tried`.
    pub(super) fn has_other(&self, tried: &[Arc<UpstreamHost>]) -> bool {
        self.current.borrow().usable.iter().any(|endpoint| !endpoint.is_among(tried))
    }

    /// Whether there is no connection that could be closed.
    pub(super) fn are_unconnected(&self) -> bool {
        self.current.borrow().all.iter().all(|endpoint| endpoint.is_unconnected())
    }

    /// Advances the time by one second.
    pub(super) fn tick_second(&self, cluster: &Arc<Cluster>) {
        self.refresh(cluster);
        self.current.borrow().all.iter().for_each(|endpoint| endpoint.tick_second());
    }

    /// Returns the number of connections without a request.
    pub(super) fn idle_connections(&self) -> usize {
        self.current.borrow().all.iter().map(|endpoint| endpoint.idle_connections()).sum()
    }

    /// Closes every idle connection.
    pub(super) fn close_unused(&self) {
        self.current.borrow().all.iter().for_each(|endpoint| endpoint.close_unused());
    }

    fn pick_round_robin<'s>(
        &self,
        usable: &'s [Rc<Endpoint>],
        tried: &[Arc<UpstreamHost>],
    ) -> Option<&'s Rc<Endpoint>> {
        let mut first = None;
        for _ in 0..usable.len() {
            let turn = self.next_index.get();
            self.next_index.set(turn.wrapping_add(1));
            let picked = usable.get(turn % usable.len());
            if tried.is_empty() || picked.is_some_and(|picked| !picked.is_among(tried)) {
                return picked;
            }
            first = first.or(picked);
        }
        first
    }

    /// Selects the less loaded of two random endpoints. That balances nearly as well as comparing all of them, and
    /// avoids sending all requests to the one that currently looks best (Mitzenmacher, "The Power of Two Choices in
    /// Randomized Load Balancing").
    fn pick_least_request<'s>(
        &self,
        usable: &'s [Rc<Endpoint>],
        tried: &[Arc<UpstreamHost>],
    ) -> Option<&'s Rc<Endpoint>> {
        let mut random = self.random.borrow_mut();
        let (one, other) = match usable.len() {
            0 => return None,
            len => {
                let one = random.usize(..len);
                // Drawn from the remaining endpoints, so that the two differ.
                let other = (one + 1 + random.usize(..len.saturating_sub(1).max(1))) % len;
                (&usable[one], &usable[other])
            }
        };
        match (one.is_among(tried), other.is_among(tried)) {
            (false, false) if other.in_flight() < one.in_flight() => Some(other),
            (false, _) => Some(one),
            (true, false) => Some(other),
            (true, true) => usable.iter().find(|endpoint| !endpoint.is_among(tried)).or(Some(one)),
        }
    }

    fn refresh(&self, cluster: &Arc<Cluster>) {
        if self.current.borrow().epoch != cluster.epoch() {
            self.rebuild(cluster);
        }
    }

    /// Takes over the current hosts.
    fn rebuild(&self, cluster: &Arc<Cluster>) {
        let settings = cluster.settings();
        // Read before the hosts, so that a concurrent change is noticed the next time.
        let epoch = cluster.epoch();
        let (hosts, tls) = (cluster.hosts(), cluster.tls());
        let mut seen = self.current.borrow_mut();
        let endpoint = |host: &Arc<UpstreamHost>| {
            let kept = seen
                .all
                .iter()
                .find(|endpoint| endpoint.is_for(host) && endpoint.is_secured_by(tls.as_ref()));
            let fresh = || {
                let metrics = self.metrics.endpoint(&settings.name, &host.name);
                Rc::new(Endpoint::new(cluster, host, tls.clone(), self.server_name.clone(), metrics))
            };
            kept.map_or_else(fresh, Rc::clone)
        };
        let all: Vec<_> = hosts.iter().map(endpoint).collect();
        let usable: Vec<_> = all.iter().filter(|endpoint| endpoint.is_usable()).map(Rc::clone).collect();
        // Panic threshold: if too few are healthy, the fault is probably elsewhere, and the rest would be overloaded.
        let panics =
            usable.len().saturating_mul(100) < all.len().saturating_mul(settings.panic_threshold.into());
        let usable =
            if panics || usable.is_empty() && settings.panic_threshold > 0 { all.clone() } else { usable };
        *seen = EndpointSet { epoch, all, usable };
    }
}

impl Endpoint {
    fn in_flight(&self) -> u32 {
        self.host().in_flight.load(Ordering::Relaxed)
    }

    fn is_usable(&self) -> bool {
        self.host().is_usable()
    }

    fn is_for(&self, host: &Arc<UpstreamHost>) -> bool {
        Arc::ptr_eq(self.host(), host)
    }

    fn is_among(&self, hosts: &[Arc<UpstreamHost>]) -> bool {
        hosts.iter().any(|host| self.is_for(host))
    }
}
