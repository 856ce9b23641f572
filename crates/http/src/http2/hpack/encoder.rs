//! HpackEncoder of header blocks.

use std::hash::{BuildHasher, Hasher};

use foldhash::fast::FixedState;
use http::uri::Scheme;
use http::{HeaderName, HeaderValue, Method, StatusCode};

use super::encode_table::{EncodeTable, FieldHash, MAX_FIELD_LEN};
use super::field::{Protocol, size};
use super::static_table::{self, index};
use super::{MAX_TABLE_SIZE, integer};

/// How a field is represented (RFC 7541, section 6).
#[derive(Clone, Copy)]
struct Representation {
    /// Pattern of the first byte.
    first: u8,
    /// Length of the integer's prefix in that byte, in bits.
    prefix: u32,
}

const INDEXED: Representation = Representation { first: 0x80, prefix: 7 };
const INCREMENTAL: Representation = Representation { first: 0x40, prefix: 6 };
const SIZE_UPDATE: Representation = Representation { first: 0x20, prefix: 5 };
const NEVER_INDEXED: Representation = Representation { first: 0x10, prefix: 4 };
const UNINDEXED: Representation = Representation { first: 0x00, prefix: 4 };

/// Bytes that all integers of a field take at most.
const MAX_INTEGERS_LEN: usize = 24;

/// Encodes the header blocks of one direction of a connection.
///
/// It prefers speed to compression. A field enters the table when it is sent for the second time, so values that vary
/// do not displace those that repeat. Strings are not compressed.
#[derive(Debug)]
pub struct HpackEncoder {
    /// Allocated with the first field that may enter it.
    table: Option<Box<EncodeTable>>,
    /// Bound of the table, in bytes, that the peer's decoder applies.
    max_size: u32,
    /// Bound to apply from the next block, and the smallest since the last block.
    next_max_size: Option<NextMaxSize>,
}

#[derive(Clone, Copy, Debug)]
struct NextMaxSize {
    smallest: u32,
    last: u32,
}

