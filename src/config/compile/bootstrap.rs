//! Settings of the source that the rest of the configuration is fetched from.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::header::{
    ACCEPT, ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, HOST, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    TRANSFER_ENCODING,
};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::{beside, credentials, duration, on, timeout, upstream_tls};
use crate::central::settings::{Settings, Url, cache_beside};
use crate::config::at::At;
use crate::config::files::Files;
use crate::config::parse::UpstreamPlace;
use crate::config::problem::{Fault, Report, quoted};
use crate::config::{defaults, parse, raw};
use crate::upstream::UpstreamAddress;

/// Headers that Weir sets itself, or that determine the framing of the request.
const OURS: [HeaderName; 9] = [
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
    at: At<'_>,
    files: &mut Files,
    report: &mut Report<'_>,
) -> Option<Settings> {
    let raw = raw?;
    let url = raw.http.as_ref().and_then(|url| report.take(at.key("http"), parse::document_url(&url.0)));
    let tls = url.as_ref().map(place).and_then(|place| {
        upstream_tls::client(raw.tls.as_deref(), &[place], (at, at.key("http")), files, report)
    });
    let cache = kept_in(raw.cache.as_ref(), file, at.key("cache"), report);
    let timeout = timeout(&raw.timeout, defaults::CENTRAL_TIMEOUT, at.key("timeout"), report);
    let wait = wait(raw.wait.as_ref(), at.key("wait"), report);
    let interval = interval(raw.interval.as_ref(), at.key("interval"), report);
    let headers = headers(raw, at.key("headers"), report);
    Some(Settings { url: url?, tls, headers, cache, wait, interval, timeout })
}

fn place(url: &Url) -> UpstreamPlace {
    UpstreamPlace {
        address: UpstreamAddress::Tcp { host: url.host.clone(), port: url.port },
        is_secure: url.is_secure,
    }
}

fn kept_in(
    raw: Option<&raw::OrOff<String>>,
    file: &Path,
    at: At<'_>,
    report: &mut Report<'_>,
) -> Option<PathBuf> {
    let fault = Fault::new("expected `disabled` or a file, got true");
    let Some(raw) = raw else { return Some(cache_beside(file)) };
    let written = on(raw, fault.meant(Some("disabled")), at, report)?;
    if written == "disabled" {
        return None;
    }
    if written.ends_with('/') || Path::new(written).file_name().is_none() {
        let fault = Fault::new(format!("expected a file, got {}", quoted(written)));
        report.value(at, fault.hint("a directory cannot be written to"));
        return None;
    }
    Some(beside(file, written))
}

/// Whole seconds, because `Prefer: wait=N` counts seconds (RFC 7240 section 4.3).
fn wait(raw: Option<&raw::Duration>, at: At<'_>, report: &mut Report<'_>) -> Duration {
    let Some(wait) = duration(raw, at, report) else { return defaults::CENTRAL_WAIT };
    if wait.subsec_nanos() > 0 {
        report.value(at, "expected whole seconds, the unit of `Prefer: wait`");
    }
    if wait > defaults::CENTRAL_LONGEST_WAIT {
        report.value(at, "longer than 1h, which would delay changes for too long after a lost connection");
    }
    wait
}

fn interval(raw: Option<&raw::Duration>, at: At<'_>, report: &mut Report<'_>) -> Duration {
    let Some(interval) = duration(raw, at, report) else { return defaults::CENTRAL_INTERVAL };
    if interval < defaults::CENTRAL_SHORTEST_INTERVAL {
        report.value(at, "shorter than 100ms, the shortest interval between requests");
    }
    interval
}

fn headers(raw: &raw::Bootstrap, at: At<'_>, report: &mut Report<'_>) -> HeaderMap {
    let name = |name: &String| HeaderName::try_from(name).ok();
    let value = |value: &String| HeaderValue::try_from(value).ok();
    let mut headers = HeaderMap::new();
    for (name, mut value) in credentials::headers(raw.headers.as_ref(), (name, value), at, report) {
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    for given in raw.headers.iter().flat_map(|given| given.keys()) {
        if let Some(ours) = OURS.iter().find(|ours| given.eq_ignore_ascii_case(ours.as_str())) {
            report.key(at.key(given), format!("header `{ours}` cannot be overridden"));
        }
    }
    headers
}
