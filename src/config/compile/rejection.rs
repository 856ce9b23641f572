//! The local reply of a rule that rejects a request (`on_limit`).

use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HOST, PROXY_AUTHORIZATION, RETRY_AFTER,
    TE, TRAILER, TRANSFER_ENCODING, UPGRADE, WARNING,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use super::matching::{parse_header_name, parse_method};
use super::{given_keys, map_items};
use crate::config::config_path::ConfigPath;
use crate::config::data_files::DataFiles;
use crate::config::data_files::response_body::{RESPONSE_BODY, media_type};
use crate::config::diagnostic::{Diagnostics, ValueError};
use crate::config::{defaults, parse, raw};
use crate::response::fallback::{DEGRADED, FallbackCacheSettings};
use crate::response::rejection::{DegradedResponse, RejectionResponse, X_ENVOY_RATELIMITED};

/// Headers that Weir sets itself, and hop-by-hop headers.
const RESERVED_HEADERS: [HeaderName; 9] = [
    CONNECTION,
    CONTENT_LENGTH,
    HeaderName::from_static("keep-alive"),
    RETRY_AFTER,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    X_ENVOY_RATELIMITED,
];

pub(super) fn compile(
    raw: Option<&raw::OnLimit>,
    rule: &str,
    at: ConfigPath<'_>,
    files: &mut DataFiles,
    report: &mut Diagnostics<'_>,
) -> RejectionResponse {
    let mut rejection = RejectionResponse::default();
    let Some(raw) = raw else { return rejection };
    rejection.status = status_code(raw.status, defaults::REJECTION_STATUS);
    if let Some(body) = &raw.body {
        set_body(body, &mut rejection, at.key("body"), files, report);
    }
    if let Some(fallback) = &raw.fallback {
        set_fallback(fallback, &mut rejection, at.key("fallback"), files, report);
    }
    for (name, value) in raw.headers.iter().flatten() {
        let at = at.key("headers");
        let at = at.key(name);
        match parse_header(name, value.expose(), rule) {
            Ok((name, value)) => {
                if let Some(degraded) = &mut rejection.degraded {
                    degraded.headers.insert(&name, value.clone());
                }
                rejection.headers.insert(name, value);
            }
            Err(fault) => report.add_value_error(at, fault),
        }
    }
    rejection
}

/// The schema admits only numbers that are valid status codes.
pub(super) fn status_code(raw: Option<u16>, default: u16) -> StatusCode {
    StatusCode::from_u16(raw.unwrap_or(default)).unwrap_or(StatusCode::TOO_MANY_REQUESTS)
}

fn set_body(
    raw: &raw::Body,
    rejection: &mut RejectionResponse,
    at: ConfigPath<'_>,
    files: &mut DataFiles,
    report: &mut Diagnostics<'_>,
) {
    if let Some(text) = &raw.text {
        rejection.body = Bytes::copy_from_slice(text.as_bytes());
    } else if let Some(json) = &raw.json {
        rejection.body = Bytes::from(json.0.to_string());
        rejection.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    } else if let Some(name) = &raw.file {
        if let Some(content) = files.load(name, &RESPONSE_BODY, at.key("file"), report) {
            rejection.body = Bytes::clone(&content);
            rejection.headers.insert(CONTENT_TYPE, media_type(name));
        }
    } else if let Some(name) = &raw.fallback {
        rejection.degraded = load_degraded_response(name, None, None, at.key("fallback"), files, report);
    }
}

/// Loads a file that replaces the upstream's response. By default it is sent only for safe methods: any other
/// request has not been performed, and a success response would claim that it was.
fn load_degraded_response(
    name: &str,
    status: Option<u16>,
    methods: Option<Box<[Method]>>,
    at: ConfigPath<'_>,
    files: &mut DataFiles,
    report: &mut Diagnostics<'_>,
) -> Option<Box<DegradedResponse>> {
    let content = files.load(name, &RESPONSE_BODY, at, report)?;
    Some(Box::new(DegradedResponse {
        status: status_code(status, defaults::FALLBACK_STATUS),
        body: Bytes::clone(&content),
        headers: HeaderMap::from_iter([(CONTENT_TYPE, media_type(name)), (WARNING, DEGRADED)]),
        methods: methods.unwrap_or_else(|| Box::new(defaults::FALLBACK_METHODS)),
    }))
}

