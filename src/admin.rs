//! Admin interface: probes, metrics, state and configuration of the process, and a few commands.
//!
//! Paths and response bodies are Envoy's where Envoy has an equivalent, so that existing probes and scrapers work.
//! Commands need POST. Without a token, bind the full interface to loopback, and only [`Surface::Probes`] to an address
//! that others can reach. The interface serves until the process exits, so that a graceful shutdown can be observed.

mod actions;
mod audit;
mod authorization;
mod certs;
mod clusters;
mod command_error;
mod config_dump;
mod deferred;
mod document_limits;
mod events;
mod explain;
mod host_check;
mod key_counts;
mod limits;
mod notices;
mod overrides;
mod page;
mod query;
mod recent;
mod response;
mod router;
mod scrape;
mod shared_limits;
mod snapshot;
mod stats;
mod status;
mod streams;
mod suggestions;
mod top;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};

pub use self::audit::RejectionAudit;
pub use self::events::{EventHub, run as run_events};
pub use self::recent::RecentSamples;
pub use self::response::FullResponse;
pub use self::router::{handle, serve};
pub use self::scrape::KeyCounts;
use weir_config::reload::ReloadStatus;
use weir_config::{AdminSettings, AdminToken};
use weir_limiter::elastic::controller::Assessment;
use weir_limiter::leases::PartsByGroup;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{LimitId, Limiter};
use weir_net::drain::DrainManager;
use weir_net::listener::ListenAddress;
use weir_net::overload::OverloadManager;
use weir_net::replacement::Replacement;
use weir_net::tls::client::TlsClient;
use weir_net::tls::server::TlsServer;
use weir_policy::engine::Policy;
use weir_policy::engine::overrides::OverrideBook;
use weir_replay::explain::DocumentReport;
use weir_rls::handler::RlsHandler;
use weir_store::deferred::handle::DeferredHandle;
use weir_store::regions::RegionStatus;
use weir_store::state_file;
use weir_telemetry::access_log::AccessLogManager;
use weir_telemetry::logging::LevelHandle;
use weir_telemetry::metrics::{ClusterView, Metrics};
use weir_telemetry::observe::demand::DemandHistory;
use weir_telemetry::observe::key_writer::{KeyWriter, LogKeys};
use weir_telemetry::observe::top_keys::TopKeys;

/// Part of the admin interface that a listener offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surface {
    /// All endpoints.
    Full,
    /// Only `GET` and `HEAD` of `/ready` and `/metrics`, for an address that other hosts can reach.
    Probes,
}

impl Surface {
    /// Returns the name used in logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Probes => "probes",
        }
    }
}

/// A listener for clients, as the admin interface shows it.
#[derive(Clone, Debug)]
pub struct ListenerInfo {
    /// Name in metrics and logs.
    pub name: Box<str>,
    /// Bound address.
    pub address: ListenAddress,
}

impl ListenerInfo {
    /// Returns the bound address in Envoy's notation; a Unix socket is its path alone.
    fn envoy_address(&self) -> String {
        match &self.address {
            ListenAddress::Tcp(address) => address.to_string(),
            ListenAddress::Unix(path) => path.display().to_string(),
        }
    }
}

/// View of the running process. Each request reads it anew.
pub trait Inspect: Send + Sync {
    /// Returns the time that limits use, which never goes backwards.
    fn now(&self) -> Timestamp;
    /// Returns the wall-clock time.
    fn wall_clock(&self) -> Timestamp;
    /// Returns the policy in force.
    fn policy(&self) -> Arc<Policy>;
    /// Returns how operators see keys; `None` for the default.
    fn log_keys(&self) -> Option<LogKeys>;
    /// Returns the upstreams with their endpoints.
    fn upstreams(&self) -> Vec<ClusterView>;
    /// Returns the TLS configurations in force on the listeners.
    fn server_tls(&self) -> Vec<Arc<TlsServer>>;
    /// Returns the TLS configurations in force for upstream connections.
    fn client_tls(&self) -> Vec<Arc<TlsClient>>;
    /// Returns the configuration in force and the outcome of the last reload. It contains secrets, which the admin
    /// interface removes.
    fn configuration(&self) -> ReloadStatus;
    /// Returns the status of the state file, if one is configured.
    fn state_file(&self) -> Option<state_file::StateFileStatus>;
    /// Returns whether the store of shared limits is unreachable; `None` without a store.
    fn is_store_unreachable(&self) -> Option<bool>;
    /// Returns the parts of shared limits that may be spent without the store.
    fn store_parts(&self) -> PartsByGroup;
    /// Returns what is known of the regions that share limits; `None` if there is one store for all instances.
    fn region(&self) -> Option<RegionStatus>;
    /// Returns the time that requests wait for the store by default; zero without a store.
    fn store_wait(&self) -> Duration;
    /// Returns when a request was last found to have waited without a response of the store for one of these limits.
    fn last_unanswered_wait(&self, limits: &[LimitId]) -> Option<Timestamp>;
    /// Returns the streams of deferred calls, if there is a store.
    fn deferred(&self) -> Option<DeferredHandle>;
    /// Returns what the documents of the rate limit service would do to a descriptor; `None` without the service.
    fn preview_documents(&self, domain: &str, entries: &[(String, String)]) -> Option<DocumentReport>;
    /// Returns the rate limit service, if there is one.
    fn rate_limit_service(&self) -> Option<&RlsHandler>;
    /// Returns the headroom of elastic limits and the signals it is computed from; `None` without elastic limits.
    fn elastic_assessment(&self) -> Option<Assessment>;
}

