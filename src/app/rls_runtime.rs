//! Envoy's rate limit service: assembled, started and updated.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::generation::Generations;
use super::{AppError, resource_limits, serve_all, thread};
use crate::proxy::ProxyState;
use weir_config::Config;
use weir_net::drain::DrainPhase;
use weir_net::listener::ListenAddress;
use weir_net::listener::socket::{self, Socket};
use weir_net::listener::taken_over::TakenSockets;
use weir_net::thread::StartedThread;
use weir_net::tls::server::TlsServer as Tls;
use weir_net::worker::ThreadGroup;
use weir_rls::decider::RlsDecider;
use weir_rls::handler::RlsHandler;
use weir_rls::http_endpoints::{self, HttpEndpoint};
use weir_rls::options::{RlsOptions, RlsPorts, Xds};
use weir_rls::server::{GrpcPort, PortSecurity};
use weir_rls::shared_limits::SharedDocumentLimits;
use weir_rls::source::{DirectoryFollower, DirectoryFollowerHandle, xds};
use weir_telemetry::statsd;

/// Maximum number of connections on the gRPC port, even with more descriptors. An Envoy opens one for each of
/// its workers.
const MAX_GRPC_CONNECTIONS: usize = 10_000;
/// Maximum time at shutdown to send the last statistics. The lookup of the server's name may hang.
const STATSD_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The sockets of the service.
pub(super) struct RlsSockets {
    /// One per worker.
    pub(super) grpc: Vec<Socket>,
    http: Vec<(TcpListener, HttpEndpoint)>,
    /// Handles of all of them with their purpose, for the process that replaces this one.
    handles: Vec<(Box<str>, Socket)>,
}

impl RlsSockets {
    /// Binds the configured addresses, unless they are among the sockets `taken` from the process that this one replaces.
    pub(super) fn bind(config: &Config, taken: &TakenSockets) -> Result<Option<Self>, AppError> {
        let Some(RlsOptions { ports: RlsPorts { grpc, http_endpoints, .. }, .. }) = &config.rls else {
            return Ok(None);
        };
        let cannot =
            |address: &dyn std::fmt::Display| AppError::system(format!("cannot listen on {address}"));
        let mut bound = Self { grpc: Vec::new(), http: Vec::new(), handles: Vec::new() };
        bound.bind_grpc(grpc, config.workers.get(), taken).map_err(cannot(grpc))?;
        for (address, door) in http_endpoints {
            bound.bind_http(*address, door, taken).map_err(cannot(address))?;
        }
        Ok(Some(bound))
    }

    fn bind_grpc(&mut self, address: &ListenAddress, workers: usize, taken: &TakenSockets) -> io::Result<()> {
        let purpose = format!("rls grpc {address}");
        self.grpc = taken.take(&purpose, workers)?;
        if self.grpc.is_empty() {
            self.grpc = socket::bind(address, workers, &[])?;
        }
        for socket in &self.grpc {
            self.handles.push((purpose.as_str().into(), socket.try_clone()?));
        }
        if let Some(address) = self.grpc.first().and_then(|socket| socket.address().ok()) {
            tracing::info!(%address, door = "grpc", "rate limit service listening");
        }
        Ok(())
    }

    fn bind_http(
        &mut self,
        address: SocketAddr,
        door: &HttpEndpoint,
        taken: &TakenSockets,
    ) -> io::Result<()> {
        let name = match door {
            HttpEndpoint::Http => "http",
            HttpEndpoint::Debug => "debug",
            HttpEndpoint::Metrics(_) => "prometheus",
        };
        let purpose = format!("rls {name} {address}");
        let socket = match taken.take(&purpose, 1)?.pop() {
            Some(Socket::Tcp(socket)) => socket,
            _ => socket::bind_tcp(address, 1)?.pop().ok_or(io::ErrorKind::AddrNotAvailable)?,
        };
        tracing::info!(address = %socket.local_addr()?, door = name, "rate limit service listening");
        self.handles.push((purpose.into(), Socket::Tcp(socket.try_clone()?)));
        self.http.push((socket, door.clone()));
        Ok(())
    }

