//! The head of an answer, decoded.

use std::mem::MaybeUninit;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use smallvec::SmallVec;

use super::chunked::Chunked;
use super::length::Length;
use crate::upstream::error::Malformed;

/// A head may take this much.
const LARGEST: usize = 128 * 1024;
/// So many fields may stand in it.
const MOST_FIELDS: usize = 256;
/// Room for what a proxy adds to an answer, so that the map need not grow.
const ADDED: usize = 6;

/// The head of an answer.
#[derive(Debug, PartialEq)]
pub(in crate::upstream) struct Head {
    /// Its status.
    pub(in crate::upstream) status: StatusCode,
    /// Its fields, in order.
    pub(in crate::upstream) headers: HeaderMap,
    /// Where the body ends.
    pub(in crate::upstream) length: Length,
    /// Whether the upstream keeps the connection after the answer.
    pub(in crate::upstream) keeps: bool,
}

/// A reader of heads. Interim answers are skipped.
#[derive(Debug)]
pub(super) struct Reader {
    /// The answer to HEAD has no body, whatever its fields say.
    to_head: bool,
    /// So much of what has been read holds no whole head.
    looked: usize,
}

/// Where a field stands.
struct Place {
    name: Range<usize>,
    value: Range<usize>,
}

impl Reader {
    /// Of the answer to HEAD or to another method.
    pub(super) fn new(to_head: bool) -> Self {
        Self { to_head, looked: 0 }
    }

    /// Takes the head off what has been read; `None` as long as it is not whole.
    ///
    /// # Errors
    /// For what is not a head, or one over the limits.
    pub(super) fn decode(&mut self, read: &mut BytesMut) -> Result<Option<Head>, Malformed> {
        // A head that comes byte by byte is not to be read from its beginning for each.
        while self.looked == 0 || may_end(read, self.looked) {
            let Some((status, is_1_1, fields, end)) = parse(read)? else { break };
            let head = read.split_to(end).freeze();
            self.looked = 0;
            if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
                if read.is_empty() {
                    return Ok(None);
                }
                continue;
            }
            return self.complete(status, is_1_1, &head, &fields).map(Some);
        }
        self.looked = read.len();
        if self.looked >= LARGEST { Err(Malformed::TooLong) } else { Ok(None) }
    }

    fn complete(
        &self,
        status: StatusCode,
        is_1_1: bool,
        head: &Bytes,
        fields: &[Place],
    ) -> Result<Head, Malformed> {
        let mut headers = HeaderMap::with_capacity(fields.len() + ADDED);
        let mut framing = Framing::default();
        for place in fields {
            let name = HeaderName::from_bytes(&head[place.name.clone()]);
            let name = name.map_err(|_| Malformed::Head(httparse::Error::HeaderName))?;
            let value = HeaderValue::from_maybe_shared(head.slice(place.value.clone()));
            let value = value.map_err(|_| Malformed::Head(httparse::Error::HeaderValue))?;
            framing.note(&name, &value)?;
            headers.append(name, value);
        }
        let length = framing.length(is_1_1)?;
        let bodiless = self.to_head
            || matches!(
                status,
                StatusCode::SWITCHING_PROTOCOLS | StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
            );
        let keeps = is_1_1
            && !framing.closes
            && !framing.is_ambiguous()
            && status != StatusCode::SWITCHING_PROTOCOLS
            && (bodiless || length != Length::Close);
        Ok(Head { status, headers, length: if bodiless { Length::Octets(0) } else { length }, keeps })
    }
}

/// What the fields say of the body's end and of the connection's.
#[derive(Debug, Default)]
struct Framing {
    chunked: bool,
    octets: Option<u64>,
    closes: bool,
}

impl Framing {
    fn note(&mut self, name: &HeaderName, value: &HeaderValue) -> Result<(), Malformed> {
        match *name {
            CONTENT_LENGTH => {
                for number in value.as_bytes().split(|byte| *byte == b',') {
                    let octets = number_of(number.trim_ascii()).ok_or(Malformed::Length)?;
                    if *self.octets.get_or_insert(octets) != octets {
                        return Err(Malformed::Length);
                    }
                }
            }
            TRANSFER_ENCODING => {
                if self.chunked || !value.as_bytes().eq_ignore_ascii_case(b"chunked") {
                    return Err(Malformed::Coding);
                }
                self.chunked = true;
            }
            CONNECTION => {
                let mut options = value.as_bytes().split(|byte| *byte == b',');
                self.closes |= options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"));
            }
            _ => {}
        }
        Ok(())
    }

    fn length(&self, is_1_1: bool) -> Result<Length, Malformed> {
        match (self.chunked, self.octets) {
            (true, _) if !is_1_1 => Err(Malformed::Coding),
            (true, _) => Ok(Length::Chunked(Chunked::default())),
            (false, Some(octets)) => Ok(Length::Octets(octets)),
            (false, None) => Ok(Length::Close),
        }
    }

    /// Both at once is an attempt to be read in two ways. The coding is what is read, but then no more.
    fn is_ambiguous(&self) -> bool {
        self.chunked && self.octets.is_some()
    }
}

/// What a whole head consists of and where it ends; `None` if it is not whole.
#[expect(clippy::type_complexity, reason = "taken apart at the only place that calls it")]
fn parse(read: &[u8]) -> Result<Option<(StatusCode, bool, SmallVec<[Place; 32]>, usize)>, Malformed> {
    let mut room = [const { MaybeUninit::uninit() }; MOST_FIELDS];
    let mut response = httparse::Response::new(&mut []);
    let parsed =
        httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut response, read, &mut room);
    let httparse::Status::Complete(end) = parsed.map_err(Malformed::Head)? else { return Ok(None) };
    if end > LARGEST {
        return Err(Malformed::TooLong);
    }
    let status = response.code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or(Malformed::Status)?;
    let places = response
        .headers
        .iter()
        .map(|field| Place { name: place(read, field.name.as_bytes()), value: place(read, field.value) });
    Ok(Some((status, response.version == Some(1), places.collect(), end)))
}

/// Where `part` stands in `whole`, of which it is a part unless it is empty.
fn place(whole: &[u8], part: &[u8]) -> Range<usize> {
    if part.is_empty() {
        return 0..0;
    }
    let start = (part.as_ptr() as usize).saturating_sub(whole.as_ptr() as usize);
    start..start + part.len()
}

/// Whether an empty line, which ends a head, ends after the first `looked` bytes.
fn may_end(read: &[u8], looked: usize) -> bool {
    let rest = &read[looked.saturating_sub(3).min(read.len())..];
    let mut lines = rest.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    lines.any(|(end, _)| rest[end + 1..].starts_with(b"\n") || rest[end + 1..].starts_with(b"\r\n"))
}

/// Digits and nothing else.
fn number_of(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, digit| {
        let digit = char::from(*digit).to_digit(10)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests;
