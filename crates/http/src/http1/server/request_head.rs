//! Decoder of a request's head (RFC 9112 sections 2 to 6).
//!
//! Heads that could be read in two ways are rejected here, or marked so that the connection closes after the response.
//! `headers::validate` checks what else a proxy must not forward.

use std::mem::MaybeUninit;

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, TE, TRANSFER_ENCODING};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version, request};

use crate::headers::{empty_head, nominated_fields};
use crate::http1::chunked::ChunkedDecoder;
use crate::http1::content_length;
use crate::http1::decoder::BodyDecoder;
use crate::http1::head::{
    FieldSpan, FieldSpans, ReceivedHead, has_token, list_elements, may_be_complete, range, span_of,
};
use crate::http1::malformed::MalformedMessage;
use crate::http1::memory_pool;

/// Up to this many headers are parsed without an allocation.
const STACK_FIELDS: usize = 100;
/// Maximum length of a request target, which is what a `Uri` holds.
const MAX_TARGET_LENGTH: usize = u16::MAX as usize - 1;

/// Maximum size of a head.
#[derive(Clone, Copy, Debug)]
pub struct HeadLimits {
    /// Bytes of the whole head.
    pub size: u32,
    /// Number of headers.
    pub fields: u32,
}

#[derive(Debug)]
pub struct RequestHead {
    /// Method, target, version and headers.
    pub parts: request::Parts,
    /// Decoder for the body that follows.
    pub decoder: BodyDecoder,
    /// Whether the client waits for `100 Continue` before it sends the body.
    pub expects_continue: bool,
    /// Properties of the request that its response depends on.
    pub info: RequestInfo,
    pub received: ReceivedHead,
}

/// Properties of a request that its response depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    /// The method is HEAD, so the response has no body, whatever its headers say.
    pub is_head: bool,
    /// The version is HTTP/1.1, not 1.0.
    pub is_http11: bool,
    /// The client keeps the connection open after the response.
    pub keep_alive: bool,
    /// The client accepts trailers.
    pub accepts_trailers: bool,
    /// The method is CONNECT, so the connection becomes a tunnel after a successful response, and is closed after any
    /// other: what follows the head may be bytes for the tunnel.
    pub is_connect: bool,
}

#[derive(Debug)]
pub struct RequestHeadDecoder {
    limits: HeadLimits,
    /// Number of bytes known not to hold a complete head.
    scanned: usize,
}

/// Start of a complete head.
struct RequestLine {
    method: Method,
    target: [u32; 2],
    is_http11: bool,
    /// Length of the head in bytes.
    end: usize,
}

impl RequestHeadDecoder {
    /// Creates a decoder with these limits.
    pub fn new(limits: HeadLimits) -> Self {
        Self { limits, scanned: 0 }
    }

    /// Decodes a head from `read` into `head`, which must be `None`, and stays so if the bytes are no complete head yet.
    ///
    /// # Errors
    /// If the bytes are not a valid head, or exceed the limits.
    #[inline]
    pub fn decode(
        &mut self,
        read: &mut BytesMut,
        head: &mut Option<RequestHead>,
    ) -> Result<(), MalformedMessage> {
        debug_assert!(head.is_none(), "one head at a time");
        let max_size = self.limits.size as usize;
        if self.scanned == 0 || may_be_complete(read, self.scanned) {
            let mut places = FieldSpans::new();
            if let Some(start) = parse(read, self.limits, &mut places)? {
                self.scanned = 0;
                let bytes = read.split_to(start.end).freeze();
                let completed = complete(start, &bytes, &places, head);
                match (&completed, head) {
                    (Ok(()), Some(head)) => head.received = bytes.into(),
                    // Put back for the log.
                    _ => *read = BytesMut::from(&bytes[..]),
                }
                return completed;
            }
        }
        self.scanned = read.len();
        if self.scanned > max_size { Err(MalformedMessage::FieldsTooLarge) } else { Ok(()) }
    }
}

