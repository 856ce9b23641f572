//! A server with a task that keeps a connection to it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::connection::{Connection, Connector, Lookup, Target};
use super::error::CallError;

/// The pause after the first failure, and the longest.
const PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// A server, or the master among several.
#[derive(Debug)]
pub(super) struct Node {
    target: Target,
    connector: Arc<Connector>,
    state: watch::Sender<State>,
    task: OnceLock<AbortHandle>,
}

/// Whether there is a connection.
#[derive(Clone, Debug)]
enum State {
    /// The first one is being opened.
    New,
    Open(Arc<Connection>),
    /// There is none, for this reason; the next attempt comes by itself.
    Closed(CallError),
}

impl Node {
    pub(super) fn new(target: Target, connector: Arc<Connector>) -> Self {
        Self { target, connector, state: watch::Sender::new(State::New), task: OnceLock::new() }
    }

    /// The connection; waits only for the first one.
    ///
    /// # Errors
    /// Why there is none.
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
            Ok(State::New) | Err(_) => Err(CallError::Unreachable("the client has ended".to_owned())),
        }
    }

    /// The connection, if there is one now.
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

/// Keeps a connection to `target` in `state`.
async fn keep(target: Target, connector: Arc<Connector>, state: watch::Sender<State>) {
    let mut lookup = Lookup::default();
    let mut failures = 0_u32;
    // Said once for each loss.
    let mut is_said = false;
    loop {
        let reason = match connector.connect(&target, &mut lookup).await {
            Ok((connection, driver)) => {
                let connection = Arc::new(connection);
                if is_said {
                    tracing::info!(store = %connection.place, "the store is connected again");
                }
                is_said = false;
                state.send_replace(State::Open(Arc::clone(&connection)));
                let reason = tokio::select! {
                    () = driver => CallError::Unreachable(format!("{} closed the connection", connection.place)),
                    reason = connection.given_up() => reason,
                };
                // One that accepts connections and then rejects every call has not recovered.
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
        sleep(pause(failures)).await;
        failures = failures.saturating_add(1);
    }
}

/// Doubles with each failure in a row, and is between half of that and all of it: a fleet that has lost its store does not
/// come back at once.
pub(super) fn pause(failures: u32) -> Duration {
    let most = PAUSE.saturating_mul(1 << failures.min(16)).min(MAX_PAUSE);
    most.mul_f64(fastrand::f64().mul_add(0.5, 0.5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound() {
        for failures in 0..40 {
            let most = Duration::from_millis(50 << failures.min(10)).min(MAX_PAUSE);
            let pause = pause(failures);
            assert!(pause >= most / 2 && pause <= most, "{failures}: {pause:?}");
        }
    }
}
