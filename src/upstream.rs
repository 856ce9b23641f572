//! The services beside us: connections to them, and one request and answer over one of them.
//!
//! A [`Cluster`] is an upstream as all workers share it: its settings and where it is. Each worker has an
//! [`Upstream`] of its own for it with an [`Endpoint`] for each place, so connections never cross threads.

pub mod answer;
pub mod cluster;
pub mod endpoint;
pub mod error;
pub mod settings;
pub mod stream;

mod echo;
mod http1;
mod pool;
mod transport;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use self::cluster::Cluster;
use self::endpoint::Endpoint;
use self::error::Error;
pub use self::settings::{Address, Settings};
use crate::telemetry::metrics::Metrics;

/// One worker's way to an upstream.
#[derive(Debug)]
pub struct Upstream {
    cluster: Arc<Cluster>,
    endpoints: Box<[Rc<Endpoint>]>,
    /// Which endpoint's turn it is.
    turn: Cell<usize>,
    /// Whether it has failed since it last answered: its failure is logged once.
    fails: Cell<bool>,
}

impl Upstream {
    /// A way to `cluster` without connections yet.
    pub fn new(cluster: &Arc<Cluster>, metrics: &Metrics) -> Self {
        let name = &cluster.settings().name;
        let endpoint = |host| Rc::new(Endpoint::new(cluster, host, metrics.endpoint(name, &host.name)));
        Self {
            endpoints: cluster.hosts().iter().map(endpoint).collect(),
            cluster: Arc::clone(cluster),
            turn: Cell::new(0),
            fails: Cell::new(false),
        }
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
        self.endpoints.iter().for_each(|endpoint| endpoint.age());
    }

    /// The endpoint for the next request.
    pub fn pick(&self) -> Option<Rc<Endpoint>> {
        match &*self.endpoints {
            [only] => Some(Rc::clone(only)),
            several => {
                let turn = self.turn.get();
                self.turn.set(turn.wrapping_add(1));
                several.get(turn.checked_rem(several.len())?).map(Rc::clone)
            }
        }
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
