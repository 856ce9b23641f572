//! Encoder of a request's head.

use http::header::{CONTENT_LENGTH, TRAILER, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Uri, request};
use hyper::body::Body;

use crate::headers::{FieldLines, write_field};
use crate::http1::framing::{self, BodyFraming};
use crate::http1::head::ReceivedHead;

/// Bytes reserved for a head; enough for most.
const TYPICAL_HEAD_SIZE: usize = 1024;

/// Writes a head, with `added_headers` after those of the request, and returns the framing of the body. Names of fields
/// are spelt as in the `received` head.
pub fn write(
    parts: &request::Parts,
    received: &ReceivedHead,
    added_headers: &FieldLines,
    body: &impl Body,
    out: &mut Vec<u8>,
) -> BodyFraming {
    out.reserve(TYPICAL_HEAD_SIZE);
    out.extend_from_slice(parts.method.as_str().as_bytes());
    out.push(b' ');
    write_target(&parts.uri, out);
    out.extend_from_slice(b" HTTP/1.1\r\n");
    let coding = body_framing(&parts.headers, body);
    let mut length_name = None;
    for (name, value) in &parts.headers {
        match *name {
            // Only one header may frame the body; it is written below.
            CONTENT_LENGTH => {
                length_name =
                    Some(received.spelling_of(CONTENT_LENGTH.as_str().as_bytes(), value.as_bytes()));
            }
            TRANSFER_ENCODING => {}
            _ => received.write_field(name, value, out),
        }
    }
    out.extend_from_slice(added_headers.as_bytes());
    match &coding {
        BodyFraming::Chunked(_) => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        // Without a body, a length is sent only if the client sent one.
        BodyFraming::Length(0) if length_name.is_none() => {}
        BodyFraming::Length(bytes) => {
            let name = length_name.unwrap_or(CONTENT_LENGTH.as_str().as_bytes());
            write_field(name, itoa::Buffer::new().format(*bytes).as_bytes(), out);
        }
        BodyFraming::Close => {}
    }
    out.extend_from_slice(b"\r\n");
    coding
}

/// Returns the framing of the body. A request body cannot end with the connection.
fn body_framing(headers: &HeaderMap, body: &impl Body) -> BodyFraming {
    if body.is_end_stream() {
        return BodyFraming::Length(0);
    }
    let announced =
        || framing::announced_trailers(headers.get_all(TRAILER).into_iter().map(HeaderValue::as_bytes));
    body.size_hint().exact().map_or_else(|| BodyFraming::Chunked(announced()), BodyFraming::Length)
}

/// Writes the request target: the path and query as received, or `*` (RFC 9112 section 3.2).
fn write_target(uri: &Uri, out: &mut Vec<u8>) {
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    if !target.starts_with(['/', '*']) {
        out.push(b'/');
    }
    out.extend_from_slice(target.as_bytes());
}
