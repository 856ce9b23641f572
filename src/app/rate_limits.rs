//! Envoy's rate limit service: assembled, started and updated.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::generation::Generations;
use super::{Error, pressure, serve_all, spawn_thread};
use crate::config::Config;
use crate::drain::Phase;
use crate::listener::socket::{self, Socket};
use crate::proxy::ProxyState;
use crate::rls::desk::Desk;
use crate::rls::doors::{self, Door};
use crate::rls::options::{Options, Ports, Xds};
use crate::rls::server::{Port, Security};
use crate::rls::service::Service;
use crate::rls::sharing::Sharing;
use crate::rls::source::{Follower, Handle, xds};
use crate::telemetry::statsd;
use crate::tls::server::TlsServer as Tls;
use crate::worker::ThreadGroup;

/// Maximum number of connections on the gRPC port, even with more descriptors. An Envoy opens one for each of
/// its workers.
const MAX_CONNECTIONS: usize = 10_000;

/// The sockets of the service.
pub(super) struct Sockets {
    /// One per worker.
    pub(super) grpc: Vec<Socket>,
    doors: Vec<(TcpListener, Door)>,
}

impl Sockets {
    /// Binds the configured addresses.
    pub(super) fn bind(config: &Config) -> Result<Option<Self>, Error> {
        let Some(Options { ports: Ports { grpc, doors, .. }, .. }) = &config.rls else { return Ok(None) };
        let cannot = |address: &dyn std::fmt::Display| Error::system(format!("cannot listen on {address}"));
        let workers = socket::bind(grpc, config.workers.get()).map_err(cannot(grpc))?;
        if let Some(address) = workers.first().and_then(|socket| socket.address().ok()) {
            tracing::info!(%address, door = "grpc", "rate limit service listening");
        }
        let bind = |(address, door): &(_, Door)| {
            let bound = socket::bind_tcp(*address, 1).map_err(cannot(address))?;
            let name = match door {
                Door::Http => "http",
                Door::Debug => "debug",
                Door::Metrics(_) => "prometheus",
            };
            if let Some(address) = bound.first().and_then(|socket| socket.local_addr().ok()) {
                tracing::info!(%address, door = name, "rate limit service listening");
            }
            Ok(bound.into_iter().map(|socket| (socket, door.clone())).collect::<Vec<_>>())
        };
        let doors: Result<Vec<_>, Error> = doors.iter().map(bind).collect();
        Ok(Some(Self { grpc: workers, doors: doors?.into_iter().flatten().collect() }))
    }
}

/// The running service.
#[derive(Debug)]
pub(super) struct RateLimits {
    pub(super) port: Arc<Port>,
    desk: Arc<Desk>,
    rules: Mutex<Option<Handle>>,
    xds: Mutex<Option<watch::Sender<Arc<Xds>>>>,
    statsd: Mutex<Option<Statsd>>,
}

/// The thread that sends statistics to StatsD.
#[derive(Debug)]
struct Statsd {
    end: SyncSender<()>,
    thread: JoinHandle<()>,
}

impl Statsd {
    fn start(settings: statsd::Settings, desk: Arc<Desk>) -> Result<Self, Error> {
        let (end, ending) = sync_channel(1);
        let send = move || statsd::run(&settings, || desk.stats().counters(), &ending);
        let thread = spawn_thread("statsd", send)?;
        Ok(Self { end, thread })
    }

    /// Sends once more and ends the thread. Sending a packet does not block for long.
    fn finish(self) {
        drop(self.end);
        let _ = self.thread.join();
    }
}

impl RateLimits {
    /// Creates the service by `config`; it counts in the windows of `generations`.
    pub(super) fn compose(
        config: &Config,
        generations: &Generations,
        shared: &ProxyState,
    ) -> Result<Option<Self>, Error> {
        let (Some(options), Some(windows)) = (&config.rls, generations.windows()) else { return Ok(None) };
        let shared_windows = options.scope.clone().zip(generations.shared_windows());
        let sharing = shared_windows
            .map(|(limit, windows)| Arc::new(Sharing { limit, windows, fleet: shared.limiter.fleet() }));
        let security = security(options, None)
            .map_err(|error| Error::System("cannot set up TLS".to_owned(), std::io::Error::other(error)))?;
        let loaded = options.loaded.as_ref().map(|loaded| Arc::clone(&loaded.rules));
        // Without a source of rules there are none, which differs from rules that are not loaded yet.
        let has_none = options.directory.is_none() && options.xds.is_none();
        let rules = loaded.or_else(|| has_none.then(Arc::default));
        let settings = Arc::clone(&options.decisions);
        let service = Service { rules, settings, windows, sharing, native: None };
        let stats = shared.metrics.rate_limits();
        if options.directory.is_some() {
            stats.loaded(options.loaded.is_some());
        }
        let (limiter, clock) = (Arc::clone(&shared.limiter), Arc::clone(&shared.clock));
        let store = shared.store.clone();
        let desk = Desk::new(service, limiter, clock, Arc::clone(&shared.drain), (stats, store));
        let desk = Arc::new(desk);
        desk.set_native(Arc::clone(&shared.generation.load().policy), &shared.metrics);
        let port = Port::new(Arc::clone(&desk), options.ports.connections, security, connections(config));
        Ok(Some(Self {
            port: Arc::new(port),
            desk,
            rules: Mutex::default(),
            xds: Mutex::default(),
            statsd: Mutex::default(),
        }))
    }

