//! All addresses on which the process listens: those of clients, of the admin port and of the rate limit service.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;

use super::admin_port::{AdminPlan, AdminPort};
use super::bind_error::BindError;
use super::listeners::{ListenerPlan, Listeners, export};
use super::rls_runtime::RlsSockets;
use crate::proxy::{Generation, WorkerUpdates};
use weir_config::Config;
use weir_net::drain::{Closing, DrainManager};
use weir_net::listener::socket::Socket;
use weir_net::listener::taken_over::{SocketDescription, TakenSockets};
use weir_telemetry::metrics::Metrics;

/// The bound sockets.
#[derive(Debug)]
pub(super) struct Sockets {
    pub(super) listeners: Listeners,
    pub(super) admin: AdminPort,
    /// Addresses of the rate limit service, which stay the same.
    of_rls: Box<[SocketAddr]>,
    /// Handles of its sockets, with their purpose.
    rls_handles: Mutex<Vec<(Box<str>, Socket)>>,
    taken: Arc<TakenSockets>,
}

/// The sockets of a configuration that is still to be applied.
#[derive(Debug)]
pub(super) struct SocketPlan {
    listeners: ListenerPlan,
    admin: AdminPlan,
}

impl Sockets {
    /// Creates the sockets of a process with this many workers; `taken` are those of the process that it replaces. Apart
    /// from those of the rate limit service, none is bound yet. Also returns the part of each worker.
    pub(super) fn new(
        workers: usize,
        taken: TakenSockets,
        mut rls: Option<&mut RlsSockets>,
        metrics: &Arc<Metrics>,
    ) -> (Self, Vec<WorkerUpdates>) {
        let taken = Arc::new(taken);
        let (listeners, updates) = Listeners::new(workers, &taken, metrics);
        let of_rls = rls.iter().flat_map(|rls| rls.addresses()).collect();
        let rls_handles = Mutex::new(rls.as_mut().map(|rls| rls.take_handles()).unwrap_or_default());
        let admin = AdminPort::new(Arc::clone(&taken));
        (Self { listeners, admin, of_rls, rls_handles, taken }, updates)
    }

    /// Logs the sockets of the service manager that no listener has taken, and closes those of another process.
    pub(super) fn report_unused(&self) {
        self.listeners.report_unused_sockets();
        self.taken.close_rest();
    }

    /// Returns all sockets, for the process that replaces this one.
    ///
    /// # Errors
    /// The error of the system.
    pub(super) fn export(&self) -> io::Result<Vec<(SocketDescription, OwnedFd)>> {
        let mut exported = self.listeners.export()?;
        exported.extend(self.admin.export()?);
        for (purpose, socket) in &*self.rls_handles.lock() {
            exported.push(export(purpose, socket)?);
        }
        Ok(exported)
    }

    /// Closes the handles that are kept for another process, so that a drain closes the sockets.
    pub(super) fn release(&self) {
        self.listeners.release();
        self.rls_handles.lock().clear();
    }

    /// Closes the handles once the drain begins, unless another process is to have the sockets.
    pub(super) async fn release_when_draining(&self, drain: &DrainManager) {
        if drain.wait_for_closing().await == Closing::Close {
            self.release();
        }
        std::future::pending().await
    }

    /// Leaves the sockets to the process that replaces this one, which has those with these `purposes`. Others close with the
    /// workers.
    pub(super) fn leave(&self, purposes: &[Box<str>]) {
        self.listeners.leave(purposes);
        self.rls_handles.lock().retain(|(purpose, socket)| {
            let is_taken = purposes.contains(purpose);
            if is_taken {
                socket.leave_file();
            }
            is_taken
        });
        self.admin.leave(purposes);
    }

    /// Takes over the files of Unix sockets that another process has left.
    pub(super) fn claim_files(&self) {
        self.listeners.claim_files();
        self.rls_handles.lock().iter().for_each(|(_, socket)| socket.claim_file());
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