    /// Returns the handles for another process, and keeps none.
    pub(super) fn take_handles(&mut self) -> Vec<(Box<str>, Socket)> {
        std::mem::take(&mut self.handles)
    }

    /// Returns the bound addresses.
    pub(super) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let grpc = self.grpc.iter().filter_map(|socket| match socket.address() {
            Ok(ListenAddress::Tcp(address)) => Some(address),
            Ok(ListenAddress::Unix(_)) | Err(_) => None,
        });
        grpc.chain(self.http.iter().filter_map(|(socket, _)| socket.local_addr().ok()))
    }
}

/// The running service.
#[derive(Debug)]
pub(super) struct RlsRuntime {
    pub(super) grpc_port: Arc<GrpcPort>,
    pub(super) handler: Arc<RlsHandler>,
    rules_follower: Mutex<Option<DirectoryFollowerHandle>>,
    xds_settings: Mutex<Option<watch::Sender<Arc<Xds>>>>,
    statsd: Mutex<Option<StatsdThread>>,
}

/// The thread that sends statistics to StatsD.
#[derive(Debug)]
struct StatsdThread {
    stop: SyncSender<()>,
    thread: StartedThread,
}

impl StatsdThread {
    fn start(settings: statsd::StatsdSettings, handler: Arc<RlsHandler>) -> Result<Self, AppError> {
        let (stop, stop_receiver) = sync_channel(1);
        let send = move || statsd::run(&settings, || handler.stats().counters(), &stop_receiver);
        let thread = thread::start("statsd", send)?;
        Ok(Self { stop, thread })
    }

    /// Sends once more and ends the thread.
    fn flush(self) {
        drop(self.stop);
        if !self.thread.wait_for_end(STATSD_FLUSH_TIMEOUT) {
            tracing::warn!("the last statistics were not sent to StatsD in time");
        }
    }
}

impl RlsRuntime {
    /// Creates the service by `config`; it counts with the limit handles of `generations`.
    pub(super) fn from_config(
        config: &Config,
        generations: &Generations,
        shared: &ProxyState,
    ) -> Result<Option<Self>, AppError> {
        let (Some(options), Some(windows)) = (&config.rls, generations.rls_limits()) else { return Ok(None) };
        let shared_windows = options.shared_limit.clone().zip(generations.shared_rls_limits());
        let shared_limits = shared_windows.map(|(limit, windows)| {
            Arc::new(SharedDocumentLimits {
                settings: limit,
                unit_limits: windows,
                fleet: shared.limiter.fleet(),
            })
        });
        let security = build_security(options, None)
            .map_err(|error| AppError::System("cannot set up TLS".to_owned(), io::Error::other(error)))?;
        let loaded = options.loaded_rules.as_ref().map(|loaded| Arc::clone(&loaded.rules));
        // Without a source of rules there are none, which differs from rules that are not loaded yet.
        let has_no_source = options.directory.is_none() && options.xds.is_none();
        let rules = loaded.or_else(|| has_no_source.then(Arc::default));
        let settings = Arc::clone(&options.decision_settings);
        let service =
            RlsDecider { rules, settings, unit_limits: windows, shared_limits, native_policy: None };
        let stats = shared.metrics.rls_stats();
        if options.directory.is_some() {
            stats.record_config_load(options.loaded_rules.is_some());
        }
        let (limiter, clock) = (Arc::clone(&shared.limiter), Arc::clone(&shared.clock));
        let (store, top_keys) = (shared.store.clone(), Arc::clone(&shared.top_keys));
        let handler =
            RlsHandler::new(service, limiter, clock, Arc::clone(&shared.drain), stats, store, top_keys);
        let handler = Arc::new(handler);
        set_generation(&handler, shared);
        let port = GrpcPort::new(
            Arc::clone(&handler),
            options.ports.connections,
            security,
            default_max_connections(config),
        );
        Ok(Some(Self {
            grpc_port: Arc::new(port),
            handler,
            rules_follower: Mutex::default(),
            xds_settings: Mutex::default(),
            statsd: Mutex::default(),
        }))
    }

