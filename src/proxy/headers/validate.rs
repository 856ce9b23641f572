//! Rejects requests that HTTP allows and a proxy must not pass on.

use http::header::HOST;
use http::{HeaderMap, HeaderValue, Method, Uri, Version, request};

use super::flags::RequestHeaderFlags;
use super::{identity, overrides};
use crate::headers::is_hop_by_hop;
use crate::http1::content_length;
use crate::identify::forwarded;

/// A request that cannot be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum Unacceptable {
    /// Breaks the grammar or could be read in two ways.
    Malformed,
    /// A method that a proxy for one service has no business with.
    Method,
    /// A transfer coding that we cannot decode.
    Coding,
    /// More fields than may be.
    Fields,
}

/// Reduces the length of an HTTP/2 request to one field in normal digits. Over HTTP/1.1 the decoder does that. The `h2`
/// crate checks that the content has that length (RFC 9113 section 8.1.1).
pub(in crate::proxy) fn normalise_length(head: &mut request::Parts) -> Result<(), Unacceptable> {
    if head.version != Version::HTTP_2 {
        return Ok(());
    }
    content_length::normalise(&mut head.headers).map(drop).map_err(|_| Unacceptable::Malformed)
}

/// Rejects what HTTP allows and a proxy must not pass on, and more than `most_fields` fields; returns which there are.
///
/// # Errors
/// Why the request cannot be passed on.
pub(in crate::proxy) fn validate(
    head: &request::Parts,
    most_fields: u32,
) -> Result<RequestHeaderFlags, Unacceptable> {
    if head.version == Version::HTTP_2 {
        validate_fields(&head.headers, most_fields)?;
    }
    has_good_target(head)?;
    let mut flags = RequestHeaderFlags::default();
    let (mut hosts, mut codings) = (Once::None, Once::None);
    for (name, value) in &head.headers {
        match name.as_str() {
            "host" => hosts.add(value),
            "transfer-encoding" => {
                codings.add(value);
                flags.of_the_hop = true;
            }
            "expect" => {
                flags.expect = true;
                flags.of_the_hop = true;
            }
            // Only we say who is over a limit.
            "x-envoy-internal" | "x-weir-over-limit" => flags.of_the_hop = true,
            "x-forwarded-proto" => flags.forwarded_proto = true,
            "x-request-id" => flags.request_id = true,
            "x-envoy-external-address" => flags.external = true,
            "x-forwarded-client-cert" => flags.client_cert = true,
            name if is_hop_by_hop(name.as_bytes()) => flags.of_the_hop = true,
            name if name == forwarded::X_FORWARDED_FOR.as_str() => flags.forwarded_for = true,
            name => {
                flags.overrides |= overrides::is_override(name);
                flags.imitations |= identity::may_imitate(name);
            }
        }
    }
    if !names_one_host(head, hosts) {
        return Err(Unacceptable::Malformed);
    }
    is_chunked(head, codings)?;
    Ok(flags)
}

/// The values of a field that may be given once.
#[derive(Clone, Copy, Debug)]
enum Once<'a> {
    None,
    Value(&'a HeaderValue),
    Several,
}

impl<'a> Once<'a> {
    fn add(&mut self, value: &'a HeaderValue) {
        *self = match self {
            Self::None => Self::Value(value),
            Self::Value(_) | Self::Several => Self::Several,
        };
    }
}

/// The longest method that anybody has registered has 17 letters; longer words only fill logs.
const LONGEST_METHOD: usize = 64;

/// The target is in origin-form, in absolute-form, or `*` where that may be; the method is one that we pass on.
fn has_good_target(head: &request::Parts) -> Result<(), Unacceptable> {
    if matches!(head.method, Method::CONNECT | Method::TRACE) || head.method.as_str().len() > LONGEST_METHOD {
        return Err(Unacceptable::Method);
    }
    // RFC 9113 section 8.3.1: in HTTP/2 the path is there, and begins with a slash also in front of a query.
    let has_bare_query =
        |uri: &Uri| uri.path_and_query().is_some_and(|target| target.as_str().starts_with('?'));
    let is_good = match head.uri.scheme_str() {
        _ if head.version == Version::HTTP_2 && has_bare_query(&head.uri) => false,
        Some("http" | "https") => head.uri.path().starts_with('/') || is_asterisk(head),
        Some(_) => false,
        None if head.uri.authority().is_some() => false,
        None => head.uri.path().starts_with('/') || is_asterisk(head),
    };
    is_good.then_some(()).ok_or(Unacceptable::Malformed)
}

