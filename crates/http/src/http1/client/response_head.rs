//! Decoder of a response's head.

use std::mem::MaybeUninit;

use bytes::{Buf as _, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, StatusCode};

use crate::headers::{Headers, RawHeaders};
use crate::http1::chunked::{ChunkedDecoder, DroppedTrailers};
use crate::http1::content_length;
use crate::http1::decoder::BodyDecoder;
use crate::http1::head::{FieldSpan, FieldSpans, list_elements, may_be_complete};
use crate::http1::interim::InterimResponses;
use crate::http1::malformed::MalformedMessage;

/// Maximum bytes of a head.
const MAX_HEAD_SIZE: usize = 128 * 1024;
/// Maximum number of headers in a head.
const MAX_FIELDS: usize = 256;
/// Maximum length of a name in a `HeaderMap`.
const MAX_NAME_LENGTH: usize = u16::MAX as usize;

#[derive(Debug, PartialEq)]
pub struct ResponseHead {
    pub status: StatusCode,
    /// Headers, in order.
    pub headers: Headers,
    /// Decoder for the body that follows.
    pub decoder: BodyDecoder,
    /// Whether the upstream keeps the connection open after the response.
    pub keep_alive: bool,
}

#[derive(Debug)]
pub struct ResponseHeadDecoder<'a> {
    /// The request was HEAD, so the response has no body, whatever its headers say.
    to_head: bool,
    /// Where interim responses are stored; `None` drops them.
    interims: Option<&'a InterimResponses>,
    /// Number of bytes known not to hold a complete head.
    scanned: usize,
}

/// Start of a complete head.
struct StatusLine {
    status: StatusCode,
    is_http11: bool,
    /// Length of the head in bytes.
    end: usize,
}

impl<'a> ResponseHeadDecoder<'a> {
    /// Creates a decoder for the response to one request. `to_head`: its method is HEAD.
    pub fn new(to_head: bool) -> Self {
        Self { to_head, interims: None, scanned: 0 }
    }

    /// Returns the decoder with a place to store interim responses.
    pub fn with_interims(self, interims: &'a InterimResponses) -> Self {
        Self { interims: Some(interims), ..self }
    }

    /// Takes the head from `read`; `None` until it is complete.
    ///
    /// # Errors
    /// If the bytes are not a valid head, or exceed the limits.
    pub fn decode(&mut self, read: &mut BytesMut) -> Result<Option<ResponseHead>, MalformedMessage> {
        self.skip_empty_lines(read);
        while self.scanned == 0 || may_be_complete(read, self.scanned) {
            let mut places = FieldSpans::new();
            let Some(start) = parse(read, &mut places)? else { break };
            self.scanned = 0;
            let head = &read[..start.end];
            if start.status.is_informational() && start.status != StatusCode::SWITCHING_PROTOCOLS {
                if let Some(interims) = self.interims.filter(|_| start.is_http11) {
                    interims.push(start.status, head.len(), || interim(head, &places))?;
                }
                read.advance(start.end);
                self.skip_empty_lines(read);
                if read.is_empty() {
                    return Ok(None);
                }
                continue;
            }
            let completed = self.complete(&start, head, &places)?;
            read.advance(start.end);
            return Ok(Some(completed));
        }
        self.scanned = read.len();
        if self.scanned >= MAX_HEAD_SIZE { Err(MalformedMessage::FieldsTooLarge) } else { Ok(None) }
    }

    /// Drops empty lines before a head, which the parser ignores. Each would seem to end a head, and all of them would be
    /// parsed again with every byte that arrives.
    fn skip_empty_lines(&mut self, read: &mut BytesMut) {
        let mut rest = &read[..];
        while let Some(after) = rest.strip_prefix(b"\r\n").or_else(|| rest.strip_prefix(b"\n")) {
            rest = after;
        }
        let skipped = read.len() - rest.len();
        read.advance(skipped);
        self.scanned = self.scanned.saturating_sub(skipped);
    }

