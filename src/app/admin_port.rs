//! The admin port: bound with the other sockets, served on a thread of its own.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use super::bind_error::BindError;
use super::listeners::{MAX_UPDATES, export};
use super::rls_runtime::RlsRuntime;
use super::state_saver::StateSaver;
use super::{AppError, RunningApp, thread};
use crate::admin::{
    self, AdminAccess, AdminState, EventHub, Inspect, KeyCounts, RecentSamples, RejectionAudit, Surface,
};
use crate::explain_command::document_report;
use crate::proxy::ProxyState;
use weir_config::AdminSettings;
use weir_config::reload::{ReloadHandle, ReloadStatus};
use weir_limiter::LimitId;
use weir_limiter::elastic::controller::Assessment;
use weir_limiter::leases::PartsByGroup;
use weir_limiter::timestamp::Timestamp;
use weir_net::drain::DrainPhase;
use weir_net::listener::socket::{self, Socket};
use weir_net::listener::taken_over::{SocketDescription, TakenSockets};
use weir_net::tls::client::TlsClient;
use weir_net::tls::server::TlsServer;
use weir_net::worker::{ThreadGroup, WorkerFailed};
use weir_policy::engine::Policy;
use weir_replay::explain::DocumentReport;
use weir_rls::handler::RlsHandler;
use weir_store as store;
use weir_store::deferred::handle::DeferredHandle;
use weir_store::regions::RegionStatus;
use weir_store::state_file;
use weir_telemetry::logging::LevelHandle;
use weir_telemetry::metrics::ClusterView;
use weir_telemetry::observe::key_writer::LogKeys;

/// The addresses of the admin port, which a reload may change.
#[derive(Debug)]
pub(super) struct AdminPort {
    bound: Mutex<Vec<BoundAddress>>,
    updates: mpsc::Sender<AdminUpdate>,
    /// Taken by the thread.
    receiver: Mutex<Option<mpsc::Receiver<AdminUpdate>>>,
    access: Arc<AdminAccess>,
    taken: Arc<TakenSockets>,
    /// Handles of the sockets, for the process that replaces this one.
    handles: Mutex<Vec<(BoundAddress, Socket)>>,
}

#[derive(Clone, Copy, Debug)]
struct BoundAddress {
    configured: SocketAddr,
    surface: Surface,
    /// With the port that the system chose.
    address: SocketAddr,
}

/// The addresses of a configuration that is still to be applied.
#[derive(Debug)]
pub(super) struct AdminPlan(Vec<(BoundAddress, Option<TcpListener>)>);

/// The addresses of the admin port, each with its socket unless that is served already, and who may use them.
#[derive(Debug)]
struct AdminUpdate {
    sockets: Vec<(BoundAddress, Option<TcpListener>)>,
    /// `None` if no address is left.
    settings: Option<AdminSettings>,
}

impl AdminPort {
    /// Creates the port, without an address yet; `taken` are the sockets of the process that this one replaces.
    pub(super) fn new(taken: Arc<TakenSockets>) -> Self {
        let (updates, receiver) = mpsc::channel(MAX_UPDATES);
        let receiver = Mutex::new(Some(receiver));
        Self {
            bound: Mutex::default(),
            updates,
            receiver,
            access: Arc::default(),
            taken,
            handles: Mutex::default(),
        }
    }

