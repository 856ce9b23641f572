//! Headers in the wire format of HTTP/1.1.

use std::ops::Range;

use bytes::Bytes;
use http::header::InvalidHeaderValue;
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use super::names::is_hop_by_hop;

/// Bytes reserved for the headers that Weir usually adds to a message.
const ADDED_FIELDS_CAPACITY: usize = 320;

/// Length up to which a name is converted to lower case without an allocation.
const TYPICAL_NAME_LENGTH: usize = 48;

/// Header lines in wire format, each with its line ending.
#[derive(Clone, Debug, Default)]
pub struct FieldLines(Vec<u8>);

/// Headers of a message in wire format, with an index for fast lookups.
#[derive(Clone, Debug, Default)]
pub struct RawHeaders {
    lines: FieldLines,
    /// Range of the line with the length of the body. Lookups find it, but it is not written: the encoder of the body
    /// writes the framing.
    content_length: Range<u32>,
    /// Bloom filter of the names, one bit each. If the bit of a name is not set, there is no such header.
    filter: u64,
    /// Whether a header is hop-by-hop or announces trailers.
    needs_filtering: bool,
    has_date: bool,
}

/// Writes one header line.
#[inline]
pub fn write_field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

impl FieldLines {
    /// Appends a header. The caller guarantees that name and value are valid.
    #[inline]
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        if self.0.capacity() == 0 {
            self.0 = Vec::with_capacity(ADDED_FIELDS_CAPACITY);
        }
        write_field(name, value, &mut self.0);
    }

    /// Appends a header with a number as its value.
    pub fn push_number(&mut self, name: &HeaderName, number: u64) {
        self.push(name.as_str().as_bytes(), itoa::Buffer::new().format(number).as_bytes());
    }

    /// Iterates over the names and values, as they were pushed.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        fields(&self.0)
    }

    /// Calls `visit` with the names, in lower case, and the values.
    #[inline]
    pub fn for_each_in_lower_case(&self, mut visit: impl FnMut(&[u8], &[u8])) {
        let mut lower = SmallVec::<[u8; TYPICAL_NAME_LENGTH]>::new();
        for (name, value) in self.iter() {
            lower.clear();
            lower.extend_from_slice(name);
            lower.make_ascii_lowercase();
            visit(&lower, value);
        }
    }

    /// Returns all lines, each with its line ending.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the first value of a header whose name was pushed as it is in `name`.
    pub fn get(&self, name: &HeaderName) -> Option<&[u8]> {
        let name = name.as_str().as_bytes();
        lines(&self.0).find_map(|line| line.strip_prefix(name)?.strip_prefix(b": "))
    }

    /// Appends copies of the headers to a map. For few lines, this costs less than to share their memory.
    pub fn copy_into(&self, headers: &mut HeaderMap) {
        append_fields(&self.0, headers, HeaderValue::from_bytes);
    }

    /// Parses the lines and appends them to a map.
    pub fn parse_into(self, headers: &mut HeaderMap) {
        let text = Bytes::from(self.0);
        append_fields(&text, headers, |value| HeaderValue::from_maybe_shared(text.slice_ref(value)));
    }
}

impl RawHeaders {
    /// Creates an empty header section with room for `size` bytes and for the headers that Weir usually adds.
    pub fn with_capacity(size: usize) -> Self {
        Self { lines: FieldLines(Vec::with_capacity(size + ADDED_FIELDS_CAPACITY)), ..Self::default() }
    }

