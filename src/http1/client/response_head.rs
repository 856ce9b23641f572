//! The head of an answer, decoded.

use std::mem::MaybeUninit;

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::headers::{Headers, RawHeaders};
use crate::http1::chunked::Chunked;
use crate::http1::content_length;
use crate::http1::decoder::Decoder;
use crate::http1::head::{Place, Places, may_end};
use crate::http1::interim::Interims;
use crate::http1::malformed::Malformed;

/// A head may take this much.
const LARGEST: usize = 128 * 1024;
/// So many fields may stand in it.
const MOST_FIELDS: usize = 256;
/// The longest name that a map takes.
const MAX_NAME: usize = u16::MAX as usize;
/// Room for what a proxy adds to an answer, so that the map need not grow.
const ADDED: usize = 6;

/// The head of an answer.
#[derive(Debug, PartialEq)]
pub struct Head {
    /// Its status.
    pub status: StatusCode,
    /// Its fields, in order.
    pub headers: Headers,
    /// Where the body ends.
    pub length: Decoder,
    /// Whether the upstream keeps the connection after the answer.
    pub keeps: bool,
}

/// A reader of heads.
#[derive(Debug)]
pub struct Reader<'a> {
    /// The answer to HEAD has no body, whatever its fields say.
    to_head: bool,
    /// Fields are parsed into a map at once; else they stay raw.
    wants_map: bool,
    /// Where interim responses go; nowhere for `None`.
    interims: Option<&'a Interims>,
    /// So much of what has been read holds no whole head.
    looked: usize,
}

/// What a head begins with.
struct Start {
    status: StatusCode,
    is_1_1: bool,
    /// Where the head ends.
    end: usize,
}

impl<'a> Reader<'a> {
    /// Of the answer to HEAD or to another method, whose fields are parsed into a map or stay raw.
    pub fn new(to_head: bool, wants_map: bool) -> Self {
        Self { to_head, wants_map, interims: None, looked: 0 }
    }

    /// The same, which leaves interim responses here.
    pub fn leaving(self, interims: &'a Interims) -> Self {
        Self { interims: Some(interims), ..self }
    }

    /// Takes the head off what has been read; `None` as long as it is not whole.
    ///
    /// # Errors
    /// For what is not a head, or one over the limits.
    pub fn decode(&mut self, read: &mut BytesMut) -> Result<Option<Head>, Malformed> {
        while self.looked == 0 || may_end(read, self.looked) {
            let mut places = Places::new();
            let Some(start) = parse(read, &mut places)? else { break };
            let head = read.split_to(start.end).freeze();
            self.looked = 0;
            if start.status.is_informational() && start.status != StatusCode::SWITCHING_PROTOCOLS {
                if let Some(interims) = self.interims.filter(|_| start.is_1_1) {
                    interims.push(start.status, head.len(), || interim(&head, &places))?;
                }
                if read.is_empty() {
                    return Ok(None);
                }
                continue;
            }
            return self.complete(&start, &head, &places).map(Some);
        }
        self.looked = read.len();
        if self.looked >= LARGEST { Err(Malformed::TooLong) } else { Ok(None) }
    }

    fn complete(&self, start: &Start, head: &Bytes, places: &[Place]) -> Result<Head, Malformed> {
        let status = start.status;
        // RFC 9110 section 8.6: there must be no length.
        let is_lengthless = status == StatusCode::NO_CONTENT;
        let (headers, framing) = match self.wants_map {
            true => mapped(head, places, is_lengthless)?,
            false => raw(head, places, is_lengthless)?,
        };
        let length = framing.length(start.is_1_1)?;
        let bodiless = self.to_head
            || matches!(
                status,
                StatusCode::SWITCHING_PROTOCOLS | StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
            );
        let keeps = start.is_1_1
            && !framing.closes
            && !framing.is_ambiguous()
            && status != StatusCode::SWITCHING_PROTOCOLS
            && (bodiless || length != Decoder::Close);
        let length = if bodiless { Decoder::Length(0) } else { length };
        Ok(Head { status, headers, length, keeps })
    }
}

/// All fields in a map, and what they say of the body.
fn mapped(head: &Bytes, places: &[Place], is_lengthless: bool) -> Result<(Headers, Framing), Malformed> {
    let mut headers = HeaderMap::with_capacity(places.len() + ADDED);
    let mut framing = Framing::default();
    // Most lengths are written as we would write them.
    let mut is_written = true;
    for place in places {
        let (name, value) = place.field(head)?;
        let is_first = framing.octets.is_none();
        match framing.note(name.as_str().as_bytes(), value.as_bytes())? {
            HeaderScope::HopByHop => continue,
            HeaderScope::Framing => is_written &= is_first && content_length::is_normal(value.as_bytes()),
            HeaderScope::EndToEnd => {}
        }
        headers.append(name, value);
    }
    match framing.octets {
        Some(_) if is_lengthless || framing.is_ambiguous() => drop(headers.remove(CONTENT_LENGTH)),
        Some(octets) if !is_written => drop(headers.insert(CONTENT_LENGTH, HeaderValue::from(octets))),
        _ => {}
    }
    Ok((headers.into(), framing))
}

