//! Connection to one server, and calls on it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};
use tokio::sync::Notify;

use super::error::CallError;
use super::{Call, Deadline, RunId, bounded};
use crate::remote::channel::Place;

/// An open connection, as far as is known.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) place: Place,
    multiplexed: MultiplexedConnection,
    run_id: RunId,
    has_served: AtomicBool,
    given_up: OnceLock<CallError>,
    is_given_up: Notify,
}

/// A call without a result.
#[derive(Debug)]
pub(super) enum Failure {
    /// The call was not executed here; another server has the keys.
    Elsewhere(Redirect),
    /// Any other error.
    Error(CallError),
}

/// A redirect to another server.
#[derive(Debug)]
pub(super) struct Redirect {
    /// The server that has the keys; `None` if the reply does not name it.
    pub(super) place: Option<Place>,
    /// Whether the redirect is permanent (`MOVED`) and not only for this call (`ASK`).
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
    pub(super) fn new(place: Place, multiplexed: MultiplexedConnection, run_id: RunId) -> Self {
        Self {
            place,
            multiplexed,
            run_id,
            has_served: AtomicBool::new(false),
            given_up: OnceLock::new(),
            is_given_up: Notify::new(),
        }
    }

    pub(super) const fn run_id(&self) -> &RunId {
        &self.run_id
    }

    /// Returns whether any call has had a result.
    pub(super) fn has_served(&self) -> bool {
        self.has_served.load(Ordering::Relaxed)
    }

    /// Closes the connection; the first reason is kept.
    pub(super) fn give_up(&self, reason: CallError) {
        let _ = self.given_up.set(reason);
        self.is_given_up.notify_one();
    }

    /// Completes with the reason when the connection is closed.
    pub(super) async fn given_up(&self) -> CallError {
        self.is_given_up.notified().await;
        self.given_up.get().cloned().unwrap_or(CallError::Timeout)
    }

    /// Calls the script by its hash, or by its text if the server does not have it.
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
        let mut command = redis::cmd(name);
        command.arg(script).arg(call.keys.len()).arg(call.keys).arg(call.args);
        let mut multiplexed = self.multiplexed.clone();
        let executed = async {
            if !is_asking {
                return command.query_async(&mut multiplexed).await;
            }
            let mut both = redis::pipe();
            both.cmd("ASKING").ignore().add_command(command);
            let executed: Result<(Value,), _> = both.query_async(&mut multiplexed).await;
            executed.map(|(value,)| value).map_err(of_command)
        };
        bounded(executed, deadline).await.map_err(Failure::Error)
    }

    fn failure(&self, error: &RedisError) -> Failure {
        let is_lasting = error.code() == Some("MOVED");
        match error.redirect_node() {
            Some((address, _)) => Failure::Elsewhere(Redirect { place: self.neighbour(address), is_lasting }),
            None => Failure::Error(CallError::of(error)),
        }
    }

    /// Parses `host:port` (without brackets); an empty host is that of this server.
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

/// Returns the server's error for a command. The library's error for a pipeline lacks its code and redirect.
fn of_command(error: RedisError) -> RedisError {
    let errors = error.clone().into_server_errors();
    errors.and_then(|errors| errors.first().map(|(_, error)| error.clone().into())).unwrap_or(error)
}
