//! Configuration of the rate limit service.

use std::net::SocketAddr;
use std::sync::Arc;

pub use super::http_endpoints::HttpEndpoint;
pub use super::server::RlsConnectionSettings as Connections;
use super::settings::RlsSettings;
pub use super::source::directory::RulesDirectory;
pub use super::source::xds::XdsSettings as Xds;
pub use super::source::{LoadedRules, load_rules};
use weir_net::listener;
use weir_net::tls;
use weir_policy::rules::shared_limit::SharedLimit;
pub use weir_store::remote::channel::ServerAddress;
use weir_telemetry::statsd;

/// The service as configured.
#[derive(Clone, Debug)]
pub struct RlsOptions {
    /// Listeners; a change takes a restart.
    pub ports: RlsPorts,
    /// TLS settings of the gRPC listener; plain text if `None`.
    pub tls: Option<tls::server::TlsServerSettings>,
    /// Names of which a client certificate must have one; if empty, any verified certificate is accepted.
    pub client_names: Arc<[Box<str>]>,
    pub decision_settings: Arc<RlsSettings>,
    /// How instances share the limits of documents; `None` to count per instance. A change takes a restart.
    pub shared_limit: Option<SharedLimit>,
    /// Directory with the rules' documents; `None` if there is none.
    pub directory: Option<RulesDirectory>,
    /// Management server that sends the rules, instead of a directory.
    pub xds: Option<Arc<Xds>>,
    /// The rules when the configuration was read; `None` if they could not be loaded and are not required.
    pub loaded_rules: Option<LoadedRules>,
}

impl RlsOptions {
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
        parts(self) != parts(other) || self.decision_settings != other.decision_settings
    }

    /// Returns whether the rules differ.
    pub fn has_different_rules(&self, other: &Self) -> bool {
        match (&self.loaded_rules, &other.loaded_rules) {
            (Some(loaded), Some(others)) => !loaded.has_same_content(others),
            (loaded, others) => loaded.is_some() != others.is_some(),
        }
    }

    /// Removes rules and certificates, so that they are not kept in memory.
    pub fn without_data(self) -> Self {
        Self { tls: None, loaded_rules: None, xds: None, ..self }
    }
}

/// Listeners and outputs of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RlsPorts {
    /// Address of the gRPC listener.
    pub grpc: listener::ListenAddress,
    /// HTTP/1.1 listeners and their functions.
    pub http_endpoints: Vec<(SocketAddr, HttpEndpoint)>,
    /// Destination of statistics in StatsD format.
    pub statsd: Option<statsd::StatsdSettings>,
    /// Settings of gRPC connections.
    pub connections: Connections,
}
