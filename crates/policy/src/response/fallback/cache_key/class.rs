//! Classification of request headers for the cache key.

use std::net::IpAddr;

use super::CacheRequest;

/// Effect of a request header on the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Not part of the key: the upstream never sees the client's value, or the value cannot affect a response.
    Ignored,
    /// Part of the key of all clients.
    Keyed,
    /// May identify the client. Unknown headers are in this class, because some service may use them.
    Personal,
    /// Requests a part of the response or none of it. The response must not be stored; a complete one may be sent (RFC
    /// 9110 §§13.2.1 and 14.2).
    Conditional,
}

/// Headers that browsers and tools send by themselves and services are known to use. Sorted.
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
/// Prefixes of such headers; scripts in a browser cannot set them.
const KEYED_FAMILIES: [&str; 2] = ["sec-fetch-", "sec-ch-"];

/// Headers in which a proxy describes its connection. From other peers they may be attempts to affect the response.
const PROXY_HEADERS: [&str; 10] = [
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

/// Headers in which proxies put the client's address.
const CLIENT_ADDRESS_HEADERS: [&str; 7] = [
    "cf-connecting-ip",
    "fastly-client-ip",
    "fly-client-ip",
    "true-client-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-real-ip",
];

/// Maximum length of a request or trace identifier, in bytes.
const MAX_ID: usize = 128;

/// Returns whether this header is part of every key.
pub(super) fn is_keyed(name: &str) -> bool {
    // `Host` and the scheme are separate parts of the key.
    matches!(name, "host" | "x-forwarded-proto")
        || KEYED.binary_search(&name).is_ok()
        || KEYED_FAMILIES.iter().any(|family| name.starts_with(family))
}

impl Class {
    /// Classifies one line of a request header, whose name is in lower case.
    pub(super) fn classify(name: &str, value: &[u8], request: &CacheRequest<'_>) -> Self {
        match name {
            // Removed or overwritten by Weir. The host is in `CacheRequest::authority`.
            "host"
            | "expect"
            | "keep-alive"
            | "proxy-connection"
            | "te"
            | "x-envoy-attempt-count"
            | "x-envoy-expected-rq-timeout-ms"
            | "x-envoy-external-address"
            | "x-envoy-internal"
            | "x-weir-charged"
            | "x-weir-over-limit" => Self::Ignored,
            // With other tokens, further headers are removed.
            "connection" => Self::ignored_if(all_parts(value, b',', |token| {
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
            // A reload asks for a fresh response, not for a different one.
            "cache-control" | "pragma" => Self::ignored_if(all_parts(value, b',', |token| {
                ["no-cache", "max-age=0"].iter().any(|known| is(token, known))
            })),
            name if is_keyed(name) => Self::Keyed,
            name if PROXY_HEADERS.contains(&name) && request.peer_is_trusted => Self::Keyed,
            name if CLIENT_ADDRESS_HEADERS.contains(&name) => {
                Self::ignored_if(is_address(value, request.client))
            }
            // Read by another module; only its origin matters here.
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

/// Returns whether this is a trace header with the expected form. Hexadecimal digits are harmless in any response.
fn is_trace(name: &str, value: &[u8]) -> bool {
    match name {
        "b3" | "traceparent" | "x-b3-parentspanid" | "x-b3-sampled" | "x-b3-spanid" | "x-b3-traceid"
        | "x-correlation-id" => is_id(value, b"-"),
        "x-cloud-trace-context" => is_id(value, b"-/;o="),
        "x-amzn-trace-id" => all_parts(value, b';', |field| {
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

/// Returns whether the value consists of hexadecimal digits and `allowed` bytes, and is not too long.
fn is_id(value: &[u8], allowed: &[u8]) -> bool {
    value.len() <= MAX_ID && value.iter().all(|byte| byte.is_ascii_hexdigit() || allowed.contains(byte))
}

fn is_address(value: &[u8], client: IpAddr) -> bool {
    let address = std::str::from_utf8(value).ok().and_then(|value| value.parse::<IpAddr>().ok());
    address.is_some_and(|address| address.to_canonical() == client)
}

/// Returns whether `predicate` holds for all parts between separators.
fn all_parts(value: &[u8], separator: u8, mut predicate: impl FnMut(&[u8]) -> bool) -> bool {
    value.split(|byte| *byte == separator).all(|part| predicate(part.trim_ascii()))
}

fn is(token: &[u8], known: &str) -> bool {
    token.eq_ignore_ascii_case(known.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keyed_headers_are_sorted() {
        assert!(KEYED.is_sorted());
    }
}
