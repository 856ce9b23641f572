//! The state file: saves the counters, so that a restart does not reset limits.
//!
//! The content is defined by the limiter, the file format by `frames`, and the atomic replacement by `file`. No problem
//! with the file prevents Weir from serving: a file that cannot be read is set aside, and a failed write is logged and
//! tried again. `app` decides when to save.

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;

pub mod frames;

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use self::frames::StateFileError;
use weir_limiter::Limiter;
use weir_limiter::saved::{Restored, SaveError};
use weir_limiter::timestamp::Timestamp;
use weir_net::atomic_file::{self as file, LockAttempt};

/// Maximum attempts to write the file; a reload while counters are written makes the write start again.
const MAX_SAVE_ATTEMPTS: usize = 5;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateFileSettings {
    pub file: PathBuf,
    /// Time between two writes.
    pub interval: Duration,
}

impl StateFileSettings {
    /// Returns what would prevent writing the file, as far as that can be checked without writing.
    pub fn obstacle(&self) -> Option<io::Error> {
        file::obstacle(&self.file)
    }
}

/// Status of the state file, for the admin interface and metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateFileStatus {
    pub file: PathBuf,
    /// Counters in use that were restored at the start.
    pub restored: u64,
    /// Number of successful writes.
    pub saved: u64,
    /// Number of failures.
    pub failed: u64,
    /// Time of the last successful write.
    pub last_saved: Option<Timestamp>,
    /// Number of counters in the file as last written.
    pub counters: u64,
    /// Size of the file as last written, in bytes.
    pub bytes: u64,
    /// Why the last write failed; `None` if it succeeded.
    pub problem: Option<String>,
}

/// Reader and writer of the state file.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    /// Lock held while this exists, so that only one of several processes writes the file.
    lock: Option<File>,
    status: Arc<Mutex<StateFileStatus>>,
}

impl StateFile {
    /// Locks the file. Without the lock the file is read but not written; every [`Self::save`] tries again.
    pub fn new(settings: &StateFileSettings) -> Self {
        let mut keeper = Self::of_predecessor(settings);
        if let Err(problem) = keeper.acquire_lock() {
            keeper.record_failure(problem);
        }
        keeper
    }

    /// Leaves the lock to the process that this one replaces, until the first [`Self::save`].
    pub fn of_predecessor(settings: &StateFileSettings) -> Self {
        let status = StateFileStatus { file: settings.file.clone(), ..StateFileStatus::default() };
        Self { path: settings.file.clone(), lock: None, status: Arc::new(Mutex::new(status)) }
    }

    /// Returns the shared status.
    pub fn status(&self) -> Arc<Mutex<StateFileStatus>> {
        Arc::clone(&self.status)
    }

    /// Restores a limiter from the file; `None` if there is no usable file.
    ///
    /// A file that is damaged, in another format or of another version is renamed with the suffix `.damaged`.
    pub fn restore(&mut self, max_keys: usize, now: Timestamp) -> Option<Limiter> {
        let file = self.path.display();
        let opened = match file::open(&self.path) {
            Ok(Some(opened)) => Ok(opened),
            Ok(None) => return None,
            Err(error) => Err(StateFileError::from(error)),
        };
        let restored = match opened.and_then(|opened| frames::read(opened, max_keys, now)) {
            Ok(restored) => restored,
            Err(why) => {
                self.set_aside(&why);
                return None;
            }
        };
        let Restored { limiter, saved_at: at, counters, overflowed: shared } = restored;
        let age = now.since(at);
        tracing::info!(%file, counters, ?age, "counters restored");
        if at > now {
            tracing::warn!(
                %file,
                ahead = ?at.since(now),
                "the state file was written in the future: counters are restored without elapsed time"
            );
        }
        if shared > 0 {
            tracing::warn!(
                %file,
                counters = shared,
                "no room for all restored counters: some share overflow counters"
            );
        }
        self.status.lock().restored = counters;
        Some(limiter)
    }

    /// Writes all counters in use and replaces the file atomically. A failure is logged once per cause and shown in the
    /// status.
    pub fn save(&mut self, limiter: &Limiter, now: Timestamp) {
        match self.try_save(limiter, now) {
            Ok((counters, bytes)) => {
                let mut status = self.status.lock();
                if status.problem.take().is_some() {
                    tracing::info!(file = %self.path.display(), "the state file can be written again");
                }
                status.saved += 1;
                status.last_saved = Some(now);
                (status.counters, status.bytes) = (counters, bytes);
            }
            Err(problem) => self.record_failure(problem),
        }
    }

    fn try_save(&mut self, limiter: &Limiter, now: Timestamp) -> Result<(u64, u64), String> {
        self.acquire_lock()?;
        for _ in 0..MAX_SAVE_ATTEMPTS {
            let written = file::replace(&self.path, |out| match frames::write(out, limiter, now) {
                Ok(counters) => Ok(Some(counters)),
                Err(SaveError::Changed) => Ok(None),
                Err(SaveError::Write(error)) => Err(error),
            });
            match written {
                Ok((Some(counters), bytes)) => return Ok((counters, bytes)),
                Ok((None, _)) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Err("the configuration changes faster than counters can be written".to_owned())
    }

    fn acquire_lock(&mut self) -> Result<(), String> {
        if self.lock.is_none() {
            self.lock = Some(match file::try_lock(&self.path) {
                Ok(LockAttempt::Acquired(claim)) => claim,
                Ok(LockAttempt::WouldBlock) => return Err("another process has locked it".to_owned()),
                Err(error) => return Err(error.to_string()),
            });
        }
        Ok(())
    }

    fn record_failure(&self, problem: String) {
        let mut status = self.status.lock();
        status.failed += 1;
        if status.problem.as_ref() != Some(&problem) {
            tracing::warn!(
                file = %self.path.display(),
                problem,
                "cannot write the state file: counters will not survive a restart"
            );
        }
        status.problem = Some(problem);
    }

    fn set_aside(&self, why: &StateFileError) {
        let file = self.path.display();
        if self.lock.is_none() {
            tracing::warn!(%file, problem = %why, "cannot read the state file: starting with empty counters");
            return;
        }
        match file::set_aside(&self.path) {
            Ok(to) => {
                let to = to.display();
                tracing::warn!(
                    %file,
                    problem = %why,
                    %to,
                    "invalid state file renamed: starting with empty counters"
                );
            }
            Err(error) => {
                tracing::warn!(
                    %file,
                    problem = %why,
                    %error,
                    "cannot rename the invalid state file: starting with empty counters"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests;
