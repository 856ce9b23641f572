//! The operators' entrance: what the process is, does and counts, and the few things it can be told to do.
//!
//! Paths and answers are Envoy's where Envoy has them, so that probes, scrapers and habits fit. What acts is a
//! POST. Nobody authenticates here: it belongs on loopback, and only [`Surface::Probes`] on the pod's address.
//! It answers until the very end of the process, so that a drain can be watched.

mod act;
mod certs;
mod clusters;
mod config_dump;
mod hosts;
mod limits;
mod query;
mod reply;
mod router;
mod scrape;
mod sharing;
mod stats;
mod status;

use std::fmt;
use std::sync::Arc;

pub use self::reply::Reply;
pub use self::router::{handle, serve};
pub use self::scrape::KeyCounts;
use crate::config::reload::Status;
use crate::drain::Drain;
use crate::engine::Policy;
use crate::limiter::Limiter;
use crate::limiter::elastic::controller::Assessment;
use crate::limiter::timestamp::Timestamp;
use crate::listener::Address;
use crate::snapshot;
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::logging::LevelHandle;
use crate::telemetry::metrics::{ClusterView, Metrics};
use crate::tls::client::Client;
use crate::tls::server::Server;

/// How much of the entrance a socket offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surface {
    /// Everything.
    Full,
    /// Only `GET /ready` and `/metrics`, for whoever can reach the pod.
    Probes,
}

impl Surface {
    /// Its name in logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Probes => "probes",
        }
    }
}

/// A place where clients connect.
#[derive(Clone, Debug)]
pub struct Listener {
    /// Its name in metrics and logs.
    pub name: Box<str>,
    /// Where it is bound.
    pub address: Address,
}

impl Listener {
    /// Where it is bound, as Envoy prints it: a socket in the file system is its path alone.
    fn place(&self) -> String {
        match &self.address {
            Address::Tcp(address) => address.to_string(),
            Address::Unix(path) => path.display().to_string(),
        }
    }
}

/// What the rest of the process shows to operators. All of it is read anew for each request.
pub trait Inspect: Send + Sync {
    /// The time of the limits, which never runs back.
    fn now(&self) -> Timestamp;
    /// What the wall clock says.
    fn wall_clock(&self) -> Timestamp;
    /// The rules in effect.
    fn policy(&self) -> Arc<Policy>;
    /// The upstreams.
    fn upstreams(&self) -> Vec<ClusterView>;
    /// TLS of the listeners in effect.
    fn server_tls(&self) -> Vec<Arc<Server>>;
    /// TLS towards the upstreams in effect.
    fn client_tls(&self) -> Vec<Arc<Client>>;
    /// The configuration in effect and the latest reading of it; secrets are taken out by the admin port.
    fn configuration(&self) -> Status;
    /// What was written to the state file, if there is one.
    fn state_file(&self) -> Option<snapshot::Status>;
    /// Whether the store of shared limits does not respond; `None` if there is none.
    fn is_store_away(&self) -> Option<bool>;
    /// How far limits stretch, and why; `None` while none is elastic.
    fn elastic(&self) -> Option<Assessment>;
}

/// All that the entrance shows and steers.
pub struct State {
    /// What changes while the process runs.
    pub process: Box<dyn Inspect>,
    /// What was counted.
    pub metrics: Arc<Metrics>,
    /// The counters.
    pub limiter: Arc<Limiter>,
    /// How many of them there is room for.
    pub capacity: usize,
    /// The switch that ends the process.
    pub drain: Arc<Drain>,
    /// The levels of the log.
    pub levels: LevelHandle,
    /// The access log, if there is one.
    pub access_log: Option<AccessLog>,
    /// When the process started.
    pub started: Timestamp,
    /// Worker threads.
    pub workers: usize,
    /// Names by which it may be asked, in small letters, beside addresses and `localhost`.
    pub hosts: Box<[Box<str>]>,
    /// Where clients connect.
    pub listeners: Vec<Listener>,
    /// The latest count of counters in use; starts as its default.
    pub keys: KeyCounts,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("listeners", &self.listeners).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
