//! Export of spans.

use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::{credentials, upstream_tls};
use crate::config::at::At;
use crate::config::files::Files;
use crate::config::parse::UpstreamPlace;
use crate::config::problem::{Fault, Report, quoted};
use crate::config::{defaults, parse, raw};
use crate::limiter::percent::Percent;
use crate::telemetry::spans::{Collector, Settings};
use crate::upstream::UpstreamAddress;

/// Headers that Weir sets itself, or that determine the framing of the request.
const OURS: [HeaderName; 6] = [CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING, USER_AGENT];

pub(super) fn compile(
    raw: Option<&raw::Tracing>,
    at: At<'_>,
    files: &mut Files,
    report: &mut Report<'_>,
) -> Option<Settings> {
    let raw = raw?;
    let collector = raw.otlp.as_ref().and_then(|otlp| report.take(at.key("otlp"), parse::collector(&otlp.0)));
    let place = collector.as_ref().map(place);
    let tls = place.and_then(|place| {
        upstream_tls::client(raw.tls.as_deref(), &[place], (at, at.key("otlp")), files, report)
    });
    let sample = match &raw.sample {
        Some(share) => report.take(at.key("sample"), parse::share(&share.0)),
        None => Some(Percent::WHOLE),
    };
    let name = raw.service_name.as_deref().unwrap_or(defaults::SERVICE_NAME);
    if name.trim().is_empty() {
        let fault = Fault::new(format!("expected a name, got {}", quoted(name)));
        report.value(at.key("service_name"), fault);
    }
    let headers = headers(raw, at.key("headers"), report);
    Some(Settings { collector: collector?, tls, headers, sample: sample?, service_name: name.into() })
}

fn place(collector: &Collector) -> UpstreamPlace {
    let Collector { host, port, is_secure, .. } = collector;
    UpstreamPlace { address: UpstreamAddress::Tcp { host: host.clone(), port: *port }, is_secure: *is_secure }
}

fn headers(raw: &raw::Tracing, at: At<'_>, report: &mut Report<'_>) -> HeaderMap {
    let name = |name: &String| HeaderName::try_from(name).ok();
    let value = |value: &String| HeaderValue::try_from(value).ok();
    let mut headers = HeaderMap::new();
    for (name, mut value) in credentials::headers(raw.headers.as_ref(), (name, value), at, report) {
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    for ours in OURS.iter().filter(|ours| headers.contains_key(*ours)) {
        report.key(at.key(ours.as_str()), format!("header `{ours}` cannot be overridden"));
    }
    headers
}
