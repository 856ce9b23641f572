//! Fuzz targets for all parsers of untrusted input; for `cargo fuzz` and for tests.
//!
//! A target takes bytes and panics if an invariant does not hold. The invariants go beyond the absence of panics:
//! parsed input can be written and parsed again, input in pieces has the same meaning as in one piece, and
//! normalisation is idempotent. `fuzz/` contains the binaries and the seed corpus, which the tests run, too.

mod bodies;
mod configuration;
mod document;
mod headers;
mod keys;
mod manifest;
mod nginx;
mod paths;
mod policies;
mod rls;
mod state_file;
mod stored_call;

use http::{HeaderMap, HeaderName, HeaderValue};

pub use self::bodies::body;
pub use self::configuration::{configuration, data_file, value};
pub use self::document::document;
pub use self::headers::{cost, forwarded, host, load_report, provider_signals, proxy_protocol, token, trace};
pub use self::keys::keys;
pub use self::manifest::manifest;
pub use self::nginx::nginx;
pub use self::paths::path;
pub use self::policies::policies;
pub use self::rls::rate_limits;
pub use self::state_file::state;
pub use self::stored_call::stored_call;
pub use weir::proxy::fuzzing::steering;
pub use weir_http::http1::client::fuzzing::{chunks, response};
pub use weir_http::http1::server::fuzzing::request;
pub use weir_http::http2::fuzzing::{http2_client, http2_server};
pub use weir_http::http2::hpack::fuzzing::header_blocks;
pub use weir_replay::fuzzing::{combined_log, envoy_log, json_log, translated_log};

/// A fuzz target: takes arbitrary bytes, panics if an invariant does not hold.
pub type Target = fn(&[u8]);

/// All targets with their names.
pub const TARGETS: [(&str, Target); 32] = [
    ("body", body),
    ("chunks", chunks),
    ("combined_log", combined_log),
    ("configuration", configuration),
    ("cost", cost),
    ("data_file", data_file),
    ("document", document),
    ("envoy_log", envoy_log),
    ("forwarded", forwarded),
    ("header_blocks", header_blocks),
    ("host", host),
    ("http2_client", http2_client),
    ("http2_server", http2_server),
    ("json_log", json_log),
    ("keys", keys),
    ("load_report", load_report),
    ("manifest", manifest),
    ("nginx", nginx),
    ("path", path),
    ("policies", policies),
    ("provider_signals", provider_signals),
    ("proxy_protocol", proxy_protocol),
    ("rate_limits", rate_limits),
    ("request", request),
    ("response", response),
    ("state", state),
    ("steering", steering),
    ("stored_call", stored_call),
    ("token", token),
    ("trace", trace),
    ("translated_log", translated_log),
    ("value", value),
];

/// Returns a header map with one line of header `name` for each line of `data` that is a valid value.
fn header_lines(name: &HeaderName, data: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in data.split(|byte| *byte == b'\n').take(256) {
        if let Ok(value) = HeaderValue::from_bytes(line.trim_ascii()) {
            headers.append(name, value);
        }
    }
    headers
}

/// Splits off the first byte, which selects a variant of the target.
fn split_selector(data: &[u8]) -> (u8, &[u8]) {
    data.split_first().map_or((0, data), |(first, rest)| (*first, rest))
}

#[cfg(test)]
mod tests;
