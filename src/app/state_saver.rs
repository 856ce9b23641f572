//! Writes the state file at intervals, and once more at shutdown.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;

use super::{AppError, spawn_thread};
use crate::proxy::ProxyState;
use weir_store::state_file::{StateFile, StateFileSettings, StateFileStatus};

/// Timeout of the last write, so that a disk that hangs cannot keep the process from ending.
const FINAL_SAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The thread that writes the state file.
#[derive(Debug)]
pub(super) struct StateSaver {
    stop: SyncSender<()>,
    finished: Mutex<Receiver<()>>,
    status: Arc<Mutex<StateFileStatus>>,
}

impl StateSaver {
    /// Starts the thread.
    pub(super) fn start(
        settings: &StateFileSettings,
        mut state_file: StateFile,
        shared: &Arc<ProxyState>,
    ) -> Result<Self, AppError> {
        let (stop, stop_receiver) = sync_channel(1);
        let (finished_sender, finished) = sync_channel(1);
        let (status, shared, interval) = (state_file.status(), Arc::clone(shared), settings.interval);
        let save_periodically = move || {
            while stop_receiver.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                state_file.save(&shared.limiter, shared.clock.now());
            }
            state_file.save(&shared.limiter, shared.clock.now());
            let _ = finished_sender.send(());
        };
        spawn_thread("state", save_periodically)?;
        Ok(Self { stop, finished: Mutex::new(finished), status })
    }

    /// Returns the status of reads and writes so far.
    pub(super) fn status(&self) -> Arc<Mutex<StateFileStatus>> {
        Arc::clone(&self.status)
    }

    /// Writes once more and waits for that, up to a timeout. No request may be counted after this.
    pub(super) fn finish(&self) {
        // Fails only if the thread has ended, which the next line detects as well.
        let _ = self.stop.try_send(());
        if self.finished.lock().recv_timeout(FINAL_SAVE_TIMEOUT).is_err() {
            tracing::warn!("the state file was not written in time");
        }
    }
}
