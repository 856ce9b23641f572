//! How a body goes out, and the bytes around its pieces.

use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HOST,
    MAX_FORWARDS, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING,
};
use http::{HeaderMap, HeaderName};

/// The last chunk without trailers.
pub(super) const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// How the other side is told where a body ends.
#[derive(Debug, PartialEq)]
pub enum Coding {
    /// By its length, or because there is none: so many octets are still to come.
    Octets(u64),
    /// By the last chunk, after which the fields of these names may come.
    Chunked(Box<[HeaderName]>),
    /// By the end of the connection.
    Close,
}

/// Writes a field.
#[inline]
pub fn field(name: &HeaderName, value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Writes the length of a body, in our own digits: `0010` is eight to some.
pub fn content_length(octets: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"content-length: ");
    out.extend_from_slice(itoa::Buffer::new().format(octets).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// The trailers that a message announces, those apart that must not stand in one (RFC 9110 section 6.5.1).
pub fn announced(headers: &HeaderMap) -> Box<[HeaderName]> {
    let lists = headers.get_all(TRAILER).iter().filter_map(|list| list.to_str().ok());
    lists
        .flat_map(|list| list.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .filter(may_trail)
        .collect()
}

fn may_trail(name: &HeaderName) -> bool {
    !matches!(
        *name,
        AUTHORIZATION
            | CACHE_CONTROL
            | CONTENT_ENCODING
            | CONTENT_LENGTH
            | CONTENT_RANGE
            | CONTENT_TYPE
            | HOST
            | MAX_FORWARDS
            | SET_COOKIE
            | TRAILER
            | TRANSFER_ENCODING
            | TE
    )
}

/// What stands before a chunk's data.
pub(super) fn chunk_size(data: &Bytes, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let size = data.len();
    let nibbles = (usize::BITS - size.leading_zeros()).div_ceil(4).max(1);
    out.extend((0..nibbles).rev().map(|nibble| DIGITS[(size >> (nibble * 4)) & 15]));
    out.extend_from_slice(b"\r\n");
}

/// The last chunk, and after it those of the fields that were announced.
pub(super) fn trailers(fields: &HeaderMap, announced: &[HeaderName], out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in fields.iter().filter(|(name, _)| announced.contains(name)) {
        field(name, value.as_bytes(), out);
    }
    out.extend_from_slice(b"\r\n");
}
