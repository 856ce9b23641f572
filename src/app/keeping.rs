//! Writes the state file at intervals, and once more at shutdown.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;

use super::{Error, spawn_thread};
use crate::proxy::ProxyState;
use crate::state_file::{StateFile, StateFileSettings, StateFileStatus};

/// Timeout of the last write, so that a disk that hangs cannot keep the process from ending.
const LAST_SAVE: Duration = Duration::from_secs(5);

/// The thread that writes the state file.
#[derive(Debug)]
pub(super) struct Keeping {
    end: SyncSender<()>,
    ended: Mutex<Receiver<()>>,
    status: Arc<Mutex<StateFileStatus>>,
}

impl Keeping {
    /// Starts the thread.
    pub(super) fn start(
        settings: &StateFileSettings,
        mut keeper: StateFile,
        shared: &Arc<ProxyState>,
    ) -> Result<Self, Error> {
        let (end, ending) = sync_channel(1);
        let (done, ended) = sync_channel(1);
        let (status, shared, interval) = (keeper.status(), Arc::clone(shared), settings.interval);
        let keep = move || {
            while ending.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                keeper.save(&shared.limiter, shared.clock.now());
            }
            keeper.save(&shared.limiter, shared.clock.now());
            let _ = done.send(());
        };
        spawn_thread("state", keep)?;
        Ok(Self { end, ended: Mutex::new(ended), status })
    }

    /// Returns the status of reads and writes so far.
    pub(super) fn status(&self) -> Arc<Mutex<StateFileStatus>> {
        Arc::clone(&self.status)
    }

    /// Writes once more and waits for that, up to a timeout. No request may be counted after this.
    pub(super) fn finish(&self) {
        // Fails only if the thread has ended, which the next line detects as well.
        let _ = self.end.try_send(());
        if self.ended.lock().recv_timeout(LAST_SAVE).is_err() {
            tracing::warn!("the state file was not written in time");
        }
    }
}
