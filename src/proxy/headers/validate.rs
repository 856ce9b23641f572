//! Rejects requests that HTTP allows and a proxy must not forward.

use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, Uri, Version, request};

use super::flags::RequestHeaderFlags;
use super::overrides;
use weir_http::headers::is_hop_by_hop;
use weir_http::http1::content_length;
use weir_http::http1::head::list_elements;
use weir_policy::identify::client_headers::names_client_or_target;
use weir_policy::identify::{forwarded, host, is_forwarded_method};

/// Reason why a request cannot be forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum InvalidRequest {
    /// The request has invalid syntax or could be read in two ways.
    Malformed,
    /// The method is not supported: TRACE, or CONNECT to a reverse proxy.
    Method,
    /// The method is longer than any known one.
    UnknownMethod,
    /// The transfer coding is not supported.
    TransferEncoding,
    /// There are too many headers.
    TooManyFields,
}

/// Reduces the lengths of an HTTP/2 request to one header in normal form; over HTTP/1.1 the decoder does that. The `h2`
/// crate checks that the content has that length (RFC 9113 section 8.1.1).
pub(in crate::proxy) fn normalise_length(head: &mut request::Parts) -> Result<(), InvalidRequest> {
    if head.version != Version::HTTP_2 {
        return Ok(());
    }
    content_length::normalise(&mut head.headers).map(drop).map_err(|_| InvalidRequest::Malformed)
}

/// Rejects requests that HTTP allows and a proxy must not forward, and those with more than `max_fields`
/// headers. Only a forward proxy `accepts_connect`. Returns flags for the headers that are present.
///
/// # Errors
/// The reason why the request cannot be forwarded.
pub(in crate::proxy) fn validate(
    head: &request::Parts,
    max_fields: u32,
    accepts_connect: bool,
) -> Result<RequestHeaderFlags, InvalidRequest> {
    if head.version == Version::HTTP_2 {
        validate_fields(&head.headers, max_fields)?;
    }
    check_target(head, accepts_connect)?;
    let mut flags = RequestHeaderFlags::default();
    let mut hosts = SingleValue::None;
    let mut codings = 0_u32;
    for (name, value) in &head.headers {
        match name.as_str() {
            "host" => hosts.add(value),
            "transfer-encoding" => {
                codings = codings.saturating_add(count_codings(value)?);
                flags.hop_by_hop = true;
            }
            "expect" => {
                flags.expect = true;
                flags.hop_by_hop = true;
            }
            // Only this proxy may mark requests as internal or as over a limit, or say to which rule they are charged.
            "x-envoy-internal" | "x-weir-over-limit" | "x-weir-charged" => flags.hop_by_hop = true,
            "via" => flags.via = true,
            "max-forwards" => flags.max_forwards = head.method == Method::OPTIONS,
            "x-forwarded-proto" => flags.forwarded_proto = true,
            "x-request-id" => flags.request_id = true,
            "x-envoy-external-address" => flags.external = true,
            "x-forwarded-client-cert" => flags.client_cert = true,
            name if is_hop_by_hop(name.as_bytes()) => flags.hop_by_hop = true,
            name if name == forwarded::X_FORWARDED_FOR.as_str() => flags.forwarded_for = true,
            name => {
                flags.overrides |= overrides::is_override(name);
                flags.client_names |= names_client_or_target(name);
                flags.underscores |= name.contains('_');
            }
        }
    }
    if !has_one_host(head, hosts) {
        return Err(InvalidRequest::Malformed);
    }
    // Chunked is the only coding and is applied once (RFC 9112 section 6.1); HTTP/1.0 has none.
    if codings > 1 || (codings > 0 && head.version == Version::HTTP_10) {
        return Err(InvalidRequest::Malformed);
    }
    Ok(flags)
}

/// The values of a header that may occur once.
#[derive(Clone, Copy, Debug)]
enum SingleValue<'a> {
    None,
    Value(&'a HeaderValue),
    Multiple,
}

impl<'a> SingleValue<'a> {
    fn add(&mut self, value: &'a HeaderValue) {
        *self = match self {
            Self::None => Self::Value(value),
            Self::Value(_) | Self::Multiple => Self::Multiple,
        };
    }
}

