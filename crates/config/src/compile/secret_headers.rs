//! Headers of requests to other services. Most of them are credentials, so their values are never displayed.

use std::collections::BTreeMap;

use crate::config_path::ConfigPath;
use crate::diagnostic::Diagnostics;
use crate::quoting::quoted;
use crate::raw::Secret;

/// Reads the headers of the map at `at`; `name` and `value` parse their parts.
pub(super) fn read_headers<N, V>(
    raw: Option<&BTreeMap<String, Secret<String>>>,
    name: impl Fn(&String) -> Option<N>,
    value: impl Fn(&String) -> Option<V>,
    at: ConfigPath<'_>,
    report: &Diagnostics<'_>,
) -> Vec<(N, V)> {
    let mut headers = Vec::new();
    for (given_name, given_value) in raw.into_iter().flatten() {
        match (name(given_name), value(given_value.expose())) {
            (Some(name), Some(value)) => headers.push((name, value)),
            (None, _) => {
                let problem = format!("not a header name, got {}", quoted(given_name));
                report.add_key_error(at.key(given_name), problem);
            }
            (_, None) => report.add_value_error(at.key(given_name), "not a header value"),
        }
    }
    headers
}
