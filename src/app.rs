//! Assembles all parts, starts them and shuts them down; the only module that depends on all of them.

mod admin_port;
mod alerts;
mod bind_error;
mod central;
mod deferred_thread;
mod generation;
mod instances;
mod key_expiry;
mod listeners;
mod reload;
mod replacement;
mod resource_limits;
mod rls_runtime;
mod service_manager;
mod shutdown;
mod signals;
mod sockets;
mod state_saver;
mod store_thread;
mod table_full_alert;
mod thread;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use tokio::runtime::Handle;
use tokio::task::JoinSet;

use self::alerts::AlertSettingsSender;
use self::central::CentralSource;
use self::deferred_thread::DeferredThread;
use self::generation::{Generations, PartResources};
use self::instances::InstanceResolver;
pub use self::replacement::supervisor::run as supervise;
use self::replacement::{Predecessor, Relay, Replacer};
use self::rls_runtime::{RlsRuntime, RlsSockets};
use self::signals::SignalThread;
use self::sockets::Sockets;
use self::state_saver::StateSaver;
use crate::proxy::adaptive::run_adaptive_limits;
use crate::proxy::elastic::HeadroomState;
use crate::proxy::elastic::control::run_headroom_controller;
use crate::proxy::{self, ProxyState, WorkerUpdates};
use weir_config::environment::attribute_to_variables;
use weir_config::reload::{ReloadHandle, Reloader, UnusableSetting};
use weir_config::{Config, Diagnostic, load_bootstrap};
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{self as limiter, Limiter};
use weir_net::clock::Clock;
use weir_net::drain::DrainManager;
use weir_net::listener;
use weir_net::listener::balance;
use weir_net::listener::socket::Socket;
use weir_net::overload::OverloadManager;
use weir_net::worker::{ThreadGroup, WorkerFailed};
use weir_rls as rls;
use weir_store as store;
use weir_store::deferred::handle::DeferredHandle;
use weir_store::state_file::StateFile;
use weir_telemetry::access_log::AccessLogManager;
use weir_telemetry::logging::LevelHandle;
use weir_telemetry::metrics::Metrics;
use weir_telemetry::panics;
use weir_upstream::forward_proxy::identity::ProxyIdentity;

/// Why the process cannot serve.
#[derive(Debug)]
pub enum AppError {
    /// Every problem of the configuration.
    Configuration(Vec<Diagnostic>),
    /// A failed system operation: what was attempted, and the error.
    System(String, io::Error),
    /// A thread of this name has failed. The others have been drained.
    Thread(Box<str>),
}

impl From<UnusableSetting> for AppError {
    fn from(UnusableSetting { key, message }: UnusableSetting) -> Self {
        Self::System(format!("cannot use `{key}`"), io::Error::other(message))
    }
}

impl AppError {
    fn system(context: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::System(context.into(), error)
    }
}

/// Everything that is started once and lives until the process ends.
struct RunningApp {
    shared: Arc<ProxyState>,
    generations: Arc<Generations>,
    sockets: Arc<Sockets>,
    rls_runtime: Option<Arc<RlsRuntime>>,
    reload: ReloadHandle,
    alert_settings: Arc<AlertSettingsSender>,
    state_saver: Option<StateSaver>,
    /// The thread for deferred calls, if there is a store.
    deferred_thread: Option<Arc<DeferredThread>>,
}

