//! Assembles all parts, starts them and shuts them down; the only module that depends on all of them.

mod admin_port;
mod central;
mod crowding;
mod ending;
mod generation;
mod instances;
mod keeping;
mod pressure;
mod rate_limits;
mod reloading;
mod sharing;

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;

use tokio::task::JoinSet;

use self::admin_port::AdminPort;
use self::central::Central;
use self::ending::Signals;
use self::generation::Generations;
use self::instances::Instances;
use self::keeping::Keeping;
use self::rate_limits::RateLimits;
use crate::admin;
use crate::clock::Clock;
use crate::config::reload::{Handle, Reloader};
use crate::config::{Config, Problem, bootstrap};
use crate::drain::DrainManager;
use crate::limiter::{self, Limiter};
use crate::listener;
use crate::listener::socket::{self, Socket};
use crate::overload::OverloadManager;
use crate::proxy::elastic::HeadroomState;
use crate::proxy::elastic::control::run_headroom_controller;
use crate::proxy::{self, ProxyState};
use crate::rls;
use crate::state_file::StateFile;
use crate::store;
use crate::telemetry::access_log::{self, AccessLog};
use crate::telemetry::logging::LevelHandle;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::panics;
use crate::telemetry::spans::{self, Tracer};
use crate::worker::{ThreadGroup, WorkerFailed};

/// Why the process cannot serve.
#[derive(Debug)]
pub enum Error {
    /// Every problem of the configuration.
    Configuration(Vec<Problem>),
    /// A failed system operation: what was attempted, and the error.
    System(String, std::io::Error),
    /// A thread of this name has failed. The others have been drained.
    Thread(Box<str>),
}

impl Error {
    fn system(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        move |error| Self::System(doing.into(), error)
    }
}

/// A listener and its sockets, one per worker.
type Bound = (listener::ListenerSettings, Vec<Socket>);

/// Everything that is started once and lives until the process ends.
struct Running {
    shared: Arc<ProxyState>,
    generations: Arc<Generations>,
    rate_limits: Option<Arc<RateLimits>>,
    reload: Handle,
    keeping: Option<Keeping>,
    log_guard: Option<access_log::Guard>,
    span_guard: Option<spans::Guard>,
}

/// The source of the configuration.
#[derive(Clone, Copy, Debug)]
pub enum Origin<'a> {
    /// A file, which is followed.
    File(&'a Path),
    /// The text itself.
    Text(&'a str),
}

/// Runs the proxy with the configuration at `origin` until shutdown is requested, then drains.
///
/// # Errors
/// Returns an [`Error`] if the configuration is invalid, or a socket, file or thread cannot be created; no
/// request has been served then. Also returns one if a thread has failed while serving.
pub fn run(origin: Origin<'_>, levels: LevelHandle) -> Result<(), Error> {
    panics::watch();
    let clock = Arc::new(Clock::start());
    let (config, reloader, central) = begin(origin)?;
    for notice in &config.notices {
        tracing::warn!("{notice}");
    }
    let main = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::system("cannot start a runtime"))?;
    let _guard = main.enter();
    let signals = Signals::listen().map_err(Error::system("cannot listen for signals"))?;
    let mut bound = bind(&config)?;
    let mut service = rate_limits::Sockets::bind(&config)?;
    let admin = AdminPort::bind(&config.admin)?;
    let running = compose(&config, clock, reloader.handle())?;
    let addresses = announce(&bound);
    let mut instances = Instances::new(&running.shared, &running.generations);
    main.block_on(instances.begin());
    let asked = service.as_mut().map(|sockets| &mut sockets.grpc);
    let workers = start_workers(config.workers.get(), &mut bound, asked, &running)?;
    let admin = admin.serve(&config, addresses, levels, &running)?;
    if let (Some(running), Some(sockets), Some(options)) = (&running.rate_limits, service, &config.rls) {
        running.start(sockets, options, &admin)?;
    }
    let keeper = central.map(|central| central.follow(&running)).transpose()?;
    reloading::start(reloader, &running, keeper)?;
    let ended = main.block_on(async {
        let crews = (&*workers, &*admin);
        let serving = ending::serve_and_drain(&running.shared.drain, config.drain, signals, crews);
        tokio::select! {
            ended = serving => ended,
            () = ending::keep_clock(&running.shared.clock) => Ok(()),
            () = run_headroom_controller(&running.shared) => Ok(()),
            () = reloading::on_signals(&running) => Ok(()),
            () = crowding::watch(&running.shared, config.max_keys) => Ok(()),
            () = pressure::watch(&running.shared.overload) => Ok(()),
            () = instances.follow() => Ok(()),
        }
    });
    running.reload.stop();
    running.rate_limits.iter().for_each(|service| service.finish());
    running.keeping.iter().for_each(Keeping::finish);
    drop(running.log_guard);
    drop(running.span_guard);
    ended.map_err(Error::Thread)
}

/// Loads the configuration at startup, and creates what follows its source.
fn begin(origin: Origin<'_>) -> Result<(Config, Reloader, Option<Central>), Error> {
    let whole = |(config, reloader)| (config, reloader, None);
    match origin {
        Origin::Text(text) => Reloader::start_with(text).map(whole).map_err(Error::Configuration),
        Origin::File(path) => match bootstrap(path).map_err(Error::Configuration)? {
            None => Reloader::start(path).map(whole).map_err(Error::Configuration),
            Some(settings) => {
                let (config, reloader, central) = central::start(path, settings)?;
                Ok((config, reloader, Some(central)))
            }
        },
    }
}

