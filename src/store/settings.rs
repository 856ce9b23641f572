//! Where the store is, and how an instance presents itself to it.

use std::fmt;
use std::num::NonZeroU16;
use std::time::Duration;

use crate::remote::channel::Place;
use crate::tls::client;

/// The store, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The servers.
    pub topology: Topology,
    /// Who this process is to the servers; sentinels have their own.
    pub credentials: Credentials,
    /// TLS towards all servers, sentinels included; plain without.
    pub tls: Option<client::Settings>,
    /// Of every key.
    pub prefix: Box<str>,
    /// The longest that one call may take, a connection included.
    pub timeout: Duration,
    /// The share of this instance among those that demand more than there is.
    pub weight: NonZeroU16,
    /// The name of this instance; a random one unless given.
    pub instance: Option<Box<str>>,
}

/// Which server has a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// The only one.
    Single(Server),
    /// The one that sentinels name as the master.
    Sentinel(Sentinel),
    /// The one that has the key's slot. These servers are asked for all others.
    Cluster(Vec<Place>),
}

/// A server with its database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Where it is.
    pub place: Place,
    /// The number of the database.
    pub db: u16,
}

/// Servers that follow a master, and the sentinels that name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentinel {
    /// The sentinels; at least one.
    pub sentinels: Vec<Place>,
    /// The name of the master.
    pub master: Box<str>,
    /// Who this process is to the sentinels.
    pub credentials: Credentials,
    /// The number of the database.
    pub db: u16,
}

/// A user, as access control lists know it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// Its name; `default` unless given.
    pub username: Option<Box<str>>,
    /// Its password.
    pub password: Option<Box<str>>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let password = self.password.as_ref().map(|_| "[redacted]");
        f.debug_struct("Credentials").field("username", &self.username).field("password", &password).finish()
    }
}
