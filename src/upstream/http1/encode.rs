//! A request as bytes: its head, its chunks, its trailers.

use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HOST,
    MAX_FORWARDS, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING,
};
use http::{HeaderMap, HeaderName, Uri, request};
use hyper::body::Body;

/// What most heads take.
const USUAL_HEAD: usize = 1024;
/// The last chunk without trailers.
pub(super) const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// How the upstream is told where the request's body ends.
#[derive(Debug, PartialEq)]
pub(super) enum Coding {
    /// By its length, or because there is none: so many octets are still to come.
    Octets(u64),
    /// By the last chunk, after which the fields of these names may come.
    Chunked(Box<[HeaderName]>),
}

/// Writes a head, and answers how the body is to be coded that follows it.
pub(super) fn head(parts: &request::Parts, body: &impl Body, out: &mut Vec<u8>) -> Coding {
    out.reserve(USUAL_HEAD);
    out.extend_from_slice(parts.method.as_str().as_bytes());
    out.push(b' ');
    target(&parts.uri, out);
    out.extend_from_slice(b" HTTP/1.1\r\n");
    let coding = coding(&parts.headers, body);
    for (name, value) in &parts.headers {
        // One way to tell the end, and only one. A length of nothing is passed on as it came.
        let is_framing =
            *name == TRANSFER_ENCODING || (*name == CONTENT_LENGTH && coding != Coding::Octets(0));
        if !is_framing {
            field(name, value.as_bytes(), out);
        }
    }
    match &coding {
        Coding::Chunked(_) => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        // In our own digits: `0010` is eight to some.
        Coding::Octets(octets @ 1..) => {
            field(&CONTENT_LENGTH, itoa::Buffer::new().format(*octets).as_bytes(), out);
        }
        Coding::Octets(_) => {}
    }
    out.extend_from_slice(b"\r\n");
    coding
}

/// How a body is to be coded.
fn coding(headers: &HeaderMap, body: &impl Body) -> Coding {
    if body.is_end_stream() {
        return Coding::Octets(0);
    }
    body.size_hint().exact().map_or_else(|| Coding::Chunked(announced(headers)), Coding::Octets)
}

/// The trailers that a request announces, those apart that must not stand in one (RFC 9110 section 6.5.1).
fn announced(headers: &HeaderMap) -> Box<[HeaderName]> {
    let lists = headers.get_all(TRAILER).iter().filter_map(|list| list.to_str().ok());
    lists
        .flat_map(|list| list.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .filter(may_trail)
        .collect()
}

fn may_trail(name: &HeaderName) -> bool {
    !matches!(
        *name,
        AUTHORIZATION
            | CACHE_CONTROL
            | CONTENT_ENCODING
            | CONTENT_LENGTH
            | CONTENT_RANGE
            | CONTENT_TYPE
            | HOST
            | MAX_FORWARDS
            | SET_COOKIE
            | TRAILER
            | TRANSFER_ENCODING
            | TE
    )
}

/// RFC 9112 section 3.2.1: the path and query as received; `*` stands for itself.
fn target(uri: &Uri, out: &mut Vec<u8>) {
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    if !target.starts_with(['/', '*']) {
        out.push(b'/');
    }
    out.extend_from_slice(target.as_bytes());
}

fn field(name: &HeaderName, value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// What stands before a chunk's data.
pub(super) fn chunk_size(data: &Bytes, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let size = data.len();
    let nibbles = (usize::BITS - size.leading_zeros()).div_ceil(4).max(1);
    out.extend((0..nibbles).rev().map(|nibble| DIGITS[(size >> (nibble * 4)) & 15]));
    out.extend_from_slice(b"\r\n");
}

/// The last chunk, and after it those of the fields that were announced.
pub(super) fn trailers(fields: &HeaderMap, announced: &[HeaderName], out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in fields.iter().filter(|(name, _)| announced.contains(name)) {
        field(name, value.as_bytes(), out);
    }
    out.extend_from_slice(b"\r\n");
}