/// Binds every listener, so that a port in use is found before anything is served.
fn bind(config: &Config) -> Result<Vec<Bound>, Error> {
    let bind_one = |settings: &listener::ListenerSettings| {
        let sockets = socket::bind(&settings.address, config.workers.get())
            .map_err(Error::system(format!("cannot listen on {}", settings.address)))?;
        Ok((settings.clone(), sockets))
    };
    config.listeners.iter().map(bind_one).collect()
}

fn announce(bound: &[Bound]) -> Vec<admin::Listener> {
    let address_of = |(settings, sockets): &Bound| {
        let address = sockets.first().and_then(|socket| socket.address().ok());
        let address = address.unwrap_or_else(|| settings.address.clone());
        tracing::info!(listener = %settings.name, %address, "listening");
        admin::Listener { name: settings.name.clone(), address }
    };
    bound.iter().map(address_of).collect()
}

fn compose(config: &Config, clock: Arc<Clock>, reload: Handle) -> Result<Running, Error> {
    let now = clock.now();
    let mut keeper = config.state.as_ref().map(StateFile::new);
    let limiter = match keeper.as_mut().and_then(|keeper| keeper.restore(config.max_keys, now)) {
        Some(limiter) => limiter,
        None => Limiter::new(limiter::LimiterSettings { max_keys: config.max_keys, secret: secret()? }),
    };
    let limiter = Arc::new(limiter);
    let names: Vec<&str> = config.listeners.iter().map(|listener| &*listener.name).collect();
    let metrics = Metrics::new(&names);
    let generations = Generations::first(config, &limiter, &clock, &metrics)
        .map(Arc::new)
        .map_err(Error::system("cannot set up TLS"))?;
    let tracing =
        config.tracing.as_ref().map(|settings| Tracer::start(settings, metrics.spans())).transpose();
    let (tracer, span_guard) = tracing.map_err(Error::system("cannot start a thread for spans"))?.unzip();
    let log = config.access_log.as_ref().map(AccessLog::open).transpose();
    let (access_log, log_guard) = log.map_err(Error::system("cannot open the access log"))?.unzip();
    metrics.config_started(1, clock.now());
    let overload = OverloadManager::new(&config.overload, pressure::descriptors(), pressure::memory());
    tracing::info!(connections = overload.max_connections(), "maximum number of downstream connections");
    let (store_handle, queue) = config.store.as_ref().map(|_| store::handle::Handle::new(&limiter)).unzip();
    let shared = Arc::new(ProxyState {
        generation: Arc::clone(generations.engine.current()),
        limiter,
        store: store_handle,
        clock,
        drain: Arc::new(DrainManager::default()),
        metrics,
        access_log,
        tracer,
        elastic: HeadroomState::default(),
        overload: Arc::new(overload),
        warned_of_untrusted_proxy: AtomicBool::new(false),
    });
    let rate_limits = RateLimits::compose(config, &generations, &shared)?.map(Arc::new);
    let keeping = config.state.as_ref().zip(keeper);
    let keeping = keeping.map(|(settings, keeper)| Keeping::start(settings, keeper, &shared)).transpose()?;
    if let Some((settings, queue)) = config.store.as_ref().zip(queue) {
        sharing::start(settings, queue, secret()?, (&shared, &generations, rate_limits.as_ref()))?;
    }
    Ok(Running { shared, generations, rate_limits, reload, keeping, log_guard, span_guard })
}

/// Draws the secret that keys are hashed with, if no state file contains one.
fn secret() -> Result<[u64; 2], Error> {
    let mut secret = [0; 16];
    getrandom::fill(&mut secret).map_err(|error| {
        Error::System("cannot generate a random secret".to_owned(), std::io::Error::other(error))
    })?;
    let (low, high) = secret.split_at(8);
    let word = |half: &[u8]| half.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    Ok([word(low), word(high)])
}

/// Starts a thread outside of the runtimes.
fn spawn_thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let named = std::thread::Builder::new().name(name.to_owned());
    named.spawn(run).map_err(Error::system("cannot start a thread"))
}

/// Serves every socket on this thread until all have ended.
async fn serve_all<S, F: Future<Output = ()> + 'static>(
    sockets: Vec<(TcpListener, S)>,
    serve: impl Fn(tokio::net::TcpListener, S) -> F,
) -> Result<(), WorkerFailed> {
    let mut serving = JoinSet::new();
    for (socket, how) in sockets {
        if let Ok(socket) = tokio::net::TcpListener::from_std(socket) {
            serving.spawn_local(serve(socket, how));
        }
    }
    while serving.join_next().await.is_some() {}
    Ok(())
}

/// Starts the workers, each with its share of the sockets: of the listeners, and of the rate limit service
/// (`asked`).
fn start_workers(
    workers: usize,
    bound: &mut [Bound],
    mut asked: Option<&mut Vec<Socket>>,
    running: &Running,
) -> Result<Arc<ThreadGroup>, Error> {
    let crew = Arc::new(ThreadGroup::default());
    let start = |index: usize| {
        let mine =
            bound.iter_mut().filter_map(|(settings, sockets)| Some((settings.clone(), sockets.pop()?)));
        let (mine, shared) = (mine.collect(), Arc::clone(&running.shared));
        let port = running.rate_limits.as_ref().map(|service| Arc::clone(&service.port));
        let asked = port.zip(asked.as_mut().and_then(|sockets| sockets.pop()));
        let work = move || async move {
            let proxying = proxy::run(shared, mine);
            match asked {
                None => proxying.await,
                Some((port, socket)) => {
                    tokio::try_join!(proxying, rls::server::run(port, socket)).map(|((), ())| ())
                }
            }
        };
        crew.spawn(format!("worker-{index}"), work).map_err(Error::system("cannot start a worker"))
    };
    (0..workers).try_for_each(start)?;
    Ok(crew)
}
