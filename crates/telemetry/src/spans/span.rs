//! Span of a request, with attributes of OpenTelemetry's semantic conventions for HTTP servers and some of Weir's own.

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::Duration;

use http::Version;
use opentelemetry::trace::TraceState;

use super::context::TraceContext;
use super::otlp::{self, AttributeValue};
use crate::access_log::AccessLogEntry;
use weir_policy::identify::forwarded::write_ip;

/// Maximum length of a text attribute, in bytes; longer texts are truncated.
const MAX_TEXT_LENGTH: usize = 1024;
/// Maximum length of an IP address as text, in bytes.
const MAX_ADDRESS_LENGTH: usize = 45;
/// `SPAN_KIND_SERVER` of OTLP.
const KIND_SERVER: u64 = 2;
/// An empty `Status`: success.
const STATUS_UNSET: &[u8] = b"";
/// A `Status` with the code `STATUS_CODE_ERROR` in field 3.
const STATUS_ERROR: &[u8] = &[3 << 3, 2];
/// `SpanFlags` of OTLP: the W3C flag, and whether the parent is known to be of another process.
const FLAG_SAMPLED: u32 = 1;
const FLAG_HAS_IS_REMOTE: u32 = 0x100;
const FLAG_IS_REMOTE: u32 = 0x200;
/// Methods that spans contain verbatim (semantic conventions, `http.request.method`); others are `_OTHER`.
const METHODS: [&str; 10] =
    ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE"];

/// Contents of a span in addition to those of the access log.
#[derive(Clone, Copy, Debug)]
pub struct SpanDetails<'a> {
    /// Whether the client is connected over TLS.
    pub is_secure: bool,
    /// Path pattern by which a rule matched.
    pub route: Option<&'a str>,
    /// Decision of the rules; `None` if they were not evaluated.
    pub decision: Option<SpanDecision>,
    /// Address of the peer.
    pub peer: IpAddr,
}

/// Decision of the rules for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanDecision {
    /// It was forwarded at once.
    Allowed,
    /// It was delayed by this time, then forwarded or aborted.
    Delayed(Duration),
    /// It was rejected by a limit or a ban.
    Limited,
    /// It was rejected by a `deny` rule.
    Denied,
}

impl SpanDecision {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Delayed(_) => "delayed",
            Self::Limited => "limited",
            Self::Denied => "denied",
        }
    }
}

/// Appends the span of a completed request: a `Span` of OTLP.
pub(super) fn write_span(
    context: &TraceContext,
    entry: &AccessLogEntry<'_>,
    details: &SpanDetails<'_>,
    span: &mut Vec<u8>,
) {
    let (start, method) = (entry.start.as_nanos(), method(entry.method.as_str()));
    let parent = context.parent_span_id();
    otlp::push_bytes(span, 1, &context.trace_id.to_be_bytes());
    otlp::push_bytes(span, 2, &context.span_id.to_be_bytes());
    if let Some(state) = context.tracestate.as_deref().and_then(|state| state.parse::<TraceState>().ok()) {
        otlp::push_bytes(span, 3, state.header().as_bytes());
    }
    if let Some(parent) = parent {
        otlp::push_bytes(span, 4, &parent.to_be_bytes());
    }
    match details.route {
        Some(route) => otlp::push_joined(span, 5, [method, " ", route]),
        None => otlp::push_bytes(span, 5, method.as_bytes()),
    }
    otlp::push_integer(span, 6, KIND_SERVER);
    otlp::push_fixed64(span, 7, start);
    otlp::push_fixed64(span, 8, entry.start.saturating_add(entry.duration).as_nanos());
    SpanAttributes(span).push_all(entry, details, method);
    let is_error = entry.status.is_none_or(|status| status.is_server_error());
    otlp::push_bytes(span, 15, if is_error { STATUS_ERROR } else { STATUS_UNSET });
    otlp::push_span_flags(span, FLAG_SAMPLED | FLAG_HAS_IS_REMOTE | parent.map_or(0, |_| FLAG_IS_REMOTE));
}

