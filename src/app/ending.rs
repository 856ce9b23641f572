//! How the process ends: what asks for it, and the steps it takes.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::clock::{Clock, Comparison};
use crate::drain::{self, Drain, Phase};
use crate::worker::Crew;

/// How long threads may take to notice that they have ended.
const LAST_MOMENT: Duration = Duration::from_millis(500);

/// How often the clock is compared with the wall clock.
const CLOCK_CHECK: Duration = Duration::from_secs(1);

/// The signals that mean something to us.
#[derive(Debug)]
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Listens for them from now on; must be called within a runtime.
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

/// Serves until somebody asks for the end, then drains; done when every worker is, or time is up.
///
/// A thread that fails asks for the end, too: what is left of the process still answers those it has, but
/// clients would wait in vain at the sockets of the thread that is gone. Whoever started us starts us anew.
///
/// # Errors
/// The name of the thread that has failed.
pub(super) async fn serve_and_drain(
    drain: &Drain,
    settings: drain::Settings,
    mut signals: Signals,
    (workers, admin): (&Crew, &Crew),
) -> Result<(), Box<str>> {
    let asked_by = tokio::select! {
        signal = signals.received() => signal,
        () = drain.exit_requested() => "the admin port",
        thread = workers.failed() => failed(&thread),
        thread = admin.failed() => failed(&thread),
    };
    tracing::info!(asked_by, "draining");
    drain.advance(Phase::Announced);
    let outcome = tokio::select! {
        outcome = steps(drain, settings, workers) => outcome,
        signal = signals.received() => {
            tracing::warn!(signal, "ending at once");
            "cut short"
        }
    };
    drain.advance(Phase::Ended);
    let _ = tokio::time::timeout(LAST_MOMENT, workers.gone()).await;
    tracing::info!(outcome, "ended");
    workers.failure().or_else(|| admin.failure()).map_or(Ok(()), Err)
}

fn failed(thread: &str) -> &'static str {
    tracing::error!(thread, "a thread has failed, the process ends");
    "a thread's failure"
}

async fn steps(drain: &Drain, settings: drain::Settings, workers: &Crew) -> &'static str {
    // The admin port may have closed the listeners already; then there is nothing to wait for.
    tokio::select! {
        () = tokio::time::sleep(settings.delay) => {}
        () = drain.reached(Phase::Draining) => {}
    }
    drain.advance(Phase::Draining);
    match tokio::time::timeout(settings.timeout, workers.gone()).await {
        Ok(()) => "drained",
        Err(_) => {
            tracing::warn!("drain timeout: cutting off what is left");
            "timed out"
        }
    }
}

/// Catches up with the wall clock every second, for as long as it is polled.
pub(super) async fn keep_clock(clock: &Clock) {
    loop {
        tokio::time::sleep(CLOCK_CHECK).await;
        match clock.compare() {
            Comparison::Same => {}
            Comparison::CaughtUp(lead) => {
                tracing::warn!(?lead, "the wall clock was ahead, as after a suspend: caught up");
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
        let drain = Arc::new(Drain::default());
        let (workers, admin) = (Arc::new(Crew::default()), Crew::default());
        let other = Arc::clone(&drain);
        let last = move || async move {
            other.reached(Phase::Draining).await;
            assert!(!other.is_ready());
            Ok(())
        };
        workers.spawn("worker-0".to_owned(), last).unwrap();
        let signals = Signals::listen().unwrap();
        let settings = drain::Settings { delay: Duration::ZERO, timeout: Duration::from_secs(20) };
        let serving = serve_and_drain(&drain, settings, signals, (&workers, &admin));
        let dying = async {
            assert!(drain.is_ready());
            workers.spawn("worker-1".to_owned(), || async { panic!("as a test of the end") }).unwrap();
        };
        let (ended, ()) = tokio::join!(tokio::time::timeout(Duration::from_secs(10), serving), dying);
        assert_eq!(ended.unwrap().unwrap_err().as_ref(), "worker-1");
        assert_eq!(drain.phase(), Phase::Ended);
    }

    #[tokio::test]
    async fn an_end_that_was_asked_for_is_no_failure() {
        let drain = Arc::new(Drain::default());
        let (workers, admin) = (Arc::new(Crew::default()), Crew::default());
        let watched = Arc::clone(&drain);
        let work = move || async move {
            watched.reached(Phase::Draining).await;
            Ok(())
        };
        workers.spawn("worker-0".to_owned(), work).unwrap();
        drain.request_exit();
        let signals = Signals::listen().unwrap();
        let settings = drain::Settings { delay: Duration::ZERO, timeout: Duration::from_secs(20) };
        assert_eq!(serve_and_drain(&drain, settings, signals, (&workers, &admin)).await, Ok(()));
    }
}
