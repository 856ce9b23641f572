//! Configuration of the rate limit service.

use std::net::SocketAddr;
use std::sync::Arc;

pub use super::doors::Door;
pub use super::server::Settings as Connections;
use super::settings::Settings;
pub use super::source::directory::Directory;
pub use super::source::xds::Settings as Xds;
pub use super::source::{Loaded, load};
pub use crate::remote::channel::Place;
use crate::rules::shared_limit::SharedLimit;
use crate::telemetry::statsd;
use crate::{listener, tls};

/// The service as configured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Listeners; a change takes a restart.
    pub ports: Ports,
    /// TLS settings of the gRPC listener; plain text if `None`.
    pub tls: Option<tls::server::TlsServerSettings>,
    /// Names of which a client certificate must have one; if empty, any verified certificate is accepted.
    pub client_names: Arc<[Box<str>]>,
    /// Settings of the decisions.
    pub decisions: Arc<Settings>,
    /// How instances share the limits of documents; `None` to count per instance. A change takes a restart.
    pub scope: Option<SharedLimit>,
    /// Directory with the rules' documents; `None` if there is none.
    pub directory: Option<Directory>,
    /// Management server that sends the rules, instead of a directory.
    pub xds: Option<Arc<Xds>>,
    /// The rules when the configuration was read; `None` if they could not be loaded and are not required.
    pub loaded: Option<Loaded>,
}

impl Options {
    /// Returns whether settings other than listeners and rules differ.
    pub fn differs_in_settings(&self, other: &Self) -> bool {
        let parts = |options: &Self| {
            (
                options.tls.clone(),
                Arc::clone(&options.client_names),
                options.directory.clone(),
                options.xds.clone(),
            )
        };
        parts(self) != parts(other) || self.decisions != other.decisions
    }

    /// Returns whether the rules differ.
    pub fn has_other_rules_than(&self, other: &Self) -> bool {
        match (&self.loaded, &other.loaded) {
            (Some(loaded), Some(others)) => !loaded.is_same_as(others),
            (loaded, others) => loaded.is_some() != others.is_some(),
        }
    }

    /// Removes rules and certificates, so that they are not kept in memory.
    pub fn without_data(self) -> Self {
        Self { tls: None, loaded: None, xds: None, ..self }
    }
}

/// Listeners and outputs of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports {
    /// Address of the gRPC listener.
    pub grpc: listener::ListenAddress,
    /// HTTP/1.1 listeners and their functions.
    pub doors: Vec<(SocketAddr, Door)>,
    /// Destination of statistics in StatsD format.
    pub statsd: Option<statsd::Settings>,
    /// Settings of gRPC connections.
    pub connections: Connections,
}
