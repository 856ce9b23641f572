//! A server, with a task that maintains a connection to it.

use std::sync::{Arc, OnceLock};

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::connection::Connection;
use super::connector::{Connector, Driver, Lookup};
use super::error::CallError;
use super::pause;
use super::sentinel::{Named, Sentinels};
use crate::remote::channel::Place;
use crate::store::settings::Sentinel;

/// What a node connects to.
#[derive(Clone, Debug)]
pub(super) enum Target {
    /// This server.
    Server(Place),
    /// The master that Sentinels name.
    Master(Sentinel),
}

/// A server, or the present master of several.
#[derive(Debug)]
pub(super) struct Node {
    target: Target,
    connector: Arc<Connector>,
    state: watch::Sender<State>,
    task: OnceLock<AbortHandle>,
}

/// State of the connection.
#[derive(Clone, Debug)]
enum State {
    /// The first attempt to connect is in progress.
    New,
    Open(Arc<Connection>),
    /// There is no connection, for this reason. The task tries again by itself.
    Closed(CallError),
}

impl Node {
    pub(super) fn new(target: Target, connector: Arc<Connector>) -> Self {
        Self { target, connector, state: watch::Sender::new(State::New), task: OnceLock::new() }
    }

    /// Returns the connection; waits only for the first attempt to connect.
    ///
    /// # Errors
    /// Why there is no connection.
    pub(super) async fn connection(&self) -> Result<Arc<Connection>, CallError> {
        self.task.get_or_init(|| {
            let keeper = keep(self.target.clone(), Arc::clone(&self.connector), self.state.clone());
            tokio::spawn(keeper).abort_handle()
        });
        let mut state = self.state.subscribe();
        let known = state.wait_for(|state| !matches!(state, State::New)).await;
        match known.as_deref() {
            Ok(State::Open(connection)) => Ok(Arc::clone(connection)),
            Ok(State::Closed(error)) => Err(error.clone()),
            Ok(State::New) | Err(_) => Err(CallError::Unreachable("the client has stopped".to_owned())),
        }
    }

    /// Returns the connection, if there is one now.
    pub(super) fn open(&self) -> Option<Arc<Connection>> {
        match &*self.state.borrow() {
            State::Open(connection) => Some(Arc::clone(connection)),
            State::New | State::Closed(_) => None,
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

/// How the server is located.
enum Source {
    Server(Place),
    Master(Sentinels),
}

impl Source {
    fn of(target: Target, connector: &Arc<Connector>) -> Self {
        match target {
            Target::Server(place) => Self::Server(place),
            Target::Master(settings) => Self::Master(Sentinels::follow(&settings, connector)),
        }
    }

    async fn connect(
        &self,
        connector: &Connector,
        lookup: &mut Lookup,
    ) -> Result<(Named, Connection, Driver), CallError> {
        let (named, is_named) = match self {
            Self::Server(place) => (Named { place: place.clone(), epoch: 0 }, false),
            Self::Master(sentinels) => (sentinels.master().await?, true),
        };
        let (connection, driver) = connector.connect(&named.place, is_named, lookup).await?;
        Ok((named, connection, driver))
    }

    /// Completes when another server has replaced this one.
    async fn replaced(&self, now: &Named) {
        match self {
            Self::Server(_) => std::future::pending().await,
            Self::Master(sentinels) => sentinels.replaced(now).await,
        }
    }

    /// Reports that the connection was lost, and so another server may have replaced this one.
    fn doubt(&self) {
        match self {
            Self::Server(_) => {}
            Self::Master(sentinels) => sentinels.ask(),
        }
    }
}

/// Maintains a connection to `target` in `state`.
async fn keep(target: Target, connector: Arc<Connector>, state: watch::Sender<State>) {
    let source = Source::of(target, &connector);
    let mut lookup = Lookup::default();
    let mut failures = 0_u32;
    // Logged once for each loss.
    let mut is_said = false;
    loop {
        let reason = match source.connect(&connector, &mut lookup).await {
            Ok((named, connection, driver)) => {
                let connection = Arc::new(connection);
                if is_said {
                    tracing::info!(store = %connection.place, "connected to the store again");
                }
                is_said = false;
                state.send_replace(State::Open(Arc::clone(&connection)));
                let unreachable = |what| CallError::Unreachable(format!("{} {what}", connection.place));
                let reason = tokio::select! {
                    () = driver => unreachable("closed the connection"),
                    reason = connection.given_up() => reason,
                    () = source.replaced(&named) => unreachable("is no longer the master"),
                };
                // A server that accepts connections and then rejects every call has not recovered.
                if connection.has_served() {
                    failures = 0;
                }
                reason
            }
            Err(error) => error,
        };
        if !is_said {
            tracing::warn!(error = %reason, "no connection to the store");
            is_said = true;
        }
        state.send_replace(State::Closed(reason));
        source.doubt();
        sleep(pause(failures)).await;
        failures = failures.saturating_add(1);
    }
}
