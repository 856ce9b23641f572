//! Headers that tell the upstream about the client of a request.

use std::net::IpAddr;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, request};

use super::flags::RequestHeaderFlags;
use super::{Hop, X_FORWARDED_CLIENT_CERT, X_REQUEST_ID};
use weir_http::headers::FieldLines;
use weir_policy::identify::forwarded;
use weir_policy::response::request_details::RequestDetails;

const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_ENVOY_EXTERNAL_ADDRESS: HeaderName = HeaderName::from_static("x-envoy-external-address");

/// Sets the headers. Those that the request does not have are added to `apart`, if that is given.
pub(super) fn set_forwarded_headers(
    headers: &mut HeaderMap,
    flags: RequestHeaderFlags,
    hop: &Hop<'_>,
    mut apart: Option<&mut FieldLines>,
) {
    let mut set = |headers: &mut HeaderMap, is_given: bool, name: HeaderName, value: &HeaderValue| match apart
        .as_mut()
        .filter(|_| !is_given)
    {
        Some(lines) => lines.push(name.as_str().as_bytes(), value.as_bytes()),
        None => drop(headers.insert(name, value.clone())),
    };
    if flags.forwarded_for {
        let forwarded_for = forwarded::appended(headers, hop.peer);
        headers.insert(forwarded::X_FORWARDED_FOR, forwarded_for);
    } else {
        set(headers, false, forwarded::X_FORWARDED_FOR, hop.peer_text);
    }
    let trusts = hop.client.peer_is_trusted;
    if !(trusts && flags.forwarded_proto && headers.contains_key(X_FORWARDED_PROTO)) {
        let scheme = if hop.tls.is_some() { "https" } else { "http" };
        set(headers, flags.forwarded_proto, X_FORWARDED_PROTO, &HeaderValue::from_static(scheme));
    }
    if let Some(certificate) = hop.tls.and_then(|tls| tls.forwarded.as_ref()) {
        headers.insert(X_FORWARDED_CLIENT_CERT, certificate.clone());
    }
    if hop.client.ip == hop.peer {
        set(headers, flags.external, X_ENVOY_EXTERNAL_ADDRESS, hop.peer_text);
    } else {
        set(headers, flags.external, X_ENVOY_EXTERNAL_ADDRESS, &address_value(hop.client.ip));
    }
    if !(trusts && flags.request_id && headers.contains_key(X_REQUEST_ID)) {
        let id = request_id(hop.random);
        match apart.filter(|_| !flags.request_id) {
            Some(lines) => lines.push(X_REQUEST_ID.as_str().as_bytes(), &id),
            None => drop(headers.insert(X_REQUEST_ID, header_value(Bytes::copy_from_slice(&id)))),
        }
    }
}

/// Returns what the local reply to a request may repeat. Its ID is the one that the upstream would receive.
pub(in crate::proxy) fn request_details(
    head: &request::Parts,
    flags: RequestHeaderFlags,
    hop: &Hop<'_>,
) -> RequestDetails {
    let is_kept = hop.client.peer_is_trusted && flags.request_id;
    let given = head.headers.get(X_REQUEST_ID).filter(|_| is_kept);
    let generated = request_id(hop.random);
    let id = given.map_or(&generated[..], HeaderValue::as_bytes);
    let id = String::from_utf8_lossy(id);
    RequestDetails::new(&head.method, &head.uri, &head.headers, hop.client.ip, &id)
}

/// Formats an address as a header value.
pub(in crate::proxy) fn address_value(ip: IpAddr) -> HeaderValue {
    // Of the exact length, so that a value which is not cloned is one allocation.
    let mut text = Vec::with_capacity(if ip.is_ipv4() { 16 } else { 40 });
    forwarded::write_ip(&mut text, ip);
    header_value(text.into_boxed_slice().into())
}

/// Returns text of valid bytes as a header value.
fn header_value(text: Bytes) -> HeaderValue {
    HeaderValue::from_maybe_shared(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// Two hexadecimal digits for each byte.
static HEXADECIMAL: [[u8; 2]; 256] = {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut table = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = [DIGITS[byte >> 4], DIGITS[byte & 15]];
        byte += 1;
    }
    table
};

/// Formats random bits as a UUID of version 4 (RFC 9562 section 5.4).
fn request_id(random: u128) -> [u8; 36] {
    /// Positions of the digits of each byte; dashes precede bytes 4, 6, 8 and 10.
    const DIGIT_OFFSETS: [usize; 16] = [0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34];
    let mut bytes = random.to_be_bytes();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut text = [b'-'; 36];
    for (place, byte) in DIGIT_OFFSETS.into_iter().zip(bytes) {
        text[place..place + 2].copy_from_slice(&HEXADECIMAL[usize::from(byte)]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_id_has_uuid_version_and_variant() {
        assert_eq!(&request_id(0), b"00000000-0000-4000-8000-000000000000");
    }
}
