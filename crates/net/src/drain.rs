//! Graceful shutdown: the state that all parts of the process observe.
//!
//! Servers subscribe to the phase. A signal or the admin port advances it. Phases only move forward, so a late
//! subscriber cannot miss one. `app` controls the timing of the steps.

use std::time::Duration;

use tokio::sync::watch;

/// Durations of the steps of a graceful shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainSettings {
    /// Between failing readiness and closing the listeners. Load balancers need this time to stop sending requests
    /// here.
    pub delay: Duration,
    /// Between closing the listeners and aborting the requests that are still in flight.
    pub timeout: Duration,
}

impl Default for DrainSettings {
    fn default() -> Self {
        Self { delay: Duration::ZERO, timeout: Duration::from_secs(20) }
    }
}

/// Phase of a graceful shutdown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum DrainPhase {
    /// Normal operation.
    #[default]
    Serving,
    /// Readiness fails; requests are still served as before.
    NotReady,
    /// Listeners and idle connections are closed, and responses carry `connection: close`.
    Draining,
    /// Requests that are still in flight are aborted.
    Terminated,
}

/// How a listening socket is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// It accepts no further connections.
    Close,
    /// Another process goes on accepting on it.
    LeaveOpen,
}

/// State of a graceful shutdown and of readiness, shared by the whole process.
#[derive(Debug)]
pub struct DrainManager {
    phase: watch::Sender<DrainPhase>,
    exit: watch::Sender<bool>,
    is_healthy: watch::Sender<bool>,
    is_replaced: watch::Sender<bool>,
}

impl Default for DrainManager {
    fn default() -> Self {
        Self {
            phase: watch::Sender::new(DrainPhase::Serving),
            exit: watch::Sender::new(false),
            is_healthy: watch::Sender::new(true),
            is_replaced: watch::Sender::new(false),
        }
    }
}

impl DrainManager {
    /// Returns the current phase.
    pub fn phase(&self) -> DrainPhase {
        *self.phase.borrow()
    }

    /// Advances to `phase`. Does nothing if that phase or a later one has been reached.
    pub fn advance(&self, phase: DrainPhase) {
        self.phase.send_if_modified(|current| {
            let moved = phase > *current;
            *current = phase.max(*current);
            moved
        });
    }

    /// Waits until `phase` or a later one has been reached.
    pub async fn wait_for_phase(&self, phase: DrainPhase) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.phase.subscribe().wait_for(|current| *current >= phase).await;
    }

    /// Requests that the process exit, as a SIGTERM does.
    pub fn request_exit(&self) {
        self.exit.send_replace(true);
    }

    /// Waits until an exit has been requested.
    pub async fn wait_for_exit_request(&self) {
        let _ = self.exit.subscribe().wait_for(|is_requested| *is_requested).await;
    }

    /// Begins the drain because another process has replaced this one, which accepts on the same sockets.
    pub fn replace(&self) {
        self.is_replaced.send_replace(true);
        self.advance(DrainPhase::Draining);
    }

    /// Waits until another process has replaced this one.
    pub async fn wait_for_replacement(&self) {
        let _ = self.is_replaced.subscribe().wait_for(|is_replaced| *is_replaced).await;
    }

    /// Waits until listeners have to be closed, and returns how.
    pub async fn wait_for_closing(&self) -> Closing {
        self.wait_for_phase(DrainPhase::Draining).await;
        if self.is_replaced() { Closing::LeaveOpen } else { Closing::Close }
    }

    /// Whether another process has replaced this one.
    pub fn is_replaced(&self) -> bool {
        *self.is_replaced.borrow()
    }

    /// Sets readiness on behalf of an operator: `POST /healthcheck/fail` and `POST /healthcheck/ok`.
    pub fn set_healthy(&self, is_healthy: bool) {
        self.is_healthy.send_replace(is_healthy);
    }

    /// Returns a watch for changes of readiness from now on.
    pub fn readiness(&self) -> Readiness {
        Readiness { phase: self.phase.subscribe(), is_healthy: self.is_healthy.subscribe() }
    }

    /// Whether `/ready` succeeds: normal operation, and not marked unhealthy by an operator.
    pub fn is_ready(&self) -> bool {
        *self.is_healthy.borrow() && self.phase() == DrainPhase::Serving
    }
}

/// Watch for changes of [`DrainManager::is_ready`].
#[derive(Debug)]
pub struct Readiness {
    phase: watch::Receiver<DrainPhase>,
    is_healthy: watch::Receiver<bool>,
}

impl Readiness {
    /// Waits for a change of the phase or of the operator's setting. Completes at once if one happened since this watch
    /// was created or last completed.
    pub async fn changed(&mut self) {
        // The senders belong to the `DrainManager`, which outlives every caller, so waiting cannot fail.
        tokio::select! {
            _ = self.phase.changed() => {}
            _ = self.is_healthy.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drain_phase_never_goes_back() {
        let drain = DrainManager::default();
        assert!(drain.is_ready());
        drain.advance(DrainPhase::Draining);
        drain.advance(DrainPhase::NotReady);
        assert_eq!(drain.phase(), DrainPhase::Draining);
        assert!(!drain.is_ready());
    }

    #[test]
    fn readiness_can_be_failed_and_restored_by_an_operator() {
        let drain = DrainManager::default();
        drain.set_healthy(false);
        assert!(!drain.is_ready());
        drain.set_healthy(true);
        assert!(drain.is_ready());
    }
}
