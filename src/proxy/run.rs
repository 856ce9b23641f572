//! Runs one worker thread: accepts connections until the drain is over, and advances the worker's clock.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::ProxyState;
use super::accept::{self, ListenerPermit, WorkerUpdates, propagate_panic};
use super::deferred;
use super::timeouts::TICK;
use super::worker::Worker;
use weir_http::http1::memory_pool;
use weir_net::drain::DrainPhase;
use weir_net::listener::handover::WorkerBalance;
use weir_net::worker::WorkerFailed;
use weir_store::deferred::handle::DeferredHandle;
use weir_telemetry::observe::top_keys::WorkerId;

/// Ticks of the coarse clock in a second.
const TICKS_PER_SECOND: u32 = 10;

/// Interval at which a worker without connections looks for a new configuration. Timers below 4096 ms wake the runtime once
/// before they expire, longer ones twice.
const IDLE_INTERVAL: Duration = Duration::from_secs(4);

/// Serves the listeners that `updates` name on this thread until the drain is over. `balance` is this worker's part of
/// the balance of connections, and `key_counter` counts its keys.
///
/// # Errors
/// If the worker has to stop before that.
///
/// # Panics
/// If the task that keeps time or one that accepts connections panics: without them, the thread would appear alive and
/// serve no requests.
pub async fn run(
    shared: Arc<ProxyState>,
    updates: WorkerUpdates,
    balance: WorkerBalance<ListenerPermit>,
    key_counter: WorkerId,
) -> Result<(), WorkerFailed> {
    let worker = Rc::new(Worker::new(Arc::clone(&shared), key_counter));
    let mut ticking = tokio::task::spawn_local(run_clock(Rc::clone(&worker)));
    let deferred = shared.deferred.as_ref().map(DeferredHandle::add_worker);
    let sending =
        deferred.map(|calls| tokio::task::spawn_local(deferred::send::run(Rc::clone(&worker), calls)));
    let served = tokio::select! {
        served = serve(&worker, updates, balance) => served,
        ended = &mut ticking => propagate_panic(ended).and(Err(WorkerFailed("the coarse clock has stopped"))),
    };
    ticking.abort();
    sending.iter().for_each(JoinHandle::abort);
    served
}

async fn serve(
    worker: &Rc<Worker>,
    updates: WorkerUpdates,
    balance: WorkerBalance<ListenerPermit>,
) -> Result<(), WorkerFailed> {
    accept::run(worker, updates, balance).await?;
    worker.coarse_clock.drain();
    let ended = worker.shared.drain.wait_for_phase(DrainPhase::Terminated);
    tokio::select! {
        () = worker.coarse_clock.until_all_closed() => {}
        () = ended => {}
    }
    Ok(())
}

/// Advances the coarse clock and everything that depends on it.
async fn run_clock(worker: Rc<Worker>) {
    let mut interval = tokio::time::interval(TICK);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for tick in 0_u32.. {
        if is_unused(&worker) {
            stop_clock(&worker).await;
            interval.reset();
        }
        interval.tick().await;
        worker.coarse_clock.tick();
        worker.date.renew(worker.shared.clock.civil_now());
        worker.tick_handshakes();
        let view = worker.view();
        view.upstreams.iter().for_each(|upstream| upstream.tick());
        view.forward_proxies.iter().flatten().for_each(|pool| pool.tick());
        if tick % TICKS_PER_SECOND == 0 {
            view.upstreams.iter().for_each(|upstream| upstream.tick_second());
            view.forward_proxies.iter().flatten().for_each(|pool| pool.tick_second());
            memory_pool::trim();
        }
    }
}

/// Whether nothing depends on the coarse clock: there is no connection from a client or to an upstream.
fn is_unused(worker: &Worker) -> bool {
    worker.coarse_clock.is_unused()
        && worker.view().upstreams.iter().all(|upstream| upstream.is_unconnected())
        && worker.view().forward_proxies.iter().flatten().all(|pool| pool.is_empty())
}

/// Waits for a connection, so that an idle process does not wake up ten times a second.
async fn stop_clock(worker: &Worker) {
    while tokio::time::timeout(IDLE_INTERVAL, worker.coarse_clock.until_used()).await.is_err() {
        // Drops the generation before a reload.
        drop(worker.view());
        memory_pool::trim();
    }
    worker.date.renew(worker.shared.clock.civil_now());
}
