//! `weir explain`: explains a request by a configuration file alone, or asks a running instance.

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::HeaderValue;
use http::header::CONTENT_TYPE;

use crate::admin_client::{self, AdminClientError, AdminResponse};
use crate::cli::RequestArgs;
use weir_config::{self as config, AdminToken, Config, Diagnostic};
use weir_limiter::elastic::Headroom;
use weir_limiter::leases::PartsByGroup;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{Limiter, LimiterSettings};
use weir_net::clock::Clock;
use weir_policy::engine::overrides::OverrideBook;
use weir_replay::explain::{
    DescriptionError, DocumentLimitReport, DocumentReport, ExplainContext, Explanation, RequestDescription,
    StoreState, explain, render,
};
use weir_rls::decider::{DocumentPreview, RlsDecider};
use weir_rls::unit_limits::UnitLimits;

/// Counters of a request without a running instance: more than a request can have.
const MAX_KEYS: usize = 1000;

/// Content type of a body without another.
const FORM: HeaderValue = HeaderValue::from_static("application/x-www-form-urlencoded");

/// Status of a response that has what was requested.
const OK: u16 = 200;

/// Status of a response to a request without the token.
const UNAUTHORIZED: u16 = 401;

/// Arguments of the command.
#[derive(Clone, Debug)]
pub struct ExplainArgs {
    /// Configuration file; `None` to ask the instance at `admin` only.
    pub config: Option<PathBuf>,
    /// Address of the admin port of a running instance.
    pub admin: Option<String>,
    /// Token of that admin port. By default, that of the configuration file.
    pub token: Option<String>,
    /// The request to explain.
    pub request: RequestArgs,
    /// Method of the request; `None` for a descriptor without one.
    pub method: Option<String>,
    /// URL or path of the request; `None` for a descriptor without one.
    pub url: Option<String>,
    /// Whether the output is JSON.
    pub is_json: bool,
}

/// Why there is no explanation.
#[derive(Debug)]
pub enum ExplainError {
    /// Problems of the configuration.
    Configuration(Vec<Diagnostic>),
    /// Anything else, in one line.
    Other(String),
}

impl From<DescriptionError> for ExplainError {
    fn from(error: DescriptionError) -> Self {
        Self::Other(error.to_string())
    }
}

impl From<AdminClientError> for ExplainError {
    fn from(error: AdminClientError) -> Self {
        let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
        Self::Other(format!("{error}{cause}"))
    }
}

/// Returns the output of the command, and a note for standard error if there is one.
///
/// # Errors
/// [`ExplainError`] if the arguments, the configuration or the running instance do not allow an explanation.
pub fn run(args: &ExplainArgs, default_config: &Path) -> Result<(String, Option<String>), ExplainError> {
    let request = describe(args.method.as_deref(), args.url.as_deref(), &args.request)?;
    let (explanation, note) = match &args.admin {
        Some(address) => from_instance(args, address, &request)?,
        None => {
            let path = args.config.as_deref().unwrap_or(default_config);
            let config = config::load(path).map_err(ExplainError::Configuration)?;
            let note = "no running instance (`--admin`): all counters are unused";
            (from_config(&config, &request), Some(note.to_owned()))
        }
    };
    if !args.is_json {
        return Ok((render(&explanation), note));
    }
    let json =
        serde_json::to_string_pretty(&explanation).map_err(|error| ExplainError::Other(error.to_string()))?;
    Ok((json + "\n", note))
}

/// Returns the request that the arguments describe. A descriptor needs no method and URL.
///
/// # Errors
/// [`ExplainError::Other`] if an argument is invalid, or a file with a body is not readable.
pub(crate) fn describe(
    method: Option<&str>,
    url: Option<&str>,
    args: &RequestArgs,
) -> Result<RequestDescription, ExplainError> {
    let mut request = RequestDescription::default();
    if let Some(method) = method {
        request.set("method", method)?;
    }
    if let Some(url) = url {
        request.set_url(url)?;
    }
    for line in &args.headers {
        request.add_header_line(line)?;
    }
    if !args.data.is_empty() {
        let parts = args.data.iter().map(|data| read_data(data)).collect::<Result<Vec<_>, _>>()?;
        request.set("body", &parts.join("&"))?;
        if !request.headers.contains_key(CONTENT_TYPE) {
            request.headers.insert(CONTENT_TYPE, FORM);
        }
    }
    if let Some(client) = args.client {
        request.peer = client.to_canonical();
    }
    request.listener.clone_from(&args.listener);
    if let Some(domain) = &args.domain {
        request.set("domain", domain)?;
    }
    for entry in &args.descriptor {
        let (key, value) = entry.split_once('=').ok_or_else(|| {
            ExplainError::Other(format!("--descriptor: expected `key=value`, got `{entry}`"))
        })?;
        request.set(&format!("descriptor.{key}"), value)?;
    }
    Ok(request)
}