    /// Returns the bound addresses.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.bound.lock().iter().map(|bound| bound.address).collect()
    }

    /// Binds the addresses that are not bound yet; `own` are those on which the process listens. Only an address in the configuration must be free: a second process on
    /// the host should not fail because of a default.
    ///
    /// # Errors
    /// If an address cannot be bound.
    pub(super) fn prepare(
        &self,
        settings: &AdminSettings,
        own: &[SocketAddr],
    ) -> Result<AdminPlan, BindError> {
        let before = self.bound.lock();
        let mut planned = Vec::new();
        let probes = settings.probe_address.map(|address| ("admin.probes", address, Surface::Probes));
        for (key, configured, surface) in
            [("admin.address", settings.address, Surface::Full)].into_iter().chain(probes)
        {
            let is_kept = |bound: &&BoundAddress| (bound.configured, bound.surface) == (configured, surface);
            if let Some(kept) = before.iter().find(is_kept) {
                planned.push((*kept, None));
                continue;
            }
            match self.bind(configured, surface, own) {
                Ok((address, socket)) => {
                    planned.push((BoundAddress { configured, surface, address }, Some(socket)));
                }
                Err(error) if surface == Surface::Full && !settings.is_explicit => {
                    tracing::warn!(address = %configured, %error, "no admin port: its default address is in use");
                }
                Err(error) => return Err(BindError::new(key, configured, error)),
            }
        }
        Ok(AdminPlan(planned))
    }

    /// Serves the planned addresses, and no longer others. Their connections are closed.
    pub(super) fn apply(&self, AdminPlan(planned): AdminPlan, settings: &AdminSettings) {
        for (bound, _) in planned.iter().filter(|(_, socket)| socket.is_some()) {
            tracing::info!(address = %bound.address, surface = bound.surface.as_str(), "admin listening");
        }
        *self.bound.lock() = planned.iter().map(|(bound, _)| *bound).collect();
        self.keep_handles(&planned);
        let update = AdminUpdate { sockets: planned, settings: Some(settings.clone()) };
        // Fails only if the thread has ended, and with it the process.
        let _ = self.updates.blocking_send(update);
    }

    fn bind(
        &self,
        address: SocketAddr,
        surface: Surface,
        own: &[SocketAddr],
    ) -> io::Result<(SocketAddr, TcpListener)> {
        let socket = match self.taken.take(&purpose(address, surface), 1)?.pop() {
            Some(Socket::Tcp(socket)) => socket,
            _ => socket::bind_tcp_beside(address, 1, own)?.pop().ok_or(io::ErrorKind::AddrNotAvailable)?,
        };
        Ok((socket.local_addr()?, socket))
    }

    fn keep_handles(&self, planned: &[(BoundAddress, Option<TcpListener>)]) {
        let mut handles = self.handles.lock();
        handles.retain(|(known, _)| planned.iter().any(|(bound, _)| bound.address == known.address));
        for (bound, socket) in planned {
            // Without a handle, the other process binds the address itself, which fails while this one listens.
            let handle = socket.as_ref().and_then(|socket| socket.try_clone().ok());
            handles.extend(handle.map(|handle| (*bound, Socket::Tcp(handle))));
        }
    }

    /// Returns all sockets, for the process that replaces this one.
    ///
    /// # Errors
    /// The error of the system.
    pub(super) fn export(&self) -> io::Result<Vec<(SocketDescription, OwnedFd)>> {
        let handles = self.handles.lock();
        handles
            .iter()
            .map(|(bound, socket)| export(&purpose(bound.configured, bound.surface), socket))
            .collect()
    }

    /// Leaves sockets to the process that replaces this one, and closes the handles of those that are not among `purposes`.
    pub(super) fn leave(&self, purposes: &[Box<str>]) {
        let is_taken = |bound: &BoundAddress| {
            purposes.iter().any(|taken| **taken == purpose(bound.configured, bound.surface))
        };
        self.handles.lock().retain(|(bound, _)| is_taken(bound));
    }

    /// Serves the admin port on a thread of `threads` until the process ends.
    pub(super) fn serve(
        &self,
        levels: LevelHandle,
        workers: usize,
        running: &RunningApp,
        threads: &Arc<ThreadGroup>,
    ) -> Result<(), AppError> {
        let shared = &running.shared;
        let state = Arc::new(AdminState {
            process: Box::new(ProcessInspector::new(running)),
            metrics: Arc::clone(&shared.metrics),
            limiter: Arc::clone(&shared.limiter),
            drain: Arc::clone(&shared.drain),
            replacement: Arc::clone(&shared.replacement),
            overload: Arc::clone(&shared.overload),
            log_levels: levels,
            access_logs: Arc::clone(&shared.access_logs),
            top_keys: Arc::clone(&shared.top_keys),
            demand: Arc::clone(&shared.demand),
            start_time: shared.clock.now(),
            workers,
            access: Arc::clone(&self.access),
            rejections: RejectionAudit::default(),
            overrides: Arc::clone(running.generations.engine.overrides()),
            listeners: running.sockets.listeners.shown(),
            events: EventHub::default(),
            recent: RecentSamples::default(),
            key_counts: KeyCounts::default(),
        });
        let Some(updates) = self.receiver.lock().take() else { return Ok(()) };
        let spawned = threads.spawn("admin", move || serve_updates(updates, state));
        spawned.map_err(thread::cannot_start("admin"))
    }
}

/// Returns what a socket of the admin port is bound for.
fn purpose(configured: SocketAddr, surface: Surface) -> String {
    format!("admin {} {configured}", surface.as_str())
}

