//! Export of spans.

use http::header::{CONTENT_TYPE, USER_AGENT};

use super::http_target;
use crate::at::At;
use crate::data_files::DataFiles;
use crate::quoting::quoted;
use crate::{defaults, parse, raw};
use weir_limiter::percent::Percent;
use weir_telemetry::spans::TracingSettings;

pub(super) fn compile(
    raw: Option<&raw::Tracing>,
    at: At<'_>,
    files: &mut DataFiles,
) -> Option<TracingSettings> {
    let raw = raw?;
    let url = raw.otlp.as_ref().and_then(|otlp| at.key("otlp").ok(parse::collector_url(&otlp.0)));
    let reserved = [CONTENT_TYPE, USER_AGENT];
    let headers = http_target::read_headers(raw.headers.as_ref(), &reserved, at.key("headers"));
    let collector = http_target::compile("otlp", url, raw.tls.as_deref(), headers, at, files);
    let sample = match &raw.sample {
        Some(share) => at.key("sample").ok(parse::percentage(&share.0)),
        None => Some(Percent::ONE_HUNDRED),
    };
    let name = raw.service_name.as_deref().unwrap_or(defaults::TRACE_SERVICE_NAME);
    if name.trim().is_empty() {
        at.key("service_name").error(format!("expected a name, got {}", quoted(name)));
    }
    Some(TracingSettings { collector: collector?, sampling_ratio: sample?, service_name: name.into() })
}
