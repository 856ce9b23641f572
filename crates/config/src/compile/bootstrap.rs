//! Settings of the source that the rest of the configuration is fetched from.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderName;
use http::header::{ACCEPT, ACCEPT_ENCODING, IF_MODIFIED_SINCE, IF_NONE_MATCH};

use super::http_target;
use crate::at::At;
use crate::central::settings::{CentralSettings, default_cache_file};
use crate::data_files::DataFiles;
use crate::diagnostic::ValueError;
use crate::{defaults, parse, raw};

/// Headers that Weir sets itself.
const RESERVED_HEADERS: [HeaderName; 5] =
    [ACCEPT, ACCEPT_ENCODING, IF_MODIFIED_SINCE, IF_NONE_MATCH, HeaderName::from_static("prefer")];

pub(super) fn compile(
    raw: Option<&raw::Bootstrap>,
    file: &Path,
    at: At<'_>,
    files: &mut DataFiles,
) -> Option<CentralSettings> {
    let raw = raw?;
    let url = raw.http.as_ref().and_then(|url| at.key("http").ok(parse::document_url(&url.0)));
    let headers = http_target::read_headers(raw.headers.as_ref(), &RESERVED_HEADERS, at.key("headers"));
    let server = http_target::compile("http", url, raw.tls.as_deref(), headers, at, files);
    let cache = cache_path(raw.cache.as_ref(), file, at.key("cache"));
    let timeout = at.key("timeout").timeout(&raw.timeout, defaults::CENTRAL_TIMEOUT);
    let wait = read_wait(raw.wait.as_ref(), at.key("wait"));
    let poll_interval = read_interval(raw.interval.as_ref(), at.key("interval"));
    Some(CentralSettings { server: server?, cache_file: cache, wait, poll_interval, timeout })
}

fn cache_path(raw: Option<&raw::OrOff<String>>, file: &Path, at: At<'_>) -> Option<PathBuf> {
    let error = ValueError::new("expected `disabled` or a file, got true");
    let Some(raw) = raw else { return Some(default_cache_file(file)) };
    let written = at.unless_off(raw, error.with_suggestion(Some("disabled")))?;
    if written == "disabled" {
        return None;
    }
    at.written_file("the fetched configuration", written, file)
}

/// Whole seconds, because `Prefer: wait=N` counts seconds (RFC 7240 section 4.3).
fn read_wait(raw: Option<&raw::Duration>, at: At<'_>) -> Duration {
    let Some(wait) = at.duration(raw) else { return defaults::CENTRAL_WAIT };
    if wait.subsec_nanos() > 0 {
        at.error("expected whole seconds, the unit of `Prefer: wait`");
    }
    if wait > defaults::CENTRAL_MAX_WAIT {
        at.error("longer than 1h, which would delay changes for too long after a lost connection");
    }
    wait
}

fn read_interval(raw: Option<&raw::Duration>, at: At<'_>) -> Duration {
    let Some(interval) = at.duration(raw) else { return defaults::CENTRAL_INTERVAL };
    if interval < defaults::CENTRAL_MIN_INTERVAL {
        at.error("shorter than 100ms, the shortest interval between requests");
    }
    interval
}