/// Serves the addresses of the last update until the process ends.
async fn serve_updates(
    mut updates: mpsc::Receiver<AdminUpdate>,
    state: Arc<AdminState>,
) -> Result<(), WorkerFailed> {
    let drain = Arc::clone(&state.drain);
    let mut serving = JoinSet::new();
    let mut served: Vec<(BoundAddress, AbortHandle)> = Vec::new();
    serving.spawn_local(admin::run_events(Arc::clone(&state)));
    let ended = drain.wait_for_phase(DrainPhase::Terminated);
    tokio::pin!(ended);
    loop {
        let AdminUpdate { sockets, settings } = tokio::select! {
            Some(update) = updates.recv() => update,
            Some(_) = serving.join_next() => continue,
            () = &mut ended => break,
        };
        // An address that is removed must not be used under the new settings, which may be meant for loopback.
        served.retain(|(known, task)| {
            let is_kept = sockets.iter().any(|(bound, _)| bound.address == known.address);
            if !is_kept {
                task.abort();
            }
            is_kept
        });
        if let Some(settings) = settings {
            state.access.apply(&settings);
        }
        for (bound, socket) in sockets {
            match socket.map(tokio::net::TcpListener::from_std) {
                None => {}
                Some(Ok(socket)) => {
                    let task = serving.spawn_local(admin::serve(socket, Arc::clone(&state), bound.surface));
                    served.push((bound, task));
                }
                Some(Err(error)) => {
                    tracing::error!(%error, address = %bound.address, "cannot serve the admin port")
                }
            }
        }
    }
    while serving.join_next().await.is_some() {}
    Ok(())
}

/// The running process, as the admin port presents it.
struct ProcessInspector {
    shared: Arc<ProxyState>,
    rls_runtime: Option<Arc<RlsRuntime>>,
    reload: ReloadHandle,
    state_file: Option<Arc<Mutex<state_file::StateFileStatus>>>,
}

impl ProcessInspector {
    fn new(running: &RunningApp) -> Self {
        Self {
            shared: Arc::clone(&running.shared),
            rls_runtime: running.rls_runtime.clone(),
            reload: running.reload.clone(),
            state_file: running.state_saver.as_ref().map(StateSaver::status),
        }
    }
}

impl Inspect for ProcessInspector {
    fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    fn wall_clock(&self) -> Timestamp {
        self.shared.clock.civil_now()
    }

    fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.shared.generation.load().policy)
    }

    fn log_keys(&self) -> Option<LogKeys> {
        self.shared.generation.load().limits.log_keys()
    }

    fn upstreams(&self) -> Vec<ClusterView> {
        let now = self.shared.clock.now();
        self.shared.generation.load().upstreams.iter().map(|upstream| upstream.view(now)).collect()
    }

    fn server_tls(&self) -> Vec<Arc<TlsServer>> {
        let service = self.rls_runtime.as_ref().and_then(|service| service.grpc_port.security().tls.clone());
        self.shared.generation.load().tls.iter().flatten().cloned().chain(service).collect()
    }

    fn client_tls(&self) -> Vec<Arc<TlsClient>> {
        self.shared.generation.load().upstreams.iter().filter_map(|upstream| upstream.tls()).collect()
    }

    fn configuration(&self) -> ReloadStatus {
        self.reload.status()
    }

    /// Converted to wall-clock time; the status itself uses the clock of the limits.
    fn state_file(&self) -> Option<state_file::StateFileStatus> {
        let status = self.state_file.as_ref()?.lock().clone();
        let last_saved = status.last_saved.map(|at| self.shared.clock.civil_time_at(at));
        Some(state_file::StateFileStatus { last_saved, ..status })
    }

    fn store_parts(&self) -> PartsByGroup {
        let store = self.shared.store.as_ref();
        store.map_or_else(PartsByGroup::default, |store| store.parts_by_group(self.shared.clock.now()))
    }

    fn is_store_unreachable(&self) -> Option<bool> {
        self.shared.store.as_ref().map(store::handle::StoreHandle::is_unreachable)
    }

    fn region(&self) -> Option<RegionStatus> {
        self.shared.store.as_ref()?.region()
    }

    fn store_wait(&self) -> Duration {
        self.shared.store.as_ref().map(store::handle::StoreHandle::default_wait).unwrap_or_default()
    }

    fn last_unanswered_wait(&self, limits: &[LimitId]) -> Option<Timestamp> {
        self.shared.store.as_ref()?.last_unanswered(limits)
    }

    fn deferred(&self) -> Option<DeferredHandle> {
        self.shared.deferred.clone()
    }

    fn preview_documents(&self, domain: &str, entries: &[(String, String)]) -> Option<DocumentReport> {
        let service = self.rls_runtime.as_ref()?;
        Some(document_report(service.handler.preview(domain, entries)))
    }

    fn rate_limit_service(&self) -> Option<&RlsHandler> {
        self.rls_runtime.as_ref().map(|service| &*service.handler)
    }

    fn elastic_assessment(&self) -> Option<Assessment> {
        self.shared.elastic.assessment()
    }
}
