//! Where spans go.

use crate::config::at::At;
use crate::config::problem::{Fault, Report, quoted};
use crate::config::{defaults, parse, raw};
use crate::limiter::percent::Percent;
use crate::telemetry::spans::Settings;

pub(super) fn compile(raw: Option<&raw::Tracing>, at: At<'_>, report: &mut Report<'_>) -> Option<Settings> {
    let raw = raw?;
    let collector = raw.otlp.as_ref().and_then(|otlp| report.take(at.key("otlp"), parse::collector(&otlp.0)));
    let sample = match &raw.sample {
        Some(share) => report.take(at.key("sample"), parse::share(&share.0)),
        None => Some(Percent::WHOLE),
    };
    let name = raw.service_name.as_deref().unwrap_or(defaults::SERVICE_NAME);
    if name.trim().is_empty() {
        let fault = Fault::new(format!("expected a name, got {}", quoted(name)));
        report.value(at.key("service_name"), fault);
    }
    Some(Settings { collector: collector?, sample: sample?, service_name: name.into() })
}
