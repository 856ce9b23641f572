//! Opens connections to servers and Sentinels.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ProtocolVersion, PushInfo, RedisConnectionInfo, RedisError, Value};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::RunId;
use super::connection::RedisConnection;
use super::error::CallError;
use super::unrequested::{OutstandingCalls, Unrequested};
use crate::remote::channel::ServerAddress;
use crate::settings::{Credentials, StoreSettings, Topology};
use weir_net::dns;
use weir_net::tls::client::TlsClient;
use weir_net::transport::{BoundedStream, Transport};

/// Timeout of establishing a connection, including TLS and authentication, unless the timeout of calls is longer.
/// Connections are established apart from calls, so a store that takes longer to connect than a call may take is
/// reached.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Future that runs a connection until it is closed.
pub(super) struct ConnectionDriver {
    run: Pin<Box<dyn Future<Output = ()> + Send>>,
    calls: OutstandingCalls,
}

/// Settings that all connections share.
pub(super) struct RedisConnector {
    tls: Option<TlsClient>,
    server_info: RedisConnectionInfo,
    sentinel_info: RedisConnectionInfo,
    /// Client name of the connections.
    client_name: String,
    connect_timeout: Duration,
}

/// Name resolution with one lookup at a time, because a resolver that hangs occupies a thread.
#[derive(Debug, Default)]
pub(super) struct AddressLookup {
    pending: Option<JoinHandle<io::Result<Vec<SocketAddr>>>>,
    rotation: usize,
}

impl RedisConnector {
    pub(super) fn new(settings: &StoreSettings, instance: &str) -> Result<Self, rustls::Error> {
        let none = Credentials::default();
        let (db, sentinel) = match &settings.topology {
            Topology::Single(server) => (server.db, &none),
            Topology::Sentinel(sentinel) => (sentinel.db, &sentinel.credentials),
            Topology::Cluster(_) => (0, &none),
        };
        Ok(Self {
            tls: settings.tls.clone().map(TlsClient::new).transpose()?,
            server_info: connection_info(&settings.credentials).set_db(db.into()),
            // RESP3 delivers published messages in addition to replies.
            sentinel_info: connection_info(sentinel).set_protocol(ProtocolVersion::RESP3),
            client_name: format!("weir:{instance}"),
            connect_timeout: CONNECT_TIMEOUT.max(settings.timeout),
        })
    }

    /// Opens a connection to the server at `address`.
    pub(super) async fn connect(
        &self,
        address: &ServerAddress,
        must_be_master: bool,
        lookup: &mut AddressLookup,
    ) -> Result<(RedisConnection, ConnectionDriver), CallError> {
        let (mut multiplexed, mut driver) = self.open(address, &self.server_info, None, lookup).await?;
        let handshake = self.handshake(address, &mut multiplexed, must_be_master);
        let run_id = self.drive(&mut driver, handshake).await?;
        let calls = driver.calls.clone();
        Ok((RedisConnection::new(address.clone(), multiplexed, calls, run_id), driver))
    }

    /// Opens a connection to the Sentinel at `address`. `published` is notified of each message that it
    /// publishes.
    pub(super) async fn connect_sentinel(
        &self,
        address: &ServerAddress,
        published: &Arc<Notify>,
        lookup: &mut AddressLookup,
    ) -> Result<(MultiplexedConnection, ConnectionDriver), CallError> {
        self.open(address, &self.sentinel_info, Some(Arc::clone(published)), lookup).await
    }

    /// Sends one command to the server at `address`, on a separate connection.
    pub(super) async fn query_server(
        &self,
        address: &ServerAddress,
        command: &Cmd,
        lookup: &mut AddressLookup,
    ) -> Result<Value, CallError> {
        let (mut multiplexed, mut driver) = self.open(address, &self.server_info, None, lookup).await?;
        let query = async {
            command.query_async(&mut multiplexed).await.map_err(|error| CallError::from_redis(&error))
        };
        self.drive(&mut driver, query).await
    }

    async fn open(
        &self,
        address: &ServerAddress,
        info: &RedisConnectionInfo,
        published: Option<Arc<Notify>>,
        lookup: &mut AddressLookup,
    ) -> Result<(MultiplexedConnection, ConnectionDriver), CallError> {
        let unreachable =
            |reason: &dyn std::fmt::Display| CallError::Unreachable(format!("{address}: {reason}"));
        let calls = OutstandingCalls::default();
        let opened = async {
            let _outstanding = calls.start();
            let stream = self.connect_stream(address, lookup).await.map_err(|error| unreachable(&error))?;
            let stream = BoundedStream::new(stream, Unrequested::new(calls.clone()));
            let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
            let config = match published {
                None => config,
                Some(published) => config.set_push_sender(move |_: PushInfo| {
                    published.notify_one();
                    Ok::<(), Infallible>(())
                }),
            };
            let opened = MultiplexedConnection::new_with_config(info, stream, config).await;
            opened.map_err(|error| CallError::from_redis(&error))
        };
        match timeout(self.connect_timeout, opened).await {
            Ok(opened) => {
                let (multiplexed, run) = opened?;
                Ok((multiplexed, ConnectionDriver { run: Box::pin(run), calls }))
            }
            Err(_) => Err(unreachable(&"connection timed out")),
        }
    }

