//! Writes the state file every now and then, and once more at the end.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;

use super::{Error, spawn_thread};
use crate::proxy::Shared;
use crate::snapshot::{Keeper, Settings, Status};

/// For the last time it is written: a disk that has gone away must not keep the process from ending.
const LAST_SAVE: Duration = Duration::from_secs(5);

/// The thread that writes.
#[derive(Debug)]
pub(super) struct Keeping {
    end: SyncSender<()>,
    ended: Mutex<Receiver<()>>,
    status: Arc<Mutex<Status>>,
}

impl Keeping {
    /// Writes on a thread of its own from now on.
    pub(super) fn start(
        settings: &Settings,
        mut keeper: Keeper,
        shared: &Arc<Shared>,
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

    /// What was read and written so far.
    pub(super) fn status(&self) -> Arc<Mutex<Status>> {
        Arc::clone(&self.status)
    }

    /// Writes once more and waits for that, for a while. Nobody may be counted after this.
    pub(super) fn finish(&self) {
        // Fails only if the thread has ended, which the next line finds out as well.
        let _ = self.end.try_send(());
        if self.ended.lock().recv_timeout(LAST_SAVE).is_err() {
            tracing::warn!("the state could not be written in time");
        }
    }
}
