//! The configuration: raw as people write it, compiled as the program uses it.
//!
//! A file goes through `source` (text), `tree` (values and their places), `source` again (variables), `shape`
//! (keys and types), `raw` (decoded) and `compile` (meaning). Every step reports all it finds, with the place;
//! `reload` does the same again whenever the file changes.

mod applicability;
mod at;
mod changes;
mod compile;
mod contents;
pub mod defaults;
pub mod environment;
mod files;
pub mod parse;
pub mod problem;
pub mod raw;
mod redact;
pub mod reload;
mod schema;
mod shape;
mod source;
mod texts;
mod tree;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::Path;

use self::at::At;
pub use self::changes::changes;
use self::contents::Contents;
use self::files::Files;
#[cfg(any(test, fuzzing))]
pub(crate) use self::files::fuzzing;
pub use self::problem::Problem;
use self::problem::Report;
pub use self::redact::redacted;
pub use self::schema::published as schema;
use self::texts::{CENTRAL, Rest, Together};
#[cfg(any(test, fuzzing))]
use crate::central::document::Document;
use crate::engine::PolicySpec;
use crate::limiter::elastic::signal::Signals;
use crate::telemetry::{access_log, spans};
use crate::{central, drain, listener, overload, remote, rls, snapshot, store, tls, upstream};

/// A valid configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the rest of the configuration comes from; `None` if all of it stands in one file.
    pub central: Option<central::settings::Settings>,
    /// Where clients connect; at least one, unless there is `rls`.
    pub listeners: Vec<listener::Settings>,
    /// TLS, beside the listeners; `None` for those that are plain.
    pub tls: Vec<Option<tls::server::Settings>>,
    /// Worker threads.
    pub workers: NonZeroUsize,
    /// The services beside us; at least one where there are listeners.
    pub upstreams: Vec<upstream::Settings>,
    /// TLS, beside the upstreams; `None` for those that are plain.
    pub upstream_tls: Vec<Option<tls::client::Settings>>,
    /// The admin port.
    pub admin: AdminSettings,
    /// The access log; `None` when disabled.
    pub access_log: Option<access_log::Settings>,
    /// Where spans go; `None` for nowhere.
    pub tracing: Option<spans::Settings>,
    /// How the process ends.
    pub drain: drain::Settings,
    /// How much may be under way in all.
    pub overload: overload::Settings,
    /// Counters the limiter has room for.
    pub max_keys: usize,
    /// Where counters are kept across restarts; `None` for nowhere.
    pub state: Option<snapshot::Settings>,
    /// The store of limits that instances share, if there is one.
    pub store: Option<store::settings::Settings>,
    /// How requests are decided.
    pub policy: PolicySpec,
    /// What elastic limits go by.
    pub elastic: Signals,
    /// Envoy's rate limit service, if it is offered.
    pub rls: Option<rls::options::Options>,
    /// The services that keep limits of rules.
    pub services: Vec<remote::service::Settings>,
    /// What is valid but worth knowing, in the order of the file.
    pub notices: Vec<Problem>,
    /// What cannot be read back out of the rest.
    contents: Contents,
}

/// The operators' entrance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminSettings {
    /// Everything.
    pub address: SocketAddr,
    /// Only `GET /ready` and `/metrics`.
    pub probes: Option<SocketAddr>,
    /// Whether the configuration names the address: a default that is taken is a warning, not a failed start.
    pub explicit: bool,
    /// Names by which operators may ask, in small letters, beside addresses and `localhost`.
    pub hosts: Box<[Box<str>]>,
}

/// Where the rest of the configuration in the file at `path` comes from, if that is a bootstrap.
///
/// # Errors
/// Every problem of the bootstrap, as far as it can be looked at by itself.
pub fn bootstrap(path: &Path) -> Result<Option<central::settings::Settings>, Vec<Problem>> {
    let text = source::read(path).map_err(|problem| vec![problem])?;
    // Most configurations are none, and need not be compiled twice.
    let is_one = text.contains(CENTRAL) && tree::parse(&text, path)?.value.get(CENTRAL).is_some();
    if !is_one {
        return Ok(None);
    }
    from_text(&text, path, &source::variable).map(|config| config.central)
}

/// Reads, checks and compiles the file at `path`.
///
/// # Errors
/// Every problem of the file, in the order of its lines.
pub fn load(path: &Path) -> Result<Config, Vec<Problem>> {
    let text = source::read(path).map_err(|problem| vec![problem])?;
    from_text(&text, path, &source::variable)
}

/// Checks and compiles `text`, a bootstrap as far as it goes by itself, which stands in `file`; `environment` answers for variables.
///
/// Pure but for `workers: auto`, which asks the system for its CPUs, and for the data files that the text names.
///
/// # Errors
/// Every problem of the text, in the order of its lines.
pub fn from_text(
    text: &str,
    file: &Path,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Config, Vec<Problem>> {
    with_files(text, file, Rest::Unknown, environment, &mut Files::default())
}

/// Checks and compiles the bootstrap `text`, which stands in `file`, together with what was fetched.
///
/// # Errors
/// Every problem of both.
#[cfg(any(test, fuzzing))]
pub(crate) fn from_both(text: &str, file: &Path, document: &Document) -> Result<Config, Vec<Problem>> {
    with_files(text, file, Rest::Document(document), &|_| None, &mut Files::default())
}

/// The same together with the rest, and with data files that may have been read before.
fn with_files(
    text: &str,
    file: &Path,
    rest: Rest<'_>,
    environment: &dyn Fn(&str) -> Option<String>,
    files: &mut Files,
) -> Result<Config, Vec<Problem>> {
    let Together { mut value, texts, misplaced } = texts::together(text, file, rest)?;
    let mut report = Report::new(&texts);
    misplaced.into_iter().for_each(|problem| report.elsewhere(At::ROOT, problem));
    texts::check(&value, rest, &mut report);
    let references = source::substitute(&mut value, environment, &mut report);
    if !shape::check(&mut value, &references, &mut report) {
        return Err(report.problems());
    }
    let config = match serde_yaml::from_value(value) {
        Ok(raw) => {
            files.begin(file);
            let config = compile::compile(&raw, file, files, &mut report);
            files.finish();
            config.map(|config| Config { contents: Contents::of(&raw, files), ..config })
        }
        Err(error) => {
            // What is left has the right shape; should it not, there is a problem all the same.
            report.value(At::ROOT, error.to_string());
            None
        }
    };
    match config {
        Some(config) if report.is_clean() => Ok(Config { notices: report.notes(), ..config }),
        _ => Err(report.problems()),
    }
}

#[cfg(test)]
mod tests;