    fn complete(
        &self,
        start: &StatusLine,
        head: &[u8],
        spans: &[FieldSpan],
    ) -> Result<ResponseHead, MalformedMessage> {
        let status = start.status;
        // A 204 response must not have a `Content-Length` (RFC 9110 section 8.6).
        let is_lengthless = status == StatusCode::NO_CONTENT;
        let (headers, framing) = parse_fields(head, spans, is_lengthless)?;
        let length = framing.body_decoder(start.is_http11)?;
        let bodiless = self.to_head
            || matches!(
                status,
                StatusCode::SWITCHING_PROTOCOLS | StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
            );
        let keeps = start.is_http11
            && !framing.has_close
            && !framing.is_ambiguous()
            && status != StatusCode::SWITCHING_PROTOCOLS
            && (bodiless || length != BodyDecoder::Close);
        let length = if bodiless { BodyDecoder::Length(0) } else { length };
        Ok(ResponseHead { status, headers, decoder: length, keep_alive: keeps })
    }
}

/// Copies the headers that are to be passed on, and parses their framing information.
fn parse_fields(
    head: &[u8],
    spans: &[FieldSpan],
    is_lengthless: bool,
) -> Result<(Headers, ResponseFraming), MalformedMessage> {
    let mut headers = RawHeaders::with_capacity(head.len());
    let mut framing = ResponseFraming::default();
    for place in spans {
        let (name, value) = place.name_and_value(head);
        let is_first = framing.content_length.is_none();
        // Most lines are in normal form already and are copied as a whole.
        let push = |headers: &mut RawHeaders| match place.normal_line(head) {
            Some(line) => headers.push_line(name, line),
            None => headers.push(name, value),
        };
        match framing.record_header(name, value)? {
            HeaderScope::EndToEnd if name.len() > MAX_NAME_LENGTH => {
                return Err(MalformedMessage::Head(httparse::Error::HeaderName));
            }
            HeaderScope::EndToEnd => push(&mut headers),
            HeaderScope::Framing if !is_first => {}
            HeaderScope::Framing if content_length::is_normal(value) => headers.push_content_length(push),
            HeaderScope::Framing => {
                let bytes = framing.content_length.unwrap_or_default();
                let bytes = itoa::Buffer::new().format(bytes).to_owned();
                headers.push_content_length(|headers| headers.push(name, bytes.as_bytes()));
            }
            HeaderScope::HopByHop => {}
        }
    }
    if is_lengthless || framing.is_ambiguous() {
        headers.remove_content_length();
    }
    Ok((headers.into(), framing))
}

/// Parses the headers of an interim response into a map, without framing headers: it has no body.
fn interim(head: &[u8], spans: &[FieldSpan]) -> Result<HeaderMap, MalformedMessage> {
    let head = Bytes::copy_from_slice(head);
    let mut headers = HeaderMap::with_capacity(spans.len());
    for place in spans {
        let (name, value) = place.field(&head)?;
        if !matches!(name, CONTENT_LENGTH | TRANSFER_ENCODING) {
            headers.append(name, value);
        }
    }
    Ok(headers)
}

/// How far a header is to be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeaderScope {
    /// To the final recipient of the message.
    EndToEnd,
    /// To the encoder of the body.
    Framing,
    /// Not at all: it concerns only this connection or the transfer coding, and has been handled.
    HopByHop,
}

/// Framing of the body and persistence of the connection, as the headers declare them.
#[derive(Debug, Default)]
struct ResponseFraming {
    /// There is a `Transfer-Encoding`. `chunked`: its only coding is chunked.
    has_transfer_encoding: bool,
    chunked: bool,
    content_length: Option<u64>,
    has_close: bool,
    /// Fields that `Connection` names.
    nominated: DroppedTrailers,
}

