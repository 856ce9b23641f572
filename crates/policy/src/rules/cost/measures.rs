//! Costs that are a number in a header, a number in a field of the body, or a number of bytes.

use std::num::NonZeroU64;

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::identify::body::{BodyField, RequestFields};

/// A cost read from a header. Fractions are rounded up; a value that is not a number has the maximum cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderCost {
    pub name: HeaderName,
    /// Cost if the header is absent or empty.
    pub default: u32,
    /// Maximum cost.
    pub max_units: Option<u32>,
}

/// A cost read from a field of a body. Fractions are rounded up; a value that is not a number has the maximum cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldCost {
    pub field: BodyField,
    /// Cost if the field is absent.
    pub default: u32,
    /// Maximum cost.
    pub max_units: Option<u32>,
}

/// A cost derived from a number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteCost {
    pub bytes_per_unit: NonZeroU64,
    /// Maximum cost, in units.
    pub max_units: Option<u32>,
}

impl HeaderCost {
    /// Returns the highest number among all lines and list items. An item that is not a number counts as the maximum,
    /// so that sending one is never cheaper than sending the true number.
    pub(super) fn units_from<'a>(&self, lines: impl Iterator<Item = &'a [u8]>) -> u32 {
        let items = lines.flat_map(|line| line.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
        // RFC 9110, section 5.6.1.2: a recipient ignores empty list elements.
        let units = items.filter(|item| !item.is_empty()).map(|item| number(item).unwrap_or(u32::MAX)).max();
        units.unwrap_or(self.default).min(self.max_units.unwrap_or(u32::MAX))
    }
}

impl FieldCost {
    /// Returns the units for the value in `body`. A request for which it is unknown is rejected before.
    pub(super) fn units(&self, body: RequestFields<'_>) -> u32 {
        let stated = body.field(self.field.index).ok().flatten();
        let units = stated.map_or(self.default, |text| number(text.as_bytes()).unwrap_or(u32::MAX));
        units.min(self.max_units.unwrap_or(u32::MAX)).max(1)
    }
}

impl ByteCost {
    pub(super) fn units(&self, bytes: u64) -> u32 {
        let units = u32::try_from(bytes.div_ceil(self.bytes_per_unit.get())).unwrap_or(u32::MAX);
        units.min(self.max_units.unwrap_or(u32::MAX)).max(1)
    }
}

/// Parses digits with an optional fraction, which is rounded up. Numbers of any length saturate.
pub(super) fn number(text: &[u8]) -> Option<u32> {
    let mut parts = text.splitn(2, |byte| *byte == b'.');
    let (whole, fraction) = (parts.next()?, parts.next());
    let are_digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    if !are_digits(whole) || !fraction.is_none_or(are_digits) {
        return None;
    }
    let add = |number: u32, digit: &u8| number.saturating_mul(10).saturating_add((digit - b'0').into());
    let up = fraction.is_some_and(|fraction| fraction.iter().any(|digit| *digit != b'0'));
    Some(whole.iter().fold(0, add).saturating_add(up.into()))
}

/// Returns the length of a request body that `content-length` announces; `None` if it is absent or the body is chunked.
pub(super) fn length(headers: &HeaderMap) -> Option<u64> {
    if headers.contains_key(TRANSFER_ENCODING) {
        return None;
    }
    headers.get(CONTENT_LENGTH).map(HeaderValue::to_str)?.ok()?.parse().ok()
}
