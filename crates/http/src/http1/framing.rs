//! Framing of outgoing bodies, and the bytes around their pieces.

use bytes::Bytes;
use http::{HeaderMap, HeaderName};

use crate::headers::{may_be_trailer, write_field};

/// The last chunk, without trailers.
pub(super) const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// How the end of an outgoing body is marked.
#[derive(Debug, PartialEq)]
pub enum BodyFraming {
    /// By its length; this many bytes are left. 0 for messages without a body.
    Length(u64),
    /// By the last chunk, with trailers of these names only.
    Chunked(Box<[HeaderName]>),
    /// By the end of the connection.
    Close,
}

/// Writes a `Content-Length` in normal form: some recipients read `0010` as eight.
pub fn write_content_length(bytes: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"content-length: ");
    out.extend_from_slice(itoa::Buffer::new().format(bytes).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Returns the names in these values of `Trailer`, without those that must not be trailers.
pub fn announced_trailers<'a>(lists: impl Iterator<Item = &'a [u8]>) -> Box<[HeaderName]> {
    lists
        .flat_map(|list| list.split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .filter(may_be_trailer)
        .collect()
}

/// Writes the line with the size of a chunk.
pub(super) fn write_chunk_size(data: &Bytes, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let size = data.len();
    let nibbles = (usize::BITS - size.leading_zeros()).div_ceil(4).max(1);
    out.extend((0..nibbles).rev().map(|nibble| DIGITS[(size >> (nibble * 4)) & 15]));
    out.extend_from_slice(b"\r\n");
}

/// Writes the last chunk and those trailers that were announced.
pub(super) fn write_last_chunk(fields: &HeaderMap, announced: &[HeaderName], out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in fields.iter().filter(|(name, _)| announced.contains(name)) {
        write_field(name.as_str().as_bytes(), value.as_bytes(), out);
    }
    out.extend_from_slice(b"\r\n");
}
