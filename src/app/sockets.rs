//! All addresses on which the process listens: those of clients, of the admin port and of the rate limit service.

use std::net::SocketAddr;
use std::sync::Arc;

use super::admin_port::{AdminPlan, AdminPort};
use super::bind_error::BindError;
use super::listeners::{ListenerPlan, Listeners};
use super::rls_runtime::RlsSockets;
use crate::proxy::{Generation, ListenerUpdates};
use weir_config::Config;
use weir_telemetry::metrics::Metrics;

/// The bound sockets.
#[derive(Debug)]
pub(super) struct Sockets {
    pub(super) listeners: Listeners,
    pub(super) admin: AdminPort,
    /// Addresses of the rate limit service, which stay the same.
    of_rls: Box<[SocketAddr]>,
}

/// The sockets of a configuration that is still to be applied.
#[derive(Debug)]
pub(super) struct SocketPlan {
    listeners: ListenerPlan,
    admin: AdminPlan,
}

impl Sockets {
    /// Creates the sockets of a process with this many workers. Apart from those of the rate limit service, none is bound yet.
    /// Also returns the part of each worker.
    pub(super) fn new(
        workers: usize,
        rls: Option<&RlsSockets>,
        metrics: &Arc<Metrics>,
    ) -> (Self, Vec<ListenerUpdates>) {
        let (listeners, updates) = Listeners::new(workers, metrics);
        let of_rls = rls.into_iter().flat_map(RlsSockets::addresses).collect();
        (Self { listeners, admin: AdminPort::new(), of_rls }, updates)
    }

    /// Binds what `config` needs and is not bound yet, so that an address in use is found before anything changes.
    ///
    /// # Errors
    /// The first address that cannot be bound.
    pub(super) fn prepare(&self, config: &Config) -> Result<SocketPlan, BindError> {
        Ok(SocketPlan {
            listeners: self.listeners.prepare(config)?,
            admin: self.admin.prepare(&config.admin, &self.addresses())?,
        })
    }

    /// Serves the planned sockets, and no longer others. `generation` is that of `config`.
    pub(super) fn apply(&self, plan: SocketPlan, config: &Config, generation: &Generation) {
        self.listeners.apply(plan.listeners, generation);
        self.admin.apply(plan.admin, &config.admin);
    }

    /// Returns all addresses, by which a forward proxy detects loops.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        let bound = self.listeners.addresses().into_iter().chain(self.admin.addresses());
        bound.chain(self.of_rls.iter().copied()).collect()
    }
}
