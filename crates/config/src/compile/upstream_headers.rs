//! Headers of requests that an upstream's settings change (`upstream.headers`).

use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderName, HeaderValue};

use super::map_items;
use super::matching::parse_header_name;
use super::rejection::placeholders::describe;
use crate::at::At;
use crate::diagnostic::ValueError;
use crate::raw;
use weir_policy::response::template::{Escaping, Placeholder, Syntax, Template};
use weir_upstream::settings::{HeaderChanges, HeaderText};

/// Headers that frame the message or belong to the connection, and those that are set for each attempt.
const RESERVED_HEADERS: [HeaderName; 13] = [
    CONNECTION,
    CONTENT_LENGTH,
    EXPECT,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
    HeaderName::from_static("x-envoy-attempt-count"),
    HeaderName::from_static("x-envoy-expected-rq-timeout-ms"),
];
/// Placeholders whose values a request has.
const PLACEHOLDERS: [Placeholder; 4] =
    [Placeholder::ClientIp, Placeholder::RequestId, Placeholder::Method, Placeholder::Path];

/// Compiles the changes at `at`.
pub(super) fn compile(raw: Option<&raw::UpstreamHeaders>, at: At<'_>) -> HeaderChanges {
    let Some(raw) = raw else { return HeaderChanges::default() };
    let mut names = Vec::new();
    let mut set = Vec::new();
    for (name, value) in raw.set.iter().flatten() {
        let at = at.key("set");
        let at = at.key(name);
        let name = read_name(name, &mut names, at);
        let text = at.ok(parse_text(value.expose()));
        set.extend(name.zip(text));
    }
    let remove = raw
        .remove
        .as_ref()
        .map(|removed| map_items(removed, at.key("remove"), |name, at| read_name(name, &mut names, at)));
    HeaderChanges { remove: remove.unwrap_or_default().into(), set: set.into() }
}

/// Reads a name that must be none of `names`, to which it is added.
fn read_name(text: &str, names: &mut Vec<HeaderName>, at: At<'_>) -> Option<HeaderName> {
    let name = at.ok(parse_name(text))?;
    if names.contains(&name) {
        let error = ValueError::new(format!("`{name}` is there already"));
        at.error(error.with_hint("names are case-insensitive, and a header is either set or removed"));
        return None;
    }
    names.push(name.clone());
    Some(name)
}

/// Parses the name of a header that may be set in requests.
pub(super) fn parse_name(text: &str) -> Result<HeaderName, ValueError> {
    let name = parse_header_name(text)?;
    if name == HOST {
        return Err(ValueError::new("`host` has a key of its own").with_hint("set `upstream.host`"));
    }
    if RESERVED_HEADERS.contains(&name) {
        return Err(ValueError::new(format!("`{name}` is set by Weir itself")));
    }
    Ok(name)
}

/// Parses a value. It is not quoted in errors, because it may be a secret.
fn parse_text(text: &str) -> Result<HeaderText, ValueError> {
    let invalid = || ValueError::new("a header value must be one line of visible ASCII");
    HeaderValue::from_str(text).map_err(|_| invalid())?;
    let template = Template::parse(text, Syntax::Strict, Escaping::Header, None).map_err(describe)?;
    if let Some(unknown) = Placeholder::ALL
        .into_iter()
        .find(|placeholder| template.uses(*placeholder) && !PLACEHOLDERS.contains(placeholder))
    {
        let error = ValueError::new(format!("`{{{}}}` has no value in a request", unknown.name()));
        let known = PLACEHOLDERS.map(|placeholder| format!("`{{{}}}`", placeholder.name()));
        return Err(error.with_hint(format!("placeholders of requests: {}", known.join(", "))));
    }
    match template.fixed_text() {
        Some(fixed) => HeaderValue::from_bytes(fixed).map(HeaderText::Fixed).map_err(|_| invalid()),
        None => Ok(HeaderText::Template(template)),
    }
}
