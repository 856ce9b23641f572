//! Helpers for heads of requests and responses: detecting their end, and locating and converting headers.

use std::ops::Range;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use super::malformed::MalformedMessage;

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
    if part.is_empty() {
        return [0, 0];
    }
    let start = (part.as_ptr() as usize).saturating_sub(head.as_ptr() as usize);
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

/// Whether a comma-separated value contains this option, in any case.
pub fn has_token(value: &[u8], option: &str) -> bool {
    let mut options = value.split(|byte| *byte == b',');
    options.any(|listed| listed.trim_ascii().eq_ignore_ascii_case(option.as_bytes()))
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