/// Writes the attributes of a span.
struct SpanAttributes<'a>(&'a mut Vec<u8>);

impl SpanAttributes<'_> {
    fn push_all(&mut self, entry: &AccessLogEntry<'_>, details: &SpanDetails<'_>, method: &str) {
        let (path, query) =
            entry.path.split_once('?').map_or((entry.path, None), |(path, query)| (path, Some(query)));
        let authority = entry.authority.map(lossy_text).unwrap_or_default();
        let (host, port) = split_port(&authority);
        self.text("http.request.method", method);
        self.text("url.path", path);
        self.text("url.scheme", if details.is_secure { "https" } else { "http" });
        self.text("network.protocol.version", protocol(entry.protocol));
        self.address("network.peer.address", details.peer);
        self.address("client.address", entry.client_ip);
        self.optional_text(
            "http.request.method_original",
            (method == "_OTHER").then(|| entry.method.as_str()),
        );
        self.optional_text("url.query", query);
        self.optional_text("server.address", Some(host).filter(|host| !host.is_empty()));
        self.optional_text("user_agent.original", entry.user_agent.map(lossy_text).as_deref());
        self.optional_text("http.route", details.route);
        self.optional_text("weir.rule", entry.rejecting_rule());
        self.optional_text("weir.decision", details.decision.map(SpanDecision::as_str));
        let has_flags = !matches!(entry.response_flags, "" | "-");
        self.optional_text("weir.response_flags", has_flags.then_some(entry.response_flags));
        self.optional_text("weir.upstream", entry.upstream_host);
        self.optional_text("weir.request_id", entry.request_id.map(lossy_text).as_deref());
        self.push_numbers(entry, port);
        if let Some(SpanDecision::Delayed(delay)) = details.decision {
            self.push("weir.delay", AttributeValue::Double(delay.as_secs_f64()));
        }
        match entry.status {
            Some(status) if status.is_server_error() => self.text("error.type", status.as_str()),
            Some(_) => {}
            None => self.text("error.type", "aborted"),
        }
    }

    fn push_numbers(&mut self, entry: &AccessLogEntry<'_>, port: Option<u64>) {
        let retries = u64::from(entry.attempts.saturating_sub(1));
        self.optional_number("server.port", port);
        self.optional_number("http.response.status_code", entry.status.map(|status| status.as_u16().into()));
        self.optional_number("http.request.body.size", Some(entry.bytes_received).filter(|bytes| *bytes > 0));
        self.optional_number("http.response.body.size", Some(entry.bytes_sent));
        self.optional_number("weir.retries", Some(retries).filter(|retries| *retries > 0));
    }

    fn push(&mut self, name: &str, value: AttributeValue<'_>) {
        otlp::push_attribute(self.0, 9, name, value);
    }

    fn text(&mut self, name: &str, value: &str) {
        let mut end = value.len().min(MAX_TEXT_LENGTH);
        while !value.is_char_boundary(end) {
            end -= 1;
        }
        self.push(name, AttributeValue::Text(&value[..end]));
    }

    fn optional_text(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.text(name, value);
        }
    }

    fn optional_number(&mut self, name: &str, value: Option<u64>) {
        if let Some(value) = value {
            self.push(name, AttributeValue::Integer(i64::try_from(value).unwrap_or(i64::MAX)));
        }
    }

    fn address(&mut self, name: &str, ip: IpAddr) {
        let mut text = Vec::with_capacity(MAX_ADDRESS_LENGTH);
        write_ip(&mut text, ip);
        self.text(name, &lossy_text(&text));
    }
}

/// Returns a text with invalid UTF-8 replaced. Faster than the function of the standard library for valid texts.
fn lossy_text(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => String::from_utf8_lossy(bytes),
    }
}

fn method(name: &str) -> &'static str {
    METHODS.into_iter().find(|known| *known == name).unwrap_or("_OTHER")
}

const fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    }
}

/// Splits off the port after the last colon, unless that colon is part of an IPv6 address.
fn split_port(authority: &str) -> (&str, Option<u64>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok()),
        _ => (authority, None),
    }
}

#[cfg(test)]
mod tests;
