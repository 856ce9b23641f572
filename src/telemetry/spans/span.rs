//! Span of a request, with attributes of OpenTelemetry's semantic conventions for HTTP servers and some of Weir's own.

use std::time::{Duration, UNIX_EPOCH};

use http::Version;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use super::context::TraceContext;
use crate::telemetry::access_log::AccessLogEntry;

/// Maximum length of a text attribute, in bytes; longer texts are truncated.
const MAX_TEXT_LENGTH: usize = 1024;
/// Maximum number of attributes of a span.
const MAX_ATTRIBUTES: usize = 24;
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
    pub peer: std::net::IpAddr,
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

/// Returns the span of a completed request.
pub(super) fn build_span(
    context: &TraceContext,
    entry: &AccessLogEntry<'_>,
    details: &SpanDetails<'_>,
    scope: &InstrumentationScope,
) -> SpanData {
    let start_time = UNIX_EPOCH + Duration::from_nanos(entry.start.as_nanos());
    let method = method(entry.method.as_str());
    let is_error = entry.status.is_none_or(|status| status.is_server_error());
    SpanData {
        span_context: SpanContext::new(
            TraceId::from(context.trace_id),
            SpanId::from(context.span_id),
            TraceFlags::SAMPLED,
            false,
            context.tracestate.as_deref().and_then(|state| state.parse().ok()).unwrap_or_default(),
        ),
        parent_span_id: context.parent_span_id().map_or(SpanId::INVALID, SpanId::from),
        parent_span_is_remote: context.parent_span_id().is_some(),
        span_kind: SpanKind::Server,
        name: match details.route {
            Some(route) => format!("{method} {route}").into(),
            None => method.into(),
        },
        start_time,
        end_time: start_time.checked_add(entry.duration).unwrap_or(start_time),
        attributes: attributes(entry, details, method),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: if is_error { Status::error("") } else { Status::Unset },
        instrumentation_scope: scope.clone(),
    }
}

fn attributes(entry: &AccessLogEntry<'_>, details: &SpanDetails<'_>, method: &'static str) -> Vec<KeyValue> {
    let (path, query) =
        entry.path.split_once('?').map_or((entry.path, None), |(path, query)| (path, Some(query)));
    let authority = entry.authority.map(String::from_utf8_lossy).unwrap_or_default();
    let (host, port) = split_port(&authority);
    let mut all = Vec::with_capacity(MAX_ATTRIBUTES);
    all.extend([
        KeyValue::new("http.request.method", method),
        text_attribute("url.path", path),
        KeyValue::new("url.scheme", if details.is_secure { "https" } else { "http" }),
        KeyValue::new("network.protocol.version", protocol(entry.protocol)),
        text_attribute("network.peer.address", &details.peer.to_string()),
        text_attribute("client.address", &entry.client_ip.to_string()),
    ]);
    let mut optional =
        |name: &'static str, value: Option<&str>| all.extend(value.map(|value| text_attribute(name, value)));
    optional("http.request.method_original", (method == "_OTHER").then(|| entry.method.as_str()));
    optional("url.query", query);
    optional("server.address", Some(host).filter(|host| !host.is_empty()));
    optional("user_agent.original", entry.user_agent.map(String::from_utf8_lossy).as_deref());
    optional("http.route", details.route);
    optional("weir.rule", entry.rejecting_rule());
    optional("weir.decision", details.decision.map(SpanDecision::as_str));
    optional("weir.response_flags", Some(entry.response_flags).filter(|flags| !matches!(*flags, "" | "-")));
    optional("weir.upstream", entry.upstream_host);
    optional("weir.request_id", entry.request_id.map(String::from_utf8_lossy).as_deref());
    let mut optional_number =
        |name: &'static str, value: Option<u64>| all.extend(value.map(|value| number_attribute(name, value)));
    optional_number("server.port", port);
    optional_number("http.response.status_code", entry.status.map(|status| status.as_u16().into()));
    optional_number("http.request.body.size", Some(entry.bytes_received).filter(|bytes| *bytes > 0));
    optional_number("http.response.body.size", Some(entry.bytes_sent));
    optional_number(
        "weir.retries",
        Some(entry.attempts.saturating_sub(1).into()).filter(|retries| *retries > 0),
    );
    if let Some(SpanDecision::Delayed(delay)) = details.decision {
        all.push(KeyValue::new("weir.delay", delay.as_secs_f64()));
    }
    match entry.status {
        Some(status) if status.is_server_error() => all.push(text_attribute("error.type", status.as_str())),
        Some(_) => {}
        None => all.push(KeyValue::new("error.type", "aborted")),
    }
    all
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

fn text_attribute(name: &'static str, value: &str) -> KeyValue {
    let cut =
        (0..=value.len().min(MAX_TEXT_LENGTH)).rev().find(|cut| value.is_char_boundary(*cut)).unwrap_or(0);
    KeyValue::new(name, value[..cut].to_owned())
}

fn number_attribute(name: &'static str, value: u64) -> KeyValue {
    KeyValue::new(name, i64::try_from(value).unwrap_or(i64::MAX))
}
