//! What came of reading the configuration again, and how that is asked for.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::central::document::Document;
use crate::config::{Config, Problem};
use crate::limiter::timestamp::Timestamp;
use crate::telemetry::metrics::ReloadOutcome;
use crate::watch::Waker;

/// What came of looking at the file.
#[derive(Debug)]
pub enum Reload {
    /// A new configuration is valid.
    Applied {
        /// The configuration.
        config: Box<Config>,
        /// What was fetched of it, if it is not all in a file.
        document: Option<Document>,
        /// What it changes that takes a restart; everything else is to be applied now.
        needs_restart: Vec<&'static str>,
        /// What an operator should look at.
        warnings: Vec<String>,
    },
    /// The file says what is running.
    Unchanged,
    /// The file is not valid, or not there; what is running stays.
    Rejected {
        /// Why.
        problems: Vec<Problem>,
    },
}

impl Reload {
    /// In one word, for metrics and people.
    pub const fn outcome(&self) -> ReloadOutcome {
        match self {
            Self::Applied { .. } => ReloadOutcome::Applied,
            Self::Unchanged => ReloadOutcome::Unchanged,
            Self::Rejected { .. } => ReloadOutcome::Rejected,
        }
    }
}

/// What operators are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The file.
    pub file: PathBuf,
    /// Counts applied configurations, from 1 at the start.
    pub generation: u64,
    /// The running text, before variables are put in.
    pub text: Arc<str>,
    /// FNV-1a of the running text: equal wherever the same text runs.
    pub text_hash: u64,
    /// The part that was fetched, if it is not all in the file.
    pub document: Option<Document>,
    /// What the running configuration changes that takes a restart.
    pub needs_restart: Vec<&'static str>,
    /// The last reload; `None` before the first.
    pub last: Option<Attempt>,
}

/// One reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// When.
    pub at: Timestamp,
    /// What came of it.
    pub outcome: ReloadOutcome,
    /// The problems of a rejected file, as `weir check` prints them.
    pub problems: Vec<String>,
    /// What an operator should look at, though it was applied.
    pub warnings: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) status: Mutex<Status>,
    /// What was fetched last.
    pub(super) document: Mutex<Option<Document>>,
    pub(super) requested: AtomicBool,
    /// Has the document fetched at once.
    pub(super) hurry: Arc<Notify>,
    pub(super) stopped: AtomicBool,
}

/// The reloader's remote control.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(super) shared: Arc<Shared>,
    pub(super) waker: Waker,
}

impl Handle {
    /// What is running and what came of the last reload.
    pub fn status(&self) -> Status {
        self.shared.status.lock().clone()
    }

    /// Asks for a look at the file now, which is answered even if nothing has changed.
    pub fn request(&self) {
        self.shared.requested.store(true, Ordering::Release);
        self.shared.hurry.notify_one();
        self.waker.wake();
    }

    /// Hands over what was fetched: it is put together with the bootstrap and applied if it is valid.
    pub fn deliver(&self, document: Document) {
        *self.shared.document.lock() = Some(document);
        self.waker.wake();
    }

    /// Notified when what is fetched is wanted at once.
    pub fn hurry(&self) -> Arc<Notify> {
        Arc::clone(&self.shared.hurry)
    }

    /// Ends [`Reloader::run`].
    pub fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Release);
        self.waker.wake();
    }
}
