//! HTTP servers that Weir itself uses: TLS, and the headers of requests to them.

use std::collections::BTreeMap;

use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName};

use super::{secret_headers, upstream_tls};
use crate::at::At;
use crate::data_files::DataFiles;
use crate::raw;
use weir_net::http_client::{HttpTarget, HttpUrl};

/// Headers that the client sets, or that determine the framing of a request.
const RESERVED_HEADERS: [HeaderName; 4] = [CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING];

/// Compiles the server of the section at `at`, whose URL is the value of `key`.
pub(super) fn compile(
    key: &str,
    url: Option<HttpUrl>,
    tls: Option<&raw::UpstreamTls>,
    headers: HeaderMap,
    at: At<'_>,
    files: &mut DataFiles,
) -> Option<HttpTarget> {
    let url = url?;
    let tls = upstream_tls::compile_client(tls, Some(&url.host), url.is_https, at, at.key(key), files);
    Some(HttpTarget { url, tls, headers })
}

/// Reads the headers of requests from the map at `at`. Those in `reserved` are set by Weir, too.
pub(super) fn read_headers(
    raw: Option<&BTreeMap<String, raw::Secret<String>>>,
    reserved: &[HeaderName],
    at: At<'_>,
) -> HeaderMap {
    for given in raw.into_iter().flat_map(BTreeMap::keys) {
        let mut ours = RESERVED_HEADERS.iter().chain(reserved);
        if let Some(ours) = ours.find(|ours| given.eq_ignore_ascii_case(ours.as_str())) {
            at.key(given).key_error(format!("header `{ours}` cannot be overridden"));
        }
    }
    secret_headers::read_map(raw, at)
}