    /// Appends a header. The caller guarantees that name and value are valid.
    #[inline]
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        self.add_name(name);
        self.lines.push(name, value);
    }

    /// Appends a header that is already written as a `line`, including its line ending.
    #[inline]
    pub fn push_line(&mut self, name: &[u8], line: &[u8]) {
        self.add_name(name);
        self.lines.0.extend_from_slice(line);
    }

    #[inline]
    fn add_name(&mut self, name: &[u8]) {
        let bit = bit(name);
        self.filter |= bit;
        if bit & FLAGGED_NAMES != 0 {
            self.record_flags(name);
        }
    }

    fn record_flags(&mut self, name: &[u8]) {
        self.has_date |= name.eq_ignore_ascii_case(b"date");
        self.needs_filtering |= name.eq_ignore_ascii_case(b"trailer") || is_hop_by_hop(name);
    }

    /// Appends a header with a number as its value.
    #[inline]
    pub fn push_number(&mut self, name: &HeaderName, number: u64) {
        self.push(name.as_str().as_bytes(), itoa::Buffer::new().format(number).as_bytes());
    }

    /// Appends the length of the body by calling `push`. There must be none yet.
    #[inline]
    pub fn push_content_length(&mut self, push: impl FnOnce(&mut Self)) {
        let start = offset(self.lines.0.len());
        push(self);
        self.content_length = start..offset(self.lines.0.len());
    }

    /// Removes the length of the body.
    pub fn remove_content_length(&mut self) {
        let Range { start, end } = std::mem::take(&mut self.content_length);
        self.lines.0.drain(start as usize..end as usize);
    }

    /// Removes the headers for whose names `is_kept` returns false. The others keep their order and spelling.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&[u8]) -> bool) {
        let Self { lines, content_length, .. } = std::mem::take(self);
        *self = Self::with_capacity(lines.0.len());
        let mut start = 0;
        for line in lines.0.split_inclusive(|byte| *byte == b'\n') {
            let name = &line[..memchr::memchr(b':', line).unwrap_or(line.len())];
            let is_length = content_length.contains(&offset(start));
            start += line.len();
            match is_kept(name) {
                true if is_length => self.push_content_length(|headers| headers.push_line(name, line)),
                true => self.push_line(name, line),
                false => {}
            }
        }
    }

    /// Returns all lines, including that of the length of the body.
    pub fn lines(&self) -> &FieldLines {
        &self.lines
    }

    /// Returns headers with the same names and the lines that `write` writes. The index is kept, so `write` must not
    /// add a name.
    pub fn rewritten(&self, write: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut text = Vec::with_capacity(ADDED_FIELDS_CAPACITY);
        write(&mut text);
        Self { lines: FieldLines(text), content_length: 0..0, ..*self }
    }

    /// Whether there are no headers.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.0.is_empty()
    }

    /// Whether a header is hop-by-hop or announces trailers.
    pub(super) fn needs_filtering(&self) -> bool {
        self.needs_filtering
    }

    /// Whether there is a `Date` header.
    pub(super) fn has_date(&self) -> bool {
        self.has_date
    }

    /// Writes all lines except the length of the body.
    #[inline]
    pub fn write(&self, out: &mut Vec<u8>) {
        let text = &self.lines.0;
        out.extend_from_slice(&text[..self.content_length.start as usize]);
        out.extend_from_slice(&text[self.content_length.end as usize..]);
    }

    /// Returns the first value of a header.
    #[inline]
    pub(super) fn get(&self, name: &HeaderName) -> Option<&[u8]> {
        if self.filter & bit(name.as_str().as_bytes()) == 0 { None } else { self.get_all(name).next() }
    }

    /// Returns the values of a header, in order.
    pub(super) fn get_all<'a>(&'a self, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
        let name = name.as_str().as_bytes();
        let text = if self.filter & bit(name) == 0 { &[][..] } else { &self.lines.0 };
        fields(text).filter(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Parses the headers and appends them to a map.
    pub(super) fn parse_into(self, headers: &mut HeaderMap) {
        self.lines.parse_into(headers);
    }
}

/// Appends header lines to a map, with values that `to_value` creates.
fn append_fields(
    text: &[u8],
    headers: &mut HeaderMap,
    to_value: impl Fn(&[u8]) -> Result<HeaderValue, InvalidHeaderValue>,
) {
    for (name, value) in fields(text) {
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), to_value(value)) {
            headers.append(name, value);
        }
    }
}

/// Iterates over the names and values of header lines.
fn fields(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    lines(text).filter_map(|line| {
        let colon = memchr::memchr(b':', line)?;
        Some((&line[..colon], line[colon + 1..].trim_ascii()))
    })
}

/// Iterates over lines, without their endings.
fn lines(mut text: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        if text.is_empty() {
            return None;
        }
        let (line, rest) = text.split_at(memchr::memchr(b'\n', text).unwrap_or(text.len()));
        text = rest.get(1..).unwrap_or_default();
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    })
}

/// Bits of the names that set a flag of [`RawHeaders`]; other names may share them.
const FLAGGED_NAMES: u64 = bit(b"date")
    | bit(b"trailer")
    | bit(b"te")
    | bit(b"upgrade")
    | bit(b"connection")
    | bit(b"keep-alive")
    | bit(b"http2-settings")
    | bit(b"proxy-connection")
    | bit(b"transfer-encoding")
    | bit(b"proxy-authenticate")
    | bit(b"proxy-authorization");

/// Returns the filter bit of a name, in any case. It is derived from the length and from the first and the last two
/// letters, which together distinguish most names. With this factor, the usual response headers and those that Weir
/// sets share no bit with each other or with a noted name.
#[inline]
const fn bit(name: &[u8]) -> u64 {
    let [first, .., before, last] = name else { return 1 };
    let letters = u32::from_le_bytes([*first, *before, *last, 0]) | 0x20_20_20;
    let mixed = (letters ^ ((name.len() as u32) << 24)).wrapping_mul(0x78DF_F045);
    1 << (mixed >> 26)
}

fn offset(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}
