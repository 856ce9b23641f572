//! All that a configuration says of the service.

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
    /// Where it is; takes a restart to change.
    pub ports: Ports,
    /// TLS of the gRPC port; plain without.
    pub tls: Option<tls::server::Settings>,
    /// Names of which a client's certificate must have one; any will do if there are none.
    pub client_names: Arc<[Box<str>]>,
    /// How it decides.
    pub decisions: Arc<Settings>,
    /// How the limits of documents are shared by instances; `None` where each counts for itself. Takes a restart to change.
    pub scope: Option<SharedLimit>,
    /// Where its rules are; `None` where it has none of its own.
    pub directory: Option<Directory>,
    /// Who sends them, if it is not a directory.
    pub xds: Option<Arc<Xds>>,
    /// What they were when the configuration was read; `None` if they could not be, and need not.
    pub loaded: Option<Loaded>,
}

impl Options {
    /// Whether `other` differs in what is neither a port nor a rule.
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

    /// Whether the rules of `other` are others.
    pub fn has_other_rules_than(&self, other: &Self) -> bool {
        match (&self.loaded, &other.loaded) {
            (Some(loaded), Some(others)) => !loaded.is_same_as(others),
            (loaded, others) => loaded.is_some() != others.is_some(),
        }
    }

    /// What is left of it when it does not keep rules and certificates in memory.
    pub fn without_data(self) -> Self {
        Self { tls: None, loaded: None, xds: None, ..self }
    }
}

/// Where the service is to be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports {
    /// gRPC.
    pub grpc: listener::Address,
    /// HTTP/1.1, each with what is answered there.
    pub doors: Vec<(SocketAddr, Door)>,
    /// Where statistics are sent.
    pub statsd: Option<statsd::Settings>,
    /// How connections of gRPC are treated.
    pub connections: Connections,
}