/// The source of the configuration.
#[derive(Clone, Copy, Debug)]
pub enum ConfigOrigin<'a> {
    /// A file, which is followed.
    File(&'a Path),
    /// The text itself.
    Text(&'a str),
}

/// Runs the proxy with the configuration at `origin` until shutdown is requested, then drains.
///
/// # Errors
/// Returns an [`AppError`] if the configuration is invalid, or a socket, file or thread cannot be created; no
/// request has been served then. Also returns one if a thread has failed while serving.
pub fn run(origin: ConfigOrigin<'_>, levels: LevelHandle) -> Result<(), AppError> {
    panics::install_hook();
    let program = replacement::own_program();
    // First, because threads inherit which signals are blocked.
    let relay = Arc::new(Relay::default());
    let (signal_thread, signals) = SignalThread::start(&relay)?;
    let clock = Arc::new(Clock::start());
    let (config, reloader, central) = load_config(origin)?;
    report_start(origin, &config);
    let main = thread::runtime()?;
    let _guard = main.enter();
    signals.handle_end();
    let metrics = Metrics::new(&[]);
    let (mut predecessor, taken) = Predecessor::from_environment()?.unzip();
    let taken = taken.unwrap_or_default();
    let mut rls_sockets = RlsSockets::bind(&config, &taken)?;
    let (sockets, updates) = Sockets::new(config.workers.get(), taken, rls_sockets.as_mut(), &metrics);
    let plan = sockets.prepare(&config)?;
    let running =
        Arc::new(build_app(&config, clock, reloader.handle(), metrics, sockets, predecessor.as_mut())?);
    running.sockets.apply(plan, &config, &running.shared.generation.load());
    running.sockets.report_unused();
    running.generations.set_own_addresses(running.sockets.addresses());
    let mut instances = InstanceResolver::new(&running.shared, &running.generations);
    main.block_on(instances.resolve_at_startup());
    // Also before the admin port: once it is ready, the metrics have the outcome of the first fetch.
    let central_handle = central.map(|central| central.start_follower(&running)).transpose()?;
    // Requests wait from here on, so everything slow is done.
    let taken_over = predecessor.map(|predecessor| predecessor.take_over(&running)).transpose()?;
    let served = taken_over.map(|taken_over| taken_over.serve(&running)).transpose()?;
    let end_notice = served.unwrap_or_default();
    let grpc_sockets = rls_sockets.as_mut().map(|sockets| &mut sockets.grpc);
    let workers = start_workers(updates, grpc_sockets, &running)?;
    let auxiliary = Arc::new(ThreadGroup::default());
    // Before the admin port: once it is ready, changes of the rate limit service's rules are noticed.
    if let (Some(running), Some(sockets), Some(options)) = (&running.rls_runtime, rls_sockets, &config.rls) {
        running.start(sockets, options, &auxiliary)?;
    }
    running.sockets.admin.serve(levels, config.workers.get(), &running, &auxiliary)?;
    let replacer = Replacer::new(&running, &relay, program);
    reload::start(reloader, &running, central_handle, &replacer)?;
    service_manager::ready();
    let ended = main.block_on(async {
        let drain = &running.shared.drain;
        let settings = || running.shared.generation.load().drain;
        let has_failed = || workers.first_failure().or_else(|| auxiliary.first_failure()).is_some();
        let serving =
            shutdown::serve_and_drain(drain, settings, &signals, &workers, &auxiliary, || relay.terminate());
        tokio::select! {
            ended = serving => ended,
            () = shutdown::follow_wall_clock(&running.shared.clock) => Ok(()),
            () = run_headroom_controller(&running.shared) => Ok(()),
            () = run_adaptive_limits(&running.shared) => Ok(()),
            () = reload::handle_signals(&running, &signals, &replacer) => Ok(()),
            () = table_full_alert::watch(&running.shared) => Ok(()),
            () = key_expiry::run(&running.shared) => Ok(()),
            () = resource_limits::watch_memory(&running.shared.overload) => Ok(()),
            () = instances.run() => Ok(()),
            () = alerts::run(&running) => Ok(()),
            () = service_manager::run_watchdog() => Ok(()),
            () = running.sockets.release_when_draining(drain) => Ok(()),
            () = end_notice.send_when_draining(drain, has_failed) => Ok(()),
        }
    });
    replacer.finish();
    running.reload.stop();
    running.rls_runtime.iter().for_each(|service| service.finish());
    running.deferred_thread.iter().for_each(|thread| thread.finish());
    running.shared.store.iter().for_each(store_thread::finish);
    running.state_saver.iter().for_each(StateSaver::finish);
    running.shared.access_logs.finish();
    running.shared.generation.load().tracer.iter().for_each(|tracer| tracer.finish());
    replacer.supervise(signal_thread)?;
    ended.map_err(AppError::Thread)
}

/// Loads the configuration at startup, and creates what follows its source.
fn load_config(origin: ConfigOrigin<'_>) -> Result<(Config, Reloader, Option<CentralSource>), AppError> {
    let without_central = |(config, reloader)| (config, reloader, None);
    match origin {
        // Made from environment variables: problems are those of the variables.
        ConfigOrigin::Text(text) => {
            let attribute = |problems: Vec<Diagnostic>| -> Vec<Diagnostic> {
                problems.into_iter().map(attribute_to_variables).collect()
            };
            let started = Reloader::start_with_text(text);
            let (mut config, reloader) =
                started.map_err(|problems| AppError::Configuration(attribute(problems)))?;
            config.notices = attribute(config.notices);
            Ok((config, reloader, None))
        }
        ConfigOrigin::File(path) => match load_bootstrap(path).map_err(AppError::Configuration)? {
            None => Reloader::start(path).map(without_central).map_err(AppError::Configuration),
            Some(settings) => {
                let (config, reloader, central) = central::start(path, settings)?;
                Ok((config, reloader, Some(central)))
            }
        },
    }
}

/// Logs what is started, and the notes on its configuration.
fn report_start(origin: ConfigOrigin<'_>, config: &Config) {
    let file = match origin {
        ConfigOrigin::File(path) => path.display().to_string(),
        ConfigOrigin::Text(_) => "environment variables".to_owned(),
    };
    let summary = config.summary();
    let (rules, upstream) = (&summary.rules, &summary.upstream);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), %file, %rules, %upstream, "starting");
    for notice in &config.notices {
        tracing::warn!("{notice}");
    }
}

