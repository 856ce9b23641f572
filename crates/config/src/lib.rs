//! The configuration: raw as written in the file, compiled as the program uses it.
//!
//! A file passes through `source` (text), `tree` (values and their positions), `source` again (variables),
//! `schema_check` (keys and types), `raw` (decoding) and `compile` (meaning). Every step reports all problems
//! that it finds, with their positions. `reload` repeats these steps whenever the file changes.
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod admin_token;
mod applicability;
mod at;
pub mod central;
mod changes;
pub mod check;
mod compile;
mod config_path;
mod content_hashes;
mod data_files;
pub mod defaults;
pub mod diagnostic;
mod dry_run;
pub mod environment;
mod foreign;
mod fragments;
mod manifest;
pub mod parse;
mod positions;
mod quoting;
pub mod raw;
mod redact;
pub mod reload;
mod schema;
mod schema_check;
mod sections;
mod source;
mod source_texts;
mod summary;
mod tree;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::Path;

pub use self::admin_token::{AdminToken, AdminTokenError, MIN_ADMIN_TOKEN_LENGTH};
pub use self::changes::describe_changes;
use self::config_path::ConfigPath;
use self::content_hashes::ContentHashes;
use self::data_files::DataFiles;
#[cfg(any(test, feature = "fuzzing"))]
pub use self::data_files::fuzzing;
pub use self::diagnostic::Diagnostic;
use self::diagnostic::Diagnostics;
pub use self::dry_run::dry_run;
pub use self::redact::redact;
pub use self::schema::{published_schema as schema, schema_text};
use self::source_texts::{CENTRAL_KEY, RestOfConfig};
pub use self::summary::ConfigSummary;
use self::tree::MergedTexts;
#[cfg(any(test, feature = "fuzzing"))]
use crate::central::document::FetchedDocument;
use weir_limiter::elastic::signal::SignalSet;
use weir_net::drain;
use weir_net::listener;
use weir_net::overload;
use weir_net::tls;
use weir_policy::decision::DecisionProtocol;
use weir_policy::engine::PolicySpec;
use weir_policy::rules::own_limits::OwnLimitsSettings;
use weir_rls as rls;
use weir_store as store;
use weir_store::remote;
use weir_store::state_file;
use weir_telemetry::alerts;
use weir_telemetry::observe::key_writer::LogKeys;
use weir_telemetry::{access_log, spans};
use weir_upstream as upstream;
use weir_upstream::forward_proxy::ForwardProxySettings;

/// A valid configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Source of the rest of the configuration; `None` if all of it is in one file.
    pub central: Option<central::settings::CentralSettings>,
    /// Listeners for clients; at least one, unless `rls` is configured.
    pub listeners: Vec<ListenerConfig>,
    /// Number of worker threads.
    pub workers: NonZeroUsize,
    /// Services that requests are forwarded to; at least one if there is a listener that needs one.
    pub upstreams: Vec<UpstreamConfig>,
    /// The admin port.
    pub admin: AdminSettings,
    /// The access log; `None` if disabled.
    pub access_log: Option<access_log::AccessLogSettings>,
    /// How operators see keys; `None` for the default.
    pub log_keys: Option<LogKeys>,
    /// Export of spans; `None` if tracing is not configured.
    pub tracing: Option<spans::TracingSettings>,
    /// Alerts to a webhook; `None` if not configured.
    pub alerts: Option<alerts::settings::AlertSettings>,
    /// Graceful shutdown.
    pub drain: drain::DrainSettings,
    /// Overload protection: limits on connections and requests in flight.
    pub overload: overload::OverloadSettings,
    /// Maximum number of counters in the limiter.
    pub max_keys: usize,
    /// File in which counters survive restarts; `None` if they do not.
    pub state_file: Option<state_file::StateFileSettings>,
    /// Store of the limits that instances share; `None` if not configured.
    pub store: Option<store::settings::StoreSettings>,
    /// How requests are decided: identification, rules and local replies.
    pub policy: PolicySpec,
    /// Signals that elastic limits follow.
    pub elastic_signals: SignalSet,
    /// Envoy's rate limit service; `None` if it is not offered.
    pub rls: Option<rls::options::RlsOptions>,
    /// Remote rate limit services that rules use.
    pub remote_services: Vec<remote::service::RemoteServiceSettings>,
    /// Notes on settings that are valid but questionable, in the order of the file.
    pub notices: Vec<Diagnostic>,
    /// Hashes of contents that the other fields do not show, for comparing configurations.
    content_hashes: ContentHashes,
}

/// A listener for clients.
#[derive(Clone, Debug, PartialEq)]
pub struct ListenerConfig {
    /// What takes effect only at startup.
    pub settings: listener::ListenerSettings,
    /// TLS; `None` for plaintext.
    pub tls: Option<tls::server::TlsServerSettings>,
    /// The forward proxy; `None` for a reverse proxy.
    pub forward_proxy: Option<ForwardProxySettings>,
    /// How another proxy asks for decisions; `None` for a listener that forwards requests.
    pub decide: Option<DecisionProtocol>,
    /// Where callers read their own limits, if the listener has such a path.
    pub own_limits: Option<OwnLimitsSettings>,
}

