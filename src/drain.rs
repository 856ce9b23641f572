//! The end of the process, in steps that everybody can watch.
//!
//! Whoever serves subscribes; whoever ends (a signal, the admin port) advances the phase. Phases only move
//! forward, so a late subscriber cannot miss one. The steps' timing is `app`'s business.

use std::time::Duration;

use tokio::sync::watch;

/// How long each step may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Between failing readiness and closing the listeners: time for endpoints to be told.
    pub delay: Duration,
    /// Between closing the listeners and giving up on what is still in flight.
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { delay: Duration::ZERO, timeout: Duration::from_secs(20) }
    }
}

/// How far the end has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Business as usual.
    #[default]
    Serving,
    /// Readiness fails; everything else goes on.
    Announced,
    /// Listeners are closed, idle connections too, answers carry `connection: close`.
    Draining,
    /// Whatever is left is cut off.
    Ended,
}

/// The one switch, shared by all.
#[derive(Debug)]
pub struct Drain {
    phase: watch::Sender<Phase>,
    exit: watch::Sender<bool>,
    healthy: watch::Sender<bool>,
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            phase: watch::Sender::new(Phase::Serving),
            exit: watch::Sender::new(false),
            healthy: watch::Sender::new(true),
        }
    }
}

impl Drain {
    /// The phase now.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Moves on to `phase`; never back.
    pub fn advance(&self, phase: Phase) {
        self.phase.send_if_modified(|now| {
            let moved = phase > *now;
            *now = phase.max(*now);
            moved
        });
    }

    /// Answers once `phase`, or a later one, is reached.
    pub async fn reached(&self, phase: Phase) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.phase.subscribe().wait_for(|now| *now >= phase).await;
    }

    /// Asks the process to end, as a SIGTERM does.
    pub fn request_exit(&self) {
        self.exit.send_replace(true);
    }

    /// Answers once somebody has asked for the end.
    pub async fn exit_requested(&self) {
        let _ = self.exit.subscribe().wait_for(|asked| *asked).await;
    }

    /// `POST /healthcheck/fail` and `/ok`: readiness as the operator wants it.
    pub fn set_healthy(&self, healthy: bool) {
        self.healthy.send_replace(healthy);
    }

    /// A watch on readiness, from now on.
    pub fn readiness(&self) -> Readiness {
        Readiness { phase: self.phase.subscribe(), healthy: self.healthy.subscribe() }
    }

    /// Whether `/ready` says so: serving, and not declared unhealthy.
    pub fn is_ready(&self) -> bool {
        *self.healthy.borrow() && self.phase() == Phase::Serving
    }
}

/// Tells when [`Drain::is_ready`] may answer something else than before.
#[derive(Debug)]
pub struct Readiness {
    phase: watch::Receiver<Phase>,
    healthy: watch::Receiver<bool>,
}

impl Readiness {
    /// Answers once it may; also if that was before it was asked, and after this was made.
    pub async fn changed(&mut self) {
        // The senders live as long as the drain, which is longer than anybody waits.
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
        let drain = Drain::default();
        assert!(drain.is_ready());
        drain.advance(Phase::Draining);
        drain.advance(Phase::Announced);
        assert_eq!(drain.phase(), Phase::Draining);
        assert!(!drain.is_ready());
    }

    #[test]
    fn an_operator_can_fail_and_restore_health() {
        let drain = Drain::default();
        drain.set_healthy(false);
        assert!(!drain.is_ready());
        drain.set_healthy(true);
        assert!(drain.is_ready());
    }
}
