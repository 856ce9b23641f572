//! The thread that shares limits with other instances through the store.

use std::sync::Arc;

use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc;

use super::Error;
use super::generation::Generations;
use super::rate_limits::RateLimits;
use crate::proxy::ProxyState;
use crate::store::handle::Want;
use crate::store::settings::Settings;
use crate::store::task::{self, Resources};

/// Starts the thread that communicates with the store, for the lifetime of the process.
pub(super) fn start(
    settings: &Settings,
    queue: mpsc::Receiver<Want>,
    secret: [u64; 2],
    (shared, generations, rate_limits): (&Arc<ProxyState>, &Arc<Generations>, Option<&Arc<RateLimits>>),
) -> Result<(), Error> {
    let Some(handle) = shared.store.clone() else { return Ok(()) };
    let (limiter, clock) = (Arc::clone(&shared.limiter), Arc::clone(&shared.clock));
    let instance = (secret[0] >> 32) as u32;
    let resources = Resources {
        limiter: Arc::clone(&limiter),
        clock,
        handle,
        metrics: shared.metrics.store(),
        queue,
        random: (secret, instance),
    };
    let (settings, generations) = (settings.clone(), Arc::clone(generations));
    let (rate_limits, renewed) = (rate_limits.cloned(), Arc::clone(shared));
    let joined = move |fleet| {
        limiter.join_fleet(fleet);
        generations.rebind();
        rate_limits.iter().for_each(|service| service.renew(&renewed));
    };
    let run = move || match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
        Ok(runtime) => runtime.block_on(task::run(&settings, resources, joined)),
        Err(error) => tracing::error!(%error, "cannot start a runtime: limits are not shared"),
    };
    let started = std::thread::Builder::new().name("store".to_owned()).spawn(run);
    started.map(drop).map_err(Error::system("cannot start a thread for the store"))
}
