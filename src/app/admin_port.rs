//! The admin port: bound with the other sockets, served on a thread of its own.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::rls_runtime::RlsRuntime;
use super::state_saver::StateSaver;
use super::{AppError, RunningApp, serve_all, thread};
use crate::admin::{self, AdminState, EventHub, Inspect, KeyCounts, RecentSamples, RejectionAudit, Surface};
use crate::explain_command::document_report;
use crate::proxy::ProxyState;
use weir_config::reload::{ReloadHandle, ReloadStatus};
use weir_config::{AdminSettings, Config};
use weir_limiter::LimitId;
use weir_limiter::elastic::controller::Assessment;
use weir_limiter::timestamp::Timestamp;
use weir_net::listener::socket;
use weir_net::tls::client::TlsClient;
use weir_net::tls::server::TlsServer;
use weir_net::worker::ThreadGroup;
use weir_policy::engine::Policy;
use weir_replay::explain::DocumentReport;
use weir_rls::handler::RlsHandler;
use weir_store as store;
use weir_store::deferred::handle::DeferredHandle;
use weir_store::state_file;
use weir_telemetry::logging::LevelHandle;
use weir_telemetry::metrics::ClusterView;
use weir_telemetry::observe::key_writer::LogKeys;

/// The sockets of the admin port.
pub(super) struct AdminPort {
    sockets: Vec<(TcpListener, Surface)>,
}

impl AdminPort {
    /// Binds the configured addresses. Only an address in the configuration must be free: a second process on
    /// the host should not fail because of a default.
    pub(super) fn bind(settings: &AdminSettings) -> Result<Self, AppError> {
        let mut sockets = Vec::new();
        let mut bind = |address: SocketAddr, surface| match socket::bind_tcp(address, 1) {
            Ok(bound) => {
                sockets.extend(bound.into_iter().map(|socket| (socket, surface)));
                Ok(())
            }
            Err(error) if surface == Surface::Full && !settings.is_explicit => {
                tracing::warn!(%address, %error, "no admin port: its default address is in use");
                Ok(())
            }
            Err(error) => Err(AppError::System(format!("cannot listen on {address}"), error)),
        };
        bind(settings.address, Surface::Full)?;
        settings.probe_address.map_or(Ok(()), |address| bind(address, Surface::Probes))?;
        Ok(Self { sockets })
    }

    /// Returns the bound addresses.
    pub(super) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.sockets.iter().filter_map(|(socket, _)| socket.local_addr().ok())
    }

    /// Serves the admin port on a thread of `threads` until the process ends.
    pub(super) fn serve(
        self,
        config: &Config,
        listeners: Vec<admin::ListenerInfo>,
        levels: LevelHandle,
        running: &RunningApp,
        threads: &Arc<ThreadGroup>,
    ) -> Result<(), AppError> {
        let shared = &running.shared;
        let state = Arc::new(AdminState {
            process: Box::new(ProcessInspector::new(running)),
            metrics: Arc::clone(&shared.metrics),
            limiter: Arc::clone(&shared.limiter),
            max_keys: config.max_keys,
            drain: Arc::clone(&shared.drain),
            overload: Arc::clone(&shared.overload),
            log_levels: levels,
            access_logs: Arc::clone(&shared.access_logs),
            top_keys: Arc::clone(&shared.top_keys),
            start_time: shared.clock.now(),
            workers: config.workers.get(),
            allowed_hosts: config.admin.allowed_hosts.clone(),
            token: Arc::clone(&running.admin_token),
            is_loopback: running.is_admin_on_loopback,
            rejections: RejectionAudit::default(),
            overrides: Arc::clone(running.generations.engine.overrides()),
            listeners,
            events: EventHub::default(),
            recent: RecentSamples::default(),
            key_counts: KeyCounts::default(),
        });
        for (socket, surface) in &self.sockets {
            if let Ok(address) = socket.local_addr() {
                tracing::info!(%address, surface = surface.as_str(), "admin listening");
            }
        }
        let serve_one = move |socket, surface| admin::serve(socket, Arc::clone(&state), surface);
        let spawned = threads.spawn("admin", move || serve_all(self.sockets, serve_one));
        spawned.map_err(thread::cannot_start("admin"))
    }
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
        self.shared.generation.load().upstreams.iter().map(|upstream| upstream.view()).collect()
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

    fn is_store_unreachable(&self) -> Option<bool> {
        self.shared.store.as_ref().map(store::handle::StoreHandle::is_unreachable)
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
