//! A server, with a task that maintains a connection to it.

use std::sync::{Arc, OnceLock};

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::connection::RedisConnection;
use super::connector::{AddressLookup, ConnectionDriver, RedisConnector};
use super::error::CallError;
use super::retry_delay;
use super::sentinel::{NamedMaster, SentinelFollowers};
use crate::remote::channel::ServerAddress;
use crate::settings::SentinelSettings;
use weir_net::outage::Outage;

/// What a node connects to.
#[derive(Clone, Debug)]
pub(super) enum NodeTarget {
    Server(ServerAddress),
    /// The master that Sentinels name.
    Master(SentinelSettings),
}

/// A server, or the present master of several.
#[derive(Debug)]
pub(super) struct RedisNode {
    target: NodeTarget,
    connector: Arc<RedisConnector>,
    state: watch::Sender<ConnectionState>,
    task: OnceLock<AbortHandle>,
}

#[derive(Clone, Debug)]
enum ConnectionState {
    /// The first attempt to connect is in progress.
    Connecting,
    Open(Arc<RedisConnection>),
    /// There is no connection, for this reason. The task tries again by itself.
    Closed(CallError),
}

impl RedisNode {
    pub(super) fn new(target: NodeTarget, connector: Arc<RedisConnector>) -> Self {
        Self {
            target,
            connector,
            state: watch::Sender::new(ConnectionState::Connecting),
            task: OnceLock::new(),
        }
    }

    /// Returns the connection; waits only for the first attempt to connect.
    ///
    /// # Errors
    /// Why there is no connection.
    pub(super) async fn connection(&self) -> Result<Arc<RedisConnection>, CallError> {
        self.task.get_or_init(|| {
            let task =
                maintain_connection(self.target.clone(), Arc::clone(&self.connector), self.state.clone());
            tokio::spawn(task).abort_handle()
        });
        let mut state = self.state.subscribe();
        let known = state.wait_for(|state| !matches!(state, ConnectionState::Connecting)).await;
        match known.as_deref() {
            Ok(ConnectionState::Open(connection)) => Ok(Arc::clone(connection)),
            Ok(ConnectionState::Closed(error)) => Err(error.clone()),
            Ok(ConnectionState::Connecting) | Err(_) => {
                Err(CallError::Unreachable("the client has stopped".to_owned()))
            }
        }
    }

    /// Returns the connection, if there is one now.
    pub(super) fn current_connection(&self) -> Option<Arc<RedisConnection>> {
        match &*self.state.borrow() {
            ConnectionState::Open(connection) => Some(Arc::clone(connection)),
            ConnectionState::Connecting | ConnectionState::Closed(_) => None,
        }
    }
}

impl Drop for RedisNode {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

/// How the server is located.
enum NodeSource {
    Server(ServerAddress),
    Master(SentinelFollowers),
}

impl NodeSource {
    fn from_target(target: NodeTarget, connector: &Arc<RedisConnector>) -> Self {
        match target {
            NodeTarget::Server(place) => Self::Server(place),
            NodeTarget::Master(settings) => Self::Master(SentinelFollowers::start(&settings, connector)),
        }
    }

    async fn connect(
        &self,
        connector: &RedisConnector,
        lookup: &mut AddressLookup,
    ) -> Result<(NamedMaster, RedisConnection, ConnectionDriver), CallError> {
        let (master, must_be_master) = match self {
            Self::Server(place) => (NamedMaster { address: place.clone(), epoch: 0 }, false),
            Self::Master(sentinels) => (sentinels.master().await?, true),
        };
        let (connection, driver) = connector.connect(&master.address, must_be_master, lookup).await?;
        Ok((master, connection, driver))
    }

    /// Completes when another server has replaced this one.
    async fn replaced(&self, current: &NamedMaster) {
        match self {
            Self::Server(_) => std::future::pending().await,
            Self::Master(sentinels) => sentinels.replaced(current).await,
        }
    }

    /// Reports that the connection was lost, and so another server may have replaced this one.
    fn recheck_master(&self) {
        match self {
            Self::Server(_) => {}
            Self::Master(sentinels) => sentinels.query_all(),
        }
    }
}

async fn maintain_connection(
    target: NodeTarget,
    connector: Arc<RedisConnector>,
    state: watch::Sender<ConnectionState>,
) {
    let source = NodeSource::from_target(target, &connector);
    let mut lookup = AddressLookup::default();
    let mut failures = 0_u32;
    let outage = Outage::default();
    loop {
        let reason = match source.connect(&connector, &mut lookup).await {
            Ok((master, connection, driver)) => {
                let connection = Arc::new(connection);
                if outage.record_success() > 0 {
                    tracing::info!(store = %connection.address, "connected to the store again");
                }
                state.send_replace(ConnectionState::Open(Arc::clone(&connection)));
                let reason = tokio::select! {
                    () = driver => connection.end_reason(),
                    reason = connection.closed() => reason,
                    () = source.replaced(&master) => {
                        CallError::Unreachable(format!("{} is no longer the master", connection.address))
                    }
                };
                // A server that accepts connections and then rejects every call has not recovered.
                if connection.has_succeeded() {
                    failures = 0;
                }
                reason
            }
            Err(error) => error,
        };
        if outage.record_failure() == 1 {
            tracing::warn!(error = %reason, "no connection to the store");
        }
        state.send_replace(ConnectionState::Closed(reason));
        source.recheck_master();
        sleep(retry_delay(failures)).await;
        failures = failures.saturating_add(1);
    }
}
