//! Connection to one server, and calls on it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};
use tokio::sync::Notify;

use super::error::CallError;
use super::unrequested::OutstandingCalls;
use super::{CallDeadline, RunId, ScriptCall, with_deadline};
use crate::remote::channel::ServerAddress;

/// An open connection, as far as is known.
#[derive(Debug)]
pub(super) struct RedisConnection {
    pub(super) address: ServerAddress,
    multiplexed: MultiplexedConnection,
    calls: OutstandingCalls,
    run_id: RunId,
    has_succeeded: AtomicBool,
    close_reason: OnceLock<CallError>,
    close_requested: Notify,
}

/// A call without a result.
#[derive(Debug)]
pub(super) enum RedirectOrError {
    /// The call was not executed here; another server has the keys.
    Redirect(Redirect),
    /// Any other error.
    Error(CallError),
}

/// A redirect to another server.
#[derive(Debug)]
pub(super) struct Redirect {
    /// The server that has the keys; `None` if the reply does not name it.
    pub(super) address: Option<ServerAddress>,
    /// Whether the redirect is permanent (`MOVED`) and not only for this call (`ASK`).
    pub(super) is_permanent: bool,
}

impl RedirectOrError {
    pub(super) fn into_error(self) -> CallError {
        match self {
            Self::Redirect(_) => CallError::Moved,
            Self::Error(error) => error,
        }
    }
}

impl RedisConnection {
    pub(super) fn new(
        address: ServerAddress,
        multiplexed: MultiplexedConnection,
        calls: OutstandingCalls,
        run_id: RunId,
    ) -> Self {
        Self {
            address,
            multiplexed,
            calls,
            run_id,
            has_succeeded: AtomicBool::new(false),
            close_reason: OnceLock::new(),
            close_requested: Notify::new(),
        }
    }

    pub(super) const fn run_id(&self) -> &RunId {
        &self.run_id
    }

    /// Returns whether any call has had a result, and the server has sent little else.
    pub(super) fn has_succeeded(&self) -> bool {
        self.has_succeeded.load(Ordering::Relaxed) && !self.calls.is_exceeded()
    }

    /// Returns why the server's end of the connection is closed.
    pub(super) fn end_reason(&self) -> CallError {
        match self.calls.is_exceeded() {
            true => CallError::Unrequested(self.address.to_string()),
            false => CallError::Unreachable(format!("{} closed the connection", self.address)),
        }
    }

    /// Closes the connection; the first reason is kept.
    pub(super) fn close(&self, reason: CallError) {
        let _ = self.close_reason.set(reason);
        self.close_requested.notify_one();
    }

    /// Completes with the reason when the connection is closed.
    pub(super) async fn closed(&self) -> CallError {
        self.close_requested.notified().await;
        self.close_reason.get().cloned().unwrap_or(CallError::Timeout)
    }

    /// Calls the script by its hash, or by its text if the server does not have it.
    pub(super) async fn call(
        &self,
        call: ScriptCall<'_>,
        is_asking: bool,
        deadline: &mut CallDeadline<'_>,
    ) -> Result<Value, RedirectOrError> {
        let by_hash = self.execute("EVALSHA", &call.script.sha1, call, is_asking, deadline).await?;
        let called = match by_hash {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                self.execute("EVAL", &call.script.text, call, is_asking, deadline).await?
            }
            called => called,
        };
        let value = called.map_err(|error| self.classify_error(&error))?;
        self.has_succeeded.store(true, Ordering::Relaxed);
        Ok(value)
    }

    async fn execute(
        &self,
        name: &str,
        script: &str,
        call: ScriptCall<'_>,
        is_asking: bool,
        deadline: &mut CallDeadline<'_>,
    ) -> Result<Result<Value, RedisError>, RedirectOrError> {
        let mut command = redis::cmd(name);
        command.arg(script).arg(call.keys.len()).arg(call.keys).arg(call.args);
        let mut multiplexed = self.multiplexed.clone();
        let _outstanding = self.calls.start();
        let executed = async {
            if !is_asking {
                return command.query_async(&mut multiplexed).await;
            }
            let mut both = redis::pipe();
            both.cmd("ASKING").ignore().add_command(command);
            let executed: Result<(Value,), _> = both.query_async(&mut multiplexed).await;
            executed.map(|(value,)| value).map_err(command_error)
        };
        with_deadline(executed, deadline).await.map_err(RedirectOrError::Error)
    }

    fn classify_error(&self, error: &RedisError) -> RedirectOrError {
        let is_permanent = error.code() == Some("MOVED");
        match error.redirect_node() {
            Some((address, _)) => RedirectOrError::Redirect(Redirect {
                address: self.parse_redirect_address(address),
                is_permanent,
            }),
            None => RedirectOrError::Error(CallError::from_redis(error)),
        }
    }

    /// Parses `host:port` (without brackets); an empty host is that of this server.
    fn parse_redirect_address(&self, address: &str) -> Option<ServerAddress> {
        let (host, port) = address.rsplit_once(':')?;
        let own_host = match &self.address {
            ServerAddress::Tcp(host, _) => &**host,
            ServerAddress::Unix(_) => return None,
        };
        let host = match host {
            "" => own_host,
            "?" => return None,
            host => host.trim_start_matches('[').trim_end_matches(']'),
        };
        Some(ServerAddress::Tcp(host.into(), port.parse().ok()?))
    }
}

/// Returns the server's error for a command. The library's error for a pipeline lacks its code and redirect.
fn command_error(error: RedisError) -> RedisError {
    let errors = error.clone().into_server_errors();
    errors.and_then(|errors| errors.first().map(|(_, error)| error.clone().into())).unwrap_or(error)
}