/// A service that requests are forwarded to.
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamConfig {
    /// Everything but TLS.
    pub settings: upstream::UpstreamSettings,
    /// TLS; `None` for plaintext.
    pub tls: Option<tls::client::TlsClientSettings>,
}

/// Settings of the admin port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminSettings {
    /// Address of the listener that serves every endpoint.
    pub address: SocketAddr,
    /// Address of a second listener that serves only `GET /ready` and `/metrics`.
    pub probe_address: Option<SocketAddr>,
    /// Whether the file sets the address. If a default address is in use already, startup continues with a
    /// warning; an explicit one fails it.
    pub is_explicit: bool,
    /// Host names, in lower case, that requests may use in addition to IP addresses and `localhost`.
    pub allowed_hosts: Box<[Box<str>]>,
    /// Token that requests to `address` need; `None` if they need none.
    pub token: Option<AdminToken>,
}

/// Reads where the rest of the configuration comes from, if the file at `path` is a bootstrap.
///
/// # Errors
/// Returns every problem of the bootstrap that can be found without the rest.
pub fn load_bootstrap(path: &Path) -> Result<Option<central::settings::CentralSettings>, Vec<Diagnostic>> {
    let text = source::read_text(path).map_err(|problem| vec![problem])?;
    // Avoids compiling twice: most configurations are not a bootstrap.
    let is_bootstrap = !fragments::is_folder(&text)
        && text.contains(CENTRAL_KEY)
        && tree::parse(&text, path)?.value.get(CENTRAL_KEY).is_some();
    if !is_bootstrap {
        return Ok(None);
    }
    from_text(&text, path, &source::environment_variable).map(|config| config.central)
}

/// Returns the hash by which instances compare configurations: that of the text of the file at `path`.
///
/// # Errors
/// The problem if the file cannot be read.
pub fn text_hash(path: &Path) -> Result<u64, Diagnostic> {
    source::read_text(path).map(|text| reload::hash_texts(&text, None))
}

/// Reads, checks and compiles the file at `path`.
///
/// # Errors
/// Returns every problem of the file, in line order.
pub fn load(path: &Path) -> Result<Config, Vec<Diagnostic>> {
    let text = source::read_text(path).map_err(|problem| vec![problem])?;
    from_text(&text, path, &source::environment_variable)
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
) -> Result<Config, Vec<Diagnostic>> {
    from_text_with_files(text, file, RestOfConfig::Unavailable, environment, &mut DataFiles::default())
}

/// Checks and compiles the bootstrap `text`, the content of `file`, together with a fetched document.
///
/// # Errors
/// Returns every problem of both.
#[cfg(any(test, feature = "fuzzing"))]
pub fn from_bootstrap_and_document(
    text: &str,
    file: &Path,
    document: &FetchedDocument,
) -> Result<Config, Vec<Diagnostic>> {
    from_text_with_files(text, file, RestOfConfig::Document(document), &|_| None, &mut DataFiles::default())
}

/// Checks and compiles `text` together with `rest`, reusing data files that `files` has read before.
fn from_text_with_files(
    text: &str,
    file: &Path,
    rest: RestOfConfig<'_>,
    environment: &dyn Fn(&str) -> Option<String>,
    files: &mut DataFiles,
) -> Result<Config, Vec<Diagnostic>> {
    let MergedTexts { mut value, texts, misplaced_keys: misplaced } =
        source_texts::merge_texts(text, file, rest)?;
    // Names of other files are relative to the folder of the file that has them.
    let in_folder = fragments::is_folder(text).then(|| file.join("weir.yaml"));
    let file = in_folder.as_deref().unwrap_or(file);
    let mut report = Diagnostics::new(&texts);
    misplaced.into_iter().for_each(|problem| report.add_diagnostic(ConfigPath::ROOT, problem));
    source_texts::check_bootstrap(&value, rest, &mut report);
    let references = source::substitute_variables(&mut value, environment, &mut report);
    if !schema_check::check(&mut value, &references, &mut report) {
        return Err(report.into_errors());
    }
    schema_check::note_odd_texts(&value, ConfigPath::ROOT, &mut report);
    let config = match serde_yaml::from_value(value) {
        Ok(raw) => {
            files.start_compilation(file);
            let config = compile::compile(&raw, file, files, &report);
            files.finish_compilation();
            config.map(|config| Config { content_hashes: ContentHashes::compute(&raw, files), ..config })
        }
        Err(error) => {
            // Not expected, because the shape has been checked; reported so that such a file is not silently
            // accepted.
            report.add_value_error(ConfigPath::ROOT, error.to_string());
            None
        }
    };
    match config {
        Some(config) if report.has_no_errors() => Ok(Config { notices: report.into_notes(), ..config }),
        _ => Err(report.into_errors()),
    }
}

#[cfg(test)]
mod tests;