/// Creates the head of a request from its parts.
// Into `head`, because it is large: a head that is returned is copied by each function on its way.
#[inline]
fn complete(
    start: RequestLine,
    bytes: &Bytes,
    spans: &[FieldSpan],
    head: &mut Option<RequestHead>,
) -> Result<(), MalformedMessage> {
    let RequestLine { method, target, is_http11: is_1_1, end: _ } = start;
    let mut uri = Uri::from_maybe_shared(bytes.slice(range(target))).map_err(|_| MalformedMessage::Target)?;
    if method == Method::OPTIONS && is_without_path(&bytes[range(target)]) {
        uri = with_asterisk(uri).ok_or(MalformedMessage::Target)?;
    }
    let mut headers = memory_pool::header_map();
    headers.reserve(spans.len());
    let mut meaning = RequestFraming { is_http11: is_1_1, keep_alive: is_1_1, ..RequestFraming::default() };
    for place in spans {
        let (name, value) = place.field(bytes)?;
        if meaning.record_header(&name, &value, &mut headers)? {
            headers.append(name, value);
        }
    }
    let length = meaning.body_decoder(&headers)?;
    let expects = meaning.expects_continue && is_1_1 && !length.is_complete();
    let (by_head, by_connect) = (method == Method::HEAD, method == Method::CONNECT);
    let asked = RequestInfo {
        is_head: by_head,
        is_http11: is_1_1,
        keep_alive: meaning.is_persistent() && !by_connect,
        accepts_trailers: meaning.accepts_trailers,
        is_connect: by_connect,
    };
    let parts = empty_head();
    let received = ReceivedHead::default();
    let head =
        head.insert(RequestHead { parts, decoder: length, expects_continue: expects, info: asked, received });
    let parts = &mut head.parts;
    parts.method = method;
    parts.uri = uri;
    parts.version = if is_1_1 { Version::HTTP_11 } else { Version::HTTP_10 };
    // An empty `HeaderMap` has no memory. Forgetting it leaks nothing and skips its drop glue.
    std::mem::forget(std::mem::replace(&mut parts.headers, headers));
    Ok(())
}

/// Framing of the body and persistence of the connection, as the headers declare them.
#[derive(Debug, Default)]
struct RequestFraming {
    is_http11: bool,
    /// There is a `Transfer-Encoding`. `chunked`: its last coding is chunked.
    has_transfer_encoding: bool,
    chunked: bool,
    /// There is a `Content-Length`. `content_length`: its value, unless a transfer coding overrides it.
    has_content_length: bool,
    content_length: Option<u64>,
    keep_alive: bool,
    has_close: bool,
    expects_continue: bool,
    accepts_trailers: bool,
}

impl RequestFraming {
    /// Records a header and returns whether it is to be kept. Dropped are lengths that a transfer coding overrides,
    /// repeated ones, and those not in normal form, which are replaced.
    fn record_header(
        &mut self,
        name: &HeaderName,
        value: &HeaderValue,
        headers: &mut HeaderMap,
    ) -> Result<bool, MalformedMessage> {
        match *name {
            TRANSFER_ENCODING => {
                if !self.is_http11 {
                    return Err(MalformedMessage::TransferEncoding);
                }
                self.has_transfer_encoding = true;
                if let Some(last) = list_elements(value.as_bytes()).last() {
                    // A value that is not text cannot be a list of codings.
                    self.chunked = last.eq_ignore_ascii_case(b"chunked") && value.as_bytes().is_ascii();
                }
                if self.content_length.take().is_some() {
                    headers.remove(CONTENT_LENGTH);
                }
            }
            CONTENT_LENGTH => {
                self.has_content_length = true;
                if self.has_transfer_encoding {
                    return Ok(false);
                }
                let bytes = content_length::parse(value.as_bytes()).ok_or(MalformedMessage::ContentLength)?;
                match self.content_length.replace(bytes) {
                    Some(before) if before != bytes => return Err(MalformedMessage::ContentLength),
                    Some(_) => return Ok(false),
                    None if content_length::is_normal(value.as_bytes()) => {}
                    None => {
                        headers.append(CONTENT_LENGTH, HeaderValue::from(bytes));
                        return Ok(false);
                    }
                }
            }
            CONNECTION => {
                self.has_close |= has_token(value.as_bytes(), "close");
                self.keep_alive |= has_token(value.as_bytes(), "keep-alive");
            }
            EXPECT => self.expects_continue |= has_token(value.as_bytes(), "100-continue"),
            TE => self.accepts_trailers |= has_token(value.as_bytes(), "trailers"),
            _ => {}
        }
        Ok(true)
    }

