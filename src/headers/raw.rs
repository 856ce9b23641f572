//! Header fields as HTTP/1.1 writes them.

use std::ops::Range;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::names::is_hop_by_hop;

/// Room for the fields that a message usually gets from us.
const USUAL: usize = 320;

/// Fields as HTTP/1.1 writes them, each with its end of line.
#[derive(Clone, Debug, Default)]
pub struct RawHeaders {
    text: Vec<u8>,
    /// Where the line with the length of the body stands. It is read like any other and not written: whoever writes the body
    /// says its length.
    length: Range<u32>,
    names: Names,
}

/// What is known of the names without looking at the text.
#[derive(Clone, Copy, Debug, Default)]
struct Names {
    /// A bit for each name, which other names may share: where it is missing the name is, too.
    filter: u64,
    /// One is hop-by-hop, or announces trailers.
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

impl RawHeaders {
    /// Room for so many bytes of fields, and for what a message gets beside them.
    pub fn with_room(octets: usize) -> Self {
        Self { text: Vec::with_capacity(octets + USUAL), ..Self::default() }
    }

    /// Adds a field. Both must be what they are taken for.
    #[inline]
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        if self.text.capacity() == 0 {
            self.text = Vec::with_capacity(USUAL);
        }
        self.names.add(name);
        write_field(name, value, &mut self.text);
    }

    /// Adds a field with a number.
    pub fn push_number(&mut self, name: &HeaderName, number: u64) {
        self.push(name.as_str().as_bytes(), itoa::Buffer::new().format(number).as_bytes());
    }

    /// Adds the length of the body, of which there must be none yet.
    pub fn push_length(&mut self, name: &[u8], octets: &[u8]) {
        let start = place(self.text.len());
        self.push(name, octets);
        self.length = start..place(self.text.len());
    }

    /// Removes the length of the body.
    pub fn remove_length(&mut self) {
        let Range { start, end } = std::mem::take(&mut self.length);
        self.text.drain(start as usize..end as usize);
    }

    /// Fields of the same names as these, with their end of line, as `write` writes them.
    pub fn rewritten(&self, write: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut text = Vec::with_capacity(USUAL);
        write(&mut text);
        Self { text, length: 0..0, names: self.names }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Whether one of them is hop-by-hop, or announces trailers.
    pub(super) fn is_special(&self) -> bool {
        self.names.special
    }

    /// Whether one of them is a Date.
    pub fn is_dated(&self) -> bool {
        self.names.dated
    }

    /// Writes them but for the length of the body.
    #[inline]
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.text[..self.length.start as usize]);
        out.extend_from_slice(&self.text[self.length.end as usize..]);
    }

    /// The values of a field, in order.
    #[inline]
    pub(super) fn get_all<'a>(&'a self, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
        let name = name.as_str().as_bytes();
        let text = if self.names.filter & bit(name) == 0 { &[][..] } else { &self.text };
        fields(text).filter(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Adds them to a map, for whoever needs one.
    pub fn parse_into(self, headers: &mut HeaderMap) {
        headers.reserve(fields(&self.text).count());
        let text = Bytes::from(self.text);
        for (name, value) in fields(&text) {
            if let (Ok(name), Ok(value)) =
                (HeaderName::from_bytes(name), HeaderValue::from_maybe_shared(text.slice_ref(value)))
            {
                headers.append(name, value);
            }
        }
    }
}

impl Names {
    #[inline]
    fn add(&mut self, name: &[u8]) {
        self.filter |= bit(name);
        match name.len() {
            4 => self.dated |= name.eq_ignore_ascii_case(b"date"),
            7 if name.eq_ignore_ascii_case(b"trailer") => self.special = true,
            _ => self.special |= is_hop_by_hop(name),
        }
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

/// The bit of a name in whatever case, made of what tells most names apart: the length, both ends, and what is before the
/// last letter.
#[inline]
fn bit(name: &[u8]) -> u64 {
    let [first, .., before, last] = name else { return 1 };
    let letters = u32::from_le_bytes([*first, *before, *last, 0]) | 0x20_20_20;
    let mixed = (letters ^ (name.len() as u32) << 24).wrapping_mul(0x9E37_79B1);
    1 << (mixed >> 26)
}

fn place(octets: usize) -> u32 {
    u32::try_from(octets).unwrap_or(u32::MAX)
}
