//! The local reply of a rule that rejects a request (`on_limit`).

use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HOST, PROXY_AUTHORIZATION, RETRY_AFTER,
    TE, TRAILER, TRANSFER_ENCODING, UPGRADE, WARNING,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use super::matching::{header_name, method};
use super::{each, given};
use crate::config::at::At;
use crate::config::files::Files;
use crate::config::files::content::{CONTENT, media_type};
use crate::config::problem::{Fault, Report};
use crate::config::{defaults, parse, raw};
use crate::response::fallback::{DEGRADED, FallbackCacheSettings};
use crate::response::rejection::{DegradedResponse, RejectionResponse, X_ENVOY_RATELIMITED};

/// Headers that Weir sets itself, and hop-by-hop headers.
const RESERVED: [HeaderName; 9] = [
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
    at: At<'_>,
    files: &mut Files,
    report: &mut Report<'_>,
) -> RejectionResponse {
    let mut refusal = RejectionResponse::default();
    let Some(raw) = raw else { return refusal };
    refusal.status = status(raw.status, defaults::REFUSAL_STATUS);
    if let Some(body) = &raw.body {
        set_body(body, &mut refusal, at.key("body"), files, report);
    }
    if let Some(fallback) = &raw.fallback {
        set_fallback(fallback, &mut refusal, at.key("fallback"), files, report);
    }
    for (name, value) in raw.headers.iter().flatten() {
        let at = at.key("headers");
        let at = at.key(name);
        match header(name, value.expose(), rule) {
            Ok((name, value)) => {
                if let Some(degraded) = &mut refusal.degraded {
                    degraded.headers.insert(&name, value.clone());
                }
                refusal.headers.insert(name, value);
            }
            Err(fault) => report.value(at, fault),
        }
    }
    refusal
}

/// The schema admits only numbers that are valid status codes.
fn status(raw: Option<u16>, default: u16) -> StatusCode {
    StatusCode::from_u16(raw.unwrap_or(default)).unwrap_or(StatusCode::TOO_MANY_REQUESTS)
}

fn set_body(
    raw: &raw::Body,
    refusal: &mut RejectionResponse,
    at: At<'_>,
    files: &mut Files,
    report: &mut Report<'_>,
) {
    if let Some(text) = &raw.text {
        refusal.body = Bytes::copy_from_slice(text.as_bytes());
    } else if let Some(json) = &raw.json {
        refusal.body = Bytes::from(json.0.to_string());
        refusal.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    } else if let Some(name) = &raw.file {
        if let Some(content) = files.load(name, &CONTENT, at.key("file"), report) {
            refusal.body = Bytes::clone(&content);
            refusal.headers.insert(CONTENT_TYPE, media_type(name));
        }
    } else if let Some(name) = &raw.fallback {
        refusal.degraded = degraded(name, (None, None), at.key("fallback"), files, report);
    }
}

/// Loads a file that replaces the upstream's response. By default it is sent only for safe methods: any other
/// request has not been performed, and a success response would claim that it was.
fn degraded(
    name: &str,
    (status, methods): (Option<u16>, Option<Box<[Method]>>),
    at: At<'_>,
    files: &mut Files,
    report: &mut Report<'_>,
) -> Option<Box<DegradedResponse>> {
    let content = files.load(name, &CONTENT, at, report)?;
    Some(Box::new(DegradedResponse {
        status: self::status(status, defaults::FALLBACK_STATUS),
        body: Bytes::clone(&content),
        headers: HeaderMap::from_iter([(CONTENT_TYPE, media_type(name)), (WARNING, DEGRADED)]),
        methods: methods.unwrap_or_else(|| Box::new(defaults::FALLBACK_METHODS)),
    }))
}

fn set_fallback(
    raw: &raw::Fallback,
    refusal: &mut RejectionResponse,
    at: At<'_>,
    files: &mut Files,
    report: &mut Report<'_>,
) {
    refusal.cached_fallback = raw.cached.as_ref().and_then(|cached| keeping(raw, cached, at.same(), report));
    let without = |key: &str, other: &str| format!("`{key}` has no meaning without `{other}`");
    if raw.cached.is_none() {
        let keys = [
            ("largest", raw.largest.is_some()),
            ("max_age", raw.max_age.is_some()),
            ("ignore_headers", raw.ignore_headers.is_some()),
        ];
        for key in given(keys) {
            report.key(at.key(key), without(key, "cached"));
        }
    }
    let methods = raw.methods.as_ref().map(|methods| {
        each(methods, at.key("methods"), |raw, at| report.take(at, method(&raw.0))).into_boxed_slice()
    });
    match &raw.file {
        Some(name) => {
            refusal.degraded = degraded(name, (raw.status, methods), at.key("file"), files, report);
        }
        None => {
            let keys = [("status", raw.status.is_some()), ("methods", raw.methods.is_some())];
            let mut given = given(keys).peekable();
            if given.peek().is_none() && raw.cached.is_none() && !report.is_faulty(at.key("cached")) {
                report.value(at, "missing, expected `cached` or `file`");
                return;
            }
            for key in given {
                report.key(at.key(key), without(key, "file"));
            }
        }
    }
}

fn keeping(
    raw: &raw::Fallback,
    cached: &raw::Size,
    at: At<'_>,
    report: &mut Report<'_>,
) -> Option<FallbackCacheSettings> {
    let budget = report.take(at.key("cached"), parse::size(&cached.0))?;
    let most = budget / defaults::FEWEST_KEPT;
    let largest = match &raw.largest {
        Some(largest) => report.take(at.key("largest"), parse::size(&largest.0))?,
        None => most.min(defaults::LARGEST_KEPT),
    };
    if largest > most {
        let fault = Fault::new(format!("more than a quarter of `cached`, got {largest} bytes of {budget}"));
        report.value(at.key("largest"), fault.hint("the cache would hold too few responses"));
    }
    let max_age = match &raw.max_age {
        Some(max_age) => report.take(at.key("max_age"), parse::duration(&max_age.0))?,
        None => defaults::OLDEST_KEPT,
    };
    let ignored = match &raw.ignore_headers {
        Some(names) => {
            each(names, at.key("ignore_headers"), |name, at| report.take(at, ignorable(name))).into()
        }
        None => Arc::default(),
    };
    Some(FallbackCacheSettings { budget, max_size: largest, max_age, ignored })
}

/// Parses a header in which stored responses may differ without being distinguished. Rejects headers that are
/// specific to a client or host, and `connection`, which removes other headers.
fn ignorable(text: &str) -> Result<HeaderName, Fault> {
    let name = header_name(text)?;
    if matches!(name, AUTHORIZATION | CONNECTION | COOKIE | HOST | PROXY_AUTHORIZATION) {
        let fault = Fault::new(format!("`{name}` cannot be ignored, because responses depend on it"));
        return Err(fault.hint("remove it from the list"));
    }
    Ok(name)
}

fn header(name: &str, value: &str, rule: &str) -> Result<(HeaderName, HeaderValue), Fault> {
    let name = header_name(name)?;
    if RESERVED.contains(&name) {
        return Err(Fault::new(format!("`{name}` is set by Weir itself")));
    }
    let value = value.replace("{rule}", rule);
    match HeaderValue::from_str(&value) {
        Ok(value) => Ok((name, value)),
        Err(_) => {
            // The value is not quoted, because it may be a secret and problems are logged.
            Err(Fault::new("a header value must be one line of visible ASCII"))
        }
    }
}
