//! Client for script calls in Redis or Valkey: one server, the master that Sentinel names, or a Cluster.
//!
//! The `redis` library implements the protocol and multiplexes calls on a connection. Connections are managed here,
//! because the library's own reconnection and discovery wait without a bound. Each server has a task that connects,
//! with exponential backoff and jitter after failures. While there is no connection, a call fails at once.
//!
//! A call takes at most the timeout. If there is no response in that time, its connection is closed: later calls would
//! wait as well, and a server that was frozen would execute them long after.

mod cluster;
mod connection;
mod connector;
mod error;
mod node;
mod sentinel;
mod slot;
mod unrequested;

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
pub use redis::Value;
use tokio::sync::Semaphore;
use tokio::time::{Sleep, sleep};

use self::cluster::RedisCluster;
use self::connection::RedisConnection;
use self::connector::RedisConnector;
pub use self::error::CallError;
use self::node::{NodeTarget, RedisNode};
pub use self::slot::{SLOTS, slot};
use super::settings::{StoreSettings, Topology};
use weir_net::jitter::{backoff, equal_jitter};

/// Maximum calls of one client in flight; further ones are rejected.
const MAX_CALLS: usize = 1024;

/// Base of the exponential backoff between attempts to connect to a server; the maximum follows.
const BASE_RETRY_DELAY: Duration = Duration::from_millis(50);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Timer of a call.
type CallDeadline<'d> = Pin<&'d mut Sleep>;

/// Client of the store. The first call must be made within a runtime; dropping the client ends its tasks.
#[derive(Debug)]
pub struct RedisClient {
    servers: RedisServers,
    timeout: Duration,
    call_permits: Semaphore,
}

#[derive(Debug)]
enum RedisServers {
    Single(RedisNode),
    Cluster(RedisCluster),
}

/// A script with its SHA-1, by which servers that have executed it can call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    text: Box<str>,
    sha1: Box<str>,
}

#[derive(Clone, Copy, Debug)]
pub struct ScriptCall<'a> {
    pub script: &'a Script,
    /// Keys; all in one slot.
    pub keys: &'a [String],
    /// Arguments.
    pub args: &'a [Vec<u8>],
}

/// Identity of a server process, which changes with a restart or a failover.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunId(Arc<str>);

impl RedisClient {
    /// Creates a client with these settings; `instance` is its name for the server. It connects on the first call.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub fn new(settings: &StoreSettings, instance: &str) -> Result<Self, rustls::Error> {
        let connector = Arc::new(RedisConnector::new(settings, instance)?);
        let servers = match &settings.topology {
            Topology::Single(server) => {
                RedisServers::Single(RedisNode::new(NodeTarget::Server(server.address.clone()), connector))
            }
            Topology::Sentinel(sentinel) => {
                RedisServers::Single(RedisNode::new(NodeTarget::Master(sentinel.clone()), connector))
            }
            Topology::Cluster(seeds) => RedisServers::Cluster(RedisCluster::new(seeds.clone(), connector)),
        };
        Ok(Self { servers, timeout: settings.timeout, call_permits: Semaphore::new(MAX_CALLS) })
    }

    /// Returns the server process that would receive a call with `key`.
    ///
    /// # Errors
    /// Why the process is not known.
    pub async fn run_id(&self, key: &str) -> Result<RunId, CallError> {
        let _permit = self.call_permits.try_acquire().map_err(|_| CallError::Busy)?;
        Ok(self.connection(key).await?.run_id().clone())
    }

    /// Calls a script whose arguments name the server process that executes it.
    ///
    /// # Errors
    /// Why there is no result. Also if another process than the named one has executed the script: it may lack the data of
    /// that one.
    pub async fn call_known(
        &self,
        script: &Script,
        keys: &[String],
        args: impl FnOnce(&RunId) -> Vec<String>,
    ) -> Result<Value, CallError> {
        let run_id = self.run_id(&keys[0]).await?;
        let args: Vec<_> = args(&run_id).into_iter().map(String::into_bytes).collect();
        let (value, executed_by) = self.call(ScriptCall { script, keys, args: &args }).await?;
        if executed_by != run_id {
            return Err(CallError::Unreachable("another server has taken over".to_owned()));
        }
        Ok(value)
    }

    /// Closes the connection for calls with `key`, whose last reply had another form than that of its script: the next ones
    /// may be those of other calls. Returns the reason as an error.
    pub async fn close_malformed(&self, key: &str, what: &'static str) -> CallError {
        let reason = CallError::Malformed(what);
        if let Ok(connection) = self.connection(key).await {
            connection.close(reason.clone());
        }
        reason
    }

    async fn connection(&self, key: &str) -> Result<Arc<RedisConnection>, CallError> {
        let connection = async {
            match &self.servers {
                RedisServers::Single(node) => node.connection().await,
                RedisServers::Cluster(cluster) => {
                    cluster.node(slot(key.as_bytes())).await?.connection().await
                }
            }
        };
        let connected = tokio::time::timeout(self.timeout, connection).await;
        connected.map_err(|_| CallError::Timeout)?
    }

    /// Calls a script, and returns its result and the process that executed it.
    ///
    /// # Errors
    /// Why there is no result. The script may have been executed nevertheless.
    pub async fn call(&self, call: ScriptCall<'_>) -> Result<(Value, RunId), CallError> {
        let _permit = self.call_permits.try_acquire().map_err(|_| CallError::Busy)?;
        let mut deadline: CallDeadline<'_> = pin!(sleep(self.timeout));
        match &self.servers {
            RedisServers::Single(node) => {
                let connection = with_deadline(node.connection(), &mut deadline).await??;
                let called = connection.call(call, false, &mut deadline).await;
                complete_call(called.map_err(|error| error.into_error()), &connection)
            }
            RedisServers::Cluster(cluster) => cluster.call(call, &mut deadline).await,
        }
    }
}

/// Evaluates a call. A connection to a replica is closed, because another server may have become the master.
fn complete_call(
    called: Result<Value, CallError>,
    connection: &RedisConnection,
) -> Result<(Value, RunId), CallError> {
    if let Err(error @ (CallError::Timeout | CallError::ReadOnly)) = &called {
        connection.close(error.clone());
    }
    called.map(|value| (value, connection.run_id().clone()))
}

/// Awaits `future` until the deadline.
async fn with_deadline<F: Future>(
    future: F,
    deadline: &mut CallDeadline<'_>,
) -> Result<F::Output, CallError> {
    tokio::select! {
        biased;
        output = future => Ok(output),
        () = deadline.as_mut() => Err(CallError::Timeout),
    }
}

impl Script {
    pub fn new(text: impl Into<Box<str>>) -> Self {
        use std::fmt::Write as _;
        let text = text.into();
        let mut sha1 = String::with_capacity(40);
        for byte in digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()).as_ref() {
            // Writing to a `String` cannot fail.
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

/// Returns the pause before the next attempt to connect, after this many consecutive `failures`.
fn retry_delay(failures: u32) -> Duration {
    equal_jitter(backoff(BASE_RETRY_DELAY, MAX_RETRY_DELAY, failures.saturating_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_hash_is_that_of_script_load() {
        // As `redis-cli SCRIPT LOAD 'return 1'` prints it.
        assert_eq!(&*Script::new("return 1").sha1, "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
