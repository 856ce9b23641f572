//! Spans as OTLP has them: attributes by OpenTelemetry's semantic conventions for servers of HTTP, and a few of ours.

use std::time::Duration;

use http::Version;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span as Message, Status};

use super::context::Context;
use crate::telemetry::access_log::Entry;
use crate::telemetry::metrics::VERSION;

/// Longer texts of a client's are cut.
const LONGEST_TEXT: usize = 1024;
/// Methods that a span says as they are (semantic conventions, `http.request.method`); others are `_OTHER`.
const METHODS: [&str; 10] =
    ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE"];

/// What a span says beside what the access log would.
#[derive(Clone, Copy, Debug)]
pub struct Notes<'a> {
    /// Whether the client came by TLS.
    pub is_secure: bool,
    /// The pattern of the path by which a rule matched.
    pub route: Option<&'a str>,
    /// What the rules made of the request; `None` if they were not asked.
    pub decision: Option<Decision>,
    /// The other end of the connection.
    pub peer: std::net::IpAddr,
}

/// What rules make of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It went on at once.
    Allowed,
    /// It was held back for so long, and went on or ended.
    Delayed(Duration),
    /// A limit or a ban refused it.
    Limited,
    /// A rule denied it.
    Denied,
}

impl Decision {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Delayed(_) => "delayed",
            Self::Limited => "limited",
            Self::Denied => "denied",
        }
    }
}

/// A span that has ended.
#[derive(Debug)]
pub(super) struct Span(Message);

impl Span {
    /// The span of a request.
    pub(super) fn new(context: &Context, entry: &Entry<'_>, notes: &Notes<'_>) -> Self {
        let start = entry.start.as_nanos();
        let method = method(entry.method.as_str());
        let name = match notes.route {
            Some(route) => format!("{method} {route}"),
            None => method.to_owned(),
        };
        let fails = entry.status.is_none_or(|status| status.is_server_error());
        Self(Message {
            trace_id: context.trace().to_be_bytes().to_vec(),
            span_id: context.span().to_be_bytes().to_vec(),
            parent_span_id: context.parent().map_or_else(Vec::new, |parent| parent.to_be_bytes().to_vec()),
            trace_state: context.tracestate().unwrap_or_default().to_owned(),
            name,
            kind: SpanKind::Server.into(),
            start_time_unix_nano: start,
            end_time_unix_nano: start
                .saturating_add(u64::try_from(entry.duration.as_nanos()).unwrap_or(u64::MAX)),
            attributes: attributes(entry, notes, method),
            status: fails.then(|| Status { code: StatusCode::Error.into(), ..Status::default() }),
            ..Message::default()
        })
    }
}

/// Spans as the body of a request to the collector.
pub(super) fn request(
    service_name: &str,
    spans: impl IntoIterator<Item = Span>,
) -> ExportTraceServiceRequest {
    let resource = Resource {
        attributes: vec![
            text("service.name", service_name),
            text("service.version", VERSION),
            text("telemetry.sdk.language", "rust"),
        ],
        ..Resource::default()
    };
    let scope =
        InstrumentationScope { name: "weir".to_owned(), version: VERSION.to_owned(), ..Default::default() };
    let spans = spans.into_iter().map(|span| span.0).collect();
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(resource),
            scope_spans: vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }],
            ..ResourceSpans::default()
        }],
    }
}

fn attributes(entry: &Entry<'_>, notes: &Notes<'_>, method: &str) -> Vec<KeyValue> {
    let (path, query) =
        entry.path.split_once('?').map_or((entry.path, None), |(path, query)| (path, Some(query)));
    let authority = entry.authority.map(String::from_utf8_lossy).unwrap_or_default();
    let (host, port) = split_port(&authority);
    let mut all = vec![
        text("http.request.method", method),
        text("url.path", path),
        text("url.scheme", if notes.is_secure { "https" } else { "http" }),
        text("network.protocol.version", protocol(entry.protocol)),
        text("network.peer.address", &notes.peer.to_string()),
        text("client.address", &entry.client_ip.to_string()),
    ];
    let mut told = |name: &str, value: Option<&str>| all.extend(value.map(|value| text(name, value)));
    told("http.request.method_original", (method == "_OTHER").then(|| entry.method.as_str()));
    told("url.query", query);
    told("server.address", Some(host).filter(|host| !host.is_empty()));
    told("user_agent.original", entry.user_agent.map(String::from_utf8_lossy).as_deref());
    told("http.route", notes.route);
    told("weir.rule", entry.rule);
    told("weir.decision", notes.decision.map(Decision::as_str));
    told("weir.response_flags", Some(entry.flags).filter(|flags| !matches!(*flags, "" | "-")));
    told("weir.upstream", entry.upstream_host);
    told("weir.request_id", entry.request_id.map(String::from_utf8_lossy).as_deref());
    let mut counted = |name: &str, value: Option<u64>| all.extend(value.map(|value| number(name, value)));
    counted("server.port", port);
    counted("http.response.status_code", entry.status.map(|status| status.as_u16().into()));
    counted("http.request.body.size", Some(entry.bytes_received).filter(|bytes| *bytes > 0));
    counted("http.response.body.size", Some(entry.bytes_sent));
    counted("weir.retries", Some(entry.attempts.saturating_sub(1).into()).filter(|retries| *retries > 0));
    if let Some(Decision::Delayed(delay)) = notes.decision {
        all.push(attribute("weir.delay", Value::DoubleValue(delay.as_secs_f64())));
    }
    match entry.status {
        Some(status) if status.is_server_error() => all.push(text("error.type", status.as_str())),
        Some(_) => {}
        None => all.push(text("error.type", "aborted")),
    }
    all
}

fn method(name: &str) -> &str {
    if METHODS.contains(&name) { name } else { "_OTHER" }
}

const fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    }
}

/// The port behind the last colon, unless that is one of an IPv6 address.
fn split_port(authority: &str) -> (&str, Option<u64>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok()),
        _ => (authority, None),
    }
}

fn text(name: &str, value: &str) -> KeyValue {
    let cut = (0..=value.len().min(LONGEST_TEXT)).rev().find(|cut| value.is_char_boundary(*cut)).unwrap_or(0);
    attribute(name, Value::StringValue(value[..cut].to_owned()))
}

fn number(name: &str, value: u64) -> KeyValue {
    attribute(name, Value::IntValue(i64::try_from(value).unwrap_or(i64::MAX)))
}

fn attribute(name: &str, value: Value) -> KeyValue {
    KeyValue { key: name.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}