    async fn connect_stream(
        &self,
        address: &ServerAddress,
        lookup: &mut AddressLookup,
    ) -> io::Result<Transport> {
        let (host, stream) = match address {
            ServerAddress::Tcp(host, port) => {
                let addresses = lookup.resolve(host, *port).await?;
                (&**host, Transport::connect_tcp(&*addresses).await?)
            }
            ServerAddress::Unix(path) => return Transport::connect_unix(path).await,
        };
        let Some(tls) = &self.tls else { return Ok(stream) };
        tls.connect_without_alpn(stream, host).await.map(Into::into).map_err(io::Error::other)
    }

    /// Awaits `exchange` on a connection while `driver` runs it, with a timeout.
    pub(super) async fn drive<T>(
        &self,
        driver: &mut ConnectionDriver,
        exchange: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, CallError> {
        let calls = driver.calls.clone();
        let _outstanding = calls.start();
        tokio::select! {
            biased;
            result = timeout(self.connect_timeout, exchange) => result.unwrap_or(Err(CallError::Timeout)),
            () = driver => Err(CallError::Unreachable("closed by the server".to_owned())),
        }
    }

    /// Sets the connection's name, checks the server's role, and returns the server's process.
    async fn handshake(
        &self,
        address: &ServerAddress,
        multiplexed: &mut MultiplexedConnection,
        must_be_master: bool,
    ) -> Result<RunId, CallError> {
        let call_error = |error: RedisError| CallError::from_redis(&error);
        // The name only helps operators, and not every user may set it.
        let named: Result<Value, _> =
            redis::cmd("CLIENT").arg("SETNAME").arg(&self.client_name).query_async(multiplexed).await;
        if let Err(error) = named {
            tracing::debug!(store = %address, %error, "cannot name a connection to the store");
        }
        if must_be_master {
            let role: Value = redis::cmd("ROLE").query_async(multiplexed).await.map_err(call_error)?;
            if !is_master(&role) {
                return Err(CallError::ReadOnly);
            }
        }
        let server: String =
            redis::cmd("INFO").arg("server").query_async(multiplexed).await.map_err(call_error)?;
        let run_id =
            info_field(&server, "run_id").ok_or_else(|| CallError::Other("no run_id in INFO".to_owned()))?;
        let memory: Result<String, _> = redis::cmd("INFO").arg("memory").query_async(multiplexed).await;
        let memory = memory.unwrap_or_default();
        if let Some(policy) = info_field(&memory, "maxmemory_policy").filter(|policy| *policy != "noeviction")
        {
            tracing::warn!(
                store = %address,
                policy,
                "the store may evict counters: set its maxmemory-policy to noeviction"
            );
        }
        Ok(RunId(run_id.into()))
    }
}

impl Future for ConnectionDriver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.run.as_mut().poll(cx)
    }
}

impl std::fmt::Debug for RedisConnector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("name", &self.client_name).finish_non_exhaustive()
    }
}

impl AddressLookup {
    /// Resolves `host`. The first address changes each time, so that an unresponsive one does not hide the others.
    async fn resolve(&mut self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let pending = self.pending.get_or_insert_with(|| dns::query(host, port, ()));
        let found = pending.await.map_err(io::Error::other);
        self.pending = None;
        let mut found: Vec<SocketAddr> = found??;
        if found.is_empty() {
            return Err(dns::no_address());
        }
        let first = self.rotation % found.len();
        self.rotation = self.rotation.wrapping_add(1);
        found.rotate_left(first);
        Ok(found)
    }
}

fn connection_info(credentials: &Credentials) -> RedisConnectionInfo {
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
fn info_field<'i>(info: &'i str, name: &str) -> Option<&'i str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Returns whether the reply to `ROLE` is that of a master.
fn is_master(role: &Value) -> bool {
    matches!(role, Value::Array(parts) if parts.first().and_then(as_text) == Some("master"))
}

pub(super) fn as_text(value: &Value) -> Option<&str> {
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
    fn info_field_is_found_by_its_complete_name() {
        let info = "# Server\r\nredis_version:7.0.15\r\nrun_id:abc\r\nrun_id_other:x\r\n";
        assert_eq!(info_field(info, "run_id"), Some("abc"));
        assert_eq!(info_field(info, "run"), None);
    }

    #[test]
    fn role_reply_identifies_a_master() {
        let role =
            |word: &str| Value::Array(vec![Value::BulkString(word.as_bytes().to_vec()), Value::Int(0)]);
        assert!(is_master(&role("master")) && !is_master(&role("slave")) && !is_master(&Value::Nil));
    }
}