    fn body_decoder(&self, headers: &HeaderMap) -> Result<BodyDecoder, MalformedMessage> {
        match (self.has_transfer_encoding, self.content_length) {
            (true, _) if !self.chunked => Err(MalformedMessage::TransferEncoding),
            (true, _) => {
                let values = headers.get_all(CONNECTION).into_iter().map(HeaderValue::as_bytes);
                Ok(BodyDecoder::Chunked(ChunkedDecoder::without(nominated_fields(values))))
            }
            (false, bytes) => Ok(BodyDecoder::Length(bytes.unwrap_or(0))),
        }
    }

    /// Whether the connection is kept. `Transfer-Encoding` together with `Content-Length` is a possible smuggling
    /// attempt: the body is decoded as chunked, and the connection is closed afterwards (RFC 9112 section 6.1).
    fn is_persistent(&self) -> bool {
        self.keep_alive && !self.has_close && !(self.has_transfer_encoding && self.has_content_length)
    }
}

/// Whether a target in absolute-form has neither a path nor a query. A `Uri` does not tell that from the path `/`.
fn is_without_path(target: &[u8]) -> bool {
    let authority = target.windows(3).position(|mark| mark == b"://").map(|mark| &target[mark + 3..]);
    // A fragment is no part of the target.
    let end = |authority: &[u8]| authority.iter().find(|byte| matches!(byte, b'/' | b'?' | b'#')).copied();
    authority.is_some_and(|authority| matches!(end(authority), None | Some(b'#')))
}

/// Returns the target of an OPTIONS request for a server as a whole: the last proxy sends `*` (RFC 9112 section 3.2.4).
fn with_asterisk(uri: Uri) -> Option<Uri> {
    let mut parts = uri.into_parts();
    parts.path_and_query = Some(PathAndQuery::from_static("*"));
    Uri::from_parts(parts).ok()
}

/// Parses a complete head and stores the positions of its headers in `places`. `None` if the head is incomplete.
fn parse(
    read: &[u8],
    limits: HeadLimits,
    spans: &mut FieldSpans,
) -> Result<Option<RequestLine>, MalformedMessage> {
    let max_fields = limits.fields as usize;
    let mut usual = [const { MaybeUninit::uninit() }; STACK_FIELDS];
    let mut more;
    let room = match usual.get_mut(..max_fields) {
        Some(room) => room,
        None => {
            more = vec![MaybeUninit::uninit(); max_fields];
            &mut more[..]
        }
    };
    let mut request = httparse::Request::new(&mut []);
    let parsed =
        httparse::ParserConfig::default().parse_request_with_uninit_headers(&mut request, read, room);
    let parsed = parsed.map_err(|error| match error {
        httparse::Error::TooManyHeaders => MalformedMessage::FieldsTooLarge,
        error => MalformedMessage::Head(error),
    });
    let httparse::Status::Complete(end) = parsed? else { return Ok(None) };
    if end > limits.size as usize {
        return Err(MalformedMessage::FieldsTooLarge);
    }
    let target = request.path.unwrap_or_default();
    if target.len() > MAX_TARGET_LENGTH {
        return Err(MalformedMessage::TargetTooLong);
    }
    let method = Method::from_bytes(request.method.unwrap_or_default().as_bytes());
    let method = method.map_err(|_| MalformedMessage::Head(httparse::Error::Token))?;
    spans.extend(request.headers.iter().map(|field| FieldSpan::locate(read, field)));
    let target = span_of(read, target.as_bytes());
    Ok(Some(RequestLine { method, target, is_http11: request.version == Some(1), end }))
}

#[cfg(test)]
mod tests;
