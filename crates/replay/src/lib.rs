//! Replay of recorded traffic: the requests of access logs, decided by the same engine as live ones, on a virtual clock.
//!
//! One thread per log reads and parses lines ([`stream`], [`mod@format`]) and sets aside those whose time cannot be right
//! ([`time_check`]). The calling thread merges them in order of arrival ([`timeline`]), decides each request
//! ([`simulation`]), counts ([`tally`]) and reports ([`report`]). Nothing is left out silently: lines that cannot be read,
//! requests that a rule cannot decide from what the log has, and requests that come too late are counted.
//!
//! Logs are input of unknown origin: lines and memory are bounded, and parsers are total.
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod explain;
pub mod format;
pub mod record;
pub mod report;

mod arrival;
mod bodies;
mod clients;
mod collected;
mod decisions;
mod driver;
mod endings;
mod input;
mod needs;
mod peers;
mod simulation;
mod stream;
mod tally;
mod time_check;
mod timeline;

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;

use std::io;
use std::path::PathBuf;

pub use self::driver::run;
use self::format::LogFormat;
use weir_policy::engine::PolicySpec;

/// What to replay, and how.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// The logs; `-` is standard input.
    pub logs: Vec<PathBuf>,
    /// Format of all logs; `None` to detect that of each.
    pub format: Option<LogFormat>,
    /// Meanings of fields of JSON logs, such as `client_ip=remote_addr` or `json:model=model`.
    pub fields: Vec<String>,
    /// Headroom of the upstream for elastic limits, from 0 to 1.
    pub headroom: f64,
    /// Number of keys and clients in each list of the report.
    pub top: usize,
}

/// Rules to replay a log with.
#[derive(Clone, Debug)]
pub struct ReplayRules<'a> {
    /// Name of the configuration file.
    pub name: String,
    /// The rules, and what they need of the rest of the configuration.
    pub policy: &'a PolicySpec,
    /// Maximum number of counters.
    pub max_keys: usize,
}

/// Why logs cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// An option is not valid.
    #[error("{0}")]
    Option(String),
    /// A log cannot be read.
    #[error("{0}: cannot be read: {1}")]
    Log(String, #[source] io::Error),
    /// The format of a log is not known.
    #[error("{0}: unknown format, no line has a request: {1}")]
    UnknownFormat(String, String),
}