/// Checks the method and the target, which must be in origin-form, in absolute-form, or `*` where that is allowed.
fn check_target(head: &request::Parts, accepts_connect: bool) -> Result<(), InvalidRequest> {
    if !is_forwarded_method(&head.method) {
        return match head.method {
            Method::CONNECT if accepts_connect => check_connect(head),
            Method::CONNECT | Method::TRACE => Err(InvalidRequest::Method),
            _ => Err(InvalidRequest::UnknownMethod),
        };
    }
    // RFC 9113 section 8.3.1: in HTTP/2 the path is required, and begins with a slash even before a query.
    let has_bare_query =
        |uri: &Uri| uri.path_and_query().is_some_and(|target| target.as_str().starts_with('?'));
    let is_good = match head.uri.scheme_str() {
        _ if head.version == Version::HTTP_2 && has_bare_query(&head.uri) => false,
        Some("http" | "https") => head.uri.path().starts_with('/') || is_asterisk(head),
        Some(_) => false,
        None if head.uri.authority().is_some() => false,
        None => head.uri.path().starts_with('/') || is_asterisk(head),
    };
    is_good.then_some(()).ok_or(InvalidRequest::Malformed)
}

/// Checks the target of a CONNECT, which is an authority. The request has no content: its framing headers would allow
/// two readings of the bytes that follow, which belong to the tunnel (RFC 9110 section 9.3.6).
fn check_connect(head: &request::Parts) -> Result<(), InvalidRequest> {
    let is_authority =
        head.uri.scheme().is_none() && head.uri.authority().is_some() && head.uri.path_and_query().is_none();
    let has_content = head.headers.contains_key(TRANSFER_ENCODING)
        || head.headers.get(CONTENT_LENGTH).is_some_and(|length| length != "0");
    (is_authority && !has_content).then_some(()).ok_or(InvalidRequest::Malformed)
}

/// Returns the number of transfer codings in a value.
///
/// # Errors
/// If one of them is not chunked.
fn count_codings(value: &HeaderValue) -> Result<u32, InvalidRequest> {
    list_elements(value.as_bytes()).try_fold(0_u32, |count, coding| {
        let is_chunked = coding.eq_ignore_ascii_case(b"chunked");
        is_chunked.then_some(count.saturating_add(1)).ok_or(InvalidRequest::TransferEncoding)
    })
}

/// Checks what the HTTP/1.1 decoder checks while reading: the number of headers, and white space around values. The
/// latter is invalid (RFC 9113 section 8.2.1), and an HTTP/1.1 upstream would ignore it. A key followed by a space
/// would then be a different one for the limits, but the same one for the service.
fn validate_fields(fields: &HeaderMap, max: u32) -> Result<(), InvalidRequest> {
    if fields.len() > max as usize {
        return Err(InvalidRequest::TooManyFields);
    }
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let is_padded = |value: &HeaderValue| {
        let value = value.as_bytes();
        is_space(value.first()) || is_space(value.last())
    };
    if fields.values().any(is_padded) { Err(InvalidRequest::Malformed) } else { Ok(()) }
}

fn is_asterisk(head: &request::Parts) -> bool {
    head.uri.path() == "*" && head.method == Method::OPTIONS
}

/// Checks that the request names exactly one valid host. In HTTP/2, `:authority` replaces `Host`, and they must not
/// differ (RFC 9113 section 8.3.1). In HTTP/1.1 there must be exactly one `Host`; HTTP/1.0 may have none (RFC 9112
/// section 3.2). An authority in the target replaces it (section 3.2.2), so it must be valid too, and without userinfo
/// (RFC 9110 section 4.2.4).
fn has_one_host(head: &request::Parts, hosts: SingleValue<'_>) -> bool {
    if let Some(authority) = head.uri.authority() {
        let authority = authority.as_str().as_bytes();
        if !host::is_valid(authority) {
            return false;
        }
        if head.version == Version::HTTP_2 {
            let same = |host: &HeaderValue| host.as_bytes().eq_ignore_ascii_case(authority);
            return match hosts {
                SingleValue::None => true,
                SingleValue::Value(host) => same(host),
                SingleValue::Multiple => head.headers.get_all(HOST).iter().all(same),
            };
        }
    }
    match hosts {
        SingleValue::None => head.version == Version::HTTP_10,
        SingleValue::Value(host) => host::is_valid(host.as_bytes()),
        SingleValue::Multiple => false,
    }
}
