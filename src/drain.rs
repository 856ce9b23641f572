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
pub enum Phase {
    /// Normal operation.
    #[default]
    Serving,
    /// Readiness fails; requests are still served as before.
    NotReady,
    /// Listeners and idle connections are closed, and responses carry `connection: close`.
    Draining,
    /// Requests that are still in flight are aborted.
    Ended,
}

/// State of a graceful shutdown and of readiness, shared by the whole process.
#[derive(Debug)]
pub struct DrainManager {
    phase: watch::Sender<Phase>,
    exit: watch::Sender<bool>,
    healthy: watch::Sender<bool>,
}

impl Default for DrainManager {
    fn default() -> Self {
        Self {
            phase: watch::Sender::new(Phase::Serving),
            exit: watch::Sender::new(false),
            healthy: watch::Sender::new(true),
        }
    }
}

impl DrainManager {
    /// Returns the current phase.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Advances to `phase`. Does nothing if that phase or a later one has been reached.
    pub fn advance(&self, phase: Phase) {
        self.phase.send_if_modified(|now| {
            let moved = phase > *now;
            *now = phase.max(*now);
            moved
        });
    }

    /// Waits until `phase` or a later one has been reached.
    pub async fn reached(&self, phase: Phase) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.phase.subscribe().wait_for(|now| *now >= phase).await;
    }

    /// Requests that the process exit, as a SIGTERM does.
    pub fn request_exit(&self) {
        self.exit.send_replace(true);
    }

    /// Waits until an exit has been requested.
    pub async fn exit_requested(&self) {
        let _ = self.exit.subscribe().wait_for(|asked| *asked).await;
    }

    /// Sets readiness on behalf of an operator: `POST /healthcheck/fail` and `POST /healthcheck/ok`.
    pub fn set_healthy(&self, healthy: bool) {
        self.healthy.send_replace(healthy);
    }

    /// Returns a watch for changes of readiness from now on.
    pub fn readiness(&self) -> Readiness {
        Readiness { phase: self.phase.subscribe(), healthy: self.healthy.subscribe() }
    }

    /// Whether `/ready` succeeds: normal operation, and not marked unhealthy by an operator.
    pub fn is_ready(&self) -> bool {
        *self.healthy.borrow() && self.phase() == Phase::Serving
    }
}

/// Watch for changes of [`Drain::is_ready`].
#[derive(Debug)]
pub struct Readiness {
    phase: watch::Receiver<Phase>,
    healthy: watch::Receiver<bool>,
}

impl Readiness {
    /// Waits for a change of the phase or of the operator's setting. Completes at once if one happened since this watch
    /// was created or last completed.
    pub async fn changed(&mut self) {
        // The senders belong to the `Drain`, which outlives every caller, so waiting cannot fail.
        tokio::select! {
            _ = self.phase.changed() => {}
            _ = self.healthy.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_never_go_back() {
        let drain = DrainManager::default();
        assert!(drain.is_ready());
        drain.advance(Phase::Draining);
        drain.advance(Phase::NotReady);
        assert_eq!(drain.phase(), Phase::Draining);
        assert!(!drain.is_ready());
    }

    #[test]
    fn an_operator_can_fail_and_restore_health() {
        let drain = DrainManager::default();
        drain.set_healthy(false);
        assert!(!drain.is_ready());
        drain.set_healthy(true);
        assert!(drain.is_ready());
    }
}
