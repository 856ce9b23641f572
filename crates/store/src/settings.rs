//! Settings of the store: its servers, and this instance's identity.

use std::fmt;
use std::num::{NonZeroU16, NonZeroU32};
use std::time::Duration;

use crate::remote::channel::ServerAddress;
use weir_net::tls::client;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSettings {
    /// The servers and their roles.
    pub topology: Topology,
    /// Credentials for the servers; Sentinels have separate ones.
    pub credentials: Credentials,
    /// TLS settings for all servers and Sentinels; plain text if `None`.
    pub tls: Option<client::TlsClientSettings>,
    /// Prefix of every key.
    pub prefix: Box<str>,
    /// Maximum time of one call, including the time to connect.
    pub timeout: Duration,
    /// Time for which the store holds back the part of an instance that it does not hear of.
    pub registration: Duration,
    /// Weight of this instance's share when demand exceeds the limit.
    pub weight: NonZeroU16,
    /// Name of this instance; random if `None`.
    pub instance: Option<Box<str>>,
    /// The regions that share limits; `None` if all instances use the same store.
    pub regions: Option<Box<RegionSettings>>,
}

/// The regions that share limits, each with a store of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionSettings {
    /// Name of this region, unique among the regions.
    pub name: Box<str>,
    /// The global store, which has no regions itself.
    pub global: StoreSettings,
    /// Maximum number of regions.
    pub count: NonZeroU32,
    /// Whether a region that does not reach the global store counts with its allotment after `registration`.
    pub keeps_allotment: bool,
}

/// How the servers are organised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    Single(SingleServer),
    /// The master that Sentinels name.
    Sentinel(SentinelSettings),
    /// A Cluster; these are the servers from which to discover it.
    Cluster(Vec<ServerAddress>),
}

/// A server and its database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SingleServer {
    pub address: ServerAddress,
    /// Number of the database.
    pub db: u16,
}

/// A replicated server, located through Sentinels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentinelSettings {
    /// Addresses of the Sentinels; at least one.
    pub sentinels: Vec<ServerAddress>,
    pub master: Box<str>,
    pub credentials: Credentials,
    /// Number of the database.
    pub db: u16,
}

/// Credentials of a Redis user.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// User name; `default` if `None`.
    pub username: Option<Box<str>>,
    pub password: Option<Box<str>>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let password = self.password.as_ref().map(|_| "[redacted]");
        f.debug_struct("Credentials").field("username", &self.username).field("password", &password).finish()
    }
}