impl ResponseFraming {
    /// Records a header, with its name in any case, and returns how far it is to be passed on.
    fn record_header(&mut self, name: &[u8], value: &[u8]) -> Result<HeaderScope, MalformedMessage> {
        let is = |known: &HeaderName| name.eq_ignore_ascii_case(known.as_str().as_bytes());
        match name.len() {
            14 if is(&CONTENT_LENGTH) => {
                // A list of equal lengths is one length (RFC 9112 section 6.3).
                for number in value.split(|byte| *byte == b',') {
                    let bytes =
                        content_length::parse(number.trim_ascii()).ok_or(MalformedMessage::ContentLength)?;
                    if *self.content_length.get_or_insert(bytes) != bytes {
                        return Err(MalformedMessage::ContentLength);
                    }
                }
                Ok(HeaderScope::Framing)
            }
            17 if is(&TRANSFER_ENCODING) => {
                self.has_transfer_encoding = true;
                for coding in list_elements(value) {
                    if self.chunked || !coding.eq_ignore_ascii_case(b"chunked") {
                        return Err(MalformedMessage::TransferEncoding);
                    }
                    self.chunked = true;
                }
                Ok(HeaderScope::HopByHop)
            }
            // The most frequent case.
            10 if is(&CONNECTION) && value.eq_ignore_ascii_case(b"keep-alive") => Ok(HeaderScope::HopByHop),
            10 if is(&CONNECTION) => {
                let mut concerns = HeaderScope::HopByHop;
                for option in list_elements(value) {
                    if option.eq_ignore_ascii_case(b"close") {
                        self.has_close = true;
                    } else if !option.eq_ignore_ascii_case(b"keep-alive") {
                        // It names headers that must not be forwarded either, so it is kept for their removal.
                        concerns = HeaderScope::EndToEnd;
                        self.nominated.extend(HeaderName::from_bytes(option).ok());
                    }
                }
                Ok(concerns)
            }
            10 if name.eq_ignore_ascii_case(b"keep-alive") => Ok(HeaderScope::HopByHop),
            _ => Ok(HeaderScope::EndToEnd),
        }
    }

    fn body_decoder(&self, is_1_1: bool) -> Result<BodyDecoder, MalformedMessage> {
        match (self.has_transfer_encoding, self.content_length) {
            (true, _) if !(is_1_1 && self.chunked) => Err(MalformedMessage::TransferEncoding),
            (true, _) => Ok(BodyDecoder::Chunked(ChunkedDecoder::without(self.nominated.clone()))),
            (false, Some(bytes)) => Ok(BodyDecoder::Length(bytes)),
            (false, None) => Ok(BodyDecoder::Close),
        }
    }

    /// Whether there are both `Transfer-Encoding` and `Content-Length`: a possible smuggling attempt. The body is
    /// decoded as chunked, and the connection is closed afterwards.
    fn is_ambiguous(&self) -> bool {
        self.chunked && self.content_length.is_some()
    }
}

/// Parses a complete head and stores the positions of its headers in `places`. `None` if the head is incomplete.
fn parse(read: &[u8], spans: &mut FieldSpans) -> Result<Option<StatusLine>, MalformedMessage> {
    let mut room = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut response = httparse::Response::new(&mut []);
    let mut config = httparse::ParserConfig::default();
    // A proxy removes white space before the colon from a response (RFC 9112 section 5.1).
    config.allow_spaces_after_header_name_in_responses(true);
    let parsed = config.parse_response_with_uninit_headers(&mut response, read, &mut room);
    let httparse::Status::Complete(end) = parsed.map_err(MalformedMessage::Head)? else { return Ok(None) };
    if end > MAX_HEAD_SIZE {
        return Err(MalformedMessage::FieldsTooLarge);
    }
    let status =
        response.code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or(MalformedMessage::Status)?;
    spans.extend(response.headers.iter().map(|field| FieldSpan::locate(read, field)));
    Ok(Some(StatusLine { status, is_http11: response.version == Some(1), end }))
}

#[cfg(test)]
mod tests;
