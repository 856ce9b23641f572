//! The thread for deferred calls, which runs once a rule defers any.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::{AppError, thread};
use crate::proxy::ProxyState;
use weir_config::Config;
use weir_net::thread::StartedThread;
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
    /// `None` until it is started.
    thread: Mutex<Option<StartedThread>>,
}

impl DeferredThread {
    /// Prepares the thread; `None` without a store.
    pub(super) fn new(settings: Option<&StoreSettings>, shared: &Arc<ProxyState>) -> Option<Self> {
        Some(Self {
            handle: shared.deferred.clone()?,
            settings: settings?.clone(),
            shared: Arc::clone(shared),
            thread: Mutex::default(),
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
        if let Some(thread) = &*self.thread.lock()
            && !thread.wait_for_end(FINISH_TIMEOUT)
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
        let settings = self.settings.clone();
        let run = move || async move { task::run(&settings, resources).await };
        *self.thread.lock() = Some(thread::start_with_runtime("deferred", run)?);
        Ok(())
    }
}
