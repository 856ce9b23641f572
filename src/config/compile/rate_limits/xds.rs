//! The management server (xDS) that rules may come from.

use std::sync::Arc;

use crate::config::at::At;
use crate::config::compile::{credentials, grpc, retries};
use crate::config::files::Files;
use crate::config::problem::{Fault, Report};
use crate::config::{defaults, parse, raw};
use crate::rls::options::Xds;

/// Compiles the management server; `None` if rules come from a directory. Exactly one of the two is required.
pub(super) fn compile(
    raw: &raw::RlsConfig,
    at: At<'_>,
    files: &mut Files,
    report: &mut Report<'_>,
) -> Option<Arc<Xds>> {
    match (&raw.directory, &raw.xds) {
        (Some(_), Some(_)) => {
            report.key(
                at.key("xds"),
                Fault::new("both `directory` and `xds`, expected one of them").hint("rules have one source"),
            );
            None
        }
        (None, None) if !report.is_faulty(at) => {
            report.value(at, "expected `directory` or `xds`");
            None
        }
        (_, None) => None,
        (None, Some(server)) => {
            let merge_domains = raw.merge_domains.unwrap_or_default();
            settings(server, merge_domains, at.key("xds"), files, report).map(Arc::new)
        }
    }
}

fn settings(
    raw: &raw::RlsXds,
    merge_domains: bool,
    at: At<'_>,
    files: &mut Files,
    report: &mut Report<'_>,
) -> Option<Xds> {
    let (place, tls) =
        grpc::place(("address", raw.address.as_ref()?), raw.tls.as_deref(), at, files, report)?;
    let backoff = raw.backoff.as_ref();
    let backoff = backoff.and_then(|raw| report.take(at.key("backoff"), retries::backoff(&raw.0)));
    let largest = raw.largest.as_ref().and_then(|raw| report.take(at.key("largest"), parse::size(&raw.0)));
    let largest = largest.unwrap_or(defaults::XDS_LARGEST);
    let read = (|name: &String| name.parse().ok(), |value: &String| value.parse().ok());
    Some(Xds {
        place,
        tls,
        node: raw.node.as_deref().unwrap_or(defaults::XDS_NODE).into(),
        metadata: raw.metadata.clone().unwrap_or_default(),
        headers: credentials::headers(raw.headers.as_ref(), read, at.key("headers"), report),
        backoff: backoff.unwrap_or(defaults::XDS_BACKOFF),
        largest: usize::try_from(largest).unwrap_or(usize::MAX),
        merge_domains,
    })
}
