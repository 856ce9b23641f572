//! What about a request decides whose answer it may get.
//!
//! Which headers tell clients apart, nobody can list: services have names of their own for tenants and accounts. So it is
//! the other way round, and what is not known to say nothing about who asks may say everything.

use http::HeaderMap;
use http::header::{ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, HeaderName, HeaderValue, ORIGIN};

/// How many headers answers may vary by.
pub(super) const AXES: usize = 4;
/// What answers may vary by and still be kept.
pub(super) const VARYING: [HeaderName; AXES] = [ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, ORIGIN];

/// What browsers, tools and proxies send on their own: what can be dealt with, how the request came, and how it is traced.
/// An address may be among it, since behind a proxy there always is one: whose answers differ by address has to say so.
const HARMLESS: [&str; 38] = [
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "b3",
    "cache-control",
    "cdn-loop",
    "connection",
    "dnt",
    "expect",
    "forwarded",
    "host",
    "if-modified-since",
    "if-none-match",
    "keep-alive",
    "max-forwards",
    "origin",
    "pragma",
    "priority",
    "range",
    "referer",
    "save-data",
    "te",
    "traceparent",
    "tracestate",
    "upgrade-insecure-requests",
    "user-agent",
    "via",
    "x-amzn-trace-id",
    "x-cloud-trace-context",
    "x-correlation-id",
    "x-envoy-attempt-count",
    "x-envoy-expected-rq-timeout-ms",
    "x-envoy-external-address",
    "x-envoy-internal",
    "x-real-ip",
    "x-request-id",
    "x-requested-with",
];
/// What a proxy says of the connection that it had, behind `x-forwarded-`. Others of that family say who the client is.
const FORWARDED: [&str; 4] = ["for", "host", "port", "proto"];
/// Families of the same: only browsers write the first two, and the third is Zipkin's.
const HARMLESS_FAMILIES: [&str; 3] = ["sec-fetch-", "sec-ch-", "x-b3-"];

/// What about a request decides whose answer it may get.
#[derive(Clone, Debug)]
pub struct Asked {
    pub(super) is_personal: bool,
    pub(super) varying: [Option<HeaderValue>; AXES],
}

impl Asked {
    /// By the headers of the request as received, of which `telling` tell clients apart whatever their names are; and
    /// whether its client `is_certified`, by a certificate of which the upstream is told.
    pub fn with(headers: &HeaderMap, telling: &[HeaderName], is_certified: bool) -> Self {
        Self {
            is_personal: is_certified
                || headers.keys().any(|name| !is_harmless(name) || telling.contains(name)),
            varying: VARYING.map(|name| headers.get(name).cloned()),
        }
    }
}

fn is_harmless(name: &HeaderName) -> bool {
    let name = name.as_str();
    HARMLESS.binary_search(&name).is_ok()
        || name == "sec-gpc"
        || name.strip_prefix("x-forwarded-").is_some_and(|what| FORWARDED.contains(&what))
        || HARMLESS_FAMILIES.iter().any(|family| name.starts_with(family))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_in_order() {
        assert!(HARMLESS.is_sorted());
    }
}