fn tcp_address(address: &listener::ListenAddress) -> Option<SocketAddr> {
    match address {
        listener::ListenAddress::Tcp(address) => Some(*address),
        listener::ListenAddress::Unix(_) => None,
    }
}

fn build_app(
    config: &Config,
    clock: Arc<Clock>,
    reload: ReloadHandle,
    metrics: Arc<Metrics>,
    sockets: Sockets,
    predecessor: Option<&mut Predecessor>,
) -> Result<RunningApp, AppError> {
    let open_state_file = if predecessor.is_some() { StateFile::of_predecessor } else { StateFile::new };
    let mut state_file = config.state_file.as_ref().map(open_state_file);
    let limiter = Arc::new(match predecessor {
        Some(predecessor) => predecessor.restore(config.max_keys, clock.now())?,
        None => create_limiter(config, state_file.as_mut(), clock.now())?,
    });
    let access_logs = Arc::new(AccessLogManager::default());
    let top_keys = Arc::default();
    let [random, _] = generate_secret()?;
    let resources = PartResources {
        metrics: Arc::clone(&metrics),
        access_logs: Arc::clone(&access_logs),
        runtime: Handle::try_current().ok(),
        identity: Arc::new(ProxyIdentity::new(sockets.addresses(), random)),
    };
    let generations = Arc::new(Generations::new(config, &limiter, &clock, &top_keys, resources)?);
    metrics.record_initial_config(1, clock.now());
    let memory = resource_limits::available_memory();
    let overload = OverloadManager::new(&config.overload, resource_limits::raise_descriptor_limit(), memory);
    resource_limits::apply(&config.overload, &overload, &limiter);
    let (store_handle, queue) =
        config.store.as_ref().map(|_| store::handle::StoreHandle::new(&limiter)).unzip();
    let shared = Arc::new(ProxyState {
        generation: Arc::clone(generations.engine.current()),
        limiter,
        store: store_handle,
        deferred: config.store.as_ref().map(|_| DeferredHandle::default()),
        clock,
        drain: Arc::new(DrainManager::default()),
        replacement: Arc::default(),
        metrics,
        access_logs,
        top_keys,
        demand: Arc::default(),
        elastic: HeadroomState::default(),
        overload: Arc::new(overload),
        warned_of_untrusted_proxy: AtomicBool::new(false),
        warned_of_header_twins: AtomicBool::new(false),
        invalid_inquiries: AtomicU64::new(0),
        noted_client_headers: AtomicBool::new(false),
    });
    let rls_runtime = RlsRuntime::from_config(config, &generations, &shared)?.map(Arc::new);
    let state_saver = config.state_file.as_ref().zip(state_file);
    let state_saver =
        state_saver.map(|(settings, keeper)| StateSaver::start(settings, keeper, &shared)).transpose()?;
    if let Some((settings, queue)) = config.store.as_ref().zip(queue) {
        store_thread::start(
            settings,
            queue,
            generate_secret()?,
            &shared,
            &generations,
            rls_runtime.as_ref(),
        )?;
        store_thread::wait_until_reached(&shared);
    }
    let deferred_thread = DeferredThread::new(config.store.as_ref(), &shared).map(Arc::new);
    deferred_thread.iter().try_for_each(|thread| thread.apply(config))?;
    Ok(RunningApp {
        shared,
        generations,
        sockets: Arc::new(sockets),
        rls_runtime,
        reload,
        alert_settings: Arc::new(alerts::settings_sender(config)),
        state_saver,
        deferred_thread,
    })
}