impl HpackEncoder {
    /// Returns an encoder with an empty table of the default maximum size, which allocates nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { table: None, max_size: MAX_TABLE_SIZE, next_max_size: None }
    }

    /// Applies `SETTINGS_HEADER_TABLE_SIZE` of the peer, in bytes, from the next block on (RFC 7541, section 4.2). The
    /// table uses at most 4096 bytes of it.
    pub fn set_max_size(&mut self, bytes: u32) {
        let last = bytes.min(MAX_TABLE_SIZE);
        let smallest = self.next_max_size.map_or(last, |next| next.smallest.min(last));
        self.next_max_size = Some(NextMaxSize { smallest, last });
    }

    /// Begins a block. Must be called before its first field.
    #[inline]
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if let Some(next) = self.next_max_size.take() {
            self.update_size(next, out);
        }
        if let Some(table) = &mut self.table {
            table.begin();
        }
    }

    fn update_size(&mut self, next: NextMaxSize, out: &mut Vec<u8>) {
        if next.smallest < next.last && next.smallest < self.max_size {
            self.apply_max_size(next.smallest, out);
        }
        if next.last != self.max_size {
            self.apply_max_size(next.last, out);
        }
    }

    fn apply_max_size(&mut self, bytes: u32, out: &mut Vec<u8>) {
        integer::encode(SIZE_UPDATE.first, SIZE_UPDATE.prefix, bytes as usize, out);
        self.max_size = bytes;
        if let Some(table) = &mut self.table {
            table.evict(bytes as usize);
        }
    }

    /// Appends `:status`.
    pub fn status(&mut self, status: StatusCode, out: &mut Vec<u8>) {
        let place = match status.as_u16() {
            200 => 0,
            204 => 1,
            206 => 2,
            304 => 3,
            400 => 4,
            404 => 5,
            500 => 6,
            _ => return self.field(b":status", status.as_str().as_bytes(), out),
        };
        indexed(index::STATUS + place, out);
    }

    /// Appends `:method`.
    pub fn method(&mut self, method: &Method, out: &mut Vec<u8>) {
        match *method {
            Method::GET => indexed(index::METHOD, out),
            Method::POST => indexed(index::METHOD_POST, out),
            _ => self.field(b":method", method.as_str().as_bytes(), out),
        }
    }

    /// Appends `:scheme`.
    pub fn scheme(&mut self, scheme: &Scheme, out: &mut Vec<u8>) {
        match scheme.as_str() {
            "http" => indexed(index::SCHEME, out),
            "https" => indexed(index::SCHEME_HTTPS, out),
            other => self.field(b":scheme", other.as_bytes(), out),
        }
    }

    /// Appends `:authority`.
    pub fn authority(&mut self, authority: &str, out: &mut Vec<u8>) {
        self.field(b":authority", authority.as_bytes(), out);
    }

    /// Appends `:path`.
    pub fn path(&mut self, path: &str, out: &mut Vec<u8>) {
        match path {
            "/" => indexed(index::PATH, out),
            "/index.html" => indexed(index::PATH_INDEX_HTML, out),
            _ => self.field(b":path", path.as_bytes(), out),
        }
    }

    /// Appends `:protocol` (RFC 8441).
    pub fn protocol(&mut self, protocol: &Protocol, out: &mut Vec<u8>) {
        self.field(b":protocol", protocol.as_str().as_bytes(), out);
    }

    /// Appends a field. A sensitive value is never indexed, neither here nor by another hop (RFC 7541, section 7.1.3).
    pub fn header(&mut self, name: &HeaderName, value: &HeaderValue, out: &mut Vec<u8>) {
        let name = name.as_str().as_bytes();
        if value.is_sensitive() {
            literal(NEVER_INDEXED, name, value.as_bytes(), out);
        } else {
            self.raw_header(name, value.as_bytes(), out);
        }
    }

    /// Appends a field with a name in lower case. Neither is checked.
    pub fn raw_header(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        if is_varying(name) {
            literal(UNINDEXED, name, value, out);
        } else {
            self.field(name, value, out);
        }
    }

    /// Appends a field that may be in the dynamic table, or may enter it.
    #[inline]
    fn field(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        match self.table.as_mut().and_then(|table| table.find_expected(name, value)) {
            Some(age) => indexed(static_table::LEN + age, out),
            None => self.unexpected_field(name, value, out),
        }
    }

    #[inline(never)]
    fn unexpected_field(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        let max_size = self.max_size as usize;
        if name.len() + value.len() > MAX_FIELD_LEN || size(name, value) > max_size || is_secret(name) {
            return literal(UNINDEXED, name, value, out);
        }
        let table = self.table.get_or_insert_with(EncodeTable::boxed);
        let hash = hash(name, value);
        if let Some(age) = table.find(hash, name, value) {
            indexed(static_table::LEN + age, out);
        } else if name == b"accept-encoding" && value == b"gzip, deflate" {
            // The only field with a value that is in the static table.
            indexed(index::ACCEPT_ENCODING, out);
        } else if table.is_repeated(hash) {
            table.insert(hash, name, value, max_size);
            literal(INCREMENTAL, name, value, out);
        } else {
            literal(UNINDEXED, name, value, out);
        }
    }
}

impl Default for HpackEncoder {
    fn default() -> Self {
        Self::new()
    }
}

#[inline]
fn hash(name: &[u8], value: &[u8]) -> FieldHash {
    let mut hasher = FixedState::with_seed(0).build_hasher();
    hasher.write(name);
    hasher.write(value);
    FieldHash(hasher.finish())
}

#[inline]
fn indexed(index: usize, out: &mut Vec<u8>) {
    integer::encode(INDEXED.first, INDEXED.prefix, index, out);
}

/// Whether values of this name are credentials. An attacker who sends other fields over the same connection and sees
/// the lengths of blocks could guess one that is in the table (RFC 7541, section 7.1).
fn is_secret(name: &[u8]) -> bool {
    matches!(name, b"authorization" | b"cookie" | b"proxy-authorization" | b"set-cookie")
}

/// Whether values of this name usually differ from message to message, so that a search for them would be in vain.
fn is_varying(name: &[u8]) -> bool {
    match name.len() {
        4 => name == b"date",
        9 => name == b"ratelimit",
        11 => name == b"traceparent",
        12 => name == b"x-request-id",
        21 => name == b"x-ratelimit-remaining",
        _ => false,
    }
}

/// Appends a literal field, with the index of its name if the static table has it.
fn literal(form: Representation, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.reserve(name.len() + value.len() + MAX_INTEGERS_LEN);
    if let Some(index) = static_table::find(name) {
        integer::encode(form.first, form.prefix, index, out);
    } else {
        out.push(form.first);
        integer::encode(0, 7, name.len(), out);
        out.extend_from_slice(name);
    }
    integer::encode(0, 7, value.len(), out);
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests;
