//! What a rule answers when it refuses.

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderName, HeaderValue, StatusCode};

use super::matching::header_name;
use crate::config::at::At;
use crate::config::problem::{Fault, Report, quoted};
use crate::config::{defaults, raw};
use crate::response::refusal::{Refusal, X_ENVOY_RATELIMITED};

/// What Weir says itself, and what belongs to the connection.
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
    report: &mut Report<'_>,
) -> Refusal {
    let mut refusal = Refusal::default();
    let Some(raw) = raw else { return refusal };
    let status = raw.status.and_then(|status| u16::try_from(status).ok()).unwrap_or(defaults::REFUSAL_STATUS);
    refusal.status = StatusCode::from_u16(status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    if let Some(body) = &raw.body {
        set_body(body, &mut refusal);
    }
    for (name, value) in raw.headers.iter().flatten() {
        let at = at.key("headers");
        let at = at.key(name);
        match header(name, value, rule) {
            Ok((name, value)) => drop(refusal.headers.insert(name, value)),
            Err(fault) => report.value(at, fault),
        }
    }
    refusal
}

fn set_body(raw: &raw::Body, refusal: &mut Refusal) {
    if let Some(text) = &raw.text {
        refusal.body = Bytes::copy_from_slice(text.as_bytes());
    } else if let Some(json) = &raw.json {
        refusal.body = Bytes::from(json.0.to_string());
        refusal.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
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
            Err(Fault::new(format!("a header's value is one line of visible text, got {}", quoted(&value))))
        }
    }
}