/// Returns a part of the body: `data` itself or, as with curl, the content of a file without its line breaks.
fn read_data(data: &str) -> Result<String, ExplainError> {
    let Some(file) = data.strip_prefix('@') else { return Ok(data.to_owned()) };
    let read = match file {
        "-" => std::io::read_to_string(std::io::stdin()),
        file => std::fs::read_to_string(file),
    };
    let text = read.map_err(|error| ExplainError::Other(format!("--data: {file}: not readable: {error}")))?;
    Ok(text.replace(['\r', '\n'], ""))
}

/// Explains by a configuration and unused counters.
fn from_config(config: &Config, request: &RequestDescription) -> Explanation {
    let clock = Clock::start();
    let now = clock.now();
    let limiter = Limiter::new(LimiterSettings { max_keys: MAX_KEYS, secret: [0; 2] });
    let policy = config.policy.install(1, &limiter, now);
    let mut explanation = explain(
        request,
        &ExplainContext {
            policy: &policy,
            limiter: &limiter,
            overrides: &OverrideBook::default(),
            headroom: Headroom::NONE,
            store: if config.store.is_some() { StoreState::Reachable } else { StoreState::Unreachable },
            parts: &PartsByGroup::default(),
            now,
            wall_clock: clock.civil_now(),
        },
    );
    // Each process hashes keys under a secret of its own.
    for key in explanation.rules.iter_mut().filter_map(|rule| rule.key.as_mut()) {
        key.fingerprint = None;
    }
    match (&request.domain, document_preview(config, request, &limiter, now)) {
        (Some(_), Some(preview)) => explanation.with_documents(document_report(preview)),
        _ => explanation,
    }
}

/// Returns what documents would do, as data of an explanation.
pub fn document_report(preview: DocumentPreview) -> DocumentReport {
    let is_known_domain = preview != DocumentPreview::UnknownDomain;
    let is_unlimited = preview == DocumentPreview::Unlimited;
    let limit = match preview {
        DocumentPreview::Limited(limit) => Some(DocumentLimitReport {
            name: limit.name.to_string(),
            requests_per_unit: limit.requests_per_unit,
            unit: limit.unit.to_owned(),
            remaining: limit.remaining,
            reset_seconds: limit.reset.as_secs(),
            is_shadow: limit.is_shadow,
        }),
        DocumentPreview::UnknownDomain | DocumentPreview::NoLimit | DocumentPreview::Unlimited => None,
    };
    DocumentReport { is_known_domain, is_unlimited, limit }
}

/// Returns what the documents of the configuration would do to a descriptor; `None` without a rate limit service.
fn document_preview(
    config: &Config,
    request: &RequestDescription,
    limiter: &Limiter,
    now: Timestamp,
) -> Option<DocumentPreview> {
    let (options, domain) = (config.rls.as_ref()?, request.domain.as_deref()?);
    let decider = RlsDecider {
        rules: options.loaded_rules.as_ref().map(|loaded| Arc::clone(&loaded.rules)),
        settings: Arc::clone(&options.decision_settings),
        unit_limits: UnitLimits::install(limiter, now)?,
        shared_limits: None,
        native_policy: None,
    };
    Some(decider.preview(domain, &request.entries, limiter, now))
}

/// Asks a running instance, whose own configuration decides.
fn from_instance(
    args: &ExplainArgs,
    address: &str,
    request: &RequestDescription,
) -> Result<(Explanation, Option<String>), ExplainError> {
    let token = match (&args.token, &args.config) {
        (Some(token), _) => Some(format!("Bearer {token}")),
        (None, Some(path)) => config::load(path)
            .map_err(ExplainError::Configuration)?
            .admin
            .token
            .as_ref()
            .map(AdminToken::to_authorization),
        (None, None) => None,
    };
    let response = admin_client::get(address, &target(request), token.as_deref())?;
    let explanation = read_explanation(address, &response)?;
    let note = args.config.as_deref().and_then(|path| difference(path, &explanation));
    Ok((explanation, note))
}

/// Returns the path and query of the admin port that explain a request.
pub(crate) fn target(request: &RequestDescription) -> String {
    format!("/explain?{}", request.to_query())
}

/// Reads the response of the admin port at `address`.
///
/// # Errors
/// [`ExplainError::Other`] if it is not an explanation.
pub(crate) fn read_explanation(address: &str, response: &AdminResponse) -> Result<Explanation, ExplainError> {
    if response.status == UNAUTHORIZED {
        return Err(AdminClientError::Unauthorized.into());
    }
    if response.status != OK {
        let text = String::from_utf8_lossy(&response.body);
        return Err(ExplainError::Other(format!("{address}: {} {}", response.status, text.trim_end())));
    }
    serde_json::from_slice(&response.body)
        .map_err(|error| ExplainError::Other(format!("{address}: not an explanation: {error}")))
}

/// Returns a note if the file is not the configuration by which the instance decides.
fn difference(path: &Path, explanation: &Explanation) -> Option<String> {
    let hash = format!("{:016x}", config::text_hash(path).ok()?);
    let running = explanation.config_hash.as_ref().filter(|running| **running != hash)?;
    let file = path.display();
    Some(format!("{file} differs from the configuration of the instance, which decides (hash {running})"))
}
