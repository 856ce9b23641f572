//! How a body goes out, and the bytes around its pieces.

use bytes::Bytes;
use http::{HeaderMap, HeaderName};

use crate::headers::{may_trail, write_field};

/// The last chunk without trailers.
pub(super) const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// How the other side is told where a body ends.
#[derive(Debug, PartialEq)]
pub enum BodyFraming {
    /// By its length, or because there is none: so many octets are still to come.
    Length(u64),
    /// By the last chunk, after which the fields of these names may come.
    Chunked(Box<[HeaderName]>),
    /// By the end of the connection.
    Close,
}

/// Writes the length of a body, in our own digits: `0010` is eight to some.
pub fn content_length(octets: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"content-length: ");
    out.extend_from_slice(itoa::Buffer::new().format(octets).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// The trailers that a message announces in these values of its Trailer field, without those that must not be trailers.
pub fn announced<'a>(lists: impl Iterator<Item = &'a [u8]>) -> Box<[HeaderName]> {
    lists
        .flat_map(|list| list.split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .filter(may_trail)
        .collect()
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
        write_field(name.as_str().as_bytes(), value.as_bytes(), out);
    }
    out.extend_from_slice(b"\r\n");
}
