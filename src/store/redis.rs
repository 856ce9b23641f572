//! Calls of a script in Redis or Valkey: one server, the master that sentinels name, or a Cluster.
//!
//! The library has the protocol and many calls at once on a connection. Connections are kept here, since its own ways of
//! connecting again and of finding servers wait without a bound: each server has a task that connects, with a pause after each
//! failure that grows and is never the same for two instances. While there is no connection a call fails at once.
//! No call takes longer than the timeout. One without a response in that time ends its connection: what was sent
//! behind it would wait as well, and a server that was frozen would execute it long after.

mod cluster;
mod connection;
mod connector;
mod error;
mod node;
mod pause;
mod sentinel;
mod slot;

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
pub use redis::Value;
use tokio::sync::Semaphore;
use tokio::time::{Sleep, sleep};

use self::cluster::Cluster;
use self::connection::Connection;
use self::connector::Connector;
pub use self::error::CallError;
use self::node::{Node, Target};
pub use self::slot::{SLOTS, slot};
use super::settings::{Settings, Topology};

/// Calls of one client that may wait at once; further ones are rejected.
const MAX_CALLS: usize = 1024;

/// Ends with the time of a call.
type Deadline<'d> = Pin<&'d mut Sleep>;

/// The store, as one instance calls it. Needs a runtime when it is first called; its tasks end when it is dropped.
#[derive(Debug)]
pub struct Client {
    servers: Servers,
    timeout: Duration,
    calls: Semaphore,
}

#[derive(Debug)]
enum Servers {
    One(Node),
    Cluster(Cluster),
}

/// A script that a server knows by its hash, once it has executed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    text: Box<str>,
    sha1: Box<str>,
}

/// One call of a script.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The script.
    pub script: &'a Script,
    /// Its keys; all of them in one slot.
    pub keys: &'a [String],
    /// Its arguments.
    pub args: &'a [Vec<u8>],
}

/// The process of a server: another one after a restart or a failover.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunId(Arc<str>);

impl Client {
    /// A client of the store with these settings, under the name of this instance. Connects when it is first called.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub fn new(settings: &Settings, instance: &str) -> Result<Self, rustls::Error> {
        let connector = Arc::new(Connector::new(settings, instance)?);
        let servers = match &settings.topology {
            Topology::Single(server) => {
                Servers::One(Node::new(Target::Server(server.place.clone()), connector))
            }
            Topology::Sentinel(sentinel) => {
                Servers::One(Node::new(Target::Master(sentinel.clone()), connector))
            }
            Topology::Cluster(seeds) => Servers::Cluster(Cluster::new(seeds.clone(), connector)),
        };
        Ok(Self { servers, timeout: settings.timeout, calls: Semaphore::new(MAX_CALLS) })
    }

    /// The process that a call with `key` would go to now.
    ///
    /// # Errors
    /// Why that is not known.
    pub async fn run_id(&self, key: &str) -> Result<RunId, CallError> {
        let _permit = self.calls.try_acquire().map_err(|_| CallError::Busy)?;
        let connection = async {
            match &self.servers {
                Servers::One(node) => node.connection().await,
                Servers::Cluster(cluster) => cluster.node(slot(key.as_bytes())).await?.connection().await,
            }
        };
        let connected = tokio::time::timeout(self.timeout, connection).await;
        Ok(connected.map_err(|_| CallError::Timeout)??.run_id().clone())
    }

    /// Calls a script, and says which process has executed it.
    ///
    /// # Errors
    /// Why there is no result. The script may have been executed all the same.
    pub async fn call(&self, call: Call<'_>) -> Result<(Value, RunId), CallError> {
        let _permit = self.calls.try_acquire().map_err(|_| CallError::Busy)?;
        let mut deadline: Deadline<'_> = pin!(sleep(self.timeout));
        match &self.servers {
            Servers::One(node) => {
                let connection = bounded(node.connection(), &mut deadline).await??;
                let called = connection.call(call, false, &mut deadline).await;
                finished(called.map_err(|error| error.into_error()), &connection)
            }
            Servers::Cluster(cluster) => cluster.call(call, &mut deadline).await,
        }
    }
}

/// What a call has led to. A connection to a replica is given up: another server may be the master by now.
fn finished(called: Result<Value, CallError>, connection: &Connection) -> Result<(Value, RunId), CallError> {
    if let Err(error @ (CallError::Timeout | CallError::ReadOnly)) = &called {
        connection.give_up(error.clone());
    }
    called.map(|value| (value, connection.run_id().clone()))
}

/// `future`, unless the time is up before.
async fn bounded<F: Future>(future: F, deadline: &mut Deadline<'_>) -> Result<F::Output, CallError> {
    tokio::select! {
        biased;
        output = future => Ok(output),
        () = deadline.as_mut() => Err(CallError::Timeout),
    }
}

impl Script {
    /// A script with this text.
    pub fn new(text: impl Into<Box<str>>) -> Self {
        use std::fmt::Write as _;
        let text = text.into();
        let mut sha1 = String::with_capacity(40);
        for byte in digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()).as_ref() {
            // Writing to a text cannot fail.
            let _ = write!(sha1, "{byte:02x}");
        }
        Self { text, sha1: sha1.into() }
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_known_by_its_hash() {
        // As `redis-cli SCRIPT LOAD 'return 1'` prints it.
        assert_eq!(&*Script::new("return 1").sha1, "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
