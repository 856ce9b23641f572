//! An answer as bytes: its head, and how its body goes (RFC 9112 section 6).

use bytes::BytesMut;
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, TRAILER, TRANSFER_ENCODING};
use http::{HeaderMap, StatusCode, response};
use hyper::body::Body;

use super::head::Asked;
use crate::http1::coding::{self, Coding, field};
use crate::http1::content_length;
use crate::http1::head::lists;
use crate::http1::interim::Interim;
use crate::http1::lines::Lines;
use crate::http1::malformed::Malformed;
use crate::proxy::date::Date;
use crate::proxy::headers::prepare_response;

/// What most heads take.
const USUAL_HEAD: usize = 1024;

/// How an answer goes on after its head.
#[derive(Debug, PartialEq)]
pub(super) struct Course {
    pub(super) coding: Coding,
    /// Whether the body is sent. The answer to HEAD only speaks of one.
    pub(super) has_body: bool,
    /// Whether another request may follow on the connection.
    pub(super) keeps: bool,
}

/// Writes a head, and answers how it goes on.
pub(super) fn head(
    asked: Asked,
    (parts, ours): (&response::Parts, &Lines),
    body: &impl Body,
    date: &Date,
    out: &mut Vec<u8>,
) -> Course {
    out.reserve(USUAL_HEAD);
    start(asked.is_1_1, parts.status, out);
    let bodiless = asked.by_head || is_bodiless(parts.status);
    let coding = coding(asked, parts, bodiless, body);
    let mut keeps = asked.keeps && coding != Coding::Close && parts.status != StatusCode::SWITCHING_PROTOCOLS;
    let (mut says_close, mut is_dated) = (false, ours.is_dated());
    for (name, value) in &parts.headers {
        match *name {
            // One way to tell the end, and only one.
            CONTENT_LENGTH | TRANSFER_ENCODING => continue,
            TRAILER if !matches!(coding, Coding::Chunked(_)) => continue,
            CONNECTION if lists(value, "close") => (says_close, keeps) = (true, false),
            DATE => is_dated = true,
            _ => {}
        }
        field(name, value.as_bytes(), out);
    }
    out.extend_from_slice(ours.as_bytes());
    match &coding {
        Coding::Chunked(_) => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        Coding::Octets(octets) if !bodiless => coding::content_length(*octets, out),
        _ if asked.by_head => told_length(&parts.headers, body, out),
        Coding::Octets(_) | Coding::Close => {}
    }
    match (asked.is_1_1, keeps) {
        (true, false) if !says_close && parts.status != StatusCode::SWITCHING_PROTOCOLS => {
            out.extend_from_slice(b"connection: close\r\n");
        }
        (false, true) => out.extend_from_slice(b"connection: keep-alive\r\n"),
        _ => {}
    }
    if !is_dated {
        date.write(out);
    }
    out.extend_from_slice(b"\r\n");
    Course { coding, has_body: !bodiless && !body.is_end_stream(), keeps }
}

/// The status of the response to what is no request.
pub(super) fn status_of(malformed: Malformed) -> StatusCode {
    match malformed {
        Malformed::TooLong => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        Malformed::LongTarget => StatusCode::URI_TOO_LONG,
        _ => StatusCode::BAD_REQUEST,
    }
}

/// Writes an interim response (RFC 9110 section 15.2), without what belongs to the upstream's hop.
pub(super) fn interim(mut interim: Interim, out: &mut BytesMut) {
    prepare_response(&mut interim.headers);
    let mut head = Vec::new();
    start(true, interim.status, &mut head);
    for (name, value) in &interim.headers {
        field(name, value.as_bytes(), &mut head);
    }
    head.extend_from_slice(b"\r\n");
    out.extend_from_slice(&head);
}

/// The last answer of a connection, to what is no request.
pub(super) fn malformed(status: StatusCode, date: &Date, out: &mut Vec<u8>) {
    start(true, status, out);
    out.extend_from_slice(b"connection: close\r\ncontent-length: 0\r\n");
    date.write(out);
    out.extend_from_slice(b"\r\n");
}

fn start(is_1_1: bool, status: StatusCode, out: &mut Vec<u8>) {
    out.extend_from_slice(if is_1_1 { b"HTTP/1.1 " } else { b"HTTP/1.0 " });
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    // Many a reader wants a reason, though none is needed.
    out.extend_from_slice(status.canonical_reason().unwrap_or("Unknown").as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Whether an answer of this status never has a body (RFC 9110 section 6.4.1).
fn is_bodiless(status: StatusCode) -> bool {
    status.is_informational() || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

fn coding(asked: Asked, parts: &response::Parts, bodiless: bool, body: &impl Body) -> Coding {
    if bodiless || body.is_end_stream() {
        return Coding::Octets(0);
    }
    match body.size_hint().exact().or_else(|| length_of(&parts.headers)) {
        Some(octets) => Coding::Octets(octets),
        None if asked.is_1_1 => {
            Coding::Chunked(if asked.trailers { coding::announced(&parts.headers) } else { Box::default() })
        }
        None => Coding::Close,
    }
}

/// The length that the answer to another method would have.
fn told_length(headers: &HeaderMap, body: &impl Body, out: &mut Vec<u8>) {
    let known = if body.is_end_stream() { None } else { body.size_hint().exact() };
    if let Some(octets) = known.or_else(|| length_of(headers)) {
        coding::content_length(octets, out);
    }
}

fn length_of(headers: &HeaderMap) -> Option<u64> {
    content_length::parse(headers.get(CONTENT_LENGTH)?.as_bytes())
}

#[cfg(test)]
mod tests;