    /// Starts what runs outside of the workers: the HTTP/1.1 ports, statistics and the sources of rules.
    pub(super) fn start(
        &self,
        sockets: Sockets,
        options: &Options,
        crew: &Arc<ThreadGroup>,
    ) -> Result<(), Error> {
        let desk = Arc::clone(&self.desk);
        if !sockets.doors.is_empty() {
            let serve_one = move |socket, door| doors::serve(socket, Arc::clone(&desk), door);
            crew.spawn("doors".to_owned(), move || serve_all(sockets.doors, serve_one))
                .map_err(Error::system("cannot start a thread"))?;
        }
        if let Some(settings) = options.ports.statsd.clone() {
            *self.statsd.lock() = Some(Statsd::start(settings, Arc::clone(&self.desk))?);
        }
        if let Some(settings) = options.xds.clone() {
            let (sender, receiver) = watch::channel(settings);
            let (desk, drain) = (Arc::clone(&self.desk), Arc::clone(self.desk.drain()));
            let following = move || async move {
                tokio::select! {
                    () = xds::follow(receiver, desk) => {}
                    () = drain.reached(Phase::Ended) => {}
                }
                Ok(())
            };
            crew.spawn("xds".to_owned(), following).map_err(Error::system("cannot start a thread"))?;
            *self.xds.lock() = Some(sender);
        }
        if let Some(directory) = &options.directory {
            let follower = Follower::new(directory.clone(), options.loaded.as_ref(), Arc::clone(&self.desk));
            *self.rules.lock() = Some(follower.handle());
            spawn_thread("rules", move || follower.run())?;
        }
        Ok(())
    }

    /// Applies the settings that may change at run time.
    pub(super) fn apply(&self, options: &Options) {
        self.desk.set_settings(Arc::clone(&options.decisions));
        match security(options, self.port.security().tls.as_deref()) {
            Ok(security) => self.port.secure(security),
            Err(error) => {
                tracing::error!(
                    %error,
                    "cannot set up TLS of the rate limit service: the previous settings stay in force"
                );
            }
        }
        if let (Some(handle), Some(directory)) = (&*self.rules.lock(), &options.directory) {
            handle.follow(directory.clone());
        }
        if let (Some(sender), Some(settings)) = (&*self.xds.lock(), &options.xds) {
            sender.send_if_modified(|now| {
                let differs = **now != **settings;
                now.clone_from(settings);
                differs
            });
        }
    }

    /// Continues with the rules of the current generation.
    pub(super) fn renew(&self, shared: &ProxyState) {
        self.desk.set_native(Arc::clone(&shared.generation.load().policy), &shared.metrics);
        self.desk.set_fleet(shared.limiter.fleet());
    }

    /// Ends what runs outside of the workers.
    pub(super) fn finish(&self) {
        if let Some(handle) = &*self.rules.lock() {
            handle.stop();
        }
        if let Some(statsd) = self.statsd.lock().take() {
            statsd.finish();
        }
    }
}

/// Default maximum of connections on the gRPC port. Without listeners it is half of the descriptors. With
/// listeners it is an eighth: the proxy assigns half of them to clients and half to upstreams, but never uses
/// all of the latter.
fn connections(config: &Config) -> usize {
    let share = if config.listeners.is_empty() { 2 } else { 8 };
    (pressure::descriptors() / share).min(MAX_CONNECTIONS)
}

/// Returns the security settings of `options`. TLS sessions of `before` stay valid if the same clients are
/// trusted.
fn security(options: &Options, before: Option<&Tls>) -> Result<Security, rustls::Error> {
    let tls = options.tls.as_ref().map(|settings| Tls::new(settings.clone(), before).map(Arc::new));
    Ok(Security { tls: tls.transpose()?, client_names: Arc::clone(&options.client_names) })
}