/// Everything that the admin interface shows and controls.
pub struct AdminState {
    /// The parts that change at run time.
    pub process: Box<dyn Inspect>,
    /// Process-wide metrics.
    pub metrics: Arc<Metrics>,
    /// The limiter, which contains the counters.
    pub limiter: Arc<Limiter>,
    /// Graceful-shutdown state.
    pub drain: Arc<DrainManager>,
    /// The state of the replacement by another process.
    pub replacement: Arc<Replacement>,
    pub overload: Arc<OverloadManager>,
    pub log_levels: LevelHandle,
    /// Access logs of all generations.
    pub access_logs: Arc<AccessLogManager>,
    /// Heaviest keys of each rule.
    pub top_keys: Arc<TopKeys>,
    /// Their demand over days.
    pub demand: Arc<DemandHistory>,
    /// Start time of the process.
    pub start_time: Timestamp,
    /// Number of worker threads.
    pub workers: usize,
    /// Who may use the interface.
    pub access: Arc<AdminAccess>,
    /// Rejected requests that are not in the audit log yet; initially empty.
    pub rejections: RejectionAudit,
    /// Overrides of single keys.
    pub overrides: Arc<OverrideBook>,
    /// Listeners for clients.
    pub listeners: Arc<ArcSwap<Vec<ListenerInfo>>>,
    /// Open streams of events.
    pub events: EventHub,
    /// Totals of the last two minutes; initially empty.
    pub recent: RecentSamples,
    /// Cached numbers of counters per limit; initially empty.
    pub key_counts: KeyCounts,
}

/// Who may use the admin interface. A reload changes it.
#[derive(Debug)]
pub struct AdminAccess {
    /// Host names accepted in `Host`, in lower case, in addition to IP addresses and `localhost`.
    allowed_hosts: ArcSwap<Box<[Box<str>]>>,
    /// Token that requests to the full interface need, if configured.
    token: ArcSwapOption<AdminToken>,
    /// Whether the full interface is on loopback.
    is_loopback: AtomicBool,
}

impl Default for AdminAccess {
    fn default() -> Self {
        Self {
            allowed_hosts: ArcSwap::from_pointee(Box::default()),
            token: ArcSwapOption::empty(),
            is_loopback: AtomicBool::new(true),
        }
    }
}

impl AdminAccess {
    /// Applies the settings of a configuration.
    pub fn apply(&self, settings: &AdminSettings) {
        let is_loopback = settings.address.ip().is_loopback();
        let before = self.token.swap(settings.token.clone().map(Arc::new));
        if before.is_some() && settings.token.is_none() && !is_loopback {
            tracing::warn!(
                "the admin port has no token any more, and it is not on loopback: anyone who reaches it can read it"
            );
        }
        self.is_loopback.store(is_loopback, Ordering::Relaxed);
        self.allowed_hosts.store(Arc::new(settings.allowed_hosts.clone()));
    }
}

impl AdminState {
    /// Returns the writer of keys under `policy`.
    fn key_writer(&self, policy: &Policy) -> KeyWriter {
        KeyWriter {
            visibility: self.process.log_keys(),
            ipv6_prefix: policy.identify.ipv6_prefix,
            hasher: self.limiter.hasher(),
        }
    }
}

impl fmt::Debug for AdminState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("listeners", &self.listeners.load()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
