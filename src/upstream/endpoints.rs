//! One worker's endpoints of an upstream, and which of them takes the next request.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cluster::Cluster;
use super::endpoint::Endpoint;
use super::host::Host;
use super::settings::Balance;
use crate::telemetry::metrics::Metrics;

/// The endpoints as they were when something last changed.
#[derive(Debug)]
pub(super) struct Endpoints {
    seen: RefCell<Seen>,
    /// Whose turn it is.
    turn: Cell<usize>,
    random: RefCell<fastrand::Rng>,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
struct Seen {
    epoch: u32,
    all: Vec<Rc<Endpoint>>,
    /// Those that may get requests.
    usable: Vec<Rc<Endpoint>>,
}

impl Endpoints {
    /// Those of `cluster`, without connections yet.
    pub(super) fn new(cluster: &Arc<Cluster>, metrics: &Arc<Metrics>) -> Self {
        let mut random = fastrand::Rng::new();
        // Workers that all begin with the first would send it as many requests at once.
        let turn = Cell::new(random.usize(..));
        let endpoints = Self {
            seen: RefCell::new(Seen { epoch: 0, all: Vec::new(), usable: Vec::new() }),
            turn,
            random: RefCell::new(random),
            metrics: Arc::clone(metrics),
        };
        endpoints.look(cluster);
        endpoints
    }

    /// The endpoint for the next request, if there is any; another one than those at `tried`, if there is one.
    pub(super) fn pick(&self, cluster: &Arc<Cluster>, tried: &[Arc<Host>]) -> Option<Rc<Endpoint>> {
        self.refresh(cluster);
        let seen = self.seen.borrow();
        if let [only] = &*seen.usable {
            return Some(Rc::clone(only));
        }
        let picked = match cluster.settings().balance {
            Balance::RoundRobin => self.in_turn(&seen.usable, tried),
            Balance::LeastRequest => self.least(&seen.usable, tried),
        };
        picked.map(Rc::clone)
    }

    /// Whether there is another endpoint than those at `tried`.
    pub(super) fn has_other(&self, tried: &[Arc<Host>]) -> bool {
        self.seen.borrow().usable.iter().any(|endpoint| !endpoint.is_among(tried))
    }

    /// A second has passed.
    pub(super) fn age(&self, cluster: &Arc<Cluster>) {
        self.refresh(cluster);
        self.seen.borrow().all.iter().for_each(|endpoint| endpoint.age());
    }

    /// Closes every connection that has no request.
    pub(super) fn close_unused(&self) {
        self.seen.borrow().all.iter().for_each(|endpoint| endpoint.close_unused());
    }

    fn in_turn<'s>(&self, usable: &'s [Rc<Endpoint>], tried: &[Arc<Host>]) -> Option<&'s Rc<Endpoint>> {
        let mut first = None;
        for _ in 0..usable.len() {
            let turn = self.turn.get();
            self.turn.set(turn.wrapping_add(1));
            let picked = usable.get(turn % usable.len());
            if tried.is_empty() || picked.is_some_and(|picked| !picked.is_among(tried)) {
                return picked;
            }
            first = first.or(picked);
        }
        first
    }

    /// Two choices spread requests nearly as well as asking all, and do not send everybody to the one that looks
    /// best at the moment (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing").
    fn least<'s>(&self, usable: &'s [Rc<Endpoint>], tried: &[Arc<Host>]) -> Option<&'s Rc<Endpoint>> {
        let mut random = self.random.borrow_mut();
        let (one, other) = match usable.len() {
            0 => return None,
            len => {
                let one = random.usize(..len);
                // Another one: drawn from the rest.
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
        if self.seen.borrow().epoch != cluster.epoch() {
            self.look(cluster);
        }
    }

    /// Takes over what is known of the hosts now.
    fn look(&self, cluster: &Arc<Cluster>) {
        let settings = cluster.settings();
        // Read before the hosts: a change in between is seen the next time.
        let epoch = cluster.epoch();
        let (hosts, tls) = (cluster.hosts(), cluster.tls());
        let mut seen = self.seen.borrow_mut();
        let endpoint = |host: &Arc<Host>| {
            let kept =
                seen.all.iter().find(|endpoint| endpoint.is_of(host) && endpoint.is_secured_by(tls.as_ref()));
            let fresh = || {
                let metrics = self.metrics.endpoint(&settings.name, &host.name);
                Rc::new(Endpoint::new(cluster, host, tls.clone(), metrics))
            };
            kept.map_or_else(fresh, Rc::clone)
        };
        let all: Vec<_> = hosts.iter().map(endpoint).collect();
        let usable: Vec<_> = all.iter().filter(|endpoint| endpoint.is_usable()).map(Rc::clone).collect();
        // Where most seem to be ill the fault is elsewhere, or the rest would be trampled down.
        let panics =
            usable.len().saturating_mul(100) < all.len().saturating_mul(settings.panic_threshold.into());
        let usable =
            if panics || usable.is_empty() && settings.panic_threshold > 0 { all.clone() } else { usable };
        *seen = Seen { epoch, all, usable };
    }
}

impl Endpoint {
    fn in_flight(&self) -> u32 {
        self.host().in_flight.load(Ordering::Relaxed)
    }

    fn is_usable(&self) -> bool {
        self.host().is_usable()
    }

    fn is_of(&self, host: &Arc<Host>) -> bool {
        Arc::ptr_eq(self.host(), host)
    }

    fn is_among(&self, hosts: &[Arc<Host>]) -> bool {
        hosts.iter().any(|host| self.is_of(host))
    }
}
