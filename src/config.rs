//! The configuration: raw as written in the file, compiled as the program uses it.
//!
//! A file passes through `source` (text), `tree` (values and their positions), `source` again (variables),
//! `shape` (keys and types), `raw` (decoding) and `compile` (meaning). Every step reports all problems that
//! it finds, with their positions. `reload` repeats these steps whenever the file changes.

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
use crate::limiter::elastic::signal::SignalSet;
use crate::telemetry::{access_log, spans};
use crate::{central, drain, listener, overload, remote, rls, state_file, store, tls, upstream};

/// A valid configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Source of the rest of the configuration; `None` if all of it is in one file.
    pub central: Option<central::settings::Settings>,
    /// Listeners for clients; at least one, unless `rls` is configured.
    pub listeners: Vec<listener::ListenerSettings>,
    /// TLS settings of the listeners, in the same order; `None` for plaintext.
    pub tls: Vec<Option<tls::server::TlsServerSettings>>,
    /// Number of worker threads.
    pub workers: NonZeroUsize,
    /// Services that requests are forwarded to; at least one if there are listeners.
    pub upstreams: Vec<upstream::UpstreamSettings>,
    /// TLS settings of the upstreams, in the same order; `None` for plaintext.
    pub upstream_tls: Vec<Option<tls::client::TlsClientSettings>>,
    /// The admin port.
    pub admin: AdminSettings,
    /// The access log; `None` if disabled.
    pub access_log: Option<access_log::Settings>,
    /// Export of spans; `None` if tracing is not configured.
    pub tracing: Option<spans::Settings>,
    /// Graceful shutdown.
    pub drain: drain::DrainSettings,
    /// Overload protection: limits on connections and requests in flight.
    pub overload: overload::OverloadSettings,
    /// Maximum number of counters in the limiter.
    pub max_keys: usize,
    /// File in which counters survive restarts; `None` if they do not.
    pub state: Option<state_file::StateFileSettings>,
    /// Store of the limits that instances share; `None` if not configured.
    pub store: Option<store::settings::Settings>,
    /// How requests are decided: identification, rules and local replies.
    pub policy: PolicySpec,
    /// Signals that elastic limits follow.
    pub elastic: SignalSet,
    /// Envoy's rate limit service; `None` if it is not offered.
    pub rls: Option<rls::options::Options>,
    /// Remote rate limit services that rules use.
    pub services: Vec<remote::service::Settings>,
    /// Notes on settings that are valid but questionable, in the order of the file.
    pub notices: Vec<Problem>,
    /// Hashes of contents that the other fields do not show, for comparing configurations.
    contents: Contents,
}

/// Settings of the admin port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminSettings {
    /// Address of the listener that serves every endpoint.
    pub address: SocketAddr,
    /// Address of a second listener that serves only `GET /ready` and `/metrics`.
    pub probes: Option<SocketAddr>,
    /// Whether the file sets the address. If a default address is in use already, startup continues with a
    /// warning; an explicit one fails it.
    pub explicit: bool,
    /// Host names, in lower case, that requests may use in addition to IP addresses and `localhost`.
    pub hosts: Box<[Box<str>]>,
}

/// Reads where the rest of the configuration comes from, if the file at `path` is a bootstrap.
///
/// # Errors
/// Returns every problem of the bootstrap that can be found without the rest.
pub fn bootstrap(path: &Path) -> Result<Option<central::settings::Settings>, Vec<Problem>> {
    let text = source::read(path).map_err(|problem| vec![problem])?;
    // Avoids compiling twice: most configurations are not a bootstrap.
    let is_one = text.contains(CENTRAL) && tree::parse(&text, path)?.value.get(CENTRAL).is_some();
    if !is_one {
        return Ok(None);
    }
    from_text(&text, path, &source::variable).map(|config| config.central)
}

/// Reads, checks and compiles the file at `path`.
///
/// # Errors
/// Returns every problem of the file, in line order.
pub fn load(path: &Path) -> Result<Config, Vec<Problem>> {
    let text = source::read(path).map_err(|problem| vec![problem])?;
    from_text(&text, path, &source::variable)
}

/// Checks and compiles `text`, the content of `file`. `environment` supplies the values of variables. Of a
/// bootstrap, checks what does not need the rest.
///
/// Reads nothing else, except the data files that the text names, and the number of CPUs for `workers: auto`.
///
/// # Errors
/// Returns every problem of the text, in line order.
pub fn from_text(
    text: &str,
    file: &Path,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Config, Vec<Problem>> {
    with_files(text, file, Rest::Unknown, environment, &mut Files::default())
}

/// Checks and compiles the bootstrap `text`, the content of `file`, together with a fetched document.
///
/// # Errors
/// Returns every problem of both.
#[cfg(any(test, fuzzing))]
pub(crate) fn from_both(text: &str, file: &Path, document: &Document) -> Result<Config, Vec<Problem>> {
    with_files(text, file, Rest::Document(document), &|_| None, &mut Files::default())
}

/// Checks and compiles `text` together with `rest`, reusing data files that `files` has read before.
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
            // Not expected, because the shape has been checked; reported so that such a file is not silently
            // accepted.
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
