//! Graceful shutdown: what triggers it, and its steps.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::clock::{Clock, Comparison};
use crate::drain::{self, DrainManager, Phase};
use crate::worker::ThreadGroup;

/// Time for threads to notice that the process ends.
const LAST_MOMENT: Duration = Duration::from_millis(500);

/// Interval between comparisons of the clock with the wall clock.
const CLOCK_CHECK: Duration = Duration::from_secs(1);

/// The signals that end the process.
#[derive(Debug)]
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs the signal handlers; must be called within a runtime.
    pub(super) fn listen() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn received(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Serves until shutdown is requested, then drains; returns when all workers have ended or the time is over.
///
/// A failed thread also triggers shutdown. The other threads could serve on, but clients would wait in vain
/// on the failed thread's sockets. The process is expected to be restarted by its supervisor.
///
/// # Errors
/// Returns the name of the thread that has failed.
pub(super) async fn serve_and_drain(
    drain: &DrainManager,
    settings: drain::DrainSettings,
    mut signals: Signals,
    (workers, admin): (&ThreadGroup, &ThreadGroup),
) -> Result<(), Box<str>> {
    let asked_by = tokio::select! {
        signal = signals.received() => signal,
        () = drain.exit_requested() => "the admin port",
        thread = workers.wait_for_failure() => failed(&thread),
        thread = admin.wait_for_failure() => failed(&thread),
    };
    tracing::info!(asked_by, "draining");
    drain.advance(Phase::NotReady);
    let outcome = tokio::select! {
        outcome = steps(drain, settings, workers) => outcome,
        signal = signals.received() => {
            tracing::warn!(signal, "exiting immediately");
            "cut short"
        }
    };
    drain.advance(Phase::Ended);
    let _ = tokio::time::timeout(LAST_MOMENT, workers.wait_for_exit()).await;
    tracing::info!(outcome, "ended");
    workers.first_failure().or_else(|| admin.first_failure()).map_or(Ok(()), Err)
}

fn failed(thread: &str) -> &'static str {
    tracing::error!(thread, "a thread has failed: shutting down");
    "a thread's failure"
}

async fn steps(drain: &DrainManager, settings: drain::DrainSettings, workers: &ThreadGroup) -> &'static str {
    // The admin port may have closed the listeners already; then the delay has no purpose.
    tokio::select! {
        () = tokio::time::sleep(settings.delay) => {}
        () = drain.reached(Phase::Draining) => {}
    }
    drain.advance(Phase::Draining);
    match tokio::time::timeout(settings.timeout, workers.wait_for_exit()).await {
        Ok(()) => "drained",
        Err(_) => {
            tracing::warn!("drain timeout: closing the remaining connections");
            "timed out"
        }
    }
}

/// Compares the clock with the wall clock every second and catches up, for as long as it is polled.
pub(super) async fn keep_clock(clock: &Clock) {
    loop {
        tokio::time::sleep(CLOCK_CHECK).await;
        match clock.compare() {
            Comparison::Same => {}
            Comparison::CaughtUp(lead) => {
                tracing::warn!(
                    ?lead,
                    "the wall clock was ahead, for example after a suspend: the clock has caught up"
                );
            }
            Comparison::Ahead(lead) => {
                tracing::warn!(
                    ?lead,
                    "the wall clock was set back: tokens, schedules and dates follow it, limits do not"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn a_worker_that_dies_ends_the_process_after_the_others_have_drained() {
        let drain = Arc::new(DrainManager::default());
        let (workers, admin) = (Arc::new(ThreadGroup::default()), ThreadGroup::default());
        let other = Arc::clone(&drain);
        let last = move || async move {
            other.reached(Phase::Draining).await;
            assert!(!other.is_ready());
            Ok(())
        };
        workers.spawn("worker-0".to_owned(), last).unwrap();
        let signals = Signals::listen().unwrap();
        let settings = drain::DrainSettings { delay: Duration::ZERO, timeout: Duration::from_secs(20) };
        let serving = serve_and_drain(&drain, settings, signals, (&workers, &admin));
        let dying = async {
            assert!(drain.is_ready());
            workers.spawn("worker-1".to_owned(), || async { panic!("panic of a test") }).unwrap();
        };
        let (ended, ()) = tokio::join!(tokio::time::timeout(Duration::from_secs(10), serving), dying);
        assert_eq!(ended.unwrap().unwrap_err().as_ref(), "worker-1");
        assert_eq!(drain.phase(), Phase::Ended);
    }

    #[tokio::test]
    async fn an_end_that_was_asked_for_is_no_failure() {
        let drain = Arc::new(DrainManager::default());
        let (workers, admin) = (Arc::new(ThreadGroup::default()), ThreadGroup::default());
        let watched = Arc::clone(&drain);
        let work = move || async move {
            watched.reached(Phase::Draining).await;
            Ok(())
        };
        workers.spawn("worker-0".to_owned(), work).unwrap();
        drain.request_exit();
        let signals = Signals::listen().unwrap();
        let settings = drain::DrainSettings { delay: Duration::ZERO, timeout: Duration::from_secs(20) };
        assert_eq!(serve_and_drain(&drain, settings, signals, (&workers, &admin)).await, Ok(()));
    }
}
