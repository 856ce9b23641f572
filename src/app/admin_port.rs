//! The admin port: bound with everything else, served on a thread of its own.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use super::keeping::Keeping;
use super::{Error, Running};
use crate::admin::{self, Ask, KeyCounts, ReloadView, State, Surface};
use crate::config::reload::Status;
use crate::config::{AdminSettings, Config};
use crate::listener::socket;
use crate::snapshot;
use crate::telemetry::logging::LevelHandle;
use crate::worker::Crew;

/// The sockets of the admin port.
pub(super) struct AdminPort {
    sockets: Vec<(TcpListener, Surface)>,
}

impl AdminPort {
    /// Binds what the configuration asks for. Only an address that it names must be free; a process beside
    /// another one should not fail for a default it did not choose.
    pub(super) fn bind(settings: &AdminSettings) -> Result<Self, Error> {
        let mut sockets = Vec::new();
        let mut bind = |address: SocketAddr, surface| match socket::bind_tcp(address, 1) {
            Ok(bound) => {
                sockets.extend(bound.into_iter().map(|socket| (socket, surface)));
                Ok(())
            }
            Err(error) if surface == Surface::Full && !settings.explicit => {
                tracing::warn!(%address, %error, "no admin port: its default address is taken");
                Ok(())
            }
            Err(error) => Err(Error::System(format!("cannot listen on {address}"), error)),
        };
        bind(settings.address, Surface::Full)?;
        settings.probes.map_or(Ok(()), |address| bind(address, Surface::Probes))?;
        Ok(Self { sockets })
    }

    /// Serves on a thread of its own until the end.
    pub(super) fn serve(
        self,
        config: &Config,
        listeners: Vec<admin::Listener>,
        levels: LevelHandle,
        running: &Running,
    ) -> Result<Arc<Crew>, Error> {
        let shared = &running.shared;
        let (clock, civil) = (Arc::clone(&shared.clock), Arc::clone(&shared.clock));
        let state = Arc::new(State {
            metrics: Arc::clone(&shared.metrics),
            limiter: Arc::clone(&shared.limiter),
            capacity: config.max_keys,
            policy: {
                let generation = Arc::clone(&shared.generation);
                Box::new(move || Arc::clone(&generation.load().policy))
            },
            secured: {
                let generation = Arc::clone(&shared.generation);
                let service = running.rate_limits.clone();
                Box::new(move || {
                    let service = service.as_ref().and_then(|service| service.port.security().tls.clone());
                    generation.load().tls.iter().flatten().cloned().chain(service).collect()
                })
            },
            clients: {
                let generation = Arc::clone(&shared.generation);
                Box::new(move || {
                    generation.load().upstreams.iter().filter_map(|upstream| upstream.tls()).collect()
                })
            },
            drain: Arc::clone(&shared.drain),
            levels,
            access_log: shared.access_log.clone(),
            tracer: shared.tracer.clone(),
            reload: {
                let handle = running.reload.clone();
                Box::new(move || view_of(&handle.status()))
            },
            config_text: {
                let handle = running.reload.clone();
                Box::new(move || handle.status().text.to_string())
            },
            state_file: state_file(running),
            elastic: {
                let shared = Arc::clone(shared);
                Box::new(move || shared.elastic.assessment())
            },
            started: clock.now(),
            now: Box::new(move || clock.now()),
            civil: Box::new(move || civil.civil_now()),
            workers: config.workers.get(),
            hosts: config.admin.hosts.clone(),
            listeners,
            upstreams: {
                let generation = Arc::clone(&shared.generation);
                Box::new(move || generation.load().upstreams.iter().map(|upstream| upstream.view()).collect())
            },
            keys: KeyCounts::default(),
        });
        let crew = Arc::new(Crew::default());
        let spawned = crew.spawn("admin".to_owned(), move || async move {
            let serving: Vec<_> = self
                .sockets
                .into_iter()
                .filter_map(|(socket, surface)| serve_one(socket, surface, Arc::clone(&state)))
                .collect();
            for serving in serving {
                let _ = serving.await;
            }
            Ok(())
        });
        spawned.map_err(Error::system("cannot start the admin port"))?;
        Ok(crew)
    }
}

/// What the state file's keeper says, in the wall clock's time: the file's own is that of the limits.
fn state_file(running: &Running) -> Ask<Option<snapshot::Status>> {
    let status = running.keeping.as_ref().map(Keeping::status);
    let clock = Arc::clone(&running.shared.clock);
    Box::new(move || {
        let status = status.as_ref()?.lock().clone();
        Some(snapshot::Status { last_saved: status.last_saved.map(|at| clock.civil(at)), ..status })
    })
}

fn view_of(status: &Status) -> ReloadView {
    let last = status.last.as_ref();
    ReloadView {
        generation: status.generation,
        outcome: last.map_or("started", |last| last.outcome.as_str()),
        at: last.map(|last| last.at),
        problems: last.map_or_else(Vec::new, |last| last.problems.clone()),
        warnings: last.map_or_else(Vec::new, |last| last.warnings.clone()),
        needs_restart: status.needs_restart.iter().map(ToString::to_string).collect(),
        file: status.file.display().to_string(),
    }
}

fn serve_one(
    socket: TcpListener,
    surface: Surface,
    state: Arc<State>,
) -> Option<tokio::task::JoinHandle<()>> {
    let name = match surface {
        Surface::Full => "full",
        Surface::Probes => "probes",
    };
    let address = socket.local_addr().ok()?;
    let socket = tokio::net::TcpListener::from_std(socket).ok()?;
    tracing::info!(%address, surface = name, "admin listening");
    Some(tokio::task::spawn_local(admin::serve(socket, state, surface)))
}
