//! The state file: what outlives the process so that a restart forgives nobody.
//!
//! What is in it is the limiter's business, how it lies in a file that of `frames`, and how a file comes to be
//! whole or not at all that of `file`. Nothing about the file is ever a reason not to serve: what cannot be read
//! is set aside, what cannot be written is said and tried again. Who calls, and when, is up to `app`.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;

mod frames;

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use self::frames::Unreadable;
use crate::limiter::Limiter;
use crate::limiter::saved::{Restored, SaveError};
use crate::limiter::timestamp::Timestamp;
use crate::whole_file::{self as file, Claim};

/// A reload while the counters are being written makes the writing begin anew, at most so often.
const MOST_TRIES: usize = 5;

/// Where the state is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The file.
    pub file: PathBuf,
    /// How often it is written.
    pub interval: Duration,
}

impl Settings {
    /// What would keep the file from being written, as far as one can see without writing.
    pub fn obstacle(&self) -> Option<io::Error> {
        file::obstacle(&self.file)
    }
}

/// What operators are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The file.
    pub file: PathBuf,
    /// Counters that were in use in the file of the start.
    pub restored: u64,
    /// Times the file was written.
    pub saved: u64,
    /// Times it could not be.
    pub failed: u64,
    /// When it was last written.
    pub last_saved: Option<Timestamp>,
    /// Counters in it, as last written.
    pub counters: u64,
    /// Its size, as last written.
    pub bytes: u64,
    /// Why it could not be written the last time; `None` if it could.
    pub problem: Option<String>,
}

/// Reads and writes the state file.
#[derive(Debug)]
pub struct Keeper {
    path: PathBuf,
    /// Held to the end: of several processes with one file, one writes.
    claim: Option<File>,
    status: Arc<Mutex<Status>>,
}

impl Keeper {
    /// Claims the file; without a claim it is read but not written, until the claim can be had.
    pub fn new(settings: &Settings) -> Self {
        let status = Status { file: settings.file.clone(), ..Status::default() };
        let mut keeper =
            Self { path: settings.file.clone(), claim: None, status: Arc::new(Mutex::new(status)) };
        if let Err(problem) = keeper.claim() {
            keeper.failed(problem);
        }
        keeper
    }

    /// What was read and written so far.
    pub fn status(&self) -> Arc<Mutex<Status>> {
        Arc::clone(&self.status)
    }

    /// The limiter that goes on from the file; `None` where there is nothing to go on from.
    ///
    /// A file that is damaged, foreign or of a later version is set aside under its name with `.damaged` behind.
    pub fn restore(&mut self, max_keys: usize, now: Timestamp) -> Option<Limiter> {
        let file = self.path.display();
        let opened = match file::open(&self.path) {
            Ok(Some(opened)) => Ok(opened),
            Ok(None) => return None,
            Err(error) => Err(Unreadable::from(error)),
        };
        let restored = match opened.and_then(|opened| frames::read(opened, max_keys, now)) {
            Ok(restored) => restored,
            Err(why) => {
                self.set_aside(&why);
                return None;
            }
        };
        let Restored { limiter, at, counters, shared } = restored;
        let age = now.since(at);
        tracing::info!(%file, counters, ?age, "counters restored");
        if at > now {
            tracing::warn!(%file, ahead = ?at.since(now), "the state is from the future: nothing has been forgiven");
        }
        if shared > 0 {
            tracing::warn!(%file, counters = shared, "no room for all restored counters: these share");
        }
        self.status.lock().restored = counters;
        Some(limiter)
    }

    /// Writes every counter in use to the file, which is replaced as a whole. What goes wrong is logged, once as
    /// long as it is the same, and shown by the status.
    pub fn save(&mut self, limiter: &Limiter, now: Timestamp) {
        match self.try_save(limiter, now) {
            Ok((counters, bytes)) => {
                let mut status = self.status.lock();
                if status.problem.take().is_some() {
                    tracing::info!(file = %self.path.display(), "the state is written again");
                }
                status.saved += 1;
                status.last_saved = Some(now);
                (status.counters, status.bytes) = (counters, bytes);
            }
            Err(problem) => self.failed(problem),
        }
    }

    fn try_save(&mut self, limiter: &Limiter, now: Timestamp) -> Result<(u64, u64), String> {
        self.claim()?;
        for _ in 0..MOST_TRIES {
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

    fn claim(&mut self) -> Result<(), String> {
        if self.claim.is_none() {
            self.claim = Some(match file::claim(&self.path) {
                Ok(Claim::Ours(claim)) => claim,
                Ok(Claim::Taken) => return Err("another process writes it".to_owned()),
                Err(error) => return Err(error.to_string()),
            });
        }
        Ok(())
    }

    fn failed(&self, problem: String) {
        let mut status = self.status.lock();
        status.failed += 1;
        if status.problem.as_ref() != Some(&problem) {
            tracing::warn!(file = %self.path.display(), problem, "cannot write the state, counters will not survive");
        }
        status.problem = Some(problem);
    }

    fn set_aside(&self, why: &Unreadable) {
        let file = self.path.display();
        if self.claim.is_none() {
            tracing::warn!(%file, problem = %why, "cannot read the state, counters start afresh");
            return;
        }
        match file::set_aside(&self.path) {
            Ok(to) => {
                let to = to.display();
                tracing::warn!(%file, problem = %why, %to, "the state is set aside, counters start afresh");
            }
            Err(error) => {
                tracing::warn!(%file, problem = %why, %error, "the state cannot be set aside, counters start afresh");
            }
        }
    }
}

#[cfg(test)]
mod tests;
