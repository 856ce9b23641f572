//! Opens connections to servers and Sentinels.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ProtocolVersion, PushInfo, RedisConnectionInfo, RedisError, Value};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::RunId;
use super::connection::Connection;
use super::error::CallError;
use crate::remote::channel::Place;
use crate::store::settings::{Credentials, Settings, Topology};
use crate::tls::client::TlsClient;
use crate::transport::Transport;

/// Timeout of establishing a connection, including TLS and authentication, unless the timeout of calls is longer.
/// Connections are established apart from calls, so a store that takes longer to connect than a call may take is
/// reached.
const CONNECT: Duration = Duration::from_secs(1);

/// Future that runs a connection until it is closed.
pub(super) type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Settings that all connections share.
pub(super) struct Connector {
    tls: Option<TlsClient>,
    servers: RedisConnectionInfo,
    sentinels: RedisConnectionInfo,
    /// Client name of the connections.
    name: String,
    connect: Duration,
}

/// Name resolution with one lookup at a time, because a resolver that hangs occupies a thread.
#[derive(Debug, Default)]
pub(super) struct Lookup {
    pending: Option<JoinHandle<io::Result<Vec<SocketAddr>>>>,
    turns: usize,
}

impl Connector {
    pub(super) fn new(settings: &Settings, instance: &str) -> Result<Self, rustls::Error> {
        let none = Credentials::default();
        let (db, sentinel) = match &settings.topology {
            Topology::Single(server) => (server.db, &none),
            Topology::Sentinel(sentinel) => (sentinel.db, &sentinel.credentials),
            Topology::Cluster(_) => (0, &none),
        };
        Ok(Self {
            tls: settings.tls.clone().map(TlsClient::new).transpose()?,
            servers: info(&settings.credentials).set_db(db.into()),
            // RESP3 delivers published messages in addition to replies.
            sentinels: info(sentinel).set_protocol(ProtocolVersion::RESP3),
            name: format!("weir:{instance}"),
            connect: CONNECT.max(settings.timeout),
        })
    }

    /// Opens a connection to the server at `place`.
    pub(super) async fn connect(
        &self,
        place: &Place,
        must_be_master: bool,
        lookup: &mut Lookup,
    ) -> Result<(Connection, Driver), CallError> {
        let (mut multiplexed, mut driver) = self.open(place, &self.servers, None, lookup).await?;
        let introduced = self.introduce(place, &mut multiplexed, must_be_master);
        let run_id = self.within(&mut driver, introduced).await?;
        Ok((Connection::new(place.clone(), multiplexed, run_id), driver))
    }

    /// Opens a connection to the Sentinel at `place`. `published` is notified of each message that it publishes.
    pub(super) async fn open_sentinel(
        &self,
        place: &Place,
        published: &Arc<Notify>,
        lookup: &mut Lookup,
    ) -> Result<(MultiplexedConnection, Driver), CallError> {
        self.open(place, &self.sentinels, Some(Arc::clone(published)), lookup).await
    }

    /// Sends one command to the server at `place`, on a separate connection.
    pub(super) async fn ask_server(
        &self,
        place: &Place,
        command: &Cmd,
        lookup: &mut Lookup,
    ) -> Result<Value, CallError> {
        let (mut multiplexed, mut driver) = self.open(place, &self.servers, None, lookup).await?;
        let asked =
            async { command.query_async(&mut multiplexed).await.map_err(|error| CallError::of(&error)) };
        self.within(&mut driver, asked).await
    }

    async fn open(
        &self,
        place: &Place,
        info: &RedisConnectionInfo,
        published: Option<Arc<Notify>>,
        lookup: &mut Lookup,
    ) -> Result<(MultiplexedConnection, Driver), CallError> {
        let unreachable =
            |reason: &dyn std::fmt::Display| CallError::Unreachable(format!("{place}: {reason}"));
        let opened = async {
            let stream = self.stream(place, lookup).await.map_err(|error| unreachable(&error))?;
            let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
            let config = match published {
                None => config,
                Some(published) => config.set_push_sender(move |_: PushInfo| {
                    published.notify_one();
                    Ok::<(), Infallible>(())
                }),
            };
            let opened = MultiplexedConnection::new_with_config(info, stream, config).await;
            opened.map_err(|error| CallError::of(&error))
        };
        match timeout(self.connect, opened).await {
            Ok(opened) => opened.map(|(multiplexed, driver)| (multiplexed, Box::pin(driver) as Driver)),
            Err(_) => Err(unreachable(&"connection timed out")),
        }
    }

