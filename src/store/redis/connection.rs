//! A connection to one server: how it is opened, and calls on it.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisConnectionInfo, RedisError, Value};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Sleep, timeout};

use super::error::CallError;
use super::sentinel;
use super::{Call, RunId, bounded};
use crate::remote::channel::Place;
use crate::store::settings::{Credentials, Sentinel, Settings, Topology};
use crate::tls::client::Client;
use crate::transport::Transport;

/// For a connection to stand, TLS and the login included. It is opened beside calls, so that a store that takes longer than one
/// call may, is reached all the same.
const CONNECT: Duration = Duration::from_secs(1);

/// Ends with the time of a call.
pub(super) type Deadline<'d> = Pin<&'d mut Sleep>;

/// Runs a connection until it is closed.
pub(super) type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where a connection leads.
#[derive(Clone, Debug)]
pub(super) enum Target {
    /// To this server.
    Server(Place),
    /// To the master that sentinels name.
    Master(Sentinel),
}

/// What every connection has in common.
pub(super) struct Connector {
    tls: Option<Client>,
    servers: RedisConnectionInfo,
    sentinels: RedisConnectionInfo,
    /// The name of connections.
    name: String,
    connect: Duration,
}

/// The addresses of a name; asked for once at a time, since a resolver that hangs keeps a thread.
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
            tls: settings.tls.clone().map(Client::new).transpose()?,
            servers: info(&settings.credentials).set_db(db.into()),
            sentinels: info(sentinel),
            name: format!("weir:{instance}"),
            connect: CONNECT.max(settings.timeout),
        })
    }

    /// Opens a connection.
    pub(super) async fn connect(
        &self,
        target: &Target,
        lookup: &mut Lookup,
    ) -> Result<(Connection, Driver), CallError> {
        let place = match target {
            Target::Server(place) => place.clone(),
            Target::Master(sentinel) => sentinel::master(sentinel, self, lookup).await?,
        };
        let (mut multiplexed, mut driver) = self.open(&place, &self.servers, lookup).await?;
        let must_be_master = matches!(target, Target::Master(_));
        let run_id =
            self.within(&mut driver, self.introduce(&place, &mut multiplexed, must_be_master)).await?;
        let connection = Connection {
            place,
            multiplexed,
            run_id,
            has_served: AtomicBool::new(false),
            given_up: OnceLock::new(),
            is_given_up: Notify::new(),
        };
        Ok((connection, driver))
    }

    /// One command to the sentinel at `place`, on a connection of its own.
    pub(super) async fn ask_sentinel(
        &self,
        place: &Place,
        command: &Cmd,
        lookup: &mut Lookup,
    ) -> Result<Value, CallError> {
        self.ask(place, &self.sentinels, command, lookup).await
    }

    /// One command to the server at `place`, on a connection of its own.
    pub(super) async fn ask_server(
        &self,
        place: &Place,
        command: &Cmd,
        lookup: &mut Lookup,
    ) -> Result<Value, CallError> {
        self.ask(place, &self.servers, command, lookup).await
    }

    async fn ask(
        &self,
        place: &Place,
        info: &RedisConnectionInfo,
        command: &Cmd,
        lookup: &mut Lookup,
    ) -> Result<Value, CallError> {
        let (mut multiplexed, mut driver) = self.open(place, info, lookup).await?;
        let asked =
            async { command.query_async(&mut multiplexed).await.map_err(|error| CallError::of(&error)) };
        self.within(&mut driver, asked).await
    }

    async fn open(
        &self,
        place: &Place,
        info: &RedisConnectionInfo,
        lookup: &mut Lookup,
    ) -> Result<(MultiplexedConnection, Driver), CallError> {
        let unreachable =
            |reason: &dyn std::fmt::Display| CallError::Unreachable(format!("{place}: {reason}"));
        let opened = async {
            let stream = self.stream(place, lookup).await.map_err(|error| unreachable(&error))?;
            let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
            let opened = MultiplexedConnection::new_with_config(info, stream, config).await;
            opened.map_err(|error| CallError::of(&error))
        };
        match timeout(self.connect, opened).await {
            Ok(opened) => opened.map(|(multiplexed, driver)| (multiplexed, Box::pin(driver) as Driver)),
            Err(_) => Err(unreachable(&"no connection in time")),
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
            Some(client) => match client.connect(stream, host, crate::tls::Protocol::Http1).await {
                Ok((stream, _)) => Ok(stream.into()),
                Err(failure) => Err(io::Error::other(failure)),
            },
        }
    }

    /// What `exchange` on a connection leads to, while `driver` runs it.
    async fn within<T>(
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

    /// Tells a server who this is, and learns which process it is.
    async fn introduce(
        &self,
        place: &Place,
        multiplexed: &mut MultiplexedConnection,
        must_be_master: bool,
    ) -> Result<RunId, CallError> {
        let of = |error: RedisError| CallError::of(&error);
        // Of help to people only, and not permitted to every user.
        let named: Result<Value, _> =
            redis::cmd("CLIENT").arg("SETNAME").arg(&self.name).query_async(multiplexed).await;
        if let Err(error) = named {
            tracing::debug!(store = %place, %error, "a connection to the store has no name");
        }
        if must_be_master {
            let role: Value = redis::cmd("ROLE").query_async(multiplexed).await.map_err(of)?;
            if !sentinel::is_master(&role) {
                return Err(CallError::ReadOnly);
            }
        }
        let server: String = redis::cmd("INFO").arg("server").query_async(multiplexed).await.map_err(of)?;
        let run_id =
            field(&server, "run_id").ok_or_else(|| CallError::Other("no run_id in INFO".to_owned()))?;
        let memory: Result<String, _> = redis::cmd("INFO").arg("memory").query_async(multiplexed).await;
        let memory = memory.unwrap_or_default();
        if let Some(policy) = field(&memory, "maxmemory_policy").filter(|policy| *policy != "noeviction") {
            tracing::warn!(store = %place, policy, "the store may evict counters: its maxmemory-policy should be noeviction");
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
    /// The addresses of `host`, beginning with another one each time, so that one that is silent does not hide the others.
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

/// A field in what `INFO` prints.
fn field<'i>(info: &'i str, name: &str) -> Option<&'i str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// A connection that is open, as far as is known.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) place: Place,
    multiplexed: MultiplexedConnection,
    run_id: RunId,
    has_served: AtomicBool,
    given_up: OnceLock<CallError>,
    is_given_up: Notify,
}

/// What a server said instead of a result.
#[derive(Debug)]
pub(super) enum Failure {
    /// It did not execute the call; another server does.
    Elsewhere(Redirect),
    /// Anything else.
    Error(CallError),
}

/// Where keys are.
#[derive(Debug)]
pub(super) struct Redirect {
    /// The server that has them; `None` where it cannot be told.
    pub(super) place: Option<Place>,
    /// It has them from now on, and not only for this call.
    pub(super) is_lasting: bool,
}

impl Failure {
    pub(super) fn into_error(self) -> CallError {
        match self {
            Self::Elsewhere(_) => CallError::Moved,
            Self::Error(error) => error,
        }
    }
}

impl Connection {
    pub(super) const fn run_id(&self) -> &RunId {
        &self.run_id
    }

    /// Whether any call has had a result.
    pub(super) fn has_served(&self) -> bool {
        self.has_served.load(Ordering::Relaxed)
    }

    /// Has the connection closed; the first reason is kept.
    pub(super) fn give_up(&self, reason: CallError) {
        let _ = self.given_up.set(reason);
        self.is_given_up.notify_one();
    }

    /// Ready when the connection is given up, with the reason.
    pub(super) async fn given_up(&self) -> CallError {
        self.is_given_up.notified().await;
        self.given_up.get().cloned().unwrap_or(CallError::Timeout)
    }

    /// Calls the script by its hash, and by its text where the server does not know it.
    pub(super) async fn call(
        &self,
        call: Call<'_>,
        is_asking: bool,
        deadline: &mut Deadline<'_>,
    ) -> Result<Value, Failure> {
        let by_hash = self.execute("EVALSHA", &call.script.sha1, call, is_asking, deadline).await?;
        let called = match by_hash {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                self.execute("EVAL", &call.script.text, call, is_asking, deadline).await?
            }
            called => called,
        };
        let value = called.map_err(|error| self.failure(&error))?;
        self.has_served.store(true, Ordering::Relaxed);
        Ok(value)
    }

    async fn execute(
        &self,
        name: &str,
        script: &str,
        call: Call<'_>,
        is_asking: bool,
        deadline: &mut Deadline<'_>,
    ) -> Result<Result<Value, RedisError>, Failure> {
        let mut pipeline = redis::pipe();
        if is_asking {
            pipeline.cmd("ASKING").ignore();
        }
        pipeline.cmd(name).arg(script).arg(call.keys.len()).arg(call.keys).arg(call.args);
        let mut multiplexed = self.multiplexed.clone();
        let executed = pipeline.query_async::<(Value,)>(&mut multiplexed);
        let executed = bounded(executed, deadline).await.map_err(Failure::Error)?;
        Ok(executed.map(|(value,)| value))
    }

    fn failure(&self, error: &RedisError) -> Failure {
        let is_lasting = error.code() == Some("MOVED");
        match error.redirect_node() {
            Some((address, _)) => Failure::Elsewhere(Redirect { place: self.neighbour(address), is_lasting }),
            None => Failure::Error(CallError::of(error)),
        }
    }

    /// The server at `address`, which is `host:port` without brackets; without a host it is this one's.
    fn neighbour(&self, address: &str) -> Option<Place> {
        let (host, port) = address.rsplit_once(':')?;
        let own = match &self.place {
            Place::Tcp(host, _) => &**host,
            Place::Unix(_) => return None,
        };
        let host = match host {
            "" => own,
            "?" => return None,
            host => host.trim_start_matches('[').trim_end_matches(']'),
        };
        Some(Place::Tcp(host.into(), port.parse().ok()?))
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
}
