//! The thread that shares limits with other instances through the store.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::generation::Generations;
use super::rls_runtime::RlsRuntime;
use super::{AppError, thread};
use crate::proxy::ProxyState;
use weir_store::handle::{QueuedCounter, StoreHandle};
use weir_store::settings::StoreSettings;
use weir_store::task::{self, StoreTaskResources};

/// Maximum time that startup waits for the store. Before it is reached, requests would be counted in this process, and
/// again by the store.
const STARTUP_WAIT: Duration = Duration::from_secs(1);

/// Maximum time at the end of the process to give leases back. They expire in seconds.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

/// Waits until the store has been reached, at most for [`STARTUP_WAIT`].
pub(super) fn wait_until_reached(shared: &ProxyState) {
    if shared.store.as_ref().is_some_and(|store| !store.wait_until_reached(STARTUP_WAIT)) {
        tracing::warn!(
            "the store was not reached at the start: shared limits use `on_store_loss` until it is"
        );
    }
}

/// Gives the leases back, so that other instances can spend them now.
pub(super) fn finish(store: &StoreHandle) {
    if !store.finish(FINISH_TIMEOUT) {
        tracing::warn!("the store did not take leases back in time: they expire");
    }
}

/// Starts the thread that communicates with the store, for the lifetime of the process.
pub(super) fn start(
    settings: &StoreSettings,
    queue: mpsc::Receiver<QueuedCounter>,
    secret: [u64; 2],
    shared: &Arc<ProxyState>,
    generations: &Arc<Generations>,
    rls_runtime: Option<&Arc<RlsRuntime>>,
) -> Result<(), AppError> {
    let Some(handle) = shared.store.clone() else { return Ok(()) };
    let (limiter, clock) = (Arc::clone(&shared.limiter), Arc::clone(&shared.clock));
    let instance_id = (secret[0] >> 32) as u32;
    let resources = StoreTaskResources {
        limiter: Arc::clone(&limiter),
        clock,
        handle,
        metrics: shared.metrics.store(),
        queue,
        secret,
        instance_id,
    };
    let (settings, generations) = (settings.clone(), Arc::clone(generations));
    let (rls_runtime, rls_state) = (rls_runtime.cloned(), Arc::clone(shared));
    let on_fleet_change = move |fleet| {
        limiter.join_fleet(fleet);
        generations.rebind();
        rls_runtime.iter().for_each(|service| service.apply_generation(&rls_state));
    };
    let run = move || async move { task::run(&settings, resources, on_fleet_change).await };
    thread::start_with_runtime("store", run).map(drop)
}
