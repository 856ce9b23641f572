//! Export of spans.

use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING, USER_AGENT};
use http::{HeaderMap, HeaderName};

use super::{secret_headers, upstream_tls};
use crate::at::At;
use crate::data_files::DataFiles;
use crate::parse::UpstreamUrl;
use crate::quoting::quoted;
use crate::{defaults, parse, raw};
use weir_limiter::percent::Percent;
use weir_telemetry::spans::{Collector, TracingSettings};
use weir_upstream::UpstreamAddress;

/// Headers that Weir sets itself, or that determine the framing of the request.
const RESERVED_HEADERS: [HeaderName; 6] =
    [CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING, USER_AGENT];

pub(super) fn compile(
    raw: Option<&raw::Tracing>,
    at: At<'_>,
    files: &mut DataFiles,
) -> Option<TracingSettings> {
    let raw = raw?;
    let collector = raw.otlp.as_ref().and_then(|otlp| at.key("otlp").ok(parse::collector_url(&otlp.0)));
    let url = collector.as_ref().map(upstream_url);
    let tls = url.and_then(|place| {
        upstream_tls::compile_client(raw.tls.as_deref(), &[place], at, at.key("otlp"), files)
    });
    let sample = match &raw.sample {
        Some(share) => at.key("sample").ok(parse::percentage(&share.0)),
        None => Some(Percent::ONE_HUNDRED),
    };
    let name = raw.service_name.as_deref().unwrap_or(defaults::TRACE_SERVICE_NAME);
    if name.trim().is_empty() {
        at.key("service_name").error(format!("expected a name, got {}", quoted(name)));
    }
    let headers = read_headers(raw, at.key("headers"));
    Some(TracingSettings {
        collector: collector?,
        tls,
        headers,
        sampling_ratio: sample?,
        service_name: name.into(),
    })
}

fn upstream_url(collector: &Collector) -> UpstreamUrl {
    let Collector { host, port, is_secure, .. } = collector;
    UpstreamUrl { address: UpstreamAddress::Tcp { host: host.clone(), port: *port }, is_secure: *is_secure }
}

fn read_headers(raw: &raw::Tracing, at: At<'_>) -> HeaderMap {
    let headers = secret_headers::read_map(raw.headers.as_ref(), at);
    for ours in RESERVED_HEADERS.iter().filter(|ours| headers.contains_key(*ours)) {
        at.key(ours.as_str()).key_error(format!("header `{ours}` cannot be overridden"));
    }
    headers
}
