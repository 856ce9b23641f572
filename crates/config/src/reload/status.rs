//! Outcome of reloads, and the handle to request them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::central::document::FetchedDocument;
use crate::{Config, Diagnostic};
use weir_limiter::timestamp::Timestamp;
use weir_net::watch::Waker;
use weir_telemetry::metrics::ReloadOutcome;

/// Outcome of reading the files again.
#[derive(Debug)]
pub enum Reload {
    /// A new configuration is valid.
    Applied {
        /// The configuration.
        config: Box<Config>,
        /// The fetched document, if the file is a bootstrap.
        document: Option<FetchedDocument>,
        /// Warnings for operators.
        warnings: Vec<String>,
    },
    /// A new process has taken over with the new configuration.
    TakenOver,
    /// The files contain the running configuration.
    Unchanged,
    /// The configuration is invalid or cannot be read; the running one stays.
    Rejected {
        /// The reasons.
        problems: Vec<Diagnostic>,
    },
}

impl Reload {
    /// Returns the outcome as a label for metrics and messages.
    pub const fn outcome(&self) -> ReloadOutcome {
        match self {
            Self::Applied { .. } | Self::TakenOver => ReloadOutcome::Applied,
            Self::Unchanged => ReloadOutcome::Unchanged,
            Self::Rejected { .. } => ReloadOutcome::Rejected,
        }
    }
}

/// How a valid configuration takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preparation {
    /// It can be applied.
    Ready,
    /// Another process has taken over with it.
    TakenOver,
}

/// A valid setting that cannot be used at present, such as a file that cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusableSetting {
    /// Path of the setting, such as `listeners[1].address`.
    pub key: String,
    /// What is wrong.
    pub message: String,
}

/// State of the configuration, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReloadStatus {
    pub file: PathBuf,
    /// Number of the applied configuration, from 1 at startup.
    pub generation: u64,
    /// The running text, before variables are substituted.
    pub text: Arc<str>,
    /// FNV-1a hash of the running text, for comparing instances.
    pub text_hash: u64,
    /// The fetched document, if the file is a bootstrap.
    pub document: Option<FetchedDocument>,
    /// The last reload; `None` before the first.
    pub last_attempt: Option<ReloadAttempt>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReloadAttempt {
    pub time: Timestamp,
    pub outcome: ReloadOutcome,
    /// The problems of a rejected configuration, as `weir check` prints them.
    pub problems: Vec<String>,
    /// Warnings for operators about an applied configuration.
    pub warnings: Vec<String>,
}

#[derive(Debug)]
pub(super) struct ReloadState {
    pub(super) status: Mutex<ReloadStatus>,
    /// The document fetched last.
    pub(super) document: Mutex<Option<FetchedDocument>>,
    pub(super) is_requested: AtomicBool,
    /// Causes the document to be fetched at once.
    pub(super) fetch_notify: Arc<Notify>,
    pub(super) is_stopped: AtomicBool,
}

/// Controls the reloader from other threads.
#[derive(Clone, Debug)]
pub struct ReloadHandle {
    pub(super) state: Arc<ReloadState>,
    pub(super) waker: Waker,
}

impl ReloadHandle {
    /// Returns the running configuration and the outcome of the last reload.
    pub fn status(&self) -> ReloadStatus {
        self.state.status.lock().clone()
    }

    /// Returns the last reload; `None` before the first.
    pub fn last_attempt(&self) -> Option<ReloadAttempt> {
        self.state.status.lock().last_attempt.clone()
    }

    /// Requests a reload, which produces an outcome even if nothing has changed.
    pub fn request_reload(&self) {
        self.state.is_requested.store(true, Ordering::Release);
        self.state.fetch_notify.notify_one();
        self.waker.wake();
    }

    /// Delivers a fetched document, which is merged with the bootstrap and applied if valid.
    pub fn deliver_document(&self, document: FetchedDocument) {
        *self.state.document.lock() = Some(document);
        self.waker.wake();
    }

    /// Returns the notification to fetch the document at once.
    pub fn fetch_notify(&self) -> Arc<Notify> {
        Arc::clone(&self.state.fetch_notify)
    }

    /// Ends [`Reloader::run`](super::Reloader::run).
    pub fn stop(&self) {
        self.state.is_stopped.store(true, Ordering::Release);
        self.waker.wake();
    }
}
