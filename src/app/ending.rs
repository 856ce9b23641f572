//! How the process ends: what asks for it, and the steps it takes.

use std::thread::JoinHandle;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::clock::Clock;
use crate::drain::{self, Drain, Phase};

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
pub(super) async fn serve_and_drain(
    drain: &Drain,
    settings: drain::Settings,
    mut signals: Signals,
    workers: Vec<JoinHandle<()>>,
) {
    let asked_by = tokio::select! {
        signal = signals.received() => signal,
        () = drain.exit_requested() => "the admin port",
    };
    tracing::info!(asked_by, "draining");
    drain.advance(Phase::Announced);
    let ended = Ended::of(workers);
    let outcome = tokio::select! {
        outcome = steps(drain, settings, &ended) => outcome,
        signal = signals.received() => {
            tracing::warn!(signal, "ending at once");
            "cut short"
        }
    };
    drain.advance(Phase::Ended);
    let _ = tokio::time::timeout(LAST_MOMENT, ended.all()).await;
    tracing::info!(outcome, "ended");
}

async fn steps(drain: &Drain, settings: drain::Settings, ended: &Ended) -> &'static str {
    // The admin port may have closed the listeners already; then there is nothing to wait for.
    tokio::select! {
        () = tokio::time::sleep(settings.delay) => {}
        () = drain.reached(Phase::Draining) => {}
    }
    drain.advance(Phase::Draining);
    match tokio::time::timeout(settings.timeout, ended.all()).await {
        Ok(()) => "drained",
        Err(_) => {
            tracing::warn!("drain timeout: cutting off what is left");
            "timed out"
        }
    }
}

/// Whether all workers have ended.
struct Ended(watch::Receiver<bool>);

impl Ended {
    /// Watches `workers` from a thread, since joining blocks.
    fn of(workers: Vec<JoinHandle<()>>) -> Self {
        let (all_ended, ended) = watch::channel(false);
        std::thread::spawn(move || {
            for worker in workers {
                // A worker that panicked has ended, too.
                let _ = worker.join();
            }
            all_ended.send_replace(true);
        });
        Self(ended)
    }

    async fn all(&self) {
        let _ = self.0.clone().wait_for(|ended| *ended).await;
    }
}

/// Catches up with the wall clock every second, for as long as it is polled.
pub(super) async fn keep_clock(clock: &Clock) {
    loop {
        tokio::time::sleep(CLOCK_CHECK).await;
        if let Some(lead) = clock.reanchor() {
            tracing::warn!(?lead, "the wall clock was ahead, as after a suspend: caught up");
        }
    }
}