fn set_fallback(
    raw: &raw::Fallback,
    rejection: &mut RejectionResponse,
    at: ConfigPath<'_>,
    files: &mut DataFiles,
    report: &mut Diagnostics<'_>,
) {
    rejection.cached_fallback =
        raw.cached.as_ref().and_then(|cached| compile_cache(raw, cached, at.single_item(), report));
    let without = |key: &str, other: &str| format!("`{key}` has no meaning without `{other}`");
    if raw.cached.is_none() {
        let keys = [
            ("largest", raw.largest.is_some()),
            ("max_age", raw.max_age.is_some()),
            ("ignore_headers", raw.ignore_headers.is_some()),
        ];
        for key in given_keys(keys) {
            report.add_key_error(at.key(key), without(key, "cached"));
        }
    }
    let methods = raw.methods.as_ref().map(|methods| {
        map_items(methods, at.key("methods"), |raw, at| report.ok_or_report(at, parse_method(&raw.0)))
            .into_boxed_slice()
    });
    match &raw.file {
        Some(name) => {
            rejection.degraded =
                load_degraded_response(name, raw.status, methods, at.key("file"), files, report);
        }
        None => {
            let keys = [("status", raw.status.is_some()), ("methods", raw.methods.is_some())];
            let mut given = given_keys(keys).peekable();
            if given.peek().is_none() && raw.cached.is_none() && !report.is_reported(at.key("cached")) {
                report.add_value_error(at, "missing, expected `cached` or `file`");
                return;
            }
            for key in given {
                report.add_key_error(at.key(key), without(key, "file"));
            }
        }
    }
}

fn compile_cache(
    raw: &raw::Fallback,
    cached: &raw::Size,
    at: ConfigPath<'_>,
    report: &mut Diagnostics<'_>,
) -> Option<FallbackCacheSettings> {
    let budget = report.ok_or_report(at.key("cached"), parse::size(&cached.0))?;
    let max_allowed_size = budget / defaults::MIN_CACHED_RESPONSES;
    let max_size = match &raw.largest {
        Some(largest) => report.ok_or_report(at.key("largest"), parse::size(&largest.0))?,
        None => max_allowed_size.min(defaults::MAX_CACHED_SIZE),
    };
    if max_size > max_allowed_size {
        let fault =
            ValueError::new(format!("more than a quarter of `cached`, got {max_size} bytes of {budget}"));
        report.add_value_error(at.key("largest"), fault.with_hint("the cache would hold too few responses"));
    }
    let max_age = match &raw.max_age {
        Some(max_age) => report.ok_or_report(at.key("max_age"), parse::duration(&max_age.0))?,
        None => defaults::MAX_CACHED_AGE,
    };
    let ignored = match &raw.ignore_headers {
        Some(names) => map_items(names, at.key("ignore_headers"), |name, at| {
            report.ok_or_report(at, parse_ignored_header(name))
        })
        .into(),
        None => Arc::default(),
    };
    Some(FallbackCacheSettings { budget, max_size, max_age, ignored })
}

/// Parses a header in which stored responses may differ without being distinguished. Rejects headers that are
/// specific to a client or host, and `connection`, which removes other headers.
fn parse_ignored_header(text: &str) -> Result<HeaderName, ValueError> {
    let name = parse_header_name(text)?;
    if matches!(name, AUTHORIZATION | CONNECTION | COOKIE | HOST | PROXY_AUTHORIZATION) {
        let fault = ValueError::new(format!("`{name}` cannot be ignored, because responses depend on it"));
        return Err(fault.with_hint("remove it from the list"));
    }
    Ok(name)
}

fn parse_header(name: &str, value: &str, rule: &str) -> Result<(HeaderName, HeaderValue), ValueError> {
    let name = parse_header_name(name)?;
    if RESERVED_HEADERS.contains(&name) {
        return Err(ValueError::new(format!("`{name}` is set by Weir itself")));
    }
    let value = value.replace("{rule}", rule);
    match HeaderValue::from_str(&value) {
        Ok(value) => Ok((name, value)),
        Err(_) => {
            // The value is not quoted, because it may be a secret and problems are logged.
            Err(ValueError::new("a header value must be one line of visible ASCII"))
        }
    }
}
