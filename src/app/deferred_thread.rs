//! The thread for deferred calls, which runs once a rule defers any.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Builder, LocalOptions};

use super::AppError;
use crate::proxy::ProxyState;
use weir_config::Config;
use weir_store::deferred::handle::{DeferredHandle, DeferredRule};
use weir_store::deferred::task::{self, DeferredTaskResources};
use weir_store::settings::StoreSettings;

/// Maximum time at shutdown to record in the store what became of the calls that were in flight.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

/// The thread, or what it needs to start.
#[derive(Debug)]
pub(super) struct DeferredThread {
    handle: DeferredHandle,
    settings: StoreSettings,
    shared: Arc<ProxyState>,
    /// Receives a message when the thread has ended; `None` until it is started.
    ended: Mutex<Option<Receiver<()>>>,
}

impl DeferredThread {
    /// Prepares the thread; `None` without a store.
    pub(super) fn new(settings: Option<&StoreSettings>, shared: &Arc<ProxyState>) -> Option<Self> {
        Some(Self {
            handle: shared.deferred.clone()?,
            settings: settings?.clone(),
            shared: Arc::clone(shared),
            ended: Mutex::default(),
        })
    }

    /// Applies the rules of a configuration, and starts the thread when the first of them defers calls.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn apply(&self, config: &Config) -> Result<(), AppError> {
        let rules: Vec<_> = config
            .policy
            .rules
            .iter()
            .filter_map(|rule| {
                let limiting = rule.action.limiting()?;
                let deferral = (**limiting.deferral.as_ref()?).clone();
                let is_keyed = !limiting.key.0.is_empty();
                Some(DeferredRule { name: (*rule.name).into(), deferral, is_keyed })
            })
            .collect();
        let is_needed = !rules.is_empty();
        self.handle.set_rules(rules);
        if is_needed { self.start() } else { Ok(()) }
    }

    /// Waits until what is in flight is settled, for a limited time.
    pub(super) fn finish(&self) {
        self.handle.finish();
        if let Some(ended) = &*self.ended.lock()
            && ended.recv_timeout(FINISH_TIMEOUT).is_err()
        {
            tracing::warn!("deferred calls were not settled in time: they may be sent again");
        }
    }

    fn start(&self) -> Result<(), AppError> {
        let Some(requests) = self.handle.take_requests() else { return Ok(()) };
        let instance_id = getrandom::u64().map_err(|error| {
            AppError::System("cannot generate a random number".to_owned(), std::io::Error::other(error))
        })?;
        let resources = DeferredTaskResources {
            handle: self.handle.clone(),
            requests,
            clock: Arc::clone(&self.shared.clock),
            metrics: Arc::clone(&self.shared.metrics),
            drain: Arc::clone(&self.shared.drain),
            instance_id,
        };
        let (settings, (ended_sender, ended)) = (self.settings.clone(), sync_channel(1));
        let run = move || {
            match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
                Ok(runtime) => runtime.block_on(task::run(&settings, resources)),
                Err(error) => tracing::error!(%error, "cannot start a runtime: no calls are deferred"),
            }
            let _ = ended_sender.send(());
        };
        let thread = std::thread::Builder::new().name("deferred".to_owned());
        thread.spawn(run).map_err(AppError::system("cannot start a thread for deferred calls"))?;
        *self.ended.lock() = Some(ended);
        Ok(())
    }
}
