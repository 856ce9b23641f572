//! Encoder of a response's head, and the framing of its body (RFC 9112 section 6).

use bytes::BytesMut;
use http::header::{CONNECTION, CONTENT_LENGTH, TRAILER, TRANSFER_ENCODING};
use http::{HeaderName, StatusCode};
use hyper::body::Body;

use super::request_head::RequestInfo;
use crate::headers::{Headers, WritableHeaders, write_field};
use crate::http1::content_length;
use crate::http1::framing::{self, BodyFraming};
use crate::http1::head::has_token;
use crate::http1::interim::InterimResponse;
use crate::http1::malformed::MalformedMessage;

/// Bytes reserved for a head; enough for most.
const TYPICAL_HEAD_SIZE: usize = 1024;

/// How a response continues after its head.
#[derive(Debug, PartialEq)]
pub struct WrittenHead {
    pub framing: BodyFraming,
    /// Whether a body is sent. The response to HEAD only declares one.
    pub has_body: bool,
    /// Whether another request may follow on the connection.
    pub keep_alive: bool,
}

/// Writes a head to `out` and returns how the response continues. `write_date` is called if there is no `Date` header.
pub fn write(
    request: RequestInfo,
    status: StatusCode,
    headers: &mut Headers,
    body: &impl Body,
    write_date: impl Fn(&mut Vec<u8>),
    out: &mut Vec<u8>,
) -> WrittenHead {
    out.reserve(TYPICAL_HEAD_SIZE);
    write_status_line(status, out);
    // RFC 9110 section 9.3.6: a successful response to CONNECT has neither content nor a header that frames it.
    let becomes_tunnel =
        status == StatusCode::SWITCHING_PROTOCOLS || (request.is_connect && status.is_success());
    let bodiless = request.is_head || becomes_tunnel || is_bodiless(status);
    let coding = body_framing(request, headers, bodiless, body);
    let mut keeps = request.keep_alive && coding != BodyFraming::Close && !becomes_tunnel;
    let (mut says_close, is_dated) = (false, headers.has_date());
    match headers.writable() {
        WritableHeaders::Raw(raw) => raw.write(out),
        WritableHeaders::Lines(lines) => {
            for (name, value) in lines.iter() {
                match FieldMeaning::of_name(name) {
                    FieldMeaning::Framing => continue,
                    FieldMeaning::Trailer if !matches!(coding, BodyFraming::Chunked(_)) => continue,
                    FieldMeaning::Connection if has_token(value, "close") => {
                        (says_close, keeps) = (true, false);
                    }
                    FieldMeaning::Connection | FieldMeaning::Trailer | FieldMeaning::Other => {}
                }
                write_field(name, value, out);
            }
        }
        WritableHeaders::Map(map) => {
            for (name, value) in map {
                match *name {
                    // Only one header may frame the body; it is written below.
                    CONTENT_LENGTH | TRANSFER_ENCODING => continue,
                    TRAILER if !matches!(coding, BodyFraming::Chunked(_)) => continue,
                    CONNECTION if has_token(value.as_bytes(), "close") => (says_close, keeps) = (true, false),
                    _ => {}
                }
                write_field(name.as_str().as_bytes(), value.as_bytes(), out);
            }
        }
    }
    match &coding {
        BodyFraming::Chunked(_) => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        BodyFraming::Length(bytes) if !bodiless => framing::write_content_length(*bytes, out),
        _ if request.is_head => write_head_content_length(headers, body, out),
        BodyFraming::Length(_) | BodyFraming::Close => {}
    }
    match (request.is_http11, keeps) {
        (_, false) if !says_close && !becomes_tunnel => out.extend_from_slice(b"connection: close\r\n"),
        (false, true) => out.extend_from_slice(b"connection: keep-alive\r\n"),
        _ => {}
    }
    if !is_dated {
        write_date(out);
    }
    out.extend_from_slice(b"\r\n");
    WrittenHead { framing: coding, has_body: !bodiless && !body.is_end_stream(), keep_alive: keeps }
}

/// What a header means to the encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldMeaning {
    /// It frames the body.
    Framing,
    Trailer,
    Connection,
    Other,
}

impl FieldMeaning {
    /// Returns the meaning of a header whose name may be in any case.
    fn of_name(name: &[u8]) -> Self {
        let is = |known: &HeaderName| name.eq_ignore_ascii_case(known.as_str().as_bytes());
        match name.len() {
            14 if is(&CONTENT_LENGTH) => Self::Framing,
            17 if is(&TRANSFER_ENCODING) => Self::Framing,
            7 if is(&TRAILER) => Self::Trailer,
            10 if is(&CONNECTION) => Self::Connection,
            _ => Self::Other,
        }
    }
}

/// Returns the status code of the response to a malformed request.
pub fn error_status(malformed: MalformedMessage) -> StatusCode {
    match malformed {
        MalformedMessage::FieldsTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        MalformedMessage::TargetTooLong => StatusCode::URI_TOO_LONG,
        _ => StatusCode::BAD_REQUEST,
    }
}

/// Writes an interim response (RFC 9110 section 15.2).
pub fn write_interim(interim: &InterimResponse, out: &mut BytesMut) {
    let mut head = Vec::new();
    write_status_line(interim.status, &mut head);
    for (name, value) in &interim.headers {
        write_field(name.as_str().as_bytes(), value.as_bytes(), &mut head);
    }
    head.extend_from_slice(b"\r\n");
    out.extend_from_slice(&head);
}

/// Writes the last response of a connection, sent to a malformed request.
pub fn write_error(status: StatusCode, write_date: impl Fn(&mut Vec<u8>), out: &mut Vec<u8>) {
    write_status_line(status, out);
    out.extend_from_slice(b"connection: close\r\ncontent-length: 0\r\n");
    write_date(out);
    out.extend_from_slice(b"\r\n");
}

/// Writes the first line, with the version of the sender and not of the client (RFC 9112 section 2.3).
fn write_status_line(status: StatusCode, out: &mut Vec<u8>) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    // The reason phrase is optional, but many clients expect one.
    out.extend_from_slice(status.canonical_reason().unwrap_or("Unknown").as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Whether responses with this status code never have a body (RFC 9110 section 6.4.1).
fn is_bodiless(status: StatusCode) -> bool {
    status.is_informational() || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

fn body_framing(request: RequestInfo, headers: &Headers, bodiless: bool, body: &impl Body) -> BodyFraming {
    if bodiless || body.is_end_stream() {
        return BodyFraming::Length(0);
    }
    match body.size_hint().exact().or_else(|| length_of(headers)) {
        Some(bytes) => BodyFraming::Length(bytes),
        None if request.is_http11 => {
            let announced = || framing::announced_trailers(headers.get_all(&TRAILER));
            BodyFraming::Chunked(if request.accepts_trailers { announced() } else { Box::default() })
        }
        None => BodyFraming::Close,
    }
}

/// Writes the length that the response to a GET would have.
fn write_head_content_length(headers: &Headers, body: &impl Body, out: &mut Vec<u8>) {
    let known = if body.is_end_stream() { None } else { body.size_hint().exact() };
    if let Some(bytes) = known.or_else(|| length_of(headers)) {
        framing::write_content_length(bytes, out);
    }
}

fn length_of(headers: &Headers) -> Option<u64> {
    content_length::parse(headers.get(&CONTENT_LENGTH)?)
}

#[cfg(test)]
mod tests;