/// The same, with the fields as they came.
fn raw(head: &Bytes, places: &[Place], is_lengthless: bool) -> Result<(Headers, Framing), Malformed> {
    let mut headers = RawHeaders::with_room(head.len());
    let mut framing = Framing::default();
    for place in places {
        let (name, value) = place.bytes(head);
        let is_first = framing.octets.is_none();
        // Most fields are written as we would write them, and copied with one move.
        let push = |headers: &mut RawHeaders| match place.normal_line(head) {
            Some(line) => headers.push_line(name, line),
            None => headers.push(name, value),
        };
        match framing.note(name, value)? {
            HeaderScope::EndToEnd if name.len() > MAX_NAME => {
                return Err(Malformed::Head(httparse::Error::HeaderName));
            }
            HeaderScope::EndToEnd => push(&mut headers),
            HeaderScope::Framing if !is_first => {}
            HeaderScope::Framing if content_length::is_normal(value) => headers.add_length(push),
            HeaderScope::Framing => {
                let octets = framing.octets.unwrap_or_default();
                let octets = itoa::Buffer::new().format(octets).to_owned();
                headers.add_length(|headers| headers.push(name, octets.as_bytes()));
            }
            HeaderScope::HopByHop => {}
        }
    }
    if is_lengthless || framing.is_ambiguous() {
        headers.remove_length();
    }
    Ok((headers.into(), framing))
}

/// The fields of an interim response in a map. What is said of a body is left out, for there is none.
fn interim(head: &Bytes, places: &[Place]) -> Result<HeaderMap, Malformed> {
    let mut headers = HeaderMap::with_capacity(places.len());
    for place in places {
        let (name, value) = place.field(head)?;
        if !matches!(name, CONTENT_LENGTH | TRANSFER_ENCODING) {
            headers.append(name, value);
        }
    }
    Ok(headers)
}

/// Whom a field is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeaderScope {
    /// Whoever reads the message.
    EndToEnd,
    /// Whoever reads the body.
    Framing,
    /// Only us, who have understood it: it speaks of this connection or of how the body comes by it.
    HopByHop,
}

/// What the fields say of the body's end and of the connection's.
#[derive(Debug, Default)]
struct Framing {
    chunked: bool,
    octets: Option<u64>,
    closes: bool,
}

impl Framing {
    /// What a field, its name in any case, says of that.
    fn note(&mut self, name: &[u8], value: &[u8]) -> Result<HeaderScope, Malformed> {
        let is = |known: &HeaderName| name.eq_ignore_ascii_case(known.as_str().as_bytes());
        match name.len() {
            14 if is(&CONTENT_LENGTH) => {
                for number in value.split(|byte| *byte == b',') {
                    let octets = content_length::parse(number.trim_ascii()).ok_or(Malformed::Length)?;
                    if *self.octets.get_or_insert(octets) != octets {
                        return Err(Malformed::Length);
                    }
                }
                Ok(HeaderScope::Framing)
            }
            17 if is(&TRANSFER_ENCODING) => {
                if self.chunked || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Malformed::Coding);
                }
                self.chunked = true;
                Ok(HeaderScope::HopByHop)
            }
            // Nearly always.
            10 if is(&CONNECTION) && value.eq_ignore_ascii_case(b"keep-alive") => Ok(HeaderScope::HopByHop),
            10 if is(&CONNECTION) => {
                let mut concerns = HeaderScope::HopByHop;
                for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                    if option.eq_ignore_ascii_case(b"close") {
                        self.closes = true;
                    } else if !option.eq_ignore_ascii_case(b"keep-alive") {
                        // It names fields that are to go no further, too.
                        concerns = HeaderScope::EndToEnd;
                    }
                }
                Ok(concerns)
            }
            10 if name.eq_ignore_ascii_case(b"keep-alive") => Ok(HeaderScope::HopByHop),
            _ => Ok(HeaderScope::EndToEnd),
        }
    }

    fn length(&self, is_1_1: bool) -> Result<Decoder, Malformed> {
        match (self.chunked, self.octets) {
            (true, _) if !is_1_1 => Err(Malformed::Coding),
            (true, _) => Ok(Decoder::Chunked(Chunked::default())),
            (false, Some(octets)) => Ok(Decoder::Length(octets)),
            (false, None) => Ok(Decoder::Close),
        }
    }

    /// Both at once is an attempt to be read in two ways. The coding is what is read, but then no more.
    fn is_ambiguous(&self) -> bool {
        self.chunked && self.octets.is_some()
    }
}

/// What a whole head begins with, and in `places` where its fields stand; `None` if it is not whole.
fn parse(read: &[u8], places: &mut Places) -> Result<Option<Start>, Malformed> {
    let mut room = [const { MaybeUninit::uninit() }; MOST_FIELDS];
    let mut response = httparse::Response::new(&mut []);
    let parsed =
        httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut response, read, &mut room);
    let httparse::Status::Complete(end) = parsed.map_err(Malformed::Head)? else { return Ok(None) };
    if end > LARGEST {
        return Err(Malformed::TooLong);
    }
    let status = response.code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or(Malformed::Status)?;
    places.extend(response.headers.iter().map(|field| Place::of(read, field)));
    Ok(Some(Start { status, is_1_1: response.version == Some(1), end }))
}

#[cfg(test)]
mod tests;
