//! Alerts and the webhook that receives them.

use std::collections::BTreeMap;

use http::header::{AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderValue};

use super::http_target;
use crate::at::At;
use crate::data_files::DataFiles;
use crate::data_files::jwt_keys::SECRET;
use crate::quoting::quoted;
use crate::{defaults, parse, raw};
use weir_telemetry::alerts::settings::{AlertKindSet, AlertSettings};

/// Labels that Weir sets itself.
const RESERVED_LABELS: [&str; 6] = ["alertname", "severity", "rule", "country", "certificate", "upstream"];

pub(super) fn compile(raw: Option<&raw::Alerts>, at: At<'_>, files: &mut DataFiles) -> Option<AlertSettings> {
    let raw = raw?;
    let url = raw.webhook.as_ref().and_then(|url| at.key("webhook").ok(parse::document_url(url.expose())));
    let headers = read_headers(raw, at, files);
    let webhook = http_target::compile("webhook", url, raw.tls.as_deref(), headers, at, files);
    let repeat_interval = read_interval(raw.interval.as_ref(), at.key("interval"));
    let labels = read_labels(raw.labels.as_ref(), at.key("labels"));
    let kinds =
        raw.only.as_ref().map_or(AlertKindSet::ALL, |kinds| kinds.items().map(|(_, kind)| *kind).collect());
    let runbook_url = raw.runbook_url.as_deref().and_then(|url| read_base(url, at.key("runbook_url")));
    Some(AlertSettings { webhook: webhook?, kinds, repeat_interval, labels, runbook_url })
}

/// Returns the URL of a site without the slash at its end.
fn read_base(text: &str, at: At<'_>) -> Option<Box<str>> {
    let url = at.ok(parse::document_url(text))?;
    if url.target.contains('?') {
        at.error("a query is not allowed, because the path of the runbook follows");
    }
    Some(url.full_url().trim_end_matches('/').into())
}

fn read_interval(raw: Option<&raw::Duration>, at: At<'_>) -> std::time::Duration {
    let Some(interval) = at.duration(raw) else { return defaults::ALERT_REPEAT_INTERVAL };
    if interval < defaults::MIN_ALERT_REPEAT_INTERVAL {
        at.error("shorter than 30s, the shortest interval between two notifications of an alert");
    }
    interval
}

/// Reads the headers of a notification, with the token as one of them.
fn read_headers(raw: &raw::Alerts, at: At<'_>, files: &mut DataFiles) -> HeaderMap {
    let reserved = [CONTENT_TYPE, USER_AGENT];
    let mut headers = http_target::read_headers(raw.headers.as_ref(), &reserved, at.key("headers"));
    let Some(token) = raw.token.as_ref() else { return headers };
    if headers.contains_key(AUTHORIZATION) {
        at.key("token").key_error("both `token` and the header `authorization`, expected one of them");
    }
    if let Some(mut value) = read_token(token, at.key("token"), files) {
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    headers
}

/// Returns the value of `authorization` with the token.
fn read_token(raw: &raw::SecretOrFile, at: At<'_>, files: &mut DataFiles) -> Option<HeaderValue> {
    let header = |token: &[u8]| {
        let is_token = !token.is_empty() && token.iter().all(u8::is_ascii_graphic);
        let value = HeaderValue::try_from([b"Bearer ", token].concat()).ok().filter(|_| is_token);
        value.ok_or("expected a token of visible ASCII characters")
    };
    match raw {
        raw::SecretOrFile::Text(text) => at.ok(header(text.expose().as_bytes())),
        raw::SecretOrFile::File(name) => {
            let read = at.key("file").load(files, name.file.as_deref()?, &SECRET)?;
            at.key("file").ok(header(&read.0))
        }
    }
}

fn read_labels(raw: Option<&BTreeMap<String, String>>, at: At<'_>) -> BTreeMap<String, String> {
    let is_name = |name: &str| {
        let mut letters = name.bytes();
        letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
            && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == b'_')
    };
    for name in raw.into_iter().flat_map(BTreeMap::keys) {
        if RESERVED_LABELS.contains(&name.as_str()) {
            at.key(name).key_error(format!("label `{name}` cannot be overridden"));
        } else if !is_name(name) {
            let expected = "expected letters, digits and underscores";
            at.key(name).key_error(format!("not a label name, {expected}, got {}", quoted(name)));
        }
    }
    raw.cloned().unwrap_or_default()
}