/// Chunks are the one coding we know, and HTTP/1.0 knows none.
fn is_chunked(head: &request::Parts, codings: Once<'_>) -> Result<(), Unacceptable> {
    match codings {
        Once::None => Ok(()),
        Once::Several => Err(Unacceptable::Malformed),
        Once::Value(coding) if !coding.as_bytes().eq_ignore_ascii_case(b"chunked") => {
            Err(Unacceptable::Coding)
        }
        Once::Value(_) if head.version == Version::HTTP_10 => Err(Unacceptable::Malformed),
        Once::Value(_) => Ok(()),
    }
}

/// What is checked while it is read over HTTP/1.1. White space around a value would be none for an upstream of HTTP/1.1:
/// one key with a space behind it would be another one to our limits and the same to the service (RFC 9113 section
/// 8.2.1 has no such values).
fn validate_fields(fields: &HeaderMap, most: u32) -> Result<(), Unacceptable> {
    if fields.len() > most as usize {
        return Err(Unacceptable::Fields);
    }
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let is_padded = |value: &HeaderValue| {
        let value = value.as_bytes();
        is_space(value.first()) || is_space(value.last())
    };
    if fields.values().any(is_padded) { Err(Unacceptable::Malformed) } else { Ok(()) }
}

fn is_asterisk(head: &request::Parts) -> bool {
    head.uri.path() == "*" && head.method == Method::OPTIONS
}

/// In HTTP/2 `:authority` takes the place of Host, and neither may say anything else than the other (RFC 9113
/// section 8.3.1). In HTTP/1.1 there is exactly one, and it must be a host; HTTP/1.0 may have none (RFC 9112 section
/// 3.2). An authority in the target takes its place (section 3.2.2), so it must be one too: without userinfo, which no
/// request over HTTP has (RFC 9110 section 4.2.4).
fn names_one_host(head: &request::Parts, hosts: Once<'_>) -> bool {
    if let Some(authority) = head.uri.authority() {
        let authority = authority.as_str().as_bytes();
        if !is_host(authority) {
            return false;
        }
        if head.version == Version::HTTP_2 {
            let same = |host: &HeaderValue| host.as_bytes().eq_ignore_ascii_case(authority);
            return head.headers.get_all(HOST).iter().all(same);
        }
    }
    match hosts {
        Once::None => head.version == Version::HTTP_10,
        Once::Value(host) => is_host(host.as_bytes()),
        Once::Several => false,
    }
}

/// A name or address and perhaps a port (RFC 9110 section 7.2); the port may be empty, the name may not.
pub(in crate::proxy) fn is_host(host: &[u8]) -> bool {
    let (inside, rest) = match host.strip_prefix(b"[") {
        Some(literal) => {
            let (inside, rest) = split_host(literal, |byte| byte == b':' || is_of_host(byte));
            let Some(rest) = rest.strip_prefix(b"]") else { return false };
            (inside, rest)
        }
        None => split_host(host, is_of_host),
    };
    let is_port = |port: &[u8]| port.len() <= 5 && port.iter().all(u8::is_ascii_digit);
    !inside.is_empty() && (rest.is_empty() || rest.strip_prefix(b":").is_some_and(is_port))
}

/// The bytes at the beginning that may stand there, and the rest.
fn split_host(host: &[u8], may_stand: impl Fn(u8) -> bool) -> (&[u8], &[u8]) {
    host.split_at(host.iter().position(|byte| !may_stand(*byte)).unwrap_or(host.len()))
}

fn is_of_host(byte: u8) -> bool {
    OF_HOST[usize::from(byte)]
}

/// Looked up, since every request has a host.
static OF_HOST: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0u8;
    while byte < 128 {
        table[byte as usize] =
            byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'%' | b'~');
        byte += 1;
    }
    table
};
