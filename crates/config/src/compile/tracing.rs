//! Export of spans.

use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::{secret_headers, upstream_tls};
use crate::config_path::ConfigPath;
use crate::data_files::DataFiles;
use crate::diagnostic::{Diagnostics, ValueError};
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
    at: ConfigPath<'_>,
    files: &mut DataFiles,
    report: &mut Diagnostics<'_>,
) -> Option<TracingSettings> {
    let raw = raw?;
    let collector =
        raw.otlp.as_ref().and_then(|otlp| report.ok_or_report(at.key("otlp"), parse::collector_url(&otlp.0)));
    let url = collector.as_ref().map(upstream_url);
    let tls = url.and_then(|place| {
        upstream_tls::compile_client(raw.tls.as_deref(), &[place], at, at.key("otlp"), files, report)
    });
    let sample = match &raw.sample {
        Some(share) => report.ok_or_report(at.key("sample"), parse::percentage(&share.0)),
        None => Some(Percent::ONE_HUNDRED),
    };
    let name = raw.service_name.as_deref().unwrap_or(defaults::TRACE_SERVICE_NAME);
    if name.trim().is_empty() {
        let fault = ValueError::new(format!("expected a name, got {}", quoted(name)));
        report.add_value_error(at.key("service_name"), fault);
    }
    let headers = read_headers(raw, at.key("headers"), report);
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

fn read_headers(raw: &raw::Tracing, at: ConfigPath<'_>, report: &mut Diagnostics<'_>) -> HeaderMap {
    let name = |name: &String| HeaderName::try_from(name).ok();
    let value = |value: &String| HeaderValue::try_from(value).ok();
    let mut headers = HeaderMap::new();
    for (name, mut value) in secret_headers::read_headers(raw.headers.as_ref(), name, value, at, report) {
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    for ours in RESERVED_HEADERS.iter().filter(|ours| headers.contains_key(*ours)) {
        report.add_key_error(at.key(ours.as_str()), format!("header `{ours}` cannot be overridden"));
    }
    headers
}