/// Creates the limiter, with the counters of the state file if there is one.
fn create_limiter(
    config: &Config,
    state_file: Option<&mut StateFile>,
    now: Timestamp,
) -> Result<Limiter, AppError> {
    match state_file.and_then(|keeper| keeper.restore(config.max_keys, now)) {
        Some(limiter) => Ok(limiter),
        None => Ok(Limiter::new(limiter::LimiterSettings {
            max_keys: config.max_keys,
            secret: generate_secret()?,
        })),
    }
}

/// Draws the secret that keys are hashed with, if no state file contains one.
fn generate_secret() -> Result<[u64; 2], AppError> {
    let mut secret = [0; 16];
    getrandom::fill(&mut secret).map_err(|error| {
        AppError::System("cannot generate a random secret".to_owned(), io::Error::other(error))
    })?;
    let (low, high) = secret.split_at(8);
    let word = |half: &[u8]| half.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    Ok([word(low), word(high)])
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

/// Starts a worker for each of `updates`, with its share of the sockets of the rate limit service (`grpc_sockets`).
fn start_workers(
    updates: Vec<WorkerUpdates>,
    mut grpc_sockets: Option<&mut Vec<Socket>>,
    running: &RunningApp,
) -> Result<Arc<ThreadGroup>, AppError> {
    let threads = Arc::new(ThreadGroup::default());
    let workers = updates.len();
    let balances = balance::members(workers).into_iter().zip(balance::members(workers));
    let ids: Vec<_> = (0..workers).map(|_| running.shared.top_keys.add_worker()).collect();
    running.rls_runtime.iter().for_each(|service| service.handler.update_workers());
    for (((index, (balance, grpc_balance)), id), updates) in balances.enumerate().zip(ids).zip(updates) {
        let shared = Arc::clone(&running.shared);
        let port = running.rls_runtime.as_ref().map(|service| Arc::clone(&service.grpc_port));
        let own_sockets = grpc_sockets.iter_mut().flat_map(|sockets| {
            // More than one if the process that this one replaces had more workers.
            let rest = sockets.len() - sockets.len().div_ceil(workers - index);
            sockets.split_off(rest)
        });
        let own_sockets: Vec<_> = own_sockets.collect();
        let work = move || async move {
            let proxying = proxy::run(shared, updates, balance, id);
            match port {
                None => proxying.await,
                Some(port) => {
                    let serving = rls::server::run(port, own_sockets, grpc_balance, id);
                    tokio::try_join!(proxying, serving).map(|((), ())| ())
                }
            }
        };
        let name = format!("worker-{index}");
        threads.spawn(&name, work).map_err(thread::cannot_start(&name))?;
    }
    Ok(threads)
}
