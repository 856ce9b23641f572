//! An answer as bytes: its head, and how its body goes (RFC 9112 section 6).

use bytes::BytesMut;
use http::StatusCode;
use http::header::{CONNECTION, CONTENT_LENGTH, TRAILER, TRANSFER_ENCODING};
use hyper::body::Body;

use super::request_head::Asked;
use crate::headers::{Form, Headers, write_field};
use crate::http1::content_length;
use crate::http1::framing::{self, BodyFraming};
use crate::http1::head::lists;
use crate::http1::interim::Interim;
use crate::http1::malformed::Malformed;

/// What most heads take.
const USUAL_HEAD: usize = 1024;

/// How an answer goes on after its head.
#[derive(Debug, PartialEq)]
pub struct Course {
    /// How the end of the body is told.
    pub coding: BodyFraming,
    /// Whether the body is sent. The answer to HEAD only speaks of one.
    pub has_body: bool,
    /// Whether another request may follow on the connection.
    pub keeps: bool,
}

/// Writes a head, and answers how it goes on.
pub fn write(
    asked: Asked,
    status: StatusCode,
    headers: &mut Headers,
    body: &impl Body,
    write_date: impl Fn(&mut Vec<u8>),
    out: &mut Vec<u8>,
) -> Course {
    out.reserve(USUAL_HEAD);
    start(asked.is_1_1, status, out);
    let bodiless = asked.by_head || is_bodiless(status);
    let coding = coding(asked, headers, bodiless, body);
    let mut keeps = asked.keeps && coding != BodyFraming::Close && status != StatusCode::SWITCHING_PROTOCOLS;
    let (mut says_close, is_dated) = (false, headers.is_dated());
    match headers.form() {
        Form::Raw(raw) => raw.write(out),
        Form::Map(map) => {
            for (name, value) in map {
                match *name {
                    // One way to tell the end, and only one.
                    CONTENT_LENGTH | TRANSFER_ENCODING => continue,
                    TRAILER if !matches!(coding, BodyFraming::Chunked(_)) => continue,
                    CONNECTION if lists(value.as_bytes(), "close") => (says_close, keeps) = (true, false),
                    _ => {}
                }
                write_field(name.as_str().as_bytes(), value.as_bytes(), out);
            }
        }
    }
    match &coding {
        BodyFraming::Chunked(_) => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        BodyFraming::Length(octets) if !bodiless => framing::content_length(*octets, out),
        _ if asked.by_head => told_length(headers, body, out),
        BodyFraming::Length(_) | BodyFraming::Close => {}
    }
    match (asked.is_1_1, keeps) {
        (true, false) if !says_close && status != StatusCode::SWITCHING_PROTOCOLS => {
            out.extend_from_slice(b"connection: close\r\n");
        }
        (false, true) => out.extend_from_slice(b"connection: keep-alive\r\n"),
        _ => {}
    }
    if !is_dated {
        write_date(out);
    }
    out.extend_from_slice(b"\r\n");
    Course { coding, has_body: !bodiless && !body.is_end_stream(), keeps }
}

/// The status of the response to what is no request.
pub fn status_of(malformed: Malformed) -> StatusCode {
    match malformed {
        Malformed::TooLong => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        Malformed::LongTarget => StatusCode::URI_TOO_LONG,
        _ => StatusCode::BAD_REQUEST,
    }
}

/// Writes an interim response (RFC 9110 section 15.2).
pub fn interim(interim: &Interim, out: &mut BytesMut) {
    let mut head = Vec::new();
    start(true, interim.status, &mut head);
    for (name, value) in &interim.headers {
        write_field(name.as_str().as_bytes(), value.as_bytes(), &mut head);
    }
    head.extend_from_slice(b"\r\n");
    out.extend_from_slice(&head);
}

/// The last answer of a connection, to what is no request.
pub fn malformed(status: StatusCode, write_date: impl Fn(&mut Vec<u8>), out: &mut Vec<u8>) {
    start(true, status, out);
    out.extend_from_slice(b"connection: close\r\ncontent-length: 0\r\n");
    write_date(out);
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

fn coding(asked: Asked, headers: &Headers, bodiless: bool, body: &impl Body) -> BodyFraming {
    if bodiless || body.is_end_stream() {
        return BodyFraming::Length(0);
    }
    match body.size_hint().exact().or_else(|| length_of(headers)) {
        Some(octets) => BodyFraming::Length(octets),
        None if asked.is_1_1 => {
            let announced = || framing::announced(headers.get_all(&TRAILER));
            BodyFraming::Chunked(if asked.trailers { announced() } else { Box::default() })
        }
        None => BodyFraming::Close,
    }
}

/// The length that the answer to another method would have.
fn told_length(headers: &Headers, body: &impl Body, out: &mut Vec<u8>) {
    let known = if body.is_end_stream() { None } else { body.size_hint().exact() };
    if let Some(octets) = known.or_else(|| length_of(headers)) {
        framing::content_length(octets, out);
    }
}

fn length_of(headers: &Headers) -> Option<u64> {
    content_length::parse(headers.get(&CONTENT_LENGTH)?)
}

#[cfg(test)]
mod tests;
