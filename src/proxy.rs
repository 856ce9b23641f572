//! The reverse proxy: HTTP between clients and upstreams, with rate limits in between.
//!
//! `pipeline` is the request path; the other files are its stages. Everything here belongs to one worker thread, except
//! what [`ProxyState`] holds.

pub mod adaptive;
mod admitted;
pub mod elastic;
pub mod fallback;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;

mod accept;
mod awaited;
mod body;
mod body_fields;
mod classes;
mod connection;
mod date;
mod decide;
mod decision;
mod deferred;
mod delay;
mod failure;
mod finish;
mod forward;
mod forward_proxy;
mod grpc;
mod headers;
mod held;
mod local_reply;
mod own_limits;
mod pipeline;
mod prepare;
mod request_context;
mod resolve;
mod respond;
mod response_future;
mod run;
mod stored_request;
mod stream;
mod streams;
mod timeouts;
mod tunnel;
mod unanswered;
mod usage;
mod view;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use arc_swap::ArcSwap;

pub use self::accept::{ListenerPermit, WorkerListener, WorkerUpdate, WorkerUpdates};
pub use self::connection::replacement::ArrivedConnection;
use self::elastic::HeadroomState;
use self::fallback::Fallbacks;
pub use self::run::run;
use self::worker::Worker;
use weir_limiter::Limiter;
use weir_limiter::elastic::signal::SignalSet;
use weir_limits::LimitTables;
use weir_net::clock::Clock;
use weir_net::drain::{DrainManager, DrainSettings};
use weir_net::overload::OverloadManager;
use weir_net::replacement::Replacement;
use weir_net::tls::server::TlsServer;
use weir_policy::decision::DecisionProtocol;
use weir_policy::engine::Policy;
use weir_policy::rules::own_limits::OwnLimits;
use weir_store as store;
use weir_store::deferred::handle::DeferredHandle;
use weir_store::remote;
use weir_telemetry::access_log::{AccessLog, AccessLogManager};
use weir_telemetry::metrics::Metrics;
use weir_telemetry::observe::demand::DemandHistory;
use weir_telemetry::observe::top_keys::TopKeys;
use weir_telemetry::spans::Tracer;
use weir_upstream::cluster::Cluster;
use weir_upstream::forward_proxy::ForwardProxy;

/// State that all workers share.
#[derive(Debug)]
pub struct ProxyState {
    /// The generation of the configuration in force.
    pub generation: Arc<ArcSwap<Generation>>,
    /// The rate limit counters.
    pub limiter: Arc<Limiter>,
    /// The store that counts shared limits, if one is configured.
    pub store: Option<store::handle::StoreHandle>,
    /// The streams of deferred calls, if there is a store.
    pub deferred: Option<DeferredHandle>,
    /// The clock of the process.
    pub clock: Arc<Clock>,
    /// The state of graceful shutdown.
    pub drain: Arc<DrainManager>,
    /// The state of the replacement by another process.
    pub replacement: Arc<Replacement>,
    /// Metrics of the process.
    pub metrics: Arc<Metrics>,
    /// Opens the access logs of all generations.
    pub access_logs: Arc<AccessLogManager>,
    /// Heaviest keys of each rule.
    pub top_keys: Arc<TopKeys>,
    /// Demand of the heaviest keys over days.
    pub demand: Arc<DemandHistory>,
    /// Headroom of elastic limits.
    pub elastic: HeadroomState,
    /// Limits on concurrent connections and requests, and on memory.
    pub overload: Arc<OverloadManager>,
    /// Whether the warning about a client behind an untrusted private proxy has been logged.
    pub warned_of_untrusted_proxy: AtomicBool,
    /// Whether a warning about removed header names has been logged.
    pub warned_of_header_twins: AtomicBool,
    /// Whether a removed header of an untrusted peer has been logged.
    pub noted_client_headers: AtomicBool,
    /// Requests for decisions that could not be decided.
    pub invalid_inquiries: AtomicU64,
}

/// What requests need of one generation of the configuration, replaced as a whole.
#[derive(Debug)]
pub struct Generation {
    /// Rules, routes and responses.
    pub policy: Arc<Policy>,
    /// Tables of its limits.
    pub limits: Arc<LimitTables>,
    /// The upstreams, in the order of the routes. An upstream whose settings have not changed is kept, together with
    /// its connections.
    pub upstreams: Box<[Arc<Cluster>]>,
    /// Stored responses for requests that are rejected.
    pub fallbacks: Arc<Fallbacks>,
    /// The load signals of elastic limits.
    pub elastic: SignalSet,
    /// Durations of a graceful shutdown.
    pub drain: DrainSettings,
    /// Names of the listeners, by their positions. A position keeps its name, also when the listener is gone.
    pub listeners: Box<[Box<str>]>,
    /// TLS configuration by listener.
    pub tls: Box<[Option<Arc<TlsServer>>]>,
    /// Forward proxies by listener.
    pub forward_proxies: Box<[Option<Arc<ForwardProxy>>]>,
    /// How other proxies ask for decisions, by listener.
    pub decisions: Box<[Option<DecisionProtocol>]>,
    /// Where callers read their own limits, by listener.
    pub own_limits: Box<[Option<Arc<OwnLimits>>]>,
    /// The access log, if one is configured.
    pub access_log: Option<AccessLog>,
    /// The tracer, if tracing is configured.
    pub tracer: Option<Arc<Tracer>>,
    /// Rate limit services that count limits of rules.
    pub rate_limit_services: Box<[remote::service::RemoteServiceSettings]>,
}
