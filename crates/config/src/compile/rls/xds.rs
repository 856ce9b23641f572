//! The management server (xDS) that rules may come from.

use std::sync::Arc;

use crate::at::At;
use crate::compile::{grpc, retries, secret_headers};
use crate::data_files::DataFiles;
use crate::diagnostic::ValueError;
use crate::{defaults, parse, raw};
use weir_rls::options::Xds;

/// Compiles the management server; `None` if rules come from a directory. Exactly one of the two is required.
pub(super) fn compile(raw: &raw::RlsConfig, at: At<'_>, files: &mut DataFiles) -> Option<Arc<Xds>> {
    match (&raw.directory, &raw.xds) {
        (Some(_), Some(_)) => {
            at.key("xds").key_error(
                ValueError::new("both `directory` and `xds`, expected one of them")
                    .with_hint("rules have one source"),
            );
            None
        }
        (None, None) if !at.is_reported() => {
            at.error("expected `directory` or `xds`");
            None
        }
        (_, None) => None,
        (None, Some(server)) => {
            let merge_domains = raw.merge_domains.unwrap_or_default();
            compile_settings(server, merge_domains, at.key("xds"), files).map(Arc::new)
        }
    }
}

fn compile_settings(
    raw: &raw::RlsXds,
    merge_domains: bool,
    at: At<'_>,
    files: &mut DataFiles,
) -> Option<Xds> {
    let (place, tls) = grpc::read_address("address", raw.address.as_ref()?, raw.tls.as_deref(), at, files)?;
    let backoff = raw.backoff.as_ref();
    let backoff = backoff.and_then(|raw| at.key("backoff").ok(retries::parse_backoff(&raw.0)));
    let max_size = raw.largest.as_ref().and_then(|raw| at.key("largest").ok(parse::size(&raw.0)));
    let max_size = max_size.unwrap_or(defaults::XDS_MAX_RESPONSE_SIZE);
    let name = |name: &String| name.parse().ok();
    let value = |value: &String| value.parse().ok();
    Some(Xds {
        server: place,
        tls,
        node: raw.node.as_deref().unwrap_or(defaults::XDS_NODE_ID).into(),
        metadata: raw.metadata.clone().unwrap_or_default(),
        headers: secret_headers::read_headers(raw.headers.as_ref(), name, value, at.key("headers")),
        backoff: backoff.unwrap_or(defaults::XDS_BACKOFF),
        max_response_bytes: usize::try_from(max_size).unwrap_or(usize::MAX),
        merge_domains,
    })
}
