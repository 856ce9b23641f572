//! The head of a request as bytes.

use http::header::{CONTENT_LENGTH, TRAILER, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Uri, request};
use hyper::body::Body;

use crate::headers::{FieldLines, write_field};
use crate::http1::framing::{self, BodyFraming};

/// What most heads take.
const USUAL_HEAD: usize = 1024;

/// Writes a head, with fields of ours behind its own, and answers how the body is to be coded that follows it.
pub fn write(parts: &request::Parts, ours: &FieldLines, body: &impl Body, out: &mut Vec<u8>) -> BodyFraming {
    out.reserve(USUAL_HEAD);
    out.extend_from_slice(parts.method.as_str().as_bytes());
    out.push(b' ');
    target(&parts.uri, out);
    out.extend_from_slice(b" HTTP/1.1\r\n");
    let coding = coding(&parts.headers, body);
    let mut has_length = false;
    for (name, value) in &parts.headers {
        match *name {
            // One way to tell the end, and only one, which is written below.
            CONTENT_LENGTH => has_length = true,
            TRANSFER_ENCODING => {}
            _ => write_field(name.as_str().as_bytes(), value.as_bytes(), out),
        }
    }
    out.extend_from_slice(ours.as_bytes());
    match &coding {
        BodyFraming::Chunked(_) => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        // Without a body only the client knows whether there is a length to speak of.
        BodyFraming::Length(0) if !has_length => {}
        BodyFraming::Length(octets) => framing::content_length(*octets, out),
        BodyFraming::Close => {}
    }
    out.extend_from_slice(b"\r\n");
    coding
}

/// How a body is to be coded. A request cannot end with its connection.
fn coding(headers: &HeaderMap, body: &impl Body) -> BodyFraming {
    if body.is_end_stream() {
        return BodyFraming::Length(0);
    }
    let announced = || framing::announced(headers.get_all(TRAILER).into_iter().map(HeaderValue::as_bytes));
    body.size_hint().exact().map_or_else(|| BodyFraming::Chunked(announced()), BodyFraming::Length)
}

/// RFC 9112 section 3.2.1: the path and query as received; `*` stands for itself.
fn target(uri: &Uri, out: &mut Vec<u8>) {
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    if !target.starts_with(['/', '*']) {
        out.push(b'/');
    }
    out.extend_from_slice(target.as_bytes());
}
