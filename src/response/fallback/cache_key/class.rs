//! What a request header means for the cache.

use std::net::IpAddr;

use super::Request;

/// What a request header means for the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// The upstream never sees the client's value, or the value cannot steer a response.
    Ignored,
    /// Part of the key.
    Keyed,
    /// It may say who the client is. Most names that are not known mean something to some service.
    Personal,
    /// It asks for a part of the response or none of it. The response must not be stored; a whole one may be sent
    /// (RFC 9110 sections 13.2.1 and 14.2).
    Conditional,
}

/// What browsers and tools send on their own and services are known to use. Sorted.
const KEYED: [&str; 16] = [
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "access-control-request-headers",
    "access-control-request-method",
    "dnt",
    "origin",
    "priority",
    "purpose",
    "referer",
    "save-data",
    "sec-gpc",
    "upgrade-insecure-requests",
    "user-agent",
    "x-requested-with",
];
/// Families of the same, which scripts in a browser cannot set.
const KEYED_FAMILIES: [&str; 2] = ["sec-fetch-", "sec-ch-"];

/// What a proxy says about the connection that it had. Anyone else who sends these wants to steer the response.
const OF_PROXIES: [&str; 10] = [
    "cdn-loop",
    "forwarded",
    "via",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-scheme",
    "x-forwarded-server",
    "x-original-forwarded-for",
    "x-scheme",
];

/// Where proxies write the client's address.
const ADDRESSES: [&str; 7] = [
    "cf-connecting-ip",
    "fastly-client-ip",
    "fly-client-ip",
    "true-client-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-real-ip",
];

/// The longest identifier of a request or trace that is taken for one.
const MAX_ID: usize = 128;

/// Whether this header is part of every key.
pub(super) fn is_keyed(name: &str) -> bool {
    // The host and the scheme have places of their own in the key.
    matches!(name, "host" | "x-forwarded-proto")
        || KEYED.binary_search(&name).is_ok()
        || KEYED_FAMILIES.iter().any(|family| name.starts_with(family))
}

impl Class {
    /// Of one line of a request header, by its name in lower case.
    pub(super) fn of(name: &str, value: &[u8], request: &Request<'_>) -> Self {
        match name {
            // Taken off, or written by Weir whatever the client sends. The host is `Request::authority`.
            "host"
            | "expect"
            | "keep-alive"
            | "proxy-connection"
            | "te"
            | "x-envoy-attempt-count"
            | "x-envoy-expected-rq-timeout-ms"
            | "x-envoy-external-address"
            | "x-envoy-internal"
            | "x-weir-over-limit" => Self::Ignored,
            // Others have headers taken off.
            "connection" => Self::ignored_if(all(value, b',', |token| {
                ["keep-alive", "close", "te"].iter().any(|known| is(token, known))
            })),
            "x-forwarded-proto" if request.peer_is_trusted => Self::Keyed,
            "x-request-id" if request.peer_is_trusted => Self::ignored_if(is_id(value, b"-")),
            "x-forwarded-proto" | "x-request-id" => Self::Ignored,
            "if-match"
            | "if-modified-since"
            | "if-none-match"
            | "if-range"
            | "if-unmodified-since"
            | "range" => Self::Conditional,
            // A reload asks for a fresh response, not for another one.
            "cache-control" | "pragma" => Self::ignored_if(all(value, b',', |token| {
                ["no-cache", "max-age=0"].iter().any(|known| is(token, known))
            })),
            name if is_keyed(name) => Self::Keyed,
            name if OF_PROXIES.contains(&name) && request.peer_is_trusted => Self::Keyed,
            name if ADDRESSES.contains(&name) => Self::ignored_if(is_address(value, request.client)),
            // Read elsewhere: here it matters only whether the client wrote it.
            name if name.strip_prefix("x-forwarded-") == Some("for") => {
                Self::ignored_if(request.chain_is_trusted)
            }
            name => Self::ignored_if(is_trace(name, value)),
        }
    }

    const fn ignored_if(cannot_steer: bool) -> Self {
        if cannot_steer { Self::Ignored } else { Self::Personal }
    }
}

/// Whether it identifies a trace and has the form of one: hexadecimal digits say nothing, wherever a service writes them.
fn is_trace(name: &str, value: &[u8]) -> bool {
    match name {
        "b3" | "traceparent" | "x-b3-parentspanid" | "x-b3-sampled" | "x-b3-spanid" | "x-b3-traceid"
        | "x-correlation-id" => is_id(value, b"-"),
        "x-cloud-trace-context" => is_id(value, b"-/;o="),
        "x-amzn-trace-id" => all(value, b';', |field| {
            let value = ["Root=", "Parent=", "Self=", "Sampled="]
                .iter()
                .find_map(|name| field.strip_prefix(name.as_bytes()));
            value.is_some_and(|value| is_id(value, b"-"))
        }),
        // Envoy sends an empty one.
        "tracestate" => value.is_empty(),
        _ => false,
    }
}

/// Hexadecimal digits, and such marks between them.
fn is_id(value: &[u8], marks: &[u8]) -> bool {
    value.len() <= MAX_ID && value.iter().all(|byte| byte.is_ascii_hexdigit() || marks.contains(byte))
}

fn is_address(value: &[u8], client: IpAddr) -> bool {
    let address = std::str::from_utf8(value).ok().and_then(|value| value.parse::<IpAddr>().ok());
    address.is_some_and(|address| address.to_canonical() == client)
}

/// Whether all parts between separators are such.
fn all(value: &[u8], separator: u8, mut such: impl FnMut(&[u8]) -> bool) -> bool {
    value.split(|byte| *byte == separator).all(|part| such(part.trim_ascii()))
}

fn is(token: &[u8], known: &str) -> bool {
    token.eq_ignore_ascii_case(known.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_in_order() {
        assert!(KEYED.is_sorted());
    }
}
