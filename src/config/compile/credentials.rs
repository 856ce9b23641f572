//! Headers of requests to other services. Most of them are credentials, so their values are never displayed.

use std::collections::BTreeMap;

use crate::config::at::At;
use crate::config::problem::{Report, quoted};
use crate::config::raw::Secret;

/// Reads the headers of the map at `at`; `name` and `value` parse their parts.
pub(super) fn headers<N, V>(
    raw: Option<&BTreeMap<String, Secret<String>>>,
    (name, value): (impl Fn(&String) -> Option<N>, impl Fn(&String) -> Option<V>),
    at: At<'_>,
    report: &mut Report<'_>,
) -> Vec<(N, V)> {
    let mut headers = Vec::new();
    for (given_name, given_value) in raw.into_iter().flatten() {
        match (name(given_name), value(given_value.expose())) {
            (Some(name), Some(value)) => headers.push((name, value)),
            (None, _) => {
                let problem = format!("not a header name, got {}", quoted(given_name));
                report.key(at.key(given_name), problem);
            }
            (_, None) => report.value(at.key(given_name), "not a header value"),
        }
    }
    headers
}
