//! Helpers for heads of requests and responses: detecting their end, and locating and converting headers.

use std::ops::Range;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use super::malformed::MalformedMessage;
use crate::headers::write_field;

/// Position of a header within a head.
#[derive(Clone, Copy, Debug)]
pub struct FieldSpan {
    name: [u32; 2],
    value: [u32; 2],
}

/// Positions of all headers; those of most heads fit without an allocation.
pub type FieldSpans = SmallVec<[FieldSpan; 16]>;

impl FieldSpan {
    /// Returns the position of `field`, which must be a part of `head`.
    pub fn locate(head: &[u8], field: &httparse::Header<'_>) -> Self {
        Self { name: span_of(head, field.name.as_bytes()), value: span_of(head, field.value) }
    }

    /// Returns the name and the value at this position of `head`.
    pub fn name_and_value(self, head: &[u8]) -> (&[u8], &[u8]) {
        (&head[range(self.name)], &head[range(self.value)])
    }

    /// Returns the whole line at this position of `head`, including its line ending, if it has exactly the form `name:
    /// value`.
    #[inline]
    pub fn normal_line(self, head: &[u8]) -> Option<&[u8]> {
        let ([start, name_end], [value_start, value_end]) = (self.name, self.value);
        let is_normal = head.get(range([name_end, value_start]))? == b": ";
        let line = head.get(range([start, value_end.checked_add(2)?]))?;
        (is_normal && line.ends_with(b"\r\n")).then_some(line)
    }

    /// Returns the header at this position of `head`; its value shares the memory of `head`.
    ///
    /// # Errors
    /// If the name or the value is invalid.
    #[inline]
    pub fn field(self, head: &Bytes) -> Result<(HeaderName, HeaderValue), MalformedMessage> {
        let name = HeaderName::from_bytes(&head[range(self.name)]);
        let name = name.map_err(|_| MalformedMessage::Head(httparse::Error::HeaderName))?;
        let value = HeaderValue::from_maybe_shared(head.slice(range(self.value)));
        Ok((name, value.map_err(|_| MalformedMessage::Head(httparse::Error::HeaderValue))?))
    }
}

/// Bytes of a request's head as they were received. Fields that are forwarded unchanged keep the spelling of their names,
/// on which some services depend although it has no meaning (RFC 9110 section 5.1). Empty for requests over HTTP/2, whose
/// names are in lower case.
#[derive(Clone, Debug, Default)]
pub struct ReceivedHead(Bytes);

impl From<Bytes> for ReceivedHead {
    fn from(head: Bytes) -> Self {
        Self(head)
    }
}

impl ReceivedHead {
    /// Writes a field. `value` is found in the head by its position in memory, so nothing is searched for.
    #[inline]
    pub fn write_field(&self, name: &HeaderName, value: &HeaderValue, out: &mut Vec<u8>) {
        let (name, value) = (name.as_str().as_bytes(), value.as_bytes());
        match self.line_of(name, value) {
            Some(line) => out.extend_from_slice(line),
            None => write_field(self.spelling_of(name, value), value, out),
        }
    }

    /// Returns the line of a field as it was received, including its line ending, if it has exactly the form `name:
    /// value`.
    #[inline]
    fn line_of(&self, name: &[u8], value: &[u8]) -> Option<&[u8]> {
        let start = self.offset_of(value)?.checked_sub(name.len() + 2)?;
        let line = self.0.get(start..start + name.len() + value.len() + 4)?;
        let (received, rest) = line.split_at(name.len());
        let is_normal = rest.starts_with(b": ") && rest.ends_with(b"\r\n");
        (is_normal && is_same_name(received, name)).then_some(line)
    }

    /// Returns the name of a field as it was received, or `name` if the value is no part of the head.
    pub fn spelling_of<'a>(&'a self, name: &'a [u8], value: &[u8]) -> &'a [u8] {
        let before = self.offset_of(value).and_then(|offset| self.0.get(..offset));
        let received = before.and_then(|before| {
            let before = before.trim_ascii_end().strip_suffix(b":")?;
            before.get(before.len().checked_sub(name.len())?..)
        });
        received.filter(|received| received.eq_ignore_ascii_case(name)).unwrap_or(name)
    }

    fn offset_of(&self, value: &[u8]) -> Option<usize> {
        let offset = (value.as_ptr() as usize).wrapping_sub(self.0.as_ptr() as usize);
        (offset < self.0.len()).then_some(offset)
    }
}

/// Whether two names of the same length differ at most in their case. Eight letters are compared at a time.
#[inline]
fn is_same_name(one: &[u8], other: &[u8]) -> bool {
    const CASE: u64 = 0x2020_2020_2020_2020;
    let difference =
        |one: &[u8; 8], other: &[u8; 8]| (u64::from_le_bytes(*one) ^ u64::from_le_bytes(*other)) & !CASE;
    let (Some(last), Some(other_last)) = (one.last_chunk::<8>(), other.last_chunk::<8>()) else {
        return one.eq_ignore_ascii_case(other);
    };
    let words = one.as_chunks::<8>().0.iter().zip(other.as_chunks::<8>().0);
    words.fold(difference(last, other_last), |all, (one, other)| all | difference(one, other)) == 0
}

/// Copies headers into a map.
///
/// # Errors
/// If a name or a value is invalid.
pub fn to_header_map(fields: &[httparse::Header<'_>]) -> Result<HeaderMap, MalformedMessage> {
    let mut map = HeaderMap::with_capacity(fields.len());
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes());
        let name = name.map_err(|_| MalformedMessage::Head(httparse::Error::HeaderName))?;
        let value = HeaderValue::from_bytes(field.value);
        map.append(name, value.map_err(|_| MalformedMessage::Head(httparse::Error::HeaderValue))?);
    }
    Ok(map)
}

/// Returns the position of `part` in `head`, of which it must be a part unless it is empty.
pub fn span_of(head: &[u8], part: &[u8]) -> [u32; 2] {
    let start = (part.as_ptr() as usize).wrapping_sub(head.as_ptr() as usize);
    if part.is_empty() && start > head.len() {
        return [0, 0];
    }
    [start, start + part.len()].map(|place| u32::try_from(place).unwrap_or(u32::MAX))
}

/// Converts a position into a range.
pub fn range([start, end]: [u32; 2]) -> Range<usize> {
    start as usize..end as usize
}

/// Whether an empty line, which ends a head, ends after the first `looked` bytes. Avoids parsing a head from its
/// beginning for each byte that arrives.
pub fn may_be_complete(read: &[u8], looked: usize) -> bool {
    let rest = &read[looked.saturating_sub(3).min(read.len())..];
    let mut lines = rest.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    lines.any(|(end, _)| rest[end + 1..].starts_with(b"\n") || rest[end + 1..].starts_with(b"\r\n"))
}

/// Iterates over the elements of a comma-separated value. Empty ones are ignored (RFC 9110 section 5.6.1.2).
pub fn list_elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
}

/// Whether a comma-separated value contains this option, in any case.
pub fn has_token(value: &[u8], option: &str) -> bool {
    list_elements(value).any(|listed| listed.eq_ignore_ascii_case(option.as_bytes()))
}

/// Parses a number that consists of digits only; `None` if it does not, or exceeds 64 bits.
pub fn parse_number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, digit| {
        let digit = char::from(*digit).to_digit(10)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}
