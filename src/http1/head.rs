//! What all heads have in common: when one is whole, where its fields stand, and how they come into a map.

use std::ops::Range;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use super::malformed::Malformed;

/// Where a field stands.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    name: [u32; 2],
    value: [u32; 2],
}

/// Where the fields of most heads stand fits here.
pub type Places = SmallVec<[Place; 16]>;

impl Place {
    /// Where `field` stands in `whole`, of which it is a part. No head is too long for it.
    pub fn of(whole: &[u8], field: &httparse::Header<'_>) -> Self {
        Self { name: place(whole, field.name.as_bytes()), value: place(whole, field.value) }
    }

    /// The name and the value that stand there in `head`.
    pub fn bytes(self, head: &[u8]) -> (&[u8], &[u8]) {
        (&head[range(self.name)], &head[range(self.value)])
    }

    /// The whole line that stands there in `head`, with its end, if it has the form `name: value` and nothing else.
    #[inline]
    pub fn normal_line(self, head: &[u8]) -> Option<&[u8]> {
        let ([start, name_end], [value_start, value_end]) = (self.name, self.value);
        let is_normal = head.get(range([name_end, value_start]))? == b": ";
        let line = head.get(range([start, value_end.checked_add(2)?]))?;
        (is_normal && line.ends_with(b"\r\n")).then_some(line)
    }

    /// The field that stands there in `head`; its value shares the memory.
    ///
    /// # Errors
    /// For what is no name or no value.
    #[inline]
    pub fn field(self, head: &Bytes) -> Result<(HeaderName, HeaderValue), Malformed> {
        let name = HeaderName::from_bytes(&head[range(self.name)]);
        let name = name.map_err(|_| Malformed::Head(httparse::Error::HeaderName))?;
        let value = HeaderValue::from_maybe_shared(head.slice(range(self.value)));
        Ok((name, value.map_err(|_| Malformed::Head(httparse::Error::HeaderValue))?))
    }
}

/// A copy of some fields.
///
/// # Errors
/// For what is no name or no value.
pub fn map(fields: &[httparse::Header<'_>]) -> Result<HeaderMap, Malformed> {
    let mut map = HeaderMap::with_capacity(fields.len());
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes());
        let name = name.map_err(|_| Malformed::Head(httparse::Error::HeaderName))?;
        let value = HeaderValue::from_bytes(field.value);
        map.append(name, value.map_err(|_| Malformed::Head(httparse::Error::HeaderValue))?);
    }
    Ok(map)
}

/// Where `part` stands in `whole`, of which it is a part unless it is empty.
pub fn place(whole: &[u8], part: &[u8]) -> [u32; 2] {
    if part.is_empty() {
        return [0, 0];
    }
    let start = (part.as_ptr() as usize).saturating_sub(whole.as_ptr() as usize);
    [start, start + part.len()].map(|place| u32::try_from(place).unwrap_or(u32::MAX))
}

/// The same as a range.
pub fn range([start, end]: [u32; 2]) -> Range<usize> {
    start as usize..end as usize
}

/// Whether an empty line, which ends a head, ends after the first `looked` bytes. A head that comes byte by byte is not to
/// be read from its beginning for each.
pub fn may_end(read: &[u8], looked: usize) -> bool {
    let rest = &read[looked.saturating_sub(3).min(read.len())..];
    let mut lines = rest.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    lines.any(|(end, _)| rest[end + 1..].starts_with(b"\n") || rest[end + 1..].starts_with(b"\r\n"))
}

/// Whether a comma-separated value has this option, in any case.
pub fn lists(value: &[u8], option: &str) -> bool {
    let mut options = value.split(|byte| *byte == b',');
    options.any(|listed| listed.trim_ascii().eq_ignore_ascii_case(option.as_bytes()))
}

/// The number that consists of these digits and nothing else; `None` for none, or one over 64 bits.
pub fn number_of(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, digit| {
        let digit = char::from(*digit).to_digit(10)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}
