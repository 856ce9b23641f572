//! Graceful shutdown: what triggers it, and its steps.

use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::service_manager;
use super::signals::ReceivedSignals;
use weir_net::clock::{Clock, ClockComparison};
use weir_net::drain::{DrainManager, DrainPhase, DrainSettings};
use weir_net::worker::ThreadGroup;

/// Time for threads to notice that the process ends.
const THREAD_EXIT_GRACE: Duration = Duration::from_millis(500);

/// Cause of a drain after which the service goes on in another process.
const REPLACED: &str = "another process has replaced this one";

/// Interval between comparisons of the clock with the wall clock.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Serves until shutdown is requested, then drains as `settings` say at that time; returns when all workers have ended or
/// the time is over. `on_end` is called before the drain if no other process goes on.
///
/// A failed thread also triggers shutdown. The other threads could serve on, but clients would wait in vain
/// on the failed thread's sockets. The process is expected to be restarted by its supervisor.
///
/// # Errors
/// Returns the name of the thread that has failed.
pub(super) async fn serve_and_drain(
    drain: &DrainManager,
    settings: impl Fn() -> DrainSettings,
    signals: &ReceivedSignals,
    workers: &ThreadGroup,
    auxiliary: &ThreadGroup,
    on_end: impl FnOnce(),
) -> Result<(), Box<str>> {
    let cause = tokio::select! {
        signal = signals.termination() => signal,
        () = drain.wait_for_exit_request() => "the admin port",
        () = drain.wait_for_replacement() => REPLACED,
        thread = workers.wait_for_failure() => log_failed_thread(&thread),
        thread = auxiliary.wait_for_failure() => log_failed_thread(&thread),
    };
    tracing::info!(cause, "draining");
    if cause != REPLACED {
        service_manager::stopping();
        on_end();
    }
    drain.advance(DrainPhase::NotReady);
    let outcome = tokio::select! {
        outcome = run_drain_phases(drain, settings(), workers) => outcome,
        signal = cut_short(signals, cause == REPLACED) => {
            tracing::warn!(signal, "exiting immediately");
            "cut short"
        }
    };
    drain.advance(DrainPhase::Terminated);
    let _ = tokio::time::timeout(THREAD_EXIT_GRACE, workers.wait_for_exit()).await;
    if cause == REPLACED {
        // Requests to the admin port may be in flight.
        let _ = tokio::time::timeout(THREAD_EXIT_GRACE, auxiliary.wait_for_exit()).await;
    }
    tracing::info!(outcome, "ended");
    workers.first_failure().or_else(|| auxiliary.first_failure()).map_or(Ok(()), Err)
}

/// Waits for the signal that cuts a drain short. The first one of a process that was replaced ends the new process, and lets
/// this one drain.
async fn cut_short(signals: &ReceivedSignals, was_replaced: bool) -> &'static str {
    if was_replaced {
        signals.termination().await;
    }
    signals.termination().await
}

fn log_failed_thread(thread: &str) -> &'static str {
    tracing::error!(thread, "a thread has failed: shutting down");
    "a thread's failure"
}

async fn run_drain_phases(
    drain: &DrainManager,
    settings: DrainSettings,
    workers: &ThreadGroup,
) -> &'static str {
    // The admin port may have closed the listeners already; then the delay has no purpose.
    tokio::select! {
        () = tokio::time::sleep(settings.delay) => {}
        () = drain.wait_for_phase(DrainPhase::Draining) => {}
    }
    drain.advance(DrainPhase::Draining);
    match tokio::time::timeout(settings.timeout, workers.wait_for_exit()).await {
        Ok(()) => "drained",
        Err(_) => {
            tracing::warn!("drain timeout: closing the remaining connections");
            "timed out"
        }
    }
}

/// Compares the clock with the wall clock every second and catches up, for as long as it is polled.
pub(super) async fn follow_wall_clock(clock: &Clock) {
    let mut interval = tokio::time::interval(CLOCK_CHECK_INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        interval.tick().await;
        match clock.compare_with_wall_clock() {
            ClockComparison::Same => {}
            ClockComparison::CaughtUp(lead) => {
                tracing::warn!(
                    ?lead,
                    "the wall clock was ahead, for example after a suspend: the clock has caught up"
                );
            }
            ClockComparison::Ahead(lead) => {
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
    async fn worker_panic_drains_the_other_workers_and_fails_the_process() {
        let drain = Arc::new(DrainManager::default());
        let (workers, auxiliary) = (Arc::new(ThreadGroup::default()), ThreadGroup::default());
        let other = Arc::clone(&drain);
        let last = move || async move {
            other.wait_for_phase(DrainPhase::Draining).await;
            assert!(!other.is_ready());
            Ok(())
        };
        workers.spawn("worker-0", last).unwrap();
        let signals = ReceivedSignals::default();
        let settings = DrainSettings::default;
        let serving = serve_and_drain(&drain, settings, &signals, &workers, &auxiliary, || ());
        let dying = async {
            assert!(drain.is_ready());
            workers.spawn("worker-1", || async { panic!("panic of a test") }).unwrap();
        };
        let (ended, ()) = tokio::join!(tokio::time::timeout(Duration::from_secs(10), serving), dying);
        assert_eq!(ended.unwrap().unwrap_err().as_ref(), "worker-1");
        assert_eq!(drain.phase(), DrainPhase::Terminated);
    }

    #[tokio::test]
    async fn requested_shutdown_succeeds() {
        let drain = Arc::new(DrainManager::default());
        let (workers, auxiliary) = (Arc::new(ThreadGroup::default()), ThreadGroup::default());
        let watched = Arc::clone(&drain);
        let work = move || async move {
            watched.wait_for_phase(DrainPhase::Draining).await;
            Ok(())
        };
        workers.spawn("worker-0", work).unwrap();
        drain.request_exit();
        let signals = ReceivedSignals::default();
        let settings = DrainSettings::default;
        assert_eq!(serve_and_drain(&drain, settings, &signals, &workers, &auxiliary, || ()).await, Ok(()));
    }
}
