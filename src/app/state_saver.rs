//! Writes the state file at intervals, and once more at shutdown.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;

use super::{AppError, thread};
use crate::proxy::ProxyState;
use weir_net::thread::StartedThread;
use weir_store::state_file::{StateFile, StateFileSettings, StateFileStatus};

/// Timeout of the last write, so that a disk that hangs cannot keep the process from ending.
const FINAL_SAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// How the thread ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopSaving {
    /// With a last write.
    AfterSave,
    /// At once: another process writes the file from now on.
    AtOnce,
}

/// The thread that writes the state file.
#[derive(Debug)]
pub(super) struct StateSaver {
    stop: SyncSender<StopSaving>,
    thread: StartedThread,
    status: Arc<Mutex<StateFileStatus>>,
    is_handed_over: AtomicBool,
}

impl StateSaver {
    /// Starts the thread.
    pub(super) fn start(
        settings: &StateFileSettings,
        mut state_file: StateFile,
        shared: &Arc<ProxyState>,
    ) -> Result<Self, AppError> {
        let (stop, stop_receiver) = sync_channel(1);
        let (status, shared, interval) = (state_file.status(), Arc::clone(shared), settings.interval);
        let save_periodically = move || {
            let stopped = loop {
                match stop_receiver.recv_timeout(interval) {
                    Err(RecvTimeoutError::Timeout) => state_file.save(&shared.limiter, shared.clock.now()),
                    stopped => break stopped,
                }
            };
            if stopped != Ok(StopSaving::AtOnce) {
                state_file.save(&shared.limiter, shared.clock.now());
            }
        };
        let thread = thread::start("state", save_periodically)?;
        Ok(Self { stop, thread, status, is_handed_over: AtomicBool::new(false) })
    }

    /// Returns the status of reads and writes so far.
    pub(super) fn status(&self) -> Arc<Mutex<StateFileStatus>> {
        Arc::clone(&self.status)
    }

    /// Leaves the file to the process that replaces this one, as it is.
    pub(super) fn hand_over(&self) {
        self.is_handed_over.store(true, Ordering::Relaxed);
        let _ = self.stop.try_send(StopSaving::AtOnce);
        let _ = self.thread.wait_for_end(FINAL_SAVE_TIMEOUT);
    }

    /// Writes once more and waits for that, up to a timeout. No request may be counted after this.
    pub(super) fn finish(&self) {
        if self.is_handed_over.load(Ordering::Relaxed) {
            return;
        }
        // Fails only if the thread has ended, which the next line detects as well.
        let _ = self.stop.try_send(StopSaving::AfterSave);
        if !self.thread.wait_for_end(FINAL_SAVE_TIMEOUT) {
            tracing::warn!("the state file was not written in time");
        }
    }
}
