//! The reverse proxy: HTTP between clients and upstreams, with the limiter in between.
//!
//! `pipeline` is the request path; the other files are its stages. Everything here belongs to one worker thread, except
//! what [`Shared`] holds.

pub mod elastic;
pub mod fallback;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;

mod body;
mod connection;
mod date;
mod decide;
mod failure;
mod finish;
mod forward;
mod grpc;
mod headers;
mod local_reply;
mod pipeline;
mod request_context;
mod stream;
mod timeouts;
mod tunnel;
mod view;
mod worker;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::ArcSwap;

use self::elastic::Elastic;
use self::fallback::Fallbacks;
use self::worker::Worker;
pub use self::worker::run;
use crate::clock::Clock;
use crate::drain::Drain;
use crate::engine::Policy;
use crate::limiter::Limiter;
use crate::limiter::elastic::signal::Signals;
use crate::overload::Overload;
use crate::remote;
use crate::store;
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::spans::Tracer;
use crate::tls::server::Server;
use crate::upstream::cluster::Cluster;

/// What all workers share.
#[derive(Debug)]
pub struct Shared {
    /// The generation of the configuration in force.
    pub generation: Arc<ArcSwap<Generation>>,
    /// The counters.
    pub limiter: Arc<Limiter>,
    /// Where shared limits are counted, if there is a store.
    pub store: Option<store::handle::Handle>,
    /// The clock of the process.
    pub clock: Arc<Clock>,
    /// The state of graceful shutdown.
    pub drain: Arc<Drain>,
    /// Metrics of the process.
    pub metrics: Arc<Metrics>,
    /// The access log, if there is one.
    pub access_log: Option<AccessLog>,
    /// The tracer, if tracing is configured.
    pub tracer: Option<Arc<Tracer>>,
    /// How far elastic limits may grow.
    pub elastic: Elastic,
    /// Limits on concurrent connections and requests, and on memory.
    pub overload: Arc<Overload>,
    /// Whether a client behind an untrusted private proxy has been warned of already.
    pub warned_of_proxy: AtomicBool,
}

/// All that a request needs of one configuration, replaced as one.
#[derive(Debug)]
pub struct Generation {
    /// How requests are decided.
    pub policy: Arc<Policy>,
    /// The upstreams, in the order of the routes. Upstreams whose settings stay the same keep their place, and
    /// with it the connections made to them.
    pub upstreams: Box<[Arc<Cluster>]>,
    /// Stored responses, for requests that are rejected.
    pub fallbacks: Arc<Fallbacks>,
    /// The load signals of elastic limits.
    pub elastic: Signals,
    /// TLS, by listener.
    pub tls: Box<[Option<Arc<Server>>]>,
    /// Rate limit services that keep limits of rules.
    pub services: Box<[remote::service::Settings]>,
}
