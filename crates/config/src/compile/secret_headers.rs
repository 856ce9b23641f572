//! Headers of requests to other services. Most of them are credentials, so their values are never displayed.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::at::At;
use crate::quoting::quoted;
use crate::raw::Secret;

/// Reads the headers of an HTTP request from the map at `at`.
pub(super) fn read_map(raw: Option<&BTreeMap<String, Secret<String>>>, at: At<'_>) -> HeaderMap {
    let name = |name: &String| HeaderName::try_from(name).ok();
    let value = |value: &String| HeaderValue::try_from(value).ok();
    let mut headers = HeaderMap::new();
    for (name, mut value) in read_headers(raw, name, value, at) {
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    headers
}

/// Reads the headers of the map at `at`; `name` and `value` parse their parts.
pub(super) fn read_headers<N, V>(
    raw: Option<&BTreeMap<String, Secret<String>>>,
    name: impl Fn(&String) -> Option<N>,
    value: impl Fn(&String) -> Option<V>,
    at: At<'_>,
) -> Vec<(N, V)> {
    let mut headers = Vec::new();
    for (given_name, given_value) in raw.into_iter().flatten() {
        match (name(given_name), value(given_value.expose())) {
            (Some(name), Some(value)) => headers.push((name, value)),
            (None, _) => {
                at.key(given_name).key_error(format!("not a header name, got {}", quoted(given_name)));
            }
            (_, None) => at.key(given_name).error("not a header value"),
        }
    }
    headers
}
