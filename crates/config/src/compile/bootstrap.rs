//! Settings of the source that the rest of the configuration is fetched from.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::header::{
    ACCEPT, ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, HOST, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    TRANSFER_ENCODING,
};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::{
    note_switch_as_file, read_duration, read_or_off, read_timeout, resolve_relative, secret_headers,
    upstream_tls,
};
use crate::central::settings::{CentralSettings, DocumentUrl, default_cache_file};
use crate::config_path::ConfigPath;
use crate::data_files::DataFiles;
use crate::diagnostic::{Diagnostics, ValueError};
use crate::parse::UpstreamUrl;
use crate::quoting::quoted;
use crate::{defaults, parse, raw};
use weir_upstream::UpstreamAddress;

/// Headers that Weir sets itself, or that determine the framing of the request.
const RESERVED_HEADERS: [HeaderName; 9] = [
    ACCEPT,
    ACCEPT_ENCODING,
    CONNECTION,
    CONTENT_LENGTH,
    HOST,
    IF_MODIFIED_SINCE,
    IF_NONE_MATCH,
    HeaderName::from_static("prefer"),
    TRANSFER_ENCODING,
];

pub(super) fn compile(
    raw: Option<&raw::Bootstrap>,
    file: &Path,
    at: ConfigPath<'_>,
    files: &mut DataFiles,
    report: &mut Diagnostics<'_>,
) -> Option<CentralSettings> {
    let raw = raw?;
    let url =
        raw.http.as_ref().and_then(|url| report.ok_or_report(at.key("http"), parse::document_url(&url.0)));
    let tls = url.as_ref().map(upstream_url).and_then(|place| {
        upstream_tls::compile_client(raw.tls.as_deref(), &[place], at, at.key("http"), files, report)
    });
    let cache = cache_path(raw.cache.as_ref(), file, at.key("cache"), report);
    let timeout = read_timeout(&raw.timeout, defaults::CENTRAL_TIMEOUT, at.key("timeout"), report);
    let wait = read_wait(raw.wait.as_ref(), at.key("wait"), report);
    let interval = read_interval(raw.interval.as_ref(), at.key("interval"), report);
    let headers = read_headers(raw, at.key("headers"), report);
    Some(CentralSettings {
        url: url?,
        tls,
        headers,
        cache_file: cache,
        wait,
        poll_interval: interval,
        timeout,
    })
}

fn upstream_url(url: &DocumentUrl) -> UpstreamUrl {
    UpstreamUrl {
        address: UpstreamAddress::Tcp { host: url.host.clone(), port: url.port },
        is_secure: url.is_https,
    }
}

fn cache_path(
    raw: Option<&raw::OrOff<String>>,
    file: &Path,
    at: ConfigPath<'_>,
    report: &mut Diagnostics<'_>,
) -> Option<PathBuf> {
    let fault = ValueError::new("expected `disabled` or a file, got true");
    let Some(raw) = raw else { return Some(default_cache_file(file)) };
    let written = read_or_off(raw, fault.with_suggestion(Some("disabled")), at, report)?;
    if written == "disabled" {
        return None;
    }
    if written.ends_with('/') || Path::new(written).file_name().is_none() {
        let fault = ValueError::new(format!("expected a file, got {}", quoted(written)));
        report.add_value_error(at, fault.with_hint("a directory cannot be written to"));
        return None;
    }
    note_switch_as_file("the fetched configuration", written, "", at, report);
    Some(resolve_relative(file, written))
}

/// Whole seconds, because `Prefer: wait=N` counts seconds (RFC 7240 section 4.3).
fn read_wait(raw: Option<&raw::Duration>, at: ConfigPath<'_>, report: &mut Diagnostics<'_>) -> Duration {
    let Some(wait) = read_duration(raw, at, report) else { return defaults::CENTRAL_WAIT };
    if wait.subsec_nanos() > 0 {
        report.add_value_error(at, "expected whole seconds, the unit of `Prefer: wait`");
    }
    if wait > defaults::CENTRAL_MAX_WAIT {
        report.add_value_error(
            at,
            "longer than 1h, which would delay changes for too long after a lost connection",
        );
    }
    wait
}

fn read_interval(raw: Option<&raw::Duration>, at: ConfigPath<'_>, report: &mut Diagnostics<'_>) -> Duration {
    let Some(interval) = read_duration(raw, at, report) else { return defaults::CENTRAL_INTERVAL };
    if interval < defaults::CENTRAL_MIN_INTERVAL {
        report.add_value_error(at, "shorter than 100ms, the shortest interval between requests");
    }
    interval
}

fn read_headers(raw: &raw::Bootstrap, at: ConfigPath<'_>, report: &mut Diagnostics<'_>) -> HeaderMap {
    let name = |name: &String| HeaderName::try_from(name).ok();
    let value = |value: &String| HeaderValue::try_from(value).ok();
    let mut headers = HeaderMap::new();
    for (name, mut value) in secret_headers::read_headers(raw.headers.as_ref(), name, value, at, report) {
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    for given in raw.headers.iter().flat_map(|given| given.keys()) {
        if let Some(ours) = RESERVED_HEADERS.iter().find(|ours| given.eq_ignore_ascii_case(ours.as_str())) {
            report.add_key_error(at.key(given), format!("header `{ours}` cannot be overridden"));
        }
    }
    headers
}
