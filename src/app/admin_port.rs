//! The admin port: bound with the other sockets, served on a thread of its own.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use parking_lot::Mutex;

use super::keeping::Keeping;
use super::rate_limits::RateLimits;
use super::{Error, Running, serve_all};
use crate::admin::{self, Inspect, KeyCounts, State, Surface};
use crate::config::reload::{Handle, Status};
use crate::config::{AdminSettings, Config};
use crate::engine::Policy;
use crate::limiter::elastic::controller::Assessment;
use crate::limiter::timestamp::Timestamp;
use crate::listener::socket;
use crate::proxy::ProxyState;
use crate::state_file;
use crate::store;
use crate::telemetry::logging::LevelHandle;
use crate::telemetry::metrics::ClusterView;
use crate::tls::client::TlsClient;
use crate::tls::server::TlsServer;
use crate::worker::ThreadGroup;

/// The sockets of the admin port.
pub(super) struct AdminPort {
    sockets: Vec<(TcpListener, Surface)>,
}

impl AdminPort {
    /// Binds the configured addresses. Only an address in the configuration must be free: a second process on
    /// the host should not fail because of a default.
    pub(super) fn bind(settings: &AdminSettings) -> Result<Self, Error> {
        let mut sockets = Vec::new();
        let mut bind = |address: SocketAddr, surface| match socket::bind_tcp(address, 1) {
            Ok(bound) => {
                sockets.extend(bound.into_iter().map(|socket| (socket, surface)));
                Ok(())
            }
            Err(error) if surface == Surface::Full && !settings.explicit => {
                tracing::warn!(%address, %error, "no admin port: its default address is in use");
                Ok(())
            }
            Err(error) => Err(Error::System(format!("cannot listen on {address}"), error)),
        };
        bind(settings.address, Surface::Full)?;
        settings.probes.map_or(Ok(()), |address| bind(address, Surface::Probes))?;
        Ok(Self { sockets })
    }

    /// Serves the admin port on a thread of its own until the process ends.
    pub(super) fn serve(
        self,
        config: &Config,
        listeners: Vec<admin::Listener>,
        levels: LevelHandle,
        running: &Running,
    ) -> Result<Arc<ThreadGroup>, Error> {
        let shared = &running.shared;
        let state = Arc::new(State {
            process: Box::new(Process::of(running)),
            metrics: Arc::clone(&shared.metrics),
            limiter: Arc::clone(&shared.limiter),
            capacity: config.max_keys,
            drain: Arc::clone(&shared.drain),
            levels,
            access_log: shared.access_log.clone(),
            started: shared.clock.now(),
            workers: config.workers.get(),
            hosts: config.admin.hosts.clone(),
            listeners,
            keys: KeyCounts::default(),
        });
        let crew = Arc::new(ThreadGroup::default());
        for (socket, surface) in &self.sockets {
            if let Ok(address) = socket.local_addr() {
                tracing::info!(%address, surface = surface.as_str(), "admin listening");
            }
        }
        let serve_one = move |socket, surface| admin::serve(socket, Arc::clone(&state), surface);
        let spawned = crew.spawn("admin".to_owned(), move || serve_all(self.sockets, serve_one));
        spawned.map_err(Error::system("cannot start the admin port"))?;
        Ok(crew)
    }
}

/// The running process, as the admin port presents it.
struct Process {
    shared: Arc<ProxyState>,
    rate_limits: Option<Arc<RateLimits>>,
    reload: Handle,
    state_file: Option<Arc<Mutex<state_file::StateFileStatus>>>,
}

impl Process {
    fn of(running: &Running) -> Self {
        Self {
            shared: Arc::clone(&running.shared),
            rate_limits: running.rate_limits.clone(),
            reload: running.reload.clone(),
            state_file: running.keeping.as_ref().map(Keeping::status),
        }
    }
}

impl Inspect for Process {
    fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    fn wall_clock(&self) -> Timestamp {
        self.shared.clock.civil_now()
    }

    fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.shared.generation.load().policy)
    }

    fn upstreams(&self) -> Vec<ClusterView> {
        self.shared.generation.load().upstreams.iter().map(|upstream| upstream.view()).collect()
    }

    fn server_tls(&self) -> Vec<Arc<TlsServer>> {
        let service = self.rate_limits.as_ref().and_then(|service| service.port.security().tls.clone());
        self.shared.generation.load().tls.iter().flatten().cloned().chain(service).collect()
    }

    fn client_tls(&self) -> Vec<Arc<TlsClient>> {
        self.shared.generation.load().upstreams.iter().filter_map(|upstream| upstream.tls()).collect()
    }

    fn configuration(&self) -> Status {
        self.reload.status()
    }

    /// Converted to wall-clock time; the status itself uses the clock of the limits.
    fn state_file(&self) -> Option<state_file::StateFileStatus> {
        let status = self.state_file.as_ref()?.lock().clone();
        let last_saved = status.last_saved.map(|at| self.shared.clock.civil(at));
        Some(state_file::StateFileStatus { last_saved, ..status })
    }

    fn is_store_away(&self) -> Option<bool> {
        self.shared.store.as_ref().map(store::handle::Handle::is_away)
    }

    fn elastic(&self) -> Option<Assessment> {
        self.shared.elastic.assessment()
    }
}
