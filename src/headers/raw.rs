//! Header fields as HTTP/1.1 writes them.

use std::ops::Range;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::names::is_hop_by_hop;

/// Room for the fields that a message usually gets from us.
const USUAL: usize = 320;

/// Fields to be written as they are, each with its end of line.
#[derive(Clone, Debug, Default)]
pub struct FieldLines(Vec<u8>);

/// The header fields of a message as HTTP/1.1 writes them.
#[derive(Clone, Debug, Default)]
pub struct RawHeaders {
    lines: FieldLines,
    /// Where the line with the length of the body stands. It is read like any other and not written: whoever writes the body
    /// says its length.
    length: Range<u32>,
    /// A bit for each name, which other names may share: where it is missing the name is, too.
    filter: u64,
    /// One of them is hop-by-hop, or announces trailers.
    special: bool,
    dated: bool,
}

/// Writes a field.
#[inline]
pub fn write_field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

impl FieldLines {
    /// Adds a field. Both must be what they are taken for.
    #[inline]
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        if self.0.capacity() == 0 {
            self.0 = Vec::with_capacity(USUAL);
        }
        write_field(name, value, &mut self.0);
    }

    /// Adds a field with a number.
    pub fn push_number(&mut self, name: &HeaderName, number: u64) {
        self.push(name.as_str().as_bytes(), itoa::Buffer::new().format(number).as_bytes());
    }

    /// All of them, each with its end of line.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Adds them to a map, for whoever needs one.
    pub fn parse_into(self, headers: &mut HeaderMap) {
        let text = Bytes::from(self.0);
        for (name, value) in fields(&text) {
            if let (Ok(name), Ok(value)) =
                (HeaderName::from_bytes(name), HeaderValue::from_maybe_shared(text.slice_ref(value)))
            {
                headers.append(name, value);
            }
        }
    }
}

impl RawHeaders {
    /// Room for so many bytes of fields, and for what a message gets beside them.
    pub fn with_room(octets: usize) -> Self {
        Self { lines: FieldLines(Vec::with_capacity(octets + USUAL)), ..Self::default() }
    }

    /// Adds a field. Both must be what they are taken for.
    #[inline]
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        self.add_name(name);
        self.lines.push(name, value);
    }

    /// Adds a field that is already written as a `line` with its end.
    #[inline]
    pub fn push_line(&mut self, name: &[u8], line: &[u8]) {
        self.add_name(name);
        self.lines.0.extend_from_slice(line);
    }

    #[inline]
    fn add_name(&mut self, name: &[u8]) {
        let bit = bit(name);
        self.filter |= bit;
        if bit & NOTED != 0 {
            self.note(name);
        }
    }

    fn note(&mut self, name: &[u8]) {
        self.dated |= name.eq_ignore_ascii_case(b"date");
        self.special |= name.eq_ignore_ascii_case(b"trailer") || is_hop_by_hop(name);
    }

    /// Adds a field with a number.
    #[inline]
    pub fn push_number(&mut self, name: &HeaderName, number: u64) {
        self.push(name.as_str().as_bytes(), itoa::Buffer::new().format(number).as_bytes());
    }

    /// Adds the length of the body with `push`; there must be none yet.
    #[inline]
    pub fn add_length(&mut self, push: impl FnOnce(&mut Self)) {
        let start = place(self.lines.0.len());
        push(self);
        self.length = start..place(self.lines.0.len());
    }

    /// Removes the length of the body.
    pub fn remove_length(&mut self) {
        let Range { start, end } = std::mem::take(&mut self.length);
        self.lines.0.drain(start as usize..end as usize);
    }

    /// Fields of the same names as these, each with its end of line, as `write` writes them.
    pub fn rewritten(&self, write: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut text = Vec::with_capacity(USUAL);
        write(&mut text);
        Self { lines: FieldLines(text), length: 0..0, ..*self }
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.0.is_empty()
    }

    /// Whether one of them is hop-by-hop, or announces trailers.
    pub(super) fn is_special(&self) -> bool {
        self.special
    }

    /// Whether one of them is a Date.
    pub(super) fn is_dated(&self) -> bool {
        self.dated
    }

    /// Writes them but for the length of the body.
    #[inline]
    pub fn write(&self, out: &mut Vec<u8>) {
        let text = &self.lines.0;
        out.extend_from_slice(&text[..self.length.start as usize]);
        out.extend_from_slice(&text[self.length.end as usize..]);
    }

    /// The first value of a field.
    #[inline]
    pub(super) fn get(&self, name: &HeaderName) -> Option<&[u8]> {
        if self.filter & bit(name.as_str().as_bytes()) == 0 { None } else { self.get_all(name).next() }
    }

    /// The values of a field, in order.
    pub(super) fn get_all<'a>(&'a self, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
        let name = name.as_str().as_bytes();
        let text = if self.filter & bit(name) == 0 { &[][..] } else { &self.lines.0 };
        fields(text).filter(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Adds them to a map.
    pub(super) fn parse_into(self, headers: &mut HeaderMap) {
        self.lines.parse_into(headers);
    }
}

/// The names and values in a text of fields.
fn fields(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    text.split(|byte| *byte == b'\n').filter_map(|line| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let colon = line.iter().position(|byte| *byte == b':')?;
        Some((&line[..colon], line[colon + 1..].trim_ascii()))
    })
}

/// The bits of the names that are noted, and perhaps of others.
const NOTED: u64 = bit(b"date")
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

/// The bit of a name in whatever case, made of what tells most names apart: the length, both ends, and what is before the
/// last letter. With this factor the usual fields of responses and those that we set share no bit, and none of a noted name.
#[inline]
const fn bit(name: &[u8]) -> u64 {
    let [first, .., before, last] = name else { return 1 };
    let letters = u32::from_le_bytes([*first, *before, *last, 0]) | 0x20_20_20;
    let mixed = (letters ^ ((name.len() as u32) << 24)).wrapping_mul(0x78DF_F045);
    1 << (mixed >> 26)
}

fn place(octets: usize) -> u32 {
    u32::try_from(octets).unwrap_or(u32::MAX)
}