    /// Starts what runs outside of the workers: the HTTP/1.1 ports, statistics and the sources of rules.
    pub(super) fn start(
        &self,
        sockets: RlsSockets,
        options: &RlsOptions,
        threads: &Arc<ThreadGroup>,
    ) -> Result<(), AppError> {
        let handler = Arc::clone(&self.handler);
        if !sockets.http.is_empty() {
            let worker = handler.add_worker();
            let serve_one =
                move |socket, endpoint| http_endpoints::serve(socket, Arc::clone(&handler), endpoint, worker);
            let serve_http = move || serve_all(sockets.http, serve_one);
            threads.spawn("rls-http", serve_http).map_err(thread::cannot_start("rls-http"))?;
        }
        if let Some(settings) = options.ports.statsd.clone() {
            *self.statsd.lock() = Some(StatsdThread::start(settings, Arc::clone(&self.handler))?);
        }
        if let Some(settings) = options.xds.clone() {
            let (sender, receiver) = watch::channel(settings);
            let (handler, drain) = (Arc::clone(&self.handler), Arc::clone(self.handler.drain()));
            let following = move || async move {
                tokio::select! {
                    () = xds::follow(receiver, handler) => {}
                    () = drain.wait_for_phase(DrainPhase::Terminated) => {}
                }
                Ok(())
            };
            threads.spawn("xds", following).map_err(thread::cannot_start("xds"))?;
            *self.xds_settings.lock() = Some(sender);
        }
        if let Some(directory) = &options.directory {
            let follower = DirectoryFollower::new(
                directory.clone(),
                options.loaded_rules.as_ref(),
                Arc::clone(&self.handler),
            );
            *self.rules_follower.lock() = Some(follower.handle());
            thread::start("rules", move || follower.run())?;
        }
        Ok(())
    }

    /// Applies the settings that may change at run time.
    pub(super) fn apply(&self, options: &RlsOptions) {
        self.handler.set_settings(Arc::clone(&options.decision_settings));
        match build_security(options, self.grpc_port.security().tls.as_deref()) {
            Ok(security) => self.grpc_port.set_security(security),
            Err(error) => {
                tracing::error!(
                    %error,
                    "cannot set up TLS of the rate limit service: the previous settings stay in force"
                );
            }
        }
        if let (Some(handle), Some(directory)) = (&*self.rules_follower.lock(), &options.directory) {
            handle.follow(directory.clone());
        }
        if let (Some(sender), Some(settings)) = (&*self.xds_settings.lock(), &options.xds) {
            sender.send_if_modified(|now| {
                let differs = **now != **settings;
                now.clone_from(settings);
                differs
            });
        }
    }

    /// Continues with the rules of the current generation.
    pub(super) fn apply_generation(&self, shared: &ProxyState) {
        set_generation(&self.handler, shared);
        self.handler.set_fleet(shared.limiter.fleet());
    }

    /// Ends what runs outside of the workers.
    pub(super) fn finish(&self) {
        if let Some(handle) = &*self.rules_follower.lock() {
            handle.stop();
        }
        if let Some(statsd) = self.statsd.lock().take() {
            statsd.flush();
        }
    }
}

fn set_generation(handler: &RlsHandler, shared: &ProxyState) {
    handler.set_native_rules(&shared.metrics, || {
        let generation = shared.generation.load();
        (Arc::clone(&generation.policy), generation.limits.log_keys())
    });
}

/// Default maximum of connections on the gRPC port. Without listeners it is half of the descriptors. With
/// listeners it is an eighth: the proxy assigns half of them to clients and half to upstreams, but never uses
/// all of the latter.
fn default_max_connections(config: &Config) -> usize {
    let share = if config.listeners.is_empty() { 2 } else { 8 };
    (resource_limits::raise_descriptor_limit() / share).min(MAX_GRPC_CONNECTIONS)
}

/// Returns the security settings of `options`. TLS sessions of `before` stay valid if the same clients are
/// trusted.
fn build_security(options: &RlsOptions, before: Option<&Tls>) -> Result<PortSecurity, rustls::Error> {
    let tls = options.tls.as_ref().map(|settings| Tls::new(settings.clone(), before).map(Arc::new));
    Ok(PortSecurity { tls: tls.transpose()?, client_names: Arc::clone(&options.client_names) })
}