    async fn stream(&self, place: &Place, lookup: &mut Lookup) -> io::Result<Transport> {
        let (host, stream) = match place {
            Place::Tcp(host, port) => {
                let addresses = lookup.addresses(host, *port).await?;
                (&**host, Transport::connect_tcp(&*addresses).await?)
            }
            Place::Unix(path) => return Transport::connect_unix(path).await,
        };
        match &self.tls {
            None => Ok(stream),
            Some(client) => match client.connect_without_alpn(stream, host).await {
                Ok(stream) => Ok(stream.into()),
                Err(failure) => Err(io::Error::other(failure)),
            },
        }
    }

    /// Awaits `exchange` on a connection while `driver` runs it, with a timeout.
    pub(super) async fn within<T>(
        &self,
        driver: &mut Driver,
        exchange: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, CallError> {
        tokio::select! {
            biased;
            done = timeout(self.connect, exchange) => done.unwrap_or(Err(CallError::Timeout)),
            () = driver => Err(CallError::Unreachable("closed by the server".to_owned())),
        }
    }

    /// Sets the connection's name, checks the server's role, and returns the server's process.
    async fn introduce(
        &self,
        place: &Place,
        multiplexed: &mut MultiplexedConnection,
        must_be_master: bool,
    ) -> Result<RunId, CallError> {
        let of = |error: RedisError| CallError::of(&error);
        // The name only helps operators, and not every user may set it.
        let named: Result<Value, _> =
            redis::cmd("CLIENT").arg("SETNAME").arg(&self.name).query_async(multiplexed).await;
        if let Err(error) = named {
            tracing::debug!(store = %place, %error, "cannot name a connection to the store");
        }
        if must_be_master {
            let role: Value = redis::cmd("ROLE").query_async(multiplexed).await.map_err(of)?;
            if !is_master(&role) {
                return Err(CallError::ReadOnly);
            }
        }
        let server: String = redis::cmd("INFO").arg("server").query_async(multiplexed).await.map_err(of)?;
        let run_id =
            field(&server, "run_id").ok_or_else(|| CallError::Other("no run_id in INFO".to_owned()))?;
        let memory: Result<String, _> = redis::cmd("INFO").arg("memory").query_async(multiplexed).await;
        let memory = memory.unwrap_or_default();
        if let Some(policy) = field(&memory, "maxmemory_policy").filter(|policy| *policy != "noeviction") {
            tracing::warn!(
                store = %place,
                policy,
                "the store may evict counters: set its maxmemory-policy to noeviction"
            );
        }
        Ok(RunId(run_id.into()))
    }
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Lookup {
    /// Resolves `host`. The first address changes each time, so that an unresponsive one does not hide the others.
    async fn addresses(&mut self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let pending = self.pending.get_or_insert_with(|| {
            let name = (host.to_owned(), port);
            tokio::spawn(async move { Ok(tokio::net::lookup_host(name).await?.collect()) })
        });
        let found = pending.await.map_err(io::Error::other);
        self.pending = None;
        let mut found: Vec<SocketAddr> = found??;
        if found.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "no address"));
        }
        let first = self.turns % found.len();
        self.turns = self.turns.wrapping_add(1);
        found.rotate_left(first);
        Ok(found)
    }
}

fn info(credentials: &Credentials) -> RedisConnectionInfo {
    let mut info = RedisConnectionInfo::default().set_skip_set_lib_name();
    if let Some(username) = &credentials.username {
        info = info.set_username(username);
    }
    if let Some(password) = &credentials.password {
        info = info.set_password(password);
    }
    info
}

/// Returns a field of the output of `INFO`.
fn field<'i>(info: &'i str, name: &str) -> Option<&'i str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Returns whether the reply to `ROLE` is that of a master.
fn is_master(role: &Value) -> bool {
    matches!(role, Value::Array(parts) if parts.first().and_then(text) == Some("master"))
}

pub(super) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_has_fields_by_lines() {
        let info = "# Server\r\nredis_version:7.0.15\r\nrun_id:abc\r\nrun_id_other:x\r\n";
        assert_eq!(field(info, "run_id"), Some("abc"));
        assert_eq!(field(info, "run"), None);
    }

    #[test]
    fn a_master_says_so() {
        let role =
            |word: &str| Value::Array(vec![Value::BulkString(word.as_bytes().to_vec()), Value::Int(0)]);
        assert!(is_master(&role("master")) && !is_master(&role("slave")) && !is_master(&Value::Nil));
    }
}
